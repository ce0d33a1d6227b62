"""Ratios of binomial coefficients by recurrence: finite and exact for n in the thousands.

Small host arrays, cached by (n, k). C(4096, 1024) has a thousand digits; the ratios the formulas
need lie in [0, 1] and are products of factors in [0, 1], so nothing overflows and each carries a
relative error of about n·1e-16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

Table = TypeVar("Table", bound=Callable[..., Any])


def _frozen(table: np.ndarray) -> np.ndarray:
    table.setflags(write=False)
    return table


def _cached(size: int) -> Callable[[Table], Table]:
    """Cache a table of (n, k); torch.compile takes it as a constant instead of tracing it."""

    def cached(function: Table) -> Table:
        remembered = lru_cache(maxsize=size)(function)

        def constant(*sizes: Any) -> Any:
            return remembered(*sizes)

        constant._dynamo_marked_constant = True  # type: ignore[attr-defined]

        @wraps(function)
        def table(n: int, *rest: Any) -> Any:
            return constant(len(range(n)), *rest)  # a plain number where n is a symbol

        return table  # type: ignore[return-value]

    return cached


@_cached(512)
def subset_share(n: int, k: int) -> np.ndarray:
    """share[m] = C(m, k) / C(n, k) for m = 0..n: the share of k-subsets inside the lowest m.

    >>> subset_share(4, 2)
    array([0.        , 0.        , 0.16666667, 0.5       , 1.        ])
    """
    m = np.arange(n, 0, -1)
    shrink = np.maximum(m - k, 0) / m  # C(m-1, k) / C(m, k)
    return _frozen(np.concatenate([[1.0], np.cumprod(shrink)])[::-1].copy())


@_cached(8)
def subset_share_by_k(n: int, k_max: int) -> np.ndarray:
    """Column k-1 is `subset_share(n, k)` without its end points: rows m = 1..n-1, (n-1, k_max)."""
    m = np.arange(n, 1, -1)[:, None]
    shrink = np.maximum(m - np.arange(1, k_max + 1), 0) / m
    return _frozen(np.cumprod(shrink, axis=0)[::-1].copy())


@_cached(512)
def order_statistic_weights(n: int, k: int, coefficients: tuple[float, ...]) -> np.ndarray:
    """Weights W with Σ_m W_m r_(m) unbiased for Σ_j α_j E[r_(j:k)], j = 1 the lowest of k.

    W_m = Σ_j α_j C(m-1, j-1) C(n-m, k-j) / C(n, k): how likely the m-th of n is the j-th of k.
    """
    total = np.zeros(n)
    for j, alpha in enumerate(coefficients, start=1):
        if alpha:
            m = np.arange(j, n - k + j)
            growth = np.log(m / (m - j + 1)) + np.log((n - m - k + j) / (n - m))
            logs = np.concatenate([[0.0], np.cumsum(growth)])
            weights = np.exp(logs - logs.max())
            total[j - 1 : n - k + j] += alpha * weights / weights.sum()
    return _frozen(total)


@_cached(512)
def log_binomial(n: int, k: int) -> float:
    """log C(n, k), summed exactly enough for n in the thousands."""
    j = np.arange(1, min(k, n - k) + 1)
    return float(np.sum(np.log((n - j + 1) / j)))


@_cached(512)
def best_share(n: int, k: int) -> np.ndarray:
    """C(i-1, k-1) / C(n, k) for ranks i = 1..n: how often the i-th is the best of a k-subset."""
    return _frozen(np.diff(subset_share(n, k)))


@_cached(512)
def shares_of_gaps(n: int, k: int, coefficients: tuple[float, ...]) -> np.ndarray:
    """What each gap r_(j+1) - r_(j) gives, in an L-statistic, to every sample above it, and takes
    from every one below it: (2, n - 1). k < n."""
    j = np.arange(1, n)
    return _frozen(order_statistic_weights(n - 1, k, coefficients) * np.stack([j, n - j]))


@_cached(512)
def shares_with_company(n: int, k: int) -> np.ndarray:
    """k C(i-s, k-s)/C(n-1, k-1) for s = 1, 2, 3 and ranks i: k-subsets with best i and s fixed."""
    rank = np.arange(1, n + 1)
    own = k * subset_share(n - 1, k - 1)
    pair = own * (k - 1) / np.maximum(rank - 1, 1)
    triple = pair * max(k - 2, 0) / np.maximum(rank - 2, 1)
    return _frozen(np.stack([own, pair, triple]))


@_cached(512)
def survivors(n: int) -> np.ndarray:
    """(n - j + 1)/n for ranks j = 2..n: the share of samples at or above the j-th."""
    return _frozen(np.arange(n - 1, 0, -1) / n)


@_cached(512)
def first_of(n: int, k: int) -> np.ndarray:
    """1 for the first k of n, else 0."""
    return _frozen(np.where(np.arange(n) < k, 1.0, 0.0))


EXACT_SAMPLES = 1000
"""Beyond, the chance of few heads among n fair tosses does not fit into a float."""


def binomial(n: int, p: float) -> np.ndarray:
    """The binomial distribution, by products outward from its mode."""
    if p >= 1.0:
        return np.eye(n + 1)[n]
    mode = min(int((n + 1) * p), n)
    up = np.arange(mode, n)
    down = np.arange(mode, 0, -1)
    odds = p / (1.0 - p)
    above = np.cumprod((n - up) / (up + 1) * odds)
    below = np.cumprod(down / (n - down + 1) / odds)
    weights = np.concatenate([below[::-1], [1.0], above])
    return weights / weights.sum()


def by_share(n: int, k_max: int, curve: Callable[[int, float], np.ndarray]) -> np.ndarray:
    """A curve for k = 1..k_max from (largest k, share of heads of the coins) → values up to it."""
    if n <= EXACT_SAMPLES:
        return curve(k_max, 0.5)
    return np.array([curve(k, k / n)[-1] for k in range(1, k_max + 1)])
