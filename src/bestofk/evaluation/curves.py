"""A metric at every k ≤ n: intervals over problems, for these problems, and for the whole curve."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from bestofk.messages import counted
from bestofk.procedures import SUBSETS
from bestofk.procedures.subsets import Worth
from bestofk.samples import Samples

from .difficulty import fit, sampling_variance
from .intervals import (
    LEAST_INFORMATIVE,
    RESAMPLED_POINTS,
    between,
    draws_for,
    log_grid,
    over_problems,
)
from .per_problem import (
    MetricRules,
    costs_of_a_draw,
    draws_by_k,
    pass_curve,
    passes_and_samples,
    rules_of,
    values_by_k,
    variance_of_one,
    variance_of_own,
)
from .results import OF_PASSES, Curve, Interval, Metric
from .verdict_words import ASSUMED, metric_at, percent, powers_of_two


def curve(
    samples: Samples,
    metric: Metric = "pass@k",
    *,
    k_max: int | None = None,
    ks: Sequence[int] = (),
    threshold: float | None = None,
    bounds: tuple[float, float] | None = None,
    small: Literal["error", "drop"] = "error",
    confidence: float = 0.95,
    resamples: int | None = None,
    seed: int = 0,
    price: float = 0.0,
    value: Worth | None = None,
) -> Curve:
    """The unbiased estimate of a metric for k = 1..k_max, with its intervals.

    Args:
        samples: one run.
        metric: "pass@k", "max@k", "maj@k", "select@k" (the best-scored of k is used), "retry@k"
            (draws until one passes, at most k), "pass^k" (all k right), "subsets@k" (`value`) or
            "mean"; with rules as those of objectives, "maj@k:weighted:ties-wrong".
        k_max: the largest k; by default that of `ks`, or the fewest scored samples of any problem
            that has one.
        ks: those that will be shown; subsets@k is evaluated at these alone, by default at powers
            of two.
        threshold: reward ≥ threshold passes; without it rewards must be 0 or 1.
        bounds: the least and greatest reward there can be; by default [0, 1] where all rewards lie
            inside, else the observed range, with a note.
        small: problems with fewer than k_max scored samples raise an error ("error"), or are left
            out of the whole curve and counted ("drop").
        resamples: bootstrap draws; by default as many as the printed digits need.
        confidence, seed: of the intervals.
        price: what one draw (of retry@k:tokens, one token) costs, in units of reward: retry@k is
            the reward less that.
        value: what k samples are worth, for subsets@k: (rewards, scores, answers) → a number
            within `bounds`, by default [0, 1].

    Raises:
        ValueError: n < k; rewards that need a threshold; no scored sample at all.
    """
    rules = rules_of([metric], threshold=threshold, price=price, value=value, bounds=bounds)
    k_max = max(ks, default=None) if k_max is None else k_max
    rows, k_max, notes = select(samples, metric, k_max, small)
    resamples = draws_for(len(rows)) if resamples is None else resamples
    check_confidence(confidence, resamples)
    k = evaluated_k([metric], k_max, ks)
    values = values_by_k(samples, metric, rows, k, rules, seed=seed)
    ends, guessed = reward_bounds([samples], metric, bounds, price=price, k_max=k_max)
    if metric.startswith("retry@k"):
        what = "token" if metric == "retry@k:tokens" else "draw"
        notes += (f"a {what} costs {price:g}",) if price else ()
        notes += _cost_notes(samples, rows, k_max, threshold)
    clusters = samples.cluster_of(rows)
    spread = over_problems(
        values,
        ends,
        confidence=confidence,
        resamples=resamples,
        rng=np.random.default_rng(seed),
        clusters=clusters,
    )
    fixed = fixed_set(samples, metric, rows, values, k, ends, rules, confidence)
    live = samples.live
    gone = sorted(set(range(len(samples.problems))) - set(rows.tolist()))
    return Curve(
        name=samples.name,
        metric=metric,
        k=k,
        estimate=values.mean(axis=0),
        interval=spread.interval,
        fixed=fixed,
        band=spread.band,
        values=values,
        problems=tuple(samples.problems[p] for p in rows),
        left_out=tuple(samples.problems[p] for p in gone),
        n=(int(live[rows].min()), int(live[rows].max())),
        unscored=samples.unscored,
        informative=spread.informative,
        bounds=ends,
        threshold=threshold,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
        clusters=None if clusters is None else int(clusters.max()) + 1,
        notes=notes + rules.notes + guessed + _warnings(samples, spread.informative),
        shown=() if metric == "mean" else tuple(sorted({*ks})),
    )


def curves_by_turns(samples: Samples, metric: Metric, **options: Any) -> dict[int, Curve]:
    """pass@(k, T) or max@(k, T): the best of k trajectories of at most T turns, as one curve over k
    for T = 1, 2, 4, … and the most turns; nothing where no trajectory has several.

    A trajectory of more than T turns counts as `Samples.within` says: nobody knows what the model
    would have been paid at turn T. For rewards of 0 and 1 that is exact where an environment ends a
    trajectory when it passes; for graded rewards it is a lower bound of stopping there.
    """
    longest, (lowest, _) = samples.most_turns, options.get("bounds") or (None, None)
    if longest == 1 or metric not in ("pass@k", "max@k"):
        return {}
    shown = sorted({longest, *(2**i for i in range(longest.bit_length()) if 2**i < longest)})
    runs = {turns: samples.within(turns, lowest=lowest) for turns in shown}
    return {turns: curve(run, metric, **options) for turns, run in runs.items()}


def evaluated_k(metrics: Sequence[Metric], k_max: int, ks: Sequence[int]) -> np.ndarray:
    """1..k_max; of a function of one's own, which takes long, those that are shown."""
    every = np.arange(1, k_max + 1)
    if SUBSETS.metric not in metrics:
        return every
    return np.unique(np.array(ks or powers_of_two(every)))


