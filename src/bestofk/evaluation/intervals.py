"""Intervals for a mean over problems, at every k at once.

**The bounded bootstrap** (Gaffke 2005). x_1..x_M are the problems' estimates, all in [lo, hi]. Draw
weights w ~ Dirichlet(1, …, 1) over M + 1 places and take

    upper(w) = Σ x_i w_i + hi · w_{M+1},      lower(w) = Σ x_i w_i + lo · w_{M+1};

the interval runs from the α/2 quantile of lower(w) to the 1 - α/2 quantile of upper(w). It is a
bootstrap over problems that adds the worst observation that could have been made. On 0/1 data it is
the Clopper-Pearson interval; for many problems it is the ordinary bootstrap; it is never of zero
width, and no bounded distribution is known that it fails to cover. Student's t does fail near the
ceiling and the floor, where all problems look alike.

**Clusters.** Problems of one source are alike, and 100 of them tell less than 100 others would.
Where problems have clusters, clusters are what is drawn: with S_c the sum of a cluster's estimates
and m_c its number of problems, both in units of the mean number, upper(w) becomes

    ( Σ S_c w_c + hi · w_{C+1} ) / ( Σ m_c w_c + w_{C+1} ),

which is the bounded bootstrap over cluster means where all clusters are equally large. Where one
cluster has a large share h_c of the problems it pulls the mean to itself, so its deviation looks
smaller than it is, and there are fewer clusters than it seems. Every distance from the estimate is
therefore multiplied by

    √( Σ (d_c / (1 − h_c))² / Σ d_c² ) · (C − 1)/C  ·  t_{C' − 1} / t_{C − 1},

with d_c the deviation of a cluster's sum, C' = 1 / Σ h_c² the effective number of clusters and t
Student's quantile: the leave-one-out variance (CR3) and its degrees of freedom, over those of equal
clusters, for which the factor is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .results import Interval

LEAST_INFORMATIVE = 10
"""With fewer problems away from the floor, or from the ceiling, a reader is warned."""
CALIBRATION_POINTS = 48
"""The band is calibrated on this many k, spread evenly on a logarithmic axis."""
RESAMPLED_POINTS = 128
"""Curves with more k are resampled at this many, and the ends interpolated between them."""
CELLS = 1 << 24
"""At most this many bootstrap weights are held at once (128 MB)."""
WORK, LEAST_DRAWS, MOST_DRAWS = 2_000_000, 2000, 60_000
"""Draws: about WORK / problems, so that the ends keep their third digit at few problems too."""
RANKED_DRAWS = 4000
"""The level of the band is found on this many of the draws."""


def draws_for(problems: int, minimum: int = LEAST_DRAWS) -> int:
    """How many bootstrap draws, or sign flips, are made unless a number is stated.

    >>> draws_for(30), draws_for(100), draws_for(2000)
    (60000, 20000, 2000)
    """
    return int(np.clip(WORK // max(problems, 1), minimum, MOST_DRAWS))


@dataclass(frozen=True)
class OverProblems:
    """What `over_problems` finds, per k."""

    interval: Interval
    band: Interval
    informative: np.ndarray


def over_problems(
    values: np.ndarray,
    bounds: tuple[float, float],
    *,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
    clusters: np.ndarray | None = None,
) -> OverProblems:
    """Intervals and the simultaneous band for the mean of each column of values (P, K).

    The band: the level of the pointwise quantiles is raised until a share of at least `confidence`
    of the resampled curves lies inside at every k (ranks, so no shape is assumed).
    """
    size = values.shape[1]
    at = log_grid(size, RESAMPLED_POINTS)
    low, high = bounds_of_means(values[:, at], bounds, resamples, rng, clusters)
    tail = (1.0 - confidence) / 2.0
    wider = allowance(values - values.mean(axis=0), clusters, confidence)
    grid = log_grid(len(at), CALIBRATION_POINTS)
    single = tail_rank(tail, resamples)
    joint, joint_low = (joint_rank(draws[:, grid], tail) for draws in (high, -low))
    low.partition(sorted({resamples - 1 - single, resamples - 1 - joint_low}), axis=0)
    high.partition(sorted({single, joint}), axis=0)
    mean = values.mean(axis=0)

    def every(ends: np.ndarray) -> np.ndarray:
        """Ends at the resampled k → at every k, as distances from the estimate."""
        return np.clip(mean + wider * between(ends - mean[at], at, size), *bounds)

    return OverProblems(
        interval=Interval(every(low[resamples - 1 - single]), every(high[single])),
        band=Interval(every(low[resamples - 1 - joint_low]), every(high[joint])),
        informative=informative(values, bounds),
    )


def by_cluster(
    values: np.ndarray, clusters: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Sums of the rows (P, K) of each cluster and its size, both in units of the mean size.

    The mean of the sums over clusters is the mean over problems. Without clusters, the rows.

    >>> by_cluster(np.array([[1.0], [2.0], [6.0]]), np.array([0, 0, 1]))[0].ravel()
    array([2., 4.])
    """
    if clusters is None:
        return values, None
    sizes = np.bincount(clusters)
    sums = np.zeros((len(sizes), values.shape[1]))
    np.add.at(sums, clusters, values)
    unit = len(clusters) / len(sizes)
    return sums / unit, sizes / unit


