"""Tables and sentences for `bestofk eval`, `compare` and `plan`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bestofk.cli._wrapping import wrapped

if TYPE_CHECKING:
    from bestofk.evaluation import (
        Comparison,
        Curve,
        Diversity,
        Extrapolation,
        Measure,
        Plan,
        ReweightedEstimate,
        Samples,
    )


WIDTH = 80
"""Columns that a table takes, unless the wide one is asked for."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, wide: bool = False) -> None:
    """A table for terminals and pipes alike; the first column is a name, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    built = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(header):
        built.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        built.add_row(*row)
    console = Console(highlight=False)
    if wide or not console.is_terminal:
        console = Console(highlight=False, width=160 if wide else WIDTH)
    console.print(built)


def cut(name: str, most: int = 12) -> str:
    """A name for the head of a column.

    >>> cut("a-rather-long-name")
    'a-rather-lo…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def say(text: str) -> None:
    """A line of plain text; nothing in it is markup."""
    print(wrapped(text))


def source(samples: Samples) -> None:
    """Where a run came from and how its columns were understood."""
    reported = samples.metadata
    pairs = ", ".join(f"{role}={column}" for role, column in reported.get("mapping", {}).items())
    sizes = samples.sizes
    n = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    say(f"{samples.name}: {reported.get('path', '')} ({reported.get('format', '')}; {pairs})")
    say(
        f"  {len(samples.problems):,} problem{'s' * (len(samples.problems) != 1)} × "
        f"{n} sample{'s' * (n != '1')}"
        + (f", {samples.unscored:,} unscored" if samples.unscored else "")
    )
    for note in reported.get("notes", ()):
        say(f"  {note}")


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def ends(low: float, high: float) -> str:
    return "-" if math.isnan(low) or math.isnan(high) else f"{low:.3f} to {high:.3f}"


def shown_k(k: np.ndarray, wanted: Sequence[int]) -> list[int]:
    """The k to print: those asked for, else powers of two and the last."""
    if wanted:
        return sorted(set(wanted))
    last = int(k[-1])
    powers = [2**j for j in range(last.bit_length()) if 2**j <= last]
    return sorted({*powers, last})


def curve(found: Curve, wanted: Sequence[int], *, wide: bool = False) -> None:
    """The curve at some k: the interval to quote, or every interval named for what it is."""
    n = f"{found.n[0]}" if found.n[0] == found.n[1] else f"{found.n[0]} to {found.n[1]}"
    passing = "" if found.threshold is None else f", pass = reward ≥ {found.threshold:g}"
    intervals = [found.interval, found.t, found.band, found.fixed][: 4 if wide else 1]
    rows = []
    for k in shown_k(found.k, wanted):
        at = found.at(k)
        name = found.metric if found.metric == "mean" else found.metric.replace("k", str(k))
        shown = (ends(each.low[at], each.high[at]) for each in intervals)
        rows.append((name, number(found.estimate[at]), *shown))
    sure = f"{found.confidence:.0%}"
    head = ("", "estimate", f"{sure} over problems", "by t", "band, all k", "these problems only")
    say(f"{found.name}: {found.metric}, {len(found.problems):,} problems, n = {n}{passing}")
    table(head if wide else ("", "estimate", sure), rows, wide=wide)
    for note in found.notes:
        say(f"  note: {note}")


def comparison(found: Comparison, wanted: Sequence[int], *, wide: bool = False) -> None:
    """The paired difference at some k, and the verdict."""
    rows = []
    for k in wanted or (found.k if len(found.k) < found.k[-1] else shown_k(found.k, ())):
        places = np.flatnonzero(found.k == k)
        if not places.size:
            raise ValueError(f"the comparison has k = {found.k[0]}..{found.k[-1]}, not {k}")
        at = int(places[0])
        row = [
            found.metric if found.metric == "mean" else found.metric.replace("k", str(k)),
            f"{found.values_a[:, at].mean():.3f}",
            f"{found.values_b[:, at].mean():.3f}",
            f"{found.difference[at]:+.3f}",
            f"{found.band.low[at]:+.3f} to {found.band.high[at]:+.3f}",
            f"{found.p_value[at]:.4f}",
        ]
        if wide:
            row += [
                f"{found.interval.low[at]:+.3f} to {found.interval.high[at]:+.3f}",
                f"{found.p_value_single[at]:.4f}",
                f"{found.wins[at]}/{found.losses[at]}/{found.ties[at]}",
            ]
        rows.append(row)
    sure = f"{found.confidence:.0%}"
    n = f"n = {found.n_a[0]} and {found.n_b[0]}"
    head = ["", cut(found.a), cut(found.b), "difference", sure, "p"]
    if wide:
        head += [f"{sure}, this k alone", "p, this k alone", "won/lost/tied"]
    say(f"{found.b} minus {found.a}: {found.metric}, {len(found.problems):,} paired problems, {n}")
    table(head, rows, wide=wide)
    if len(found.k) > 1:
        say(
            f"  {sure} and p are corrected over all k and pairs: p ≤ {1 - found.confidence:.2g} "
            "where the interval excludes 0"
        )
    if found.crossing is not None:
        low = "before 1" if found.crossing.low == 0 else f"{found.crossing.low:.1f}"
        beyond = f"beyond {found.k[-1]}, or never"
        high = beyond if math.isinf(found.crossing.high) else f"{found.crossing.high:.1f}"
        say(
            f"The curves cross at k = {found.crossing.k:.1f} ({sure}: {low} to {high}); "
            f"{found.crossing.better_after} is ahead after it."
        )
    if found.solved_only_a or found.solved_only_b:
        say(
            f"Solved only by {found.a}: {len(found.solved_only_a)}; "
            f"only by {found.b}: {len(found.solved_only_b)}."
        )
    for note in found.notes:
        say(f"  note: {note}")
    say(found.verdict)
    say("")


