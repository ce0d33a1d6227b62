"""The beta-binomial: problems differ in difficulty, p ~ Beta(a, b), and c of n samples pass.

Fitted by maximum likelihood, for many reweightings of the problems at once. With S_c[j] the weight
of problems with more than j passes, S_f[j] of those with more than j failures, and S_n[j] of those
with more than j samples,

    log L = Σ_j S_c[j] log(a+j) + Σ_j S_f[j] log(b+j) - Σ_j S_n[j] log(a+b+j)

(Griffiths 1973): one step costs O(n) whatever the number of problems, and needs no gamma function.
"""

from __future__ import annotations

from math import lgamma

import numpy as np

SMALLEST, LARGEST = 1e-3, 1e4
"""a and b are kept inside: beyond, the likelihood is flat."""
GRID = 180
"""Points of the success probability at which posteriors are held."""


def tail_sums(counts: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """S[r, j] = Σ_p weights[r, p] · [counts[p] > j], j < size."""
    histogram = np.stack([np.bincount(counts, row, size + 1) for row in weights])
    return np.cumsum(histogram[:, :0:-1], axis=1)[:, ::-1]


def fit(passes: np.ndarray, samples: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Maximum-likelihood (a, b) for each row of problem weights: (rows, P) → (rows, 2).

    Newton's method in (log a, log b), with halved steps where it would overshoot; starts from the
    moments. Weights need no normalisation.
    """
    size = int(samples.max())
    s_pass = tail_sums(passes, weights, size)
    s_fail = tail_sums(samples - passes, weights, size)
    s_all = tail_sums(samples, weights, size)
    j = np.arange(size)
    theta = np.log(_moments(passes / samples, samples, weights))

    def likelihood(log_ab: np.ndarray) -> np.ndarray:
        a, b = np.exp(log_ab).T[:, :, None]
        return (s_pass * np.log(a + j) + s_fail * np.log(b + j) - s_all * np.log(a + b + j)).sum(1)

    best = likelihood(theta)
    limits = np.log(SMALLEST), np.log(LARGEST)
    for _ in range(60):
        step = _newton_step(theta, s_pass, s_fail, s_all, j)
        moved = np.zeros(len(theta))
        for shrink in (1.0, 0.5, 0.25, 0.1, 0.02):
            trial = np.clip(theta + shrink * step, *limits)
            value = likelihood(trial)
            better = value > best
            moved = np.where(better, np.abs(trial - theta).max(axis=1), moved)
            theta = np.where(better[:, None], trial, theta)
            best = np.where(better, value, best)
            step = np.where(better[:, None], 0.0, step)
        if moved.max() < 1e-7:
            break
    return np.exp(theta)


def _newton_step(
    theta: np.ndarray, s_pass: np.ndarray, s_fail: np.ndarray, s_all: np.ndarray, j: np.ndarray
) -> np.ndarray:
    """The Newton step where the Hessian is negative definite, else along the gradient."""
    a, b = np.exp(theta).T[:, :, None]
    both = a + b + j
    da = (s_pass / (a + j) - s_all / both).sum(1)
    db = (s_fail / (b + j) - s_all / both).sum(1)
    cross = (s_all / both**2).sum(1)
    daa = cross - (s_pass / (a + j) ** 2).sum(1)
    dbb = cross - (s_fail / (b + j) ** 2).sum(1)
    a, b = a[:, 0], b[:, 0]
    ga, gb = a * da, b * db  # chain rule to (log a, log b)
    haa, hbb, hab = a * a * daa + ga, b * b * dbb + gb, a * b * cross
    determinant = haa * hbb - hab**2
    concave = (haa < 0) & (determinant > 1e-12)
    safe = np.where(concave, determinant, 1.0)
    newton = np.stack([-(hbb * ga - hab * gb) / safe, -(haa * gb - hab * ga) / safe], axis=1)
    gradient = np.stack([ga, gb], axis=1)
    length = np.abs(gradient).max(axis=1, keepdims=True)
    gradient = gradient / np.where(length > 0, length, 1.0)
    step = np.where(concave[:, None], newton, gradient)
    return np.clip(step, -2.0, 2.0)


def _moments(shares: np.ndarray, samples: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = weights.sum(axis=1)
    mean = np.clip(weights @ shares / total, 1e-3, 1 - 1e-3)
    variance = np.maximum(weights @ shares**2 / total - mean**2, 0.0)
    binomial = mean * (1 - mean)
    n = float(samples.mean())
    between = np.clip((variance / binomial * n - 1) / max(n - 1, 1), 1e-2, 0.95)
    strength = 1 / between - 1
    ab = np.stack([mean * strength, (1 - mean) * strength], axis=1)
    return np.clip(ab, 10 * SMALLEST, LARGEST / 10)


def log_binomial_table(samples: int) -> np.ndarray:
    """log C(samples, c), c = 0..samples."""
    j = np.arange(1, samples + 1)
    return np.concatenate([[0.0], np.cumsum(np.log((samples - j + 1) / j))])


def posterior(samples: int, a: float, b: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every c = 0..samples: the posterior of p on a grid, and the chance of each c given p.

    Returns:
        p (G,), posterior (samples + 1, G) with rows that sum to 1, chance (G, samples + 1).
    """
    edge = np.concatenate([np.geomspace(1e-9, 0.05, GRID // 3), np.linspace(0.05, 0.5, GRID // 6)])
    left = np.unique(edge)
    p = np.unique(np.concatenate([left, 1.0 - left]))
    middle = np.concatenate([[0.0], (p[1:] + p[:-1]) / 2, [1.0]])
    log_width = np.log(np.diff(middle))
    log_p, log_q = np.log(p), np.log1p(-p)
    c = np.arange(samples + 1)
    like = log_binomial_table(samples)[:, None] + np.outer(c, log_p) + np.outer(samples - c, log_q)
    joint = like + (a - 1) * log_p + (b - 1) * log_q + log_width
    joint = np.exp(joint - joint.max(axis=1, keepdims=True))
    return p, joint / joint.sum(axis=1, keepdims=True), np.exp(like.T)


def miss(a: np.ndarray, b: np.ndarray, k: np.ndarray | int) -> np.ndarray:
    """E[(1 - p)^k] for p ~ Beta(a, b): B(a, b + k) / B(a, b); shapes broadcast, k whole numbers."""
    return np.exp(_lgamma(b + k) - _lgamma(b) + _lgamma(a + b) - _lgamma(a + b + k))


_lgamma = np.vectorize(lgamma, otypes=[float])
