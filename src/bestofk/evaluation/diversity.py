"""How different the samples of one problem are: the thing that training for one sample loses."""

from __future__ import annotations

import zlib

import numpy as np

from bestofk.messages import counted
from bestofk.procedures.binomials import subset_share
from bestofk.samples import Samples

from .intervals import allowance, bounds_of_means, by_cluster, t_quantile, tail_rank
from .per_problem import passing
from .results import Diversity, Measure

RESAMPLES = 2000
WRONG = 4
"""Wrong samples among which distinct answers are counted, whatever the accuracy is."""
UNKNOWN = Measure(float("nan"), float("nan"), float("nan"), 0)


def diversity(
    samples: Samples,
    *,
    m: int | None = None,
    threshold: float | None = None,
    confidence: float = 0.95,
) -> Diversity:
    """Distinct and effective answers, compression and entropy, each with an interval over problems.

    Distinct answers grow with the number of samples, so they are counted as a random draw of m
    samples would show them (rarefaction): Σ_answers 1 - C(n - c, m)/C(n, m), unbiased for every
    m ≤ n. Compare runs at the same m. The effective number is 1 / Σ share² of the answers given.
    How different wrong answers are is counted among a fixed number of wrong samples, by the same
    formula: it depends on which wrong answers there are and not on how many are right.

    Args:
        m: samples drawn, at most the fewest of any problem; by default as many.
        threshold: what counts as right, where rewards are not 0/1.
    """
    sizes = samples.sizes
    filled = np.flatnonzero(sizes > 0)
    m = int(min(sizes[filled], default=0)) if m is None else m
    notes: tuple[str, ...] = ()
    tables: dict[str, np.ndarray] = {}
    silent = float("nan")
    if samples.answers is None:
        notes += ("the file has no answers: distinct and effective answers are not known",)
    else:
        tables, conflicts = _by_answer(samples, filled, m, passing(samples, threshold))
        silent = float((samples.answers < 0).mean())
        if conflicts:
            verbs = (f"{verb} judged both right and wrong in one problem" for verb in ("is", "are"))
            notes += (counted(conflicts, "answer", *verbs),)
    ratios = np.full(len(samples.problems), np.nan)
    for problem, texts in samples.texts.items():
        ratios[problem] = _compression(texts) if len(texts) > 1 else np.nan
    clusters = samples.cluster_of(filled)

    def over(values: np.ndarray | None, bounds: tuple[float, float] | None = None) -> Measure:
        return _mean(values, confidence, bounds, clusters)

    return Diversity(
        name=samples.name,
        m=m,
        distinct=over(tables.get("distinct"), (0.0, float(m))),
        effective=over(tables.get("effective"), (1.0, float(sizes.max()))),
        distinct_wrong=over(tables.get("wrong"), (0.0, float(m))),
        distinct_correct=over(tables.get("correct"), (0.0, float(m))),
        distinct_among_wrong=over(tables.get("among wrong"), (1.0, float(WRONG))),
        compression=over(ratios[filled]),
        entropy=over(_surprise(samples, filled, per_token=False)),
        entropy_per_token=over(_surprise(samples, filled, per_token=True)),
        no_answer=silent,
        confidence=confidence,
        notes=notes,
    )


def expected_distinct(counts: np.ndarray, n: int, m: int) -> float:
    """Distinct kinds in a random draw of m out of n, when kind i occurs counts[i] times.

    >>> expected_distinct(np.array([2, 1, 1]), 4, 4), expected_distinct(np.array([4]), 4, 2)
    (3.0, 1.0)
    """
    return float((1.0 - subset_share(n, m)[n - counts]).sum())


