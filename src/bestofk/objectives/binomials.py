"""Ratios of binomial coefficients by recurrence: finite and exact for n in the thousands.

Small host arrays, cached by (n, k). C(4096, 1024) has a thousand digits; the ratios the formulas
need lie in [0, 1] and are products of factors in [0, 1], so nothing overflows and each carries a
relative error of about n·1e-16.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np


def _frozen(table: np.ndarray) -> np.ndarray:
    table.setflags(write=False)
    return table


@lru_cache(maxsize=512)
def subset_share(n: int, k: int) -> np.ndarray:
    """share[m] = C(m, k) / C(n, k) for m = 0..n: the share of k-subsets inside the lowest m.

    >>> subset_share(4, 2)
    array([0.        , 0.        , 0.16666667, 0.5       , 1.        ])
    """
    m = np.arange(n, 0, -1)
    shrink = np.maximum(m - k, 0) / m  # C(m-1, k) / C(m, k)
    return _frozen(np.concatenate([[1.0], np.cumprod(shrink)])[::-1].copy())


@lru_cache(maxsize=8)
def subset_share_by_k(n: int, k_max: int) -> np.ndarray:
    """Column k-1 is `subset_share(n, k)` without its end points: rows m = 1..n-1, (n-1, k_max)."""
    m = np.arange(n, 1, -1)[:, None]
    shrink = np.maximum(m - np.arange(1, k_max + 1), 0) / m
    return _frozen(np.cumprod(shrink, axis=0)[::-1].copy())


@lru_cache(maxsize=512)
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


@lru_cache(maxsize=512)
def log_binomial(n: int, k: int) -> float:
    """log C(n, k), summed exactly enough for n in the thousands."""
    j = np.arange(1, min(k, n - k) + 1)
    return float(np.sum(np.log((n - j + 1) / j)))