def _cost_notes(
    samples: Samples, rows: np.ndarray, k_max: int, threshold: float | None
) -> tuple[str, ...]:
    """Draws, and tokens where the file has them, until a sample passes."""
    passes, live = passes_and_samples(samples, threshold)
    rate = pass_curve(passes[rows], live[rows], k_max).mean(axis=0)
    notes: tuple[str, ...] = ()
    costs: dict[str, np.ndarray | None] = {"draws": None}
    if samples.tokens is not None and not np.isnan(samples.tokens).any():
        costs["tokens"] = samples.tokens
    for name, each in costs.items():
        spent = draws_by_k(samples, rows, k_max, threshold, each).mean(axis=0)
        shown = (
            f"{spent[k - 1]:.4g} at k = {k}"
            + f" ({spent[k - 1] / rate[k - 1]:.4g} per solved problem)" * bool(rate[k - 1] > 0)
            for k in powers_of_two(np.arange(1, k_max + 1))
        )
        notes += (f"{name} per problem until the first pass: {', '.join(shown)}",)
    return notes


def _warnings(samples: Samples, informative: np.ndarray) -> tuple[str, ...]:
    """What a reader of the intervals must be told."""
    notes: tuple[str, ...] = ()
    few = int(informative.min())
    if few < LEAST_INFORMATIVE:
        differ = (
            "only " + counted(few, "problem", "differs", "differ") if few else "no problem differs"
        )
        notes += (
            f"at some k {differ} from the floor or from the ceiling, so the intervals there are "
            "wide",
        )
    if samples.unscored:
        verbs = (f"could not be scored and {verb} not counted in n" for verb in ("is", "are"))
        notes += (counted(samples.unscored, "sample", *verbs),)
    return notes


def check_confidence(confidence: float, resamples: int) -> None:
    if not 0.5 <= confidence < 1.0:
        raise ValueError(f"confidence lies in [0.5, 1), like 0.95; got {confidence}")
    needed = int(np.ceil(20 / (1.0 - confidence)))
    if resamples < needed:
        raise ValueError(
            f"{percent(confidence)} intervals need at least {needed} resamples, got {resamples}"
        )


