"""Where sign flips cannot be relied on: few problems, or differences that are skewed.

Sign flips assume that differences are symmetric where two runs are equally good. A rare large loss
among many small gains is not: 12 problems miss a loss on one problem in twelve every third time,
and the gains then look certain. There a difference has to pass a second test, which assumes nothing
but the range of rewards. It is the bounded bootstrap of `intervals`: with E_i independent standard
exponentials, d_i the differences and L the largest difference there can be,

    p = 2 · min( P(Σ d_i E_i ≤ L · E_0), P(Σ d_i E_i ≥ -L · E_0) ).

For differences of ±L it is the exact sign test, and P equal gains g have p = 2 (1 + g/L)^-P.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .intervals import LARGEST_SKEW, LEAST_INFORMATIVE, bounds_of_means, tail_rank
from .max_t import SAME
from .results import Interval

FEW_PROBLEMS = 30
"""Fewer problems than this can miss a loss on one in ten, which sign flips cannot see."""
DRAWS = 20_000


@dataclass(frozen=True)
class BoundedTest:
    """The second test, per k; where it is not needed p is 0 and the interval is the mean twice."""

    needed: np.ndarray
    p_value: np.ndarray
    interval: Interval


def skewed(gaps: np.ndarray) -> np.ndarray:
    """(C,) whether the tail of a column is long, and on the side that its mean is not on.

    A long tail on the side of the mean makes sign flips cautious, one on the other side rash.
    """
    mean = gaps.mean(axis=0)
    centred = gaps - mean
    spread = np.sqrt((centred**2).mean(axis=0))
    safe = np.where(spread > 0, spread, 1.0)
    skew = (centred**3).mean(axis=0) / safe**3
    long = np.abs(skew) > LARGEST_SKEW * np.sqrt(len(gaps))
    return np.asarray(long & (skew * mean < 0))


def bounded_test(gaps: np.ndarray, size: float, confidence: float) -> BoundedTest:
    """Test the columns of gaps (P, C) where sign flips are in doubt.

    Args:
        size: the largest difference there can be.
        confidence: of the interval; it excludes 0 exactly where p ≤ 1 - confidence.

    >>> bounded_test(np.full((8, 1), 1.0), 1.0, 0.95).p_value.round(2)  # 2 / 2^8
    array([0.01])
    """
    different = (np.abs(gaps) > SAME).sum(axis=0)
    needed = skewed(gaps) | (different < LEAST_INFORMATIVE) | (len(gaps) < FEW_PROBLEMS)
    mean = gaps.mean(axis=0)
    low, high, p_value = mean.copy(), mean.copy(), np.zeros(len(mean))
    columns = np.flatnonzero(needed)
    if columns.size:
        rng = np.random.default_rng(0)  # a p-value that does not move with the seed
        lower, upper = bounds_of_means(gaps[:, columns], (-size, size), DRAWS, rng)
        rank = tail_rank((1.0 - confidence) / 2, DRAWS)
        reached = np.minimum((lower <= 0).sum(axis=0), (upper >= 0).sum(axis=0))
        p_value[columns] = np.minimum(1.0, 2 * (reached + 1) / DRAWS)
        low[columns] = np.partition(lower, DRAWS - 1 - rank, axis=0)[DRAWS - 1 - rank]
        high[columns] = np.partition(upper, rank, axis=0)[rank]
    return BoundedTest(needed, p_value, Interval(low, high))


def least_gain(problems: int, size: float, level: float) -> float:
    """The smallest gain that can pass the bounded test, if every problem has it.

    >>> round(least_gain(12, 1.0, 0.05), 2)
    0.36
    """
    return float(size * ((2.0 / level) ** (1.0 / problems) - 1.0))