def extrapolation(found: Extrapolation) -> None:
    sure = f"{found.confidence:.0%}"
    say(
        f"{found.name}: pass@k beyond n = {found.n[0]}, extrapolated from {found.problems} problems"
        + (" — UNRELIABLE" if found.unreliable else "")
    )
    table(
        ("", "estimate", sure),
        [
            (f"pass@{k}", number(value), ends(low, high))
            for k, value, low, high in zip(
                found.k, found.estimate, found.interval.low, found.interval.high
            )
        ],
    )
    if found.holdout_n:
        last = -1
        say(
            f"  check: fitted on {found.holdout_n} samples per problem, it predicts "
            f"pass@{found.holdout_k[last]} = {found.holdout_predicted[last]:.3f}; all samples "
            f"show {found.holdout_observed[last]:.3f}"
        )
    for reason in found.reasons:
        say(f"  unreliable: {reason}")


def diversity(found: Diversity) -> None:
    """What is known about the variety of samples; nothing where nothing is."""
    named: list[tuple[str, Measure]] = [
        (f"distinct answers among {found.m}", found.distinct),
        ("effective number of answers", found.effective),
        (f"distinct wrong answers among {found.m}", found.distinct_wrong),
        (f"distinct correct answers among {found.m}", found.distinct_correct),
        ("distinct share of the wrong answers", found.wrong_share),
        ("compression ratio of completions", found.compression),
        ("entropy of a completion, nats", found.entropy),
        ("entropy per token, nats", found.entropy_per_token),
    ]
    rows = [
        (name, f"{m.value:.3f}", ends(m.low, m.high), f"{m.problems}")
        for name, m in named
        if m.problems
    ]
    if rows:
        sure = f"{found.confidence:.0%} over problems"
        say(f"{found.name}: diversity")
        table(("", "mean", sure, "problems"), rows)
    if found.no_answer > 0:
        say(f"  {found.no_answer:.1%} of samples have no answer")
    for note in found.notes:
        say(f"  note: {note}")


def off_policy(found: ReweightedEstimate) -> None:
    kind = "self-normalised, biased" if found.self_normalised else "unbiased"
    say(
        f"{found.name}: max@{found.k} of the new policy, off policy ({kind}): "
        f"{found.estimate:.4f} ({found.confidence:.0%} over {len(found.problems)} problems: "
        f"{ends(found.low, found.high)}); {found.effective:.0%} of the {found.k}-subsets count"
    )


def plan(found: Plan) -> None:
    what = (
        f"an interval of width {found.target:g} for pass@{found.k}"
        if found.goal == "width"
        else f"power {found.target:g} to find a difference of {found.effect:g} in pass@{found.k}"
    )
    runs = "" if found.goal == "width" else " (both runs)"
    scope = " alone (compare --at)" if found.at else ""
    say(f"For {what}{scope}, at {found.confidence:.0%}")
    table(
        ("samples per problem", "problems", f"samples{runs}", found.goal),
        [
            (
                f"n = {row.n}" + (" *" if row == found.best else ""),
                f"{row.problems:,}",
                f"{row.samples:,}",
                f"{row.value:.3f}",
            )
            for row in found.rows
        ],
    )
    say(f"  * fewest samples: {found.best.problems:,} problems × {found.best.n} samples")
    say(f"  population: {found.population}")
    for note in found.notes:
        say(f"  note: {note}")


def as_json(results: Any) -> str:
    """Results for programs: every field, arrays as lists, NaN as null."""
    return json.dumps(_plain(results), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
