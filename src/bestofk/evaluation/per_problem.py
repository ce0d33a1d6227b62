"""The value of every problem at every k: the table (P, K) behind curves and comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bestofk.messages import unknown
from bestofk.procedures import MAX, SELECT
from bestofk.procedures.estimates import zero_one
from bestofk.procedures.grouping import gather, lay_out, scatter_groups
from bestofk.samples import Samples

from .results import METRICS, Metric
from .voting import majority_curve


def passing(samples: Samples, threshold: float | None) -> np.ndarray:
    """(N,) 1 where a sample passes (reward ≥ threshold), 0 where it fails; NaN stays NaN.

    Raises:
        ValueError: rewards other than 0 and 1, and no threshold to judge them by.
    """
    rewards = samples.rewards
    if threshold is None and not is_zero_one(samples):
        first = int((~np.isin(rewards, (0, 1)) & ~np.isnan(rewards)).argmax())
        problem = samples.problems[int(np.searchsorted(samples.offsets, first, side="right")) - 1]
        raise ValueError(
            f"{samples.name}: pass@k needs a definition of pass; problem {problem!r} has a reward "
            f"of {rewards[first]:g}, neither 0 nor 1: state --threshold (reward ≥ threshold "
            "passes), or ask for max@k, which takes real rewards"
        )
    return zero_one(rewards, threshold, "pass@k", check=False)


def passes_and_samples(samples: Samples, threshold: float | None) -> tuple[np.ndarray, np.ndarray]:
    """(P,) passing and scored samples of each problem."""
    return samples.count(passing(samples, threshold) == 1), samples.live


def is_zero_one(samples: Samples) -> bool:
    """Whether every scored reward is 0 or 1."""
    return bool((np.isin(samples.rewards, (0, 1)) | np.isnan(samples.rewards)).all())


def default_metric(runs: Sequence[Samples], threshold: float | None) -> Metric:
    """pass@k where rewards are 0 and 1 or a threshold is stated, else max@k."""
    return "pass@k" if threshold is not None or all(map(is_zero_one, runs)) else "max@k"


def pass_curve(passes: np.ndarray, samples: np.ndarray, k_max: int) -> np.ndarray:
    """1 - C(n-c, k)/C(n, k) for k = 1..k_max, ragged n ≥ k_max: (P, k_max).

    By the recurrence C(n-c, k+1)/C(n, k+1) = C(n-c, k)/C(n, k) · (n-c-k)/(n-k).
    """
    j = np.arange(k_max)
    c, n = passes[:, None], samples[:, None]
    missed = np.maximum(n - c - j, 0) / (n - j)
    return 1.0 - np.cumprod(missed, axis=1, out=missed)


def values_by_k(
    samples: Samples,
    metric: Metric,
    kept: np.ndarray,
    k_max: int,
    *,
    threshold: float | None,
    seed: int,
    price: float = 0.0,
) -> np.ndarray:
    """The unbiased estimate of `metric` for each kept problem and k = 1..k_max: (P', k_max).

    Args:
        kept: indices of the problems that count; each has at least k_max scored samples.
        price: of one draw, for retry@k.
    """
    check_metric(metric)
    if metric in ("pass@k", "pass^k"):
        passes, live = passes_and_samples(samples, threshold)
        passes, live = passes[kept], live[kept]
        if metric == "pass@k":
            return pass_curve(passes, live, k_max)
        return 1.0 - pass_curve(live - passes, live, k_max)
    if metric == "maj@k":
        return _majority(samples, kept, k_max, threshold, seed)
    if metric == "mean":
        rewards, groups, _ = _scored(samples, kept)
        return (np.bincount(groups, rewards) / np.bincount(groups))[:, None]
    values = _reward_by_k(*_what_is_used(samples, metric, kept, threshold), k_max)
    if price and metric == "retry@k":
        return values - price * draws_by_k(samples, kept, k_max, threshold)
    return values


def check_price(price: float, metrics: Sequence[Metric]) -> None:
    """
    Raises:
        ValueError: it is no price, or no metric has one.
    """
    if not 0 <= price < math.inf:
        raise ValueError(f"price is what one draw costs, a number of at least 0, got {price!r}")
    if price and "retry@k" not in metrics:
        raise ValueError(f"a price of draws is for retry@k, and the metric is {metrics[0]}")


def _what_is_used(
    samples: Samples, metric: Metric, kept: np.ndarray, threshold: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the scored samples: their rewards, what chooses one of k, and the row of their problem.

    Raises:
        ValueError: select@k without a score for each scored sample.
    """
    rewards, groups, live = _scored(samples, kept)
    if metric in ("max@k", "mean"):
        return rewards, rewards, groups
    if metric == "retry@k":  # the first that passes, else the best
        passed = passing(samples, threshold)[live] == 1
        return rewards, np.where(passed, np.inf, rewards), groups
    if samples.scores is None:
        raise ValueError(
            f"{samples.name}: select@k needs the scores that choose, and no column with "
            "numbers was read for them: name it with --scores COLUMN, or --map score=COLUMN"
        )
    scores = samples.scores[live]
    if np.isnan(scores).any():
        problem = samples.problems[kept[groups[np.isnan(scores).argmax()]]]
        raise ValueError(
            f"{samples.name}: select@k needs a score for every scored sample, and a sample of "
            f"problem {problem!r} has none: give one that cannot be chosen -Infinity"
        )
    return rewards if threshold is None else passing(samples, threshold)[live], scores, groups


def _reward_by_k(
    rewards: np.ndarray, scores: np.ndarray, groups: np.ndarray, k_max: int
) -> np.ndarray:
    """The expected reward of the best-scored of k: (P', k_max)."""
    layout = lay_out(rewards, groups=groups, minimum=k_max, small_groups="error")
    pieces = []
    for bucket in layout.buckets:
        part = gather(rewards, bucket)
        if scores is rewards:
            pieces.append(MAX.curve(part, k_max))
        else:
            pieces.append(SELECT.curve(part, k_max, scores=gather(scores, bucket)))
    return np.asarray(scatter_groups(pieces, layout, rewards))


def draws_by_k(
    samples: Samples,
    kept: np.ndarray,
    k_max: int,
    threshold: float | None,
    costs: np.ndarray | None = None,
) -> np.ndarray:
    """Expected cost of drawing until a sample passes, at most k: (P', k_max); by default, draws.

        Σ_{j<k} [ℓ_pass C(F, j) + ℓ_fail C(F-1, j)] / (n C(n-1, j)),

    with F the samples that fail, ℓ_pass and ℓ_fail the summed costs (N,) of those that pass and
    fail: sample i is drawn after j others that all failed.
    """
    passed = passing(samples, threshold)
    ones = np.ones(len(passed)) if costs is None else costs
    n, fails = samples.live[kept], samples.count(passed == 0)[kept]
    rows = samples.problem_of
    j = np.arange(k_max - 1)
    total = np.zeros((len(kept), k_max))
    for which, others in ((1, fails), (0, fails - 1)):
        chosen = passed == which
        spent = np.bincount(rows[chosen], ones[chosen], minlength=len(samples.problems))[kept]
        chance = np.maximum(others[:, None] - j, 0) / np.maximum(n[:, None] - 1 - j, 1)
        chance = np.concatenate([np.ones((len(kept), 1)), np.cumprod(chance, axis=1)], axis=1)
        total += np.cumsum((spent / n)[:, None] * chance, axis=1)
    return total


def _scored(samples: Samples, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scored rewards of the kept problems, for each the row of its problem in `kept`, and where
    they stand."""
    row = np.full(len(samples.problems), -1)
    row[kept] = np.arange(len(kept))
    groups = np.repeat(row, samples.sizes)
    live = (groups >= 0) & ~np.isnan(samples.rewards)
    return samples.rewards[live], groups[live], live


def _majority(
    samples: Samples, kept: np.ndarray, k_max: int, threshold: float | None, seed: int
) -> np.ndarray:
    if samples.answers is None:
        raise ValueError(
            f"{samples.name}: maj@k needs the answers that vote, and no column that all samples "
            "have was read for them: name it with --map answer=..."
        )
    return majority_curve(samples, passing(samples, threshold), kept, k_max, seed)[0]


def variance_of_one(
    samples: Samples,
    metric: Metric,
    kept: np.ndarray,
    k_max: int,
    threshold: float | None,
    price: float,
) -> np.ndarray:
    """Var(result of k) over the k-subsets of each problem: (P', k_max). For the fixed-set interval.

    The price of draws adds at most what draws of 1 or k would.
    """
    rewards, scores, groups = _what_is_used(samples, metric, kept, threshold)
    above = rewards - rewards.min()
    first, second = (_reward_by_k(each, scores, groups, k_max) for each in (above, above**2))
    spread = np.sqrt(np.maximum(second - first**2, 0.0))
    return np.asarray((spread + price * np.arange(k_max) / 2) ** 2)


def check_metric(metric: str) -> None:
    """Raise an error for an unknown metric, naming the nearest."""
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
