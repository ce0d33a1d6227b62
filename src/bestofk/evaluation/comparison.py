"""Is run B better than run A? Paired by problem, at every k, with the k where the curves cross.

Pairing removes what the problems contribute to the noise: most problems are hard or easy for both
runs. **p-values** flip the sign of each problem's difference at random: if the two runs were alike,
A and B could as well have been swapped on any problem. T = mean / standard error is recomputed for
every flip, and the corrected p-value of a k is the share of flips whose *largest* |T| over all k
(and over all comparisons made together) reaches the observed one (Westfall & Young's max-T):
looking at every k costs little, because neighbouring k are almost the same question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .curves import check_confidence, reward_bounds, select
from .intervals import (
    LARGEST_SKEW,
    LEAST_INFORMATIVE,
    bounds_of_means,
    log_grid,
    t_quantile,
    tail_rank,
)
from .results import Comparison, Crossing, Interval, Metric, Samples
from .values import check_metric, passes_and_samples, values_by_k
from .words import verdict

SAME = 1e-9
"""Per-problem values that differ by no more than this are a tie."""
CROSSING_POINTS = 128
CELLS = 1 << 24


@dataclass(frozen=True)
class _Tests:
    """Of all differences together, columns (comparison, k) side by side."""

    single: np.ndarray
    corrected: np.ndarray
    critical: float
    """Quantile of the largest |T|: half the width of the band, in standard errors."""
    error: np.ndarray
    """Standard error of each mean difference."""
    width: int
    """Columns (k) of one comparison."""

    def of(self, number: int) -> _Tests:
        """The part of one comparison."""
        at = slice(number * self.width, (number + 1) * self.width)
        parts = self.single[at], self.corrected[at], self.critical, self.error[at]
        return _Tests(*parts, self.width)


def compare(
    runs: Sequence[Samples],
    metric: Metric = "pass@k",
    *,
    k_max: int | None = None,
    threshold: float | None = None,
    bounds: tuple[float, float] | None = None,
    small: str = "error",
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> list[Comparison]:
    """Each run after the first against the first, over the problems that all of them have.

    Arguments as in `curve`; `resamples` are the sign flips, and the draws for the crossing.

    Raises:
        ValueError: fewer than two runs, names used twice, no common problem, n < k.
    """
    check_metric(metric)
    check_confidence(confidence, resamples)
    _check_runs(runs)
    common, kept, k_max, notes = _common(runs, metric, k_max, small)
    tables = [
        values_by_k(run, metric, rows, k_max, threshold=threshold, seed=seed)
        for run, rows in zip(runs, kept)
    ]
    size = max(float(np.diff(reward_bounds(run, metric, bounds)[0])[0]) for run in runs)
    gaps = [table - tables[0] for table in tables[1:]]
    rng = np.random.default_rng(seed)
    tests = sign_flip_tests(np.concatenate(gaps, axis=1), confidence, resamples, rng, k_max)
    findings = [
        _findings(gap, tests.of(number), (runs[0].name, run.name), size, confidence, resamples, rng)
        for number, (gap, run) in enumerate(zip(gaps, runs[1:]))
    ]
    solved = [_solved(run, rows, threshold, metric) for run, rows in zip(runs, kept)]
    return [
        Comparison(
            a=runs[0].name,
            b=runs[number].name,
            metric=metric,
            values_a=tables[0],
            values_b=tables[number],
            problems=common,
            only_a=_apart(runs[0], runs[number]),
            only_b=_apart(runs[number], runs[0]),
            solved_only_a=_chosen(common, solved[0] & ~solved[number]),
            solved_only_b=_chosen(common, solved[number] & ~solved[0]),
            n_a=_range(runs[0].live[kept[0]]),
            n_b=_range(runs[number].live[kept[number]]),
            threshold=threshold,
            confidence=confidence,
            resamples=resamples,
            seed=seed,
            notes=notes + _pair_notes(runs[0], runs[number]),
            **findings[number - 1],
        )
        for number in range(1, len(runs))
    ]


def _findings(
    gap: np.ndarray,
    tests: _Tests,
    names: tuple[str, str],
    size: float,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """What the differences of one pair (P, K) say: those fields of a Comparison."""
    mean = gap.mean(axis=0)
    interval = _pointwise(gap, (-size, size), tests.error, confidence, resamples, rng)
    level = 1.0 - confidence
    return {
        "k": np.arange(1, gap.shape[1] + 1),
        "difference": mean,
        "interval": interval,
        "band": _band(mean, tests.error * tests.critical, interval, size),
        "p_value": tests.corrected,
        "p_value_single": tests.single,
        "wins": (gap > SAME).sum(axis=0),
        "losses": (gap < -SAME).sum(axis=0),
        "ties": (np.abs(gap) <= SAME).sum(axis=0),
        "crossing": find_crossing(gap, names, confidence, resamples, rng),
        "verdict": verdict(names, mean, tests.corrected, tests.error, level, len(gap)),
    }


def _check_runs(runs: Sequence[Samples]) -> None:
    if len(runs) < 2:
        raise ValueError(f"a comparison takes at least two runs, got {len(runs)}")
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two runs are called {twice!r}: give them names that differ (--names)")


def _common(
    runs: Sequence[Samples], metric: Metric, k_max: int | None, small: str
) -> tuple[tuple[str, ...], list[np.ndarray], int, tuple[str, ...]]:
    """Problems that count in every run, their rows in each, the largest k, and notes."""
    shared = set.intersection(*(set(run.problems) for run in runs))
    if not shared:
        examples = ", ".join(f"{run.name} has {run.problems[0]!r}" for run in runs if run.problems)
        raise ValueError(
            f"the runs have no problem in common, so nothing can be paired ({examples}): "
            "are these the same task, and is the right column named as the problem id?"
        )
    chosen: list[set[str]] = []
    limits, notes = [], list[str]()
    for run in runs:
        here = _subset(run, shared)
        rows, limit, told = select(here, metric, k_max, small)
        chosen.append({here.problems[row] for row in rows})
        limits.append(limit)
        notes += [f"{run.name}: {note}" for note in told]
    common = tuple(sorted(set.intersection(*chosen)))
    if not common:
        raise ValueError("no problem has enough scored samples in every run: ask for a smaller k")
    kept = []
    for run in runs:
        row = {problem: number for number, problem in enumerate(run.problems)}
        kept.append(np.array([row[problem] for problem in common]))
    return common, kept, min(limits), tuple(notes)


def _subset(run: Samples, problems: set[str]) -> Samples:
    """The run's rewards on some of its problems."""
    keep = np.array([problem in problems for problem in run.problems])
    flat = np.repeat(keep, run.sizes)
    return Samples(
        name=run.name,
        problems=tuple(p for p in run.problems if p in problems),
        offsets=np.concatenate([[0], np.cumsum(run.sizes[keep])]),
        rewards=run.rewards[flat],
    )


