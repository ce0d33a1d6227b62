"""What the papers measure or vary beside pass@k: noisy rewards, distinct wrong answers, a test."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from .arrays import as_float64, as_numpy


def flip_rewards(rewards: Any, share: float, rng: np.random.Generator | int) -> np.ndarray:
    """0/1 rewards of which each is flipped with probability `share`, independently.

    The noisy-reward control of Pass@k Training (10, 30, 50 % there). NaN stays NaN.

    Args:
        rewards: 0, 1 or NaN, any shape.
        share: probability of a flip, in [0, 1].
        rng: a NumPy generator or a seed.

    Raises:
        ValueError: other rewards; a share outside [0, 1].

    >>> flip_rewards([0, 1, 1], 1.0, 0)
    array([1., 0., 0.])

    References:
        Pass@k Training (arXiv:2508.10751), "noise rewards".
    """
    values = as_numpy(as_float64(rewards, "rewards")[0])
    if not 0 <= share <= 1:
        raise ValueError(f"share is the probability of a flip, in [0, 1], got {share}")
    if not np.isin(values[~np.isnan(values)], (0.0, 1.0)).all():
        raise ValueError("flip_rewards takes rewards that are 0, 1 or NaN")
    flipped = np.random.default_rng(rng).random(values.shape) < share
    return np.where(flipped, 1.0 - values, values)


def distinct_wrong_share(answers: Any, correct: Any) -> np.ndarray:
    """Distinct answers among the wrong samples of each group, over the number of wrong samples.

    A ratio in (0, 1] that does not move with accuracy, unlike a count among all samples.

    Args:
        answers: labels, (..., n); None and NaN are answers of their own, each counted as one.
        correct: 0/1 or booleans, (..., n).

    Returns:
        One ratio per group, (...,); NaN where no sample is wrong.

    >>> distinct_wrong_share(["4", "5", "5", "6"], [1, 0, 0, 0])
    array(0.66666667)

    References:
        Pass@k Training (arXiv:2508.10751), the diversity of its figure on negative responses.
    """
    right = as_numpy(as_float64(correct, "correct")[0])
    labels = as_numpy(answers) if hasattr(answers, "shape") else np.asarray(answers, dtype=object)
    if labels.shape != right.shape or labels.ndim == 0:
        raise ValueError(f"answers {labels.shape} and correct {right.shape} must have one shape")
    n = labels.shape[-1]
    shares = []
    for row, marks in zip(labels.reshape(-1, n), right.reshape(-1, n)):
        wrong = [str(label) if label != label else label for label in row[marks == 0].tolist()]
        shares.append(len(set(wrong)) / len(wrong) if wrong else math.nan)
    return np.array(shares).reshape(labels.shape[:-1])


def signed_rank_test(
    first: Any, second: Any, *, alternative: Literal["two-sided", "greater"] = "two-sided"
) -> float:
    """p-value of Wilcoxon's signed-rank test on paired values, such as max@k of each problem.

    Pairs that agree are left out; tied differences share their mean rank. Exact (all 2^m signs, by
    a sum over subsets of ranks) for m ≤ 50 pairs, else by the normal approximation with the
    variance of the ranks as they are.

    Args:
        first, second: paired values, (m,), finite.
        alternative: "two-sided", or "greater": the first is larger.

    Returns:
        p; 1 where all pairs agree.

    >>> signed_rank_test([1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 5)
    0.0625

    References:
        The max@k paper (arXiv:2510.23393) marks its tables by it.
    """
    a, b = (as_numpy(as_float64(x, "values")[0]) for x in (first, second))
    if a.shape != b.shape or a.ndim != 1 or not np.isfinite(a - b).all():
        raise ValueError(f"two rows of paired finite values are needed, got {a.shape}, {b.shape}")
    if alternative not in ("two-sided", "greater"):
        raise ValueError(f"alternative is 'two-sided' or 'greater', got {alternative!r}")
    difference = (a - b)[a != b]
    if not difference.size:
        return 1.0
    _, where, count = np.unique(np.abs(difference), return_inverse=True, return_counts=True)
    twice = (2 * np.cumsum(count) - count + 1)[where]  # ranks times two: whole numbers
    observed = int(twice[difference > 0].sum())
    total = int(twice.sum())
    if difference.size <= 50:
        ways = np.zeros(total + 1)
        ways[0] = 1.0
        for rank in twice:
            moved = np.concatenate([np.zeros(rank), ways[: total + 1 - rank]])
            ways = (ways + moved) / 2
        upper, lower = float(ways[observed:].sum()), float(ways[: observed + 1].sum())
    else:
        z = (observed - total / 2) / math.sqrt(float((twice.astype(float) ** 2).sum()) / 4)
        upper, lower = math.erfc(z / math.sqrt(2)) / 2, math.erfc(-z / math.sqrt(2)) / 2
    return upper if alternative == "greater" else min(1.0, 2 * min(upper, lower))
