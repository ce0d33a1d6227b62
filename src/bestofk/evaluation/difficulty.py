"""How success probabilities are spread over problems: p ~ Beta(a, b), so that the passes of n
samples are beta-binomial."""

from __future__ import annotations

from typing import Any

import numpy as np

from bestofk.procedures.binomials import subset_share

SMALLEST, LARGEST = 1e-3, 1e4
"""a and b are kept inside: beyond, the likelihood is flat."""


def fit(passes: np.ndarray, samples: np.ndarray) -> tuple[float, float]:
    """The maximum-likelihood (a, b) of the beta-binomial."""
    from scipy.optimize import minimize
    from scipy.special import betaln, psi

    (c, n), weight = np.unique(np.stack([passes, samples]), axis=1, return_counts=True)

    def loss(log_ab: np.ndarray) -> tuple[float, np.ndarray]:
        a, b = np.exp(log_ab)
        value = weight @ (betaln(c + a, n - c + b) - betaln(a, b))
        both = psi(n + a + b) - psi(a + b)
        slope = weight @ (psi(c + a) - psi(a) - both), weight @ (psi(n - c + b) - psi(b) - both)
        return -float(value), -np.array([a, b]) * slope

    mean = np.clip(weight @ (c / n) / weight.sum(), 0.02, 0.98)
    limits = [(np.log(SMALLEST), np.log(LARGEST))] * 2
    start = np.log([mean, 1 - mean])
    best = minimize(loss, start, jac=True, bounds=limits, options={"ftol": 1e-14, "gtol": 1e-9})
    a, b = np.exp(best.x)
    return float(a), float(b)


def miss(a: Any, b: Any, k: Any) -> Any:
    """E[(1 - p)^k] for p ~ Beta(a, b): B(a, b + k) / B(a, b). Numbers, or arrays that broadcast."""
    from scipy.special import betaln

    return np.exp(betaln(a, b + k) - betaln(a, b))


def sampling_variance(n: int, k: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """E[Var(estimate of pass@k from n samples | p)] for p ~ Beta(a, b): (C, K) for C pairs (a, b).

    The estimate misses by C(n-c, k)/C(n, k), whose mean given p is (1 - p)^k, and c is
    beta-binomial: E[miss²] - E[(1 - p)^2k].
    """
    from scipy.special import betaln

    a, b, c = a[:, None], b[:, None], np.arange(n + 1)
    choose = -betaln(c + 1, n - c + 1) - np.log(n + 1)
    chance = np.exp(choose + betaln(a + c, b + n - c) - betaln(a, b))
    misses = np.stack([subset_share(n, int(each))[::-1] for each in k], axis=1)  # by c and k
    return np.maximum(chance @ misses**2 - miss(a, b, 2 * k), 0.0)
