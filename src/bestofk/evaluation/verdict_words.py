"""Numbers in words: the verdict of a comparison, the sentence to quote, a paragraph, LaTeX."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from bestofk.procedures import PROCEDURES, SUBSETS
from bestofk.procedures.subsets import SETS
from bestofk.samples.sample_arrays import in_clusters, per_problem

POWER = 0.84
"""The normal quantile of 80% power."""
ASSUMED = "their bounds are not known"
"""In the note where the range of rewards had to be guessed."""


def powers_of_two(k: np.ndarray) -> tuple[int, ...]:
    """The k that are shown unless others are named: powers of two and the last; or all, where only
    some were computed.

    >>> powers_of_two(np.arange(1, 13)), powers_of_two(np.array([3, 7]))
    ((1, 2, 4, 8, 12), (3, 7))
    """
    if len(k) < k[-1]:
        return tuple(k.tolist())
    return tuple(sorted({*(2**i for i in range(int(k[-1]).bit_length())), int(k[-1])}))


def one_or_range(numbers: Any) -> str:
    """
    >>> one_or_range((8, 8)), one_or_range((4, 16))
    ('8', '4 to 16')
    """
    low, high = int(min(numbers)), int(max(numbers))
    return f"{low}" if low == high else f"{low} to {high}"


def spans(mask: np.ndarray) -> list[tuple[int, int]]:
    """Runs of True as (first, last) k, counted from 1.

    >>> spans(np.array([True, False, True, True]))
    [(1, 1), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return [(int(start) + 1, int(stop)) for start, stop in zip(edges[::2], edges[1::2])]


def at_k(mask: np.ndarray, k: np.ndarray) -> str:
    """The k where mask holds, in words.

    >>> at_k(np.array([True, False, True, True]), np.arange(1, 5))
    'k = 1 and k ≥ 3'
    >>> at_k(np.array([True, True]), np.array([1, 64]))
    'k = 1 and k = 64'
    """
    if not np.array_equal(k, np.arange(1, len(mask) + 1)):
        return " and ".join(f"k = {each}" for each in k[mask])
    last = len(mask)
    parts = []
    for start, stop in spans(mask):
        if start == stop:
            parts.append(f"k = {start}")
        elif (start, stop) == (1, last):
            parts.append(f"every k ≤ {last}")
        elif stop == last:
            parts.append(f"k ≥ {start}")
        elif start == 1:
            parts.append(f"k ≤ {stop}")
        else:
            parts.append(f"k = {start} to {stop}")
    return " and ".join(parts)


def percent(share: float) -> str:
    """
    >>> percent(0.95), percent(0.999)
    ('95%', '99.9%')
    """
    return f"{100 * share:.5g}%"


def decimals(low: float, high: float) -> int:
    """Digits after the point that show a number in an interval: three, or more where the interval
    is narrow or an end would look like 0.

    >>> decimals(0.1, 0.3), decimals(0.2, 0.2004), decimals(0.0002, 0.3)
    (3, 5, 4)
    """
    sizes = [high - low, 10 * abs(low), 10 * abs(high)]
    smallest = min((size for size in sizes if 1e-12 < size < math.inf), default=1.0)
    return max(3, 1 - math.floor(math.log10(smallest)))


def p_text(p: float, *, level: float = 0.05, bare: bool = False) -> str:
    """A p-value as papers write it, or as the cell of a table; never 0, and not rounded onto the
    level of the test from above.

    >>> p_text(0.0131), p_text(0.2), p_text(1.6e-5), p_text(1.0), p_text(0.013, bare=True)
    ('p = .013', 'p = .2', 'p < .0001', 'p = 1', '.013')
    >>> p_text(0.0501), p_text(0.0499)
    ('p = .0501', 'p = .05')
    """
    digits = 2
    while float(f"{p:.{digits}g}") <= level < p - 1e-9:
        digits += 1
    text = "< .0001" if p < 1e-4 else f"{p:.{digits}g}".removeprefix("0")
    return text if bare else f"p {text}" if p < 1e-4 else f"p = {text}"


def metric_at(metric: str, k: int) -> str:
    """A metric's name at one k.

    >>> metric_at("retry@k:tokens against pass^k", 8)
    'retry@8:tokens against pass^8'
    """
    return metric.replace("@k", f"@{k}").replace("^k", f"^{k}")


def quote(result: Any, k: int) -> str:
    """The sentence that people quote: the number, its interval, what it is over, how many.

    "pass@1: +0.099 [0.063, 0.135], p < .0001, paired, 60 problems × 16 samples".
    """
    one, at = result.at(k), result.place(k)
    name = "mean reward" if result.metric == "mean" else metric_at(result.metric, k)
    problems = in_clusters(len(result.problems), result.clusters)
    if not result.signed:
        size = f"{problems} × {per_problem(result.n)}"
        return f"{name} = {one!r} ({percent(result.confidence)} over {_drawn(result)}), {size}"
    size = f"{problems} × {per_problem((*result.n_a, *result.n_b))}"
    return (
        f"{name}: {one.text('+')}, "
        f"{p_text(result.p_value[at], level=1 - result.confidence)}, paired, {size}"
    )


def _drawn(result: Any) -> str:
    """What intervals and tests are over."""
    return "problems" if result.clusters is None else "clusters of problems"


FAMILY = {
    **{metric: procedure.meaning for metric, procedure in PROCEDURES.items()},
    "pass@k": "the chance that at least one of k samples passes",
    "maj@k": "the chance that the most frequent answer among k samples is right",
    "pass^k": "the chance that all k samples pass",
    "mean": "the mean reward",
}
ATLEAST = re.compile(r"atleast([1-9]\d*)@k")


def meaning(metric: str) -> str:
    """What a metric is, in words.

    >>> meaning("atleast2@k")
    'the chance that 2 or more of k samples pass'
    """
    if count := ATLEAST.fullmatch(metric):
        return f"the chance that {count[1]} or more of k samples pass"
    return FAMILY[metric]


def methods(result: Any) -> str:
    """A paragraph for a paper: what was estimated and how, from what was computed."""
    sets = f"all, or {SETS} or more," if SUBSETS.metric in result.metric else "all"
    unbiased = f", by the unbiased estimator over {sets} k-subsets of a problem's samples"
    what = " against ".join(meaning(each) for each in result.metric.split(" against "))
    what += unbiased * (result.metric != "mean" and not result.metric.startswith("maj@k"))
    problems = in_clusters(len(result.problems), result.clusters)
    limit = result.threshold
    passes = "" if limit is None else f" A reward of {limit:g} or more passes."
    guessed = [note for note in result.notes if ASSUMED in note]
    assumed = f" A range is assumed: {guessed[0].rpartition(';')[0]}." if guessed else ""
    sure, units = percent(result.confidence), _drawn(result)
    if not result.signed:
        lost = f" Samples that could not be scored and are not counted: {result.unscored}."
        return (
            f"We report {result.metric}, {what}, on {problems} with {per_problem(result.n)} each."
            f"{passes} {sure} intervals are over {units}, by a bounded bootstrap (Gaffke, 2005) "
            f"with {result.resamples:,} draws and seed {result.seed}, for rewards between "
            f"{result.bounds[0]:g} and {result.bounds[1]:g}.{assumed}"
            + lost
            * (result.unscored > 0)
        )
    every = at_k(np.ones(len(result.k), bool), result.k)
    scope = f", over {every}" * (len(result.k) > 1)
    return (
        f"We compare {result.b} with {result.a} in {result.metric}, {what}, paired by problem on "
        f"{problems} with {per_problem((*result.n_a, *result.n_b))} each.{passes} p-values and "
        f"{sure} intervals come from one test. The signs of the differences of {units} are flipped "
        f"({result.resamples:,} flips, seed {result.seed}), and the largest studentised mean is "
        f"the reference (max-T, Westfall and Young{scope}). A second test allows for rare losses "
        f"as large as the range of rewards; the larger p-value and the wider interval "
        f"count.{assumed}"
    )


LATEX = r"""\begin{table}
\centering
\caption{CAPTION}
\begin{tabular}{COLUMNS}
\toprule
HEAD \\
\midrule
ROWS \\
\bottomrule
\end{tabular}
\end{table}"""


def latex(result: Any) -> str:
    """A table for a paper (booktabs), with what it is about in its caption."""
    sign, p = ("+", ["$p$"]) if result.signed else ("", [])
    rows = []
    for k in result.shown or powers_of_two(result.k):
        one, name = result.at(k), _escaped(metric_at(result.metric, k))
        value, ends = one.text(sign).split(" ", 1)
        cells = [name, f"${value}$", f"${ends}$"]
        if result.signed:
            at, level = result.place(k), 1 - result.confidence
            cells.append(f"${p_text(result.p_value[at], level=level, bare=True)}$")
        rows.append(" & ".join(cells))
    named = "difference" if result.signed else "estimate"
    head = " & ".join(["", named, _escaped(percent(result.confidence)), *p])
    table = LATEX.replace("COLUMNS", "lrr" + "r" * len(p)).replace("HEAD", head)
    return table.replace("ROWS", " \\\\\n".join(rows)).replace(
        "CAPTION", _escaped(f"{result.title}.")
    )


def _escaped(text: str) -> str:
    """Text for LaTeX: names come from files.

    >>> _escaped("a_b & 5%"), _escaped("pass^k")
    ('a\\\\_b \\\\& 5\\\\%', 'pass\\\\textasciicircum{}k')
    """
    return re.sub(r"[&%#_{}]", r"\\\g<0>", text).replace("^", r"\textasciicircum{}")


def verdict(
    names: tuple[str, str],
    k: np.ndarray,
    difference: np.ndarray,
    p_value: np.ndarray,
    visible: np.ndarray,
    level: float,
    problems: str,
    identical: bool = False,
    size: float = 1.0,
) -> str:
    """What the comparison shows, in one or two sentences.

    Args:
        p_value: corrected; only these count.
        visible: the difference that would have been found four times out of five.
        problems: how many there are, in words.
        identical: no problem differs at any k.
        size: the largest difference there can be: the range of the rewards.
    """
    a, b = names
    if identical:
        return f"{a} and {b} are identical on each of their {problems}."
    places = decimals(0.0, size / 100)
    sure = p_value <= level
    contiguous = np.array_equal(k, np.arange(1, len(k) + 1))
    scope = f"any k ≤ {k[-1]}" if contiguous and len(k) > 1 else at_k(np.ones(len(k), bool), k)
    how = f"p ≤ {level:.4g}" + ", corrected over all k" * (len(k) > 1)
    if not sure.any():
        top = int(np.abs(difference).argmax())
        largest = f"{difference[top]:+.{places}f}"
        largest = f"largest {largest} at k = {k[top]}" if len(k) > 1 else largest
        result = (
            f"No significant difference between {a} and {b} at {scope} "
            f"({largest}, {p_text(p_value[top], level=level)})"
        )
        few = f"{problems} {'is' if problems == '1 problem' else 'are'} too few"
        if not np.isfinite(visible[top]):
            return f"{result}; {few} for this test (6 or more)."
        if visible[top] > size:
            return f"{result}; {few} to show any but a complete change."
        return f"{result}; {problems} would have shown one of about {visible[top]:.{places}f}."
    parts = []
    for word, mask in (("better", sure & (difference > 0)), ("worse", sure & (difference < 0))):
        if mask.any():
            top = int(np.where(mask, np.abs(difference), -1.0).argmax())
            parts.append(
                f"{word} at {at_k(mask, k)} ({difference[top]:+.{places}f} at k = {k[top]})"
            )
    text = f"{b} is {', '.join(parts)} than {a} ({problems}, {how})"
    if not sure.all():
        text += f"; no significant difference at {at_k(~sure, k)}"
    return text + "."


def effects(comparison: Any) -> str:
    """The sizes of the difference at the first and the last k, and where the curves cross.

    An effect that is not significant says so; where both are not, the largest significant one
    between them is told too. "b against a: +0.195 at pass@1, −0.185 at pass@64; crossing at
    k ≈ 11."
    """
    level = 1.0 - comparison.confidence
    if comparison.metric == "mean":
        places = [(0, "mean reward")]
    else:
        sure = comparison.p_value <= level
        shown = {0, len(comparison.k) - 1}
        if sure.any() and not sure[[*shown]].any():
            shown.add(int(np.where(sure, np.abs(comparison.difference), -1.0).argmax()))
        places = [(at, metric_at(comparison.metric, comparison.k[at])) for at in sorted(shown)]
    parts = []
    for at, name in places:
        note = "" if comparison.p_value[at] <= level else " (not significant)"
        one = comparison.at(comparison.k[at])
        value = f"{one.value:+.{one.decimals}f}".replace("-", "\u2212")
        parts.append(f"{value} at {name}{note}")
    text = f"{comparison.b} against {comparison.a}: {', '.join(parts)}"
    if comparison.crossing is not None:
        text += f"; crossing at k ≈ {comparison.crossing.k:.2g}"
    return text + "."