def select(
    samples: Samples,
    metric: Metric,
    k_max: int | None,
    small: str,
    among: np.ndarray | None = None,
) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Problems that count, the largest k, and notes.

    Args:
        among: the problems to choose from; by default all.
    """
    live = samples.live
    among = np.arange(live.size) if among is None else among
    rows = among[live[among] > 0]
    if not rows.size:
        raise ValueError(f"{samples.name}: no sample is scored; nothing can be estimated")
    notes: tuple[str, ...] = ()
    if rows.size < among.size:
        lost = counted(among.size - rows.size, "problem", "has", "have")
        notes += (f"{lost} no scored sample: left out",)
    if metric == "mean":
        return rows, 1, notes
    if k_max is None:
        return rows, int(live[rows].min()), notes + _ragged_note(samples, rows, live)
    if k_max < 1:
        raise ValueError(f"k must be at least 1, got {k_max}")
    few = live[rows] < k_max
    if few.any():
        worst = int(rows[few][live[rows[few]].argmin()])
        message = (
            f"{samples.name}: {metric_at(metric, k_max)} needs at least {k_max} scored "
            f"samples per problem; {int(few.sum())} of {counted(rows.size, 'problem')} "
            f"{'has' if few.sum() == 1 else 'have'} fewer "
            f"(problem {samples.problems[worst]!r} has {int(live[worst])})"
        )
        if small == "error" or few.all():
            raise ValueError(
                f"{message}: ask for k ≤ {int(live[rows].min())}, draw more samples, "
                "or leave them out with --small drop"
            )
        rows = rows[~few]
        lost = counted(int(few.sum()), "problem", "has", "have")
        notes += (f"{lost} fewer than {k_max} scored samples: left out",)
    return rows, int(k_max), notes


def _ragged_note(samples: Samples, rows: np.ndarray, live: np.ndarray) -> tuple[str, ...]:
    fewest, greatest = int(live[rows].min()), int(live[rows].max())
    if fewest == greatest:
        return ()
    worst = samples.problems[int(rows[live[rows].argmin()])]
    return (
        f"problems have {fewest} to {greatest} scored samples; the curve ends at k = {fewest} "
        f"because of {worst!r} (a larger k with --small drop leaves such problems out)",
    )


BEYOND = 4.0
"""Where bounds are not known, rewards may lie beyond the best one by this many times its lead.