def allowance(deviations: np.ndarray, clusters: np.ndarray | None, confidence: float) -> np.ndarray:
    """How much wider intervals are because clusters differ in size: (K,); 1 without clusters.

    Args:
        deviations: (P, K) of each problem from the mean.
    """
    units, sizes = by_cluster(deviations, clusters)
    if sizes is None:
        return np.ones(deviations.shape[1])
    share, count = sizes / len(sizes), len(sizes)
    squares = (units**2).sum(axis=0)
    without = ((units / (1.0 - share[:, None])) ** 2).sum(axis=0) * ((count - 1) / count) ** 2
    ratio = np.divide(without, squares, out=np.ones_like(squares), where=squares > 0)
    effective = 1.0 / float((share**2).sum())
    tail = 0.5 + confidence / 2
    times = t_quantile(tail, effective - 1.0) / t_quantile(tail, count - 1)
    return np.maximum(np.sqrt(ratio) * times, 1.0)


def bounds_of_means(
    values: np.ndarray,
    bounds: tuple[float, float],
    resamples: int,
    rng: np.random.Generator,
    clusters: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws of lower(w) and upper(w) for every column: two arrays (resamples, K).

    Args:
        clusters: (P,) the number of each problem's cluster.
    """
    values, sizes = by_cluster(values, clusters)
    problems = values.shape[0]
    # Seven digits of the distance from the lower bound are plenty for a resampled mean, and fast.
    floor, width = bounds[0], bounds[1] - bounds[0]
    single = (values - floor * (1.0 if sizes is None else sizes[:, None])).astype(np.float32)
    low = np.empty((resamples, values.shape[1]), dtype=np.float32)
    high = np.empty_like(low)
    step = max(1, CELLS // (problems + 1))
    for start in range(0, resamples, step):
        stop = min(start + step, resamples)
        weights = rng.standard_exponential((stop - start, problems + 1), dtype=np.float32)
        weights /= weights.sum(axis=1, keepdims=True)
        if sizes is not None:
            weights /= weights[:, :-1] @ sizes.astype(np.float32)[:, None] + weights[:, -1:]
        inside = weights[:, :-1] @ single
        low[start:stop] = inside
        high[start:stop] = inside + width * weights[:, -1:]
    return (low, high) if floor == 0 else (low + np.float64(floor), high + np.float64(floor))


def tail_rank(tail: float, resamples: int) -> int:
    """Which of the sorted resamples is the upper end: at most a share `tail` lies above it."""
    return min(resamples - 1, int(np.ceil((1.0 - tail) * resamples)))


def joint_rank(draws: np.ndarray, tail: float) -> int:
    """The rank that at most a share `tail` of the draws (resamples, K) exceeds at any k.

    Of many draws the first few thousand are ranked among themselves, and the rank is scaled up.
    """
    some = draws[:RANKED_DRAWS]
    ranks = np.argsort(np.argsort(some, axis=0), axis=0)
    rank = int(np.sort(ranks.max(axis=1))[tail_rank(tail, len(some))])
    if len(some) == len(draws):
        return rank
    return min(len(draws) - 1, int(np.ceil((rank + 1) * len(draws) / len(some))))


def informative(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    """(K,) the fewer of: problems above the floor, problems below the ceiling."""
    slack = 1e-9 * (bounds[1] - bounds[0])
    above = (values > bounds[0] + slack).sum(axis=0)
    below = (values < bounds[1] - slack).sum(axis=0)
    return np.minimum(above, below)


def log_grid(size: int, points: int) -> np.ndarray:
    """At most `points` positions of 0..size-1, dense at the start, both ends included.

    >>> log_grid(100, 6)
    array([ 0,  2,  5, 15, 39, 99])
    """
    if size <= points:
        return np.arange(size)
    return np.unique(np.round(np.geomspace(1, size, points)).astype(int) - 1)


def between(values: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
    """Values known at some positions, at all of 0..size-1: linear in log k."""
    if len(at) == size:
        return values
    return np.interp(np.log(np.arange(1, size + 1)), np.log(at + 1), values)


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t.

    >>> round(t_quantile(0.975, 29), 6)
    2.04523
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
