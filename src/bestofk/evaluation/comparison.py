"""Is run B better than run A? Paired by problem, at every k, with the k where the curves cross.

Pairing removes what the problems contribute to the noise: most problems are hard or easy for both
runs. The test, and the intervals that follow from it, are in `sign_flips`: looking at every k costs
little there, because neighbouring k are almost the same question. A difference has to withstand the
thought of rare large losses too (`rare_losses`).

Where problems have clusters, the differences of a cluster are added up and tested as one
(`intervals.by_cluster`): problems of one source keep or lose their sign together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from bestofk.messages import counted
from bestofk.procedures.subsets import Worth
from bestofk.samples import Samples
from bestofk.samples.sample_arrays import in_clusters

from .curves import check_confidence, evaluated_k, reward_bounds, select
from .intervals import bounds_of_means, by_cluster, draws_for, log_grid, tail_rank
from .per_problem import is_zero_one, passes_and_samples, rules_of, values_by_k
from .rare_losses import rare_loss_test
from .results import Comparison, Crossing, Interval, Metric
from .sign_flips import LEAST_FLIPS, SAME, FlipTests, sign_flip_tests
from .verdict_words import POWER, at_k, verdict

CROSSING_POINTS = 128
CROSSING_DRAWS = 4000
LEAST_OVERLAP = 0.5
"""Runs that have less than this share of their problems in common are warned about."""


def compare(
    runs: Sequence[Samples],
    metric: Metric | Sequence[Metric] = "pass@k",
    *,
    k_max: int | None = None,
    ks: Sequence[int] = (),
    at: int | Sequence[int] | None = None,
    pairs: Literal["first", "all"] = "first",
    threshold: float | None = None,
    bounds: tuple[float, float] | None = None,
    small: str = "error",
    confidence: float = 0.95,
    resamples: int | None = None,
    seed: int = 0,
    price: float = 0.0,
    value: Worth | None = None,
) -> list[Comparison]:
    """Compare runs pair by pair, over the problems that all of them have.

    Args:
        runs: two or more; the first is the one that others are compared with.
        at: the k to test, chosen before the data were seen. The correction is over these alone,
            so the test finds smaller differences. By default every k up to k_max.
        pairs: "first" compares each later run with the first, "all" every two runs; the
            correction is over all of them.
        resamples: sign flips; by default as many as the printed digits need.
        metric: as in `curve`; or one for each of two runs, which may be the same samples: is voting
            better than the reward model at k = 8?
        k_max, ks, threshold, bounds, small, confidence, seed, price, value: as in `curve`.

    Raises:
        ValueError: fewer than two runs, no common problem, n < k.

    >>> from bestofk.evaluation import samples
    >>> a = samples([[0, 0, 0, 1]] * 12, name="a")
    >>> b = samples([[0, 1, 1, 1]] * 12, name="b")
    >>> compare([a, b], at=[1])[0].verdict
    'b is better at k = 1 (+0.500 at k = 1) than a (12 problems, p ≤ 0.05).'
    """
    metrics = [metric] * len(runs) if isinstance(metric, str) else list(metric)
    rules = rules_of(metrics, threshold=threshold, price=price, value=value, bounds=bounds)
    if len(runs) < 2:
        raise ValueError(
            f"a comparison takes at least two runs, got {len(runs)}; or two metrics of one file: "
            "--metric maj@k,select@k"
        )
    if len(metrics) != len(runs) or (len({*metrics}) > 1 and len(runs) > 2):
        raise ValueError(
            f"{len(metrics)} metrics for {len(runs)} runs: name one, or one for each of two runs"
        )
    label = metrics[0] if len({*metrics}) == 1 else f"{metrics[1]} against {metrics[0]}"
    tested = _chosen_k(at, metrics)
    k_max = max(ks, default=None) if k_max is None else k_max
    k_max = k_max if tested is None else max(int(tested[-1]), k_max or 0)
    common, rows_by_run, k_max, notes = _common(runs, metrics, k_max, small)
    k = evaluated_k(metrics, k_max, ks) if tested is None else tested
    resamples = draws_for(len(common), LEAST_FLIPS) if resamples is None else resamples
    check_confidence(confidence, resamples)
    tables = [
        values_by_k(run, each, rows, k, rules, seed=seed)
        for run, each, rows in zip(runs, metrics, rows_by_run)
    ]
    ranges = [
        reward_bounds(runs, each, bounds, price=price, k_max=k_max)
        for each in dict.fromkeys(metrics)
    ]
    assumed = next((notes for _, notes in ranges if notes), ())
    size = max(high for (_, high), _ in ranges) - min(low for (low, _), _ in ranges)
    clusters = _clusters(runs, rows_by_run, common)
    couples = [
        (a, b) for a, b in itertools.combinations(range(len(runs)), 2) if a == 0 or pairs == "all"
    ]
    gaps = [tables[b] - tables[a] for a, b in couples]
    units, sizes = by_cluster(np.concatenate(gaps, axis=1), clusters)
    # The loss that was not seen is a whole cluster, as large as the cluster of a random problem.
    largest = size if sizes is None else size * float((sizes**2).mean())
    rng = np.random.default_rng(seed)
    tests = sign_flip_tests(units, confidence, resamples, rng, largest)
    solved = [_solved(*each, threshold) for each in zip(runs, rows_by_run, metrics)]
    result = []
    for number, (a, b) in enumerate(couples):
        columns = slice(number * len(k), (number + 1) * len(k))
        names = (runs[a].name, runs[b].name)
        findings = _findings(
            gaps[number],
            units[:, columns],
            k,
            tests.of(columns),
            names,
            (size, largest),
            confidence,
            rng,
        )
        notes_here = (
            notes + rules.notes + assumed + _pair_notes(runs[a], runs[b]) + findings.pop("notes")
        )
        result.append(
            Comparison(
                a=names[0],
                b=names[1],
                metric=label,
                k=k,
                values_a=tables[a],
                values_b=tables[b],
                problems=common,
                only_a=_apart(runs[a], runs[b]),
                only_b=_apart(runs[b], runs[a]),
                solved_only_a=_chosen(common, solved[a] & ~solved[b]),
                solved_only_b=_chosen(common, solved[b] & ~solved[a]),
                n_a=_range(runs[a].live[rows_by_run[a]]),
                n_b=_range(runs[b].live[rows_by_run[b]]),
                threshold=threshold,
                confidence=confidence,
                resamples=resamples,
                seed=seed,
                clusters=None if clusters is None else len(units),
                notes=notes_here,
                shown=tuple(sorted({*ks})),
                **findings,
            )
        )
    return result


def _chosen_k(at: int | Sequence[int] | None, metrics: Sequence[Metric]) -> np.ndarray | None:
    if at is None:
        return None
    tested = np.unique(np.asarray(at, dtype=np.int64))
    if not tested.size or tested[0] < 1:
        raise ValueError(f"at takes one or more k of at least 1, got {at}")
    if "mean" in metrics and tested.tolist() != [1]:
        raise ValueError(f"the mean reward has no k: leave at={at} out")
    return tested


def _clusters(
    runs: Sequence[Samples], rows_by_run: Sequence[np.ndarray], problems: tuple[str, ...]
) -> np.ndarray | None:
    """The cluster of each common problem, on which every run that knows clusters must agree."""
    clustered = [(run, rows) for run, rows in zip(runs, rows_by_run) if run.clusters is not None]
    for run, rows in clustered[1:]:
        first, at = clustered[0]
        for problem, one, other in zip(problems, at, rows):
            ours, theirs = first.clusters[one], run.clusters[other]  # type: ignore[index]
            if ours != theirs:
                raise ValueError(
                    f"problem {problem!r} is in cluster {ours!r} in {first.name} and in {theirs!r} "
                    f"in {run.name}: a cluster belongs to the problem, not to its samples"
                )
    return clustered[0][0].cluster_of(clustered[0][1]) if clustered else None


def _findings(
    gap: np.ndarray,
    units: np.ndarray,
    k: np.ndarray,
    tests: FlipTests,
    names: tuple[str, str],
    sizes: tuple[float, float],
    confidence: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """What the differences of one pair (P, K) say: those fields of a Comparison.

    Args:
        units: (C, K) what is drawn and flipped as one: the differences, or their sums by cluster.
        sizes: the largest that a mean difference, and that a unit, can be.
    """
    mean, tie = gap.mean(axis=0), SAME * sizes[0]
    mean[np.abs(mean) <= tie] = 0.0  # and not -0.000
    level = 1.0 - confidence + 1e-12
    second = rare_loss_test(units, sizes[1], confidence)
    many = in_clusters(len(gap), len(units) if len(units) < len(gap) else None)
    p_value = np.maximum(tests.p_value, second.p_value)
    held_back = (tests.p_value <= level) & (p_value > level)
    half = tests.error * tests.critical
    low = np.minimum(mean - half, second.interval.low)  # 0 is outside if both tests exclude it
    high = np.maximum(mean + half, second.interval.high)
    contiguous = len(k) == k[-1]
    return {
        "difference": mean,
        "band": Interval(np.maximum(low, -sizes[0]), np.minimum(high, sizes[0])),
        "p_value": p_value,
        "wins": (gap > tie).sum(axis=0),
        "losses": (gap < -tie).sum(axis=0),
        "ties": (np.abs(gap) <= tie).sum(axis=0),
        "crossing": find_crossing(units / sizes[0], names, confidence, CROSSING_DRAWS, rng)
        if contiguous
        else None,
        "verdict": verdict(
            names,
            k,
            mean,
            p_value,
            np.maximum(half, second.smallest_gain) + POWER * tests.error,
            level,
            many,
            identical=bool((np.abs(gap) <= tie).all()),
            size=sizes[0],
        ),
        "notes": _held_back(many, k, held_back, level),
    }


def _held_back(problems: str, k: np.ndarray, mask: np.ndarray, level: float) -> tuple[str, ...]:
    """Why a difference that sign flips alone would call significant is not."""
    if not mask.any():
        return ()
    return (
        f"at {at_k(mask, k)} sign flips alone give p ≤ {level:.4g}, but {problems} with "
        "differences like these can miss rare large losses; allowing for them, p is larger",
    )


def _common(
    runs: Sequence[Samples], metrics: Sequence[Metric], k_max: int | None, small: str
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
    for run, metric in zip(runs, metrics):
        rows, limit, reported = select(run, metric, k_max, small, among=_rows_of(run, shared))
        chosen.append({run.problems[row] for row in rows})
        limits.append(limit)
        notes += [f"{run.name}: {note}" for note in reported]
    common = set.intersection(*chosen)
    if not common:
        raise ValueError("no problem has enough scored samples in every run: ask for a smaller k")
    rows_by_run = [_rows_of(run, common) for run in runs]  # ids are sorted in every run
    return tuple(sorted(common)), rows_by_run, min(limits), tuple(notes)


def _rows_of(run: Samples, problems: set[str]) -> np.ndarray:
    return np.flatnonzero([problem in problems for problem in run.problems])


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
    resampled, _ = bounds_of_means(gap[:, grid], (0.0, 0.0), resamples, rng)
    spread = np.sort(crossings(resampled, k[grid], np.sign(_first_sign(mean))))
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
    has_left = curves * start < -SAME
    first = has_left.argmax(axis=1)
    rows = np.arange(len(curves))
    before = np.maximum(first - 1, 0)
    high, low = curves[rows, before], curves[rows, first]
    share = np.divide(high, high - low, out=np.zeros(len(curves)), where=high != low)
    logs = np.log(k[before]) + np.clip(share, 0.0, 1.0) * (np.log(k[first]) - np.log(k[before]))
    inside = np.where(first == 0, 0.0, np.exp(logs))
    return np.where(has_left.any(axis=1) & (start != 0), inside, np.inf)


def _solved(run: Samples, rows: np.ndarray, metric: Metric, threshold: float | None) -> np.ndarray:
    """(P',) whether any sample passes; nobody where "pass" is not defined."""
    undefined = metric in ("max@k", "mean", "subsets@k") or (
        metric.startswith("select@k") and not is_zero_one(run)
    )
    if undefined and threshold is None:
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
    notes = tuple(
        f"{counted(count, 'problem')} of {run.name} not in {other.name}: not compared"
        for run, other in ((a, b), (b, a))
        if (count := len(_apart(run, other)))
    )
    shared = len(set(a.problems) & set(b.problems))
    fewest = min(len(a.problems), len(b.problems))
    if shared < LEAST_OVERLAP * fewest:
        notes += (
            f"only {shared} of {counted(fewest, 'problem')} in both runs: is this the same task, "
            "and are the ids those of problems?",
        )
    return notes