With lognormal rewards (σ = 1) of 8 problems, intervals of max@16 hold in 93% with 4, in 85% with 0.
"""


def reward_bounds(
    runs: Sequence[Samples],
    metric: Metric,
    bounds: tuple[float, float] | None,
    *,
    price: float = 0.0,
    k_max: int = 1,
) -> tuple[tuple[float, float], tuple[str, ...]]:
    """The range that the metric of all runs is assumed to lie in, and a note where that of the
    rewards had to be guessed."""
    if metric.startswith(OF_PASSES):
        return (0.0, 1.0), ()
    if metric == SUBSETS.metric:
        return bounds or (0.0, 1.0), ()
    if price and metric.startswith("retry@k"):
        (low, high), notes = reward_bounds(runs, metric, bounds)
        cheapest, dearest = np.transpose([costs_of_a_draw(run, metric) for run in runs])
        low, high = low - price * k_max * float(dearest.max()), high - price * float(cheapest.min())
        return (low, high), notes
    ends = [(float(np.nanmin(run.rewards)), float(np.nanmax(run.rewards))) for run in runs]
    low, high = min(one for one, _ in ends), max(other for _, other in ends)
    if bounds is not None:
        for run, (lowest, highest) in zip(runs, ends):
            if lowest < bounds[0] or highest > bounds[1]:
                raise ValueError(
                    f"{run.name}: rewards reach from {lowest:g} to {highest:g}, outside the stated "
                    f"bounds {bounds[0]:g} to {bounds[1]:g}"
                )
        return (float(bounds[0]), float(bounds[1])), ()
    if low >= 0.0 and high <= 1.0:
        return (0.0, 1.0), ()
    if low == high:
        low, high = min(low, 0.0), max(high, 1.0)
    below = above = 0.0
    for run in runs:
        scored = run.rewards[~np.isnan(run.rewards)]
        if len(np.unique(scored)) > len(scored) / 2:  # else a scale of few values: -1 and 1
            below = max(below, _lead(-run.rewards, run))
            above = max(above, _lead(run.rewards, run))
    assumed = low - BEYOND * below, high + BEYOND * above
    return assumed, (
        f"rewards reach from {low:g} to {high:g} and {ASSUMED}: the intervals hold if none can lie "
        f"outside [{assumed[0]:g}, {assumed[1]:g}]; state --bounds",
    )


def _lead(rewards: np.ndarray, samples: Samples) -> float:
    """By how much the best problem's best reward exceeds the next problem's: how heavy the tail is.

    0 where two problems reach the same end, as where rewards have a bound.
    """
    starts = samples.offsets[:-1][samples.live > 0]
    best = np.sort(np.fmax.reduceat(rewards, starts))
    return (
        float(best[-1] - best[-2]) if len(best) > 1 else float(np.ptp(rewards[rewards == rewards]))
    )


def fixed_set(
    samples: Samples,
    metric: Metric,
    rows: np.ndarray,
    values: np.ndarray,
    k: np.ndarray,
    bounds: tuple[float, float],
    rules: MetricRules,
    confidence: float,
) -> Interval:
    """An interval for the mean over *these* problems: estimate ± z √(Σ_p Var_p) / P.

    pass@k and pass^k: Var_p is the exact variance of the estimator over c ~ Binomial(n, p),
    averaged over what an empirical-Bayes beta-binomial says about p; it is never zero. All
    others: Hoeffding's bound Var_p ≤ (k/n) Var(statistic of one k-subset), which is conservative,
    and exact at k = 1. Where no variance was seen, a rule-of-three term keeps the width above zero.
    """
    live = samples.live[rows].astype(float)
    mean = values.mean(axis=0)
    if metric.startswith("pass"):
        passes, n = passes_and_samples(samples, rules.threshold)
        hits = passes[rows] if metric == "pass@k" else (n - passes)[rows]
        variance = _sampling_variance(hits, n[rows], len(k))
    elif metric == SUBSETS.metric:
        variance = variance_of_own(samples, rows, k, rules).sum(axis=0)
    else:
        single = values * (1.0 - values)
        if not metric.startswith(OF_PASSES):
            single = variance_of_one(samples, metric, rows, len(k), rules)
        # single is short by Var_p itself; n/(n-k) makes that good, up to half of the samples
        at = np.minimum(k, np.maximum(live[:, None] // 2, 1)).astype(int)
        one = np.take_along_axis(single, at - 1, axis=1)
        variance = (one * k / np.maximum(live[:, None] - at, 1.0)).sum(axis=0)
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * np.sqrt(variance) / len(rows)
    unseen = -np.expm1(np.log((1 - confidence) / 2) * k / live.sum()) * (bounds[1] - bounds[0])
    half = np.maximum(half, unseen)
    return Interval(np.maximum(mean - half, bounds[0]), np.minimum(mean + half, bounds[1]))


def _sampling_variance(passes: np.ndarray, samples: np.ndarray, k_max: int) -> np.ndarray:
    """Σ_p E[Var(estimate | p) | c_p]: (k_max,); interpolated where there are very many k."""
    a, b = fit(passes, samples)
    at = log_grid(k_max, RESAMPLED_POINTS)
    total = np.zeros(len(at))
    for n in np.unique(samples):
        c, count = np.unique(passes[samples == n], return_counts=True)
        total += count @ sampling_variance(int(n), at + 1, a + c, b + n - c)
    return between(total, at, k_max)