def _by_answer(
    samples: Samples, filled: np.ndarray, m: int, correct: np.ndarray
) -> tuple[dict[str, np.ndarray], int]:
    """Per problem: the counts and shares that `diversity` averages; and contradictions."""
    assert samples.answers is not None
    names_of_rows = ("distinct", "effective", "wrong", "correct", "among wrong")
    rows: dict[str, list[float]] = {name: [] for name in names_of_rows}
    conflicts = 0
    for problem in filled:
        span = samples.of(int(problem))
        answer, right = samples.answers[span], correct[span]
        n, answered = len(answer), answer >= 0
        names, label, counts = np.unique(answer[answered], return_inverse=True, return_counts=True)
        rows["distinct"].append(expected_distinct(counts, n, m))
        effective = counts.sum() ** 2 / (counts**2).sum() if counts.size else np.nan
        rows["effective"].append(float(effective))
        passing = np.bincount(label, right[answered] == 1, len(names)) > 0
        failing = np.bincount(label, right[answered] == 0, len(names)) > 0
        conflicts += int((passing & failing).sum())
        rows["wrong"].append(expected_distinct(counts[failing & ~passing], n, m))
        rows["correct"].append(expected_distinct(counts[passing], n, m))
        _, kinds = np.unique(answer[answered & (right == 0)], return_counts=True)
        wrong, enough = int(kinds.sum()), kinds.sum() >= WRONG
        rows["among wrong"].append(expected_distinct(kinds, wrong, WRONG) if enough else np.nan)
    return {name: np.array(values) for name, values in rows.items()}, conflicts


def _compression(texts: tuple[str, ...]) -> float:
    data = "\n".join(texts).encode("utf-8", "surrogatepass")
    return len(data) / len(zlib.compress(data, 6)) if data else float("nan")


def _surprise(samples: Samples, filled: np.ndarray, *, per_token: bool) -> np.ndarray | None:
    """Mean -log-probability of a problem's completions: estimates the policy's entropy."""
    if samples.logprobs is None:
        return None
    weights = samples.tokens if per_token else np.ones(len(samples.logprobs))
    if weights is None:
        return None
    means = np.full(len(filled), np.nan)
    for row, problem in enumerate(filled):
        span = samples.of(int(problem))
        surprise, weight = -samples.logprobs[span], weights[span]
        counted_in = np.isfinite(surprise) & (weight > 0)
        if counted_in.any():
            means[row] = surprise[counted_in].sum() / weight[counted_in].sum()
    return means


def _mean(
    values: np.ndarray | None,
    confidence: float,
    bounds: tuple[float, float] | None,
    clusters: np.ndarray | None,
) -> Measure:
    """Mean ± Student's t over problems, or over their clusters; the bounded bootstrap where all are
    alike. NaN is a problem that does not tell."""
    if values is None or not np.isfinite(values).any():
        return UNKNOWN
    is_known = np.isfinite(values)
    finite = values[is_known]
    within = None if clusters is None else np.unique(clusters[is_known], return_inverse=True)[1]
    mean, count = float(finite.mean()), int(finite.size)
    same = bool(np.ptp(finite) < 1e-12)
    if same and bounds is not None and bounds[0] < bounds[1]:
        rng = np.random.default_rng(0)
        low, high = bounds_of_means(finite[:, None], bounds, RESAMPLES, rng, within)
        rank = tail_rank((1.0 - confidence) / 2, RESAMPLES)
        ends = np.sort(low[:, 0])[RESAMPLES - 1 - rank], np.sort(high[:, 0])[rank]
        return Measure(mean, float(ends[0]), float(ends[1]), count)
    units, _ = by_cluster((finite - mean)[:, None], within)
    if len(units) < 2 or same:  # nothing to tell the width from
        return Measure(mean, float("nan"), float("nan"), count)
    error = np.sqrt((units**2).sum() / (len(units) - 1) / len(units))
    half = t_quantile(0.5 + confidence / 2, len(units) - 1) * float(error)
    half *= float(allowance((finite - mean)[:, None], within, confidence)[0])
    floor, ceiling = bounds or (0.0, np.inf)  # nothing here can be negative
    return Measure(mean, max(mean - half, floor), min(mean + half, ceiling), count)
