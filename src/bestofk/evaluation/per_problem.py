"""The value of every problem at every k: the table (P, K) behind curves and comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bestofk.messages import unknown
from bestofk.objectives import max_at_k_curve
from bestofk.procedures.estimates import zero_one
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
) -> np.ndarray:
    """The unbiased estimate of `metric` for each kept problem and k = 1..k_max: (P', k_max).

    Args:
        kept: indices of the problems that count; each has at least k_max scored samples.
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
    rewards, groups = _scored(samples, kept)
    if metric == "mean":
        return (np.bincount(groups, rewards) / np.bincount(groups))[:, None]
    return max_at_k_curve(rewards, k_max=k_max, groups=groups)


def _scored(samples: Samples, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scored rewards of the kept problems, and for each the row of its problem in `kept`."""
    row = np.full(len(samples.problems), -1)
    row[kept] = np.arange(len(kept))
    groups = np.repeat(row, samples.sizes)
    scored = (groups >= 0) & ~np.isnan(samples.rewards)
    return samples.rewards[scored], groups[scored]


def _majority(
    samples: Samples, kept: np.ndarray, k_max: int, threshold: float | None, seed: int
) -> np.ndarray:
    if samples.answers is None:
        raise ValueError(
            f"{samples.name}: maj@k needs the answers that vote, and the file has no such column: "
            "name it with --map answer=..."
        )
    return majority_curve(samples, passing(samples, threshold), kept, k_max, seed)[0]


def variance_of_best(samples: Samples, kept: np.ndarray, k_max: int) -> np.ndarray:
    """Var(max of k) over the k-subsets of each problem: (P', k_max). For the fixed-set interval."""
    rewards, groups = _scored(samples, kept)
    shifted = rewards - rewards.min()  # ≥ 0, so that the best is also the best of the squares
    first = max_at_k_curve(shifted, k_max=k_max, groups=groups)
    second = max_at_k_curve(shifted**2, k_max=k_max, groups=groups)
    return np.maximum(second - first**2, 0.0)


def check_metric(metric: str) -> None:
    """Raise an error for an unknown metric, naming the nearest."""
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