def sign_flip_tests(
    gaps: np.ndarray, confidence: float, resamples: int, rng: np.random.Generator, width: int = 0
) -> _Tests:
    """Sign-flip tests of every column of gaps (P, columns), alone and by max-T together."""
    problems, columns = gaps.shape
    mean = gaps.mean(axis=0)
    squares = (gaps**2).mean(axis=0)
    error = np.sqrt(np.maximum(squares - mean**2, 0.0) / max(problems - 1, 1))
    observed = _studentise(mean, squares, problems)
    small = gaps.astype(np.float32)
    reached, reached_any = np.zeros(columns), np.zeros(columns)
    largest = np.empty(resamples)
    step = max(1, min(CELLS // problems, CELLS // columns))
    for start in range(0, resamples, step):
        stop = min(start + step, resamples)
        signs = rng.integers(0, 2, (stop - start, problems), dtype=np.int8) * 2 - 1
        flipped = (signs.astype(np.float32) @ small) / np.float32(problems)
        statistic = _studentise(flipped, squares.astype(np.float32), problems)
        reached += (statistic >= observed * (1 - 1e-5)).sum(axis=0)
        top = statistic.max(axis=1)
        largest[start:stop] = top
        reached_any += len(top) - np.searchsorted(np.sort(top), observed * (1 - 1e-5))
    critical = float(np.sort(largest)[tail_rank(1.0 - confidence, resamples)])
    return _Tests(
        single=(1 + reached) / (1 + resamples),
        corrected=(1 + reached_any) / (1 + resamples),
        critical=critical,
        error=error,
        width=width or columns,
    )


def _studentise(mean: np.ndarray, squares: np.ndarray, problems: int) -> np.ndarray:
    """|T| of means whose second moment is `squares`; 0 where nothing differs."""
    spread = np.maximum(squares - mean**2, 1e-6 * squares)
    quiet = squares <= SAME**2
    safe = np.where(quiet, 1.0, spread)
    return np.where(quiet, 0.0, np.abs(mean) / np.sqrt(safe / max(problems - 1, 1)))


def _pointwise(
    gap: np.ndarray,
    bounds: tuple[float, float],
    error: np.ndarray,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> Interval:
    """Student's t where enough problems differ evenly, elsewhere the bounded bootstrap."""
    problems = gap.shape[0]
    mean = gap.mean(axis=0)
    spread = error * np.sqrt(max(problems - 1, 1))
    skew = ((gap - mean) ** 3).mean(axis=0) / np.where(spread > 0, spread, 1.0) ** 3
    trusted = (np.abs(gap) > SAME).sum(axis=0) >= LEAST_INFORMATIVE
    trusted &= np.abs(skew) <= LARGEST_SKEW * np.sqrt(problems)
    half = t_quantile(0.5 + confidence / 2, problems - 1) * error if problems > 1 else 0 * error
    low, high = mean - half, mean + half
    doubtful = np.flatnonzero(~trusted)
    if doubtful.size:
        lower, upper = bounds_of_means(gap[:, doubtful], bounds, resamples, rng)
        rank = tail_rank((1.0 - confidence) / 2, resamples)
        low[doubtful] = np.sort(lower, axis=0)[resamples - 1 - rank]
        high[doubtful] = np.sort(upper, axis=0)[rank]
    return Interval(np.maximum(low, bounds[0]), np.minimum(high, bounds[1]))


def _band(mean: np.ndarray, half: np.ndarray, single: Interval, size: float) -> Interval:
    """mean ± half, and nowhere narrower than the interval at one k."""
    low = np.maximum(np.minimum(mean - half, single.low), -size)
    return Interval(low, np.minimum(np.maximum(mean + half, single.high), size))


def find_crossing(
    gap: np.ndarray,
    names: tuple[str, str],
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> Crossing | None:
    """The first k where the mean difference changes sign, with a bootstrap interval over problems.

    A resample without a crossing counts as "beyond the last k" if it starts with the sign that was
    observed at k = 1, and as "before k = 1" if it starts with the other.
    """
    grid = log_grid(gap.shape[1], CROSSING_POINTS)
    mean = gap.mean(axis=0)
    k = np.arange(1, gap.shape[1] + 1, dtype=float)
    where = crossings(mean[None], k, np.sign(_first_sign(mean)))[0]
    if not np.isfinite(where) or where == 0.0:
        return None
    drawn, _ = bounds_of_means(gap[:, grid], (0.0, 0.0), resamples, rng)
    spread = np.sort(crossings(drawn, k[grid], np.sign(_first_sign(mean))))
    rank = tail_rank((1.0 - confidence) / 2, resamples)
    after = names[1] if _first_sign(mean) < 0 else names[0]
    return Crossing(float(where), float(spread[resamples - 1 - rank]), float(spread[rank]), after)


def _first_sign(mean: np.ndarray) -> float:
    distinct = mean[np.abs(mean) > SAME]
    return float(distinct[0]) if distinct.size else 0.0


def crossings(curves: np.ndarray, k: np.ndarray, start: float) -> np.ndarray:
    """For each row, the k (log-interpolated) where it first leaves the sign `start`.

    0 where it does not start with that sign, infinity where it never leaves it.
    """
    left = curves * start < -SAME
    first = left.argmax(axis=1)
    rows = np.arange(len(curves))
    before = np.maximum(first - 1, 0)
    high, low = curves[rows, before], curves[rows, first]
    share = np.divide(high, high - low, out=np.zeros(len(curves)), where=high != low)
    logs = np.log(k[before]) + np.clip(share, 0.0, 1.0) * (np.log(k[first]) - np.log(k[before]))
    inside = np.where(first == 0, 0.0, np.exp(logs))
    return np.where(left.any(axis=1) & (start != 0), inside, np.inf)


def _solved(run: Samples, rows: np.ndarray, threshold: float | None, metric: Metric) -> np.ndarray:
    """(P',) whether any sample passes; nobody where "pass" is not defined."""
    if metric in ("max@k", "mean") and threshold is None:
        return np.zeros(len(rows), dtype=bool)
    return passes_and_samples(run, threshold)[0][rows] > 0


def _chosen(problems: tuple[str, ...], mask: np.ndarray) -> tuple[str, ...]:
    return tuple(problem for problem, chosen in zip(problems, mask) if chosen)


def _apart(run: Samples, other: Samples) -> tuple[str, ...]:
    """Problems that only `run` has."""
    return tuple(sorted(set(run.problems) - set(other.problems)))


def _range(counts: np.ndarray) -> tuple[int, int]:
    return int(counts.min()), int(counts.max())


def _pair_notes(a: Samples, b: Samples) -> tuple[str, ...]:
    return tuple(
        f"{count} problems of {run.name} are not in {other.name} and are not compared"
        for run, other in ((a, b), (b, a))
        if (count := len(_apart(run, other)))
    )
