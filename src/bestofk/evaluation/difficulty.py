"""How success probabilities are spread over problems: a Beta distribution, and no family at all.

A problem has p ~ F, and c of its n samples pass. With F = Beta(a, b) that is the beta-binomial,
fitted by maximum likelihood (`fit`). Elsewhere F is weights on a grid of p that holds 0 (never
solved) and 1: the set of all F that the data do not contradict gives the ends of an interval. With
l(F) the log-likelihood,

    [ min ∫ h dF , max ∫ h dF ]   over F with   l(F) ≥ max l − χ²/2,

the profile-likelihood interval of the mean of h(p). Claim: it holds whatever the shape of F, up to
the χ² approximation; it is wide exactly where n samples cannot tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from bestofk.objectives.binomials import subset_share

SMALLEST, LARGEST = 1e-3, 1e4
"""a and b are kept inside: beyond, the likelihood is flat."""
SMALL, LARGE = 36, 14
"""Points of the grid of a distribution below one half, and above."""
STEPS = 60
"""Of the EM algorithm, from a warm start."""
NEWTON = 12
NUMERIC = 0.002
"""Added to the ends: EM comes near the maximum, not onto it."""
BISECTIONS = 10


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


def log_chance(passes: np.ndarray, samples: np.ndarray, p: np.ndarray) -> np.ndarray:
    """log P(c of n | p) for pairs (c, n) and every p: (C, G)."""
    from scipy.special import gammaln, xlog1py, xlogy

    c, n = passes[:, None].astype(float), samples[:, None].astype(float)
    choose = gammaln(n + 1) - gammaln(c + 1) - gammaln(n - c + 1)
    return np.asarray(choose + xlogy(c, p) + xlog1py(n - c, -p))


@dataclass(frozen=True)
class Counts:
    """Problems by (passes, samples), and what each point of a grid says about them."""

    p: np.ndarray
    """(G,) the grid, 0 and 1 included."""
    share: np.ndarray
    """(C,) number of problems of each kind."""
    chance: np.ndarray
    """(C, G) probability of the kind at each p."""

    def likelihood(self, weights: np.ndarray) -> np.ndarray:
        """l(F) of weights (..., G)."""
        return np.asarray(np.log(self._mixed(weights)) @ self.share)

    def explained(self, weights: np.ndarray) -> np.ndarray:
        """Expected number of problems at each point, given what was seen: (..., G)."""
        return np.asarray(weights * ((self.share / self._mixed(weights)) @ self.chance))

    def _mixed(self, weights: np.ndarray) -> np.ndarray:
        return np.maximum(weights @ self.chance.T, 1e-300)


def counts_of(passes: np.ndarray, samples: np.ndarray, largest_k: int) -> Counts:
    """The kinds of problems, on a grid that is fine enough for pass@largest_k."""
    kinds, number = np.unique(np.stack([passes, samples]), axis=1, return_counts=True)
    low = np.geomspace(0.02 / max(largest_k, 8), 0.5, SMALL)
    high = 1.0 - np.geomspace(0.1 / int(samples.max()), 0.45, LARGE)
    p = np.unique(np.concatenate([[0.0], low, high, [1.0]]))
    c, n = kinds
    return Counts(p, number.astype(float), np.exp(log_chance(c, n, p)))


def likeliest(counts: Counts, steps: int = 300) -> np.ndarray:
    """The maximum-likelihood F (EM from a flat start)."""
    weights = np.full(len(counts.p), 1 / len(counts.p))
    for _ in range(steps):
        weights = counts.explained(weights)
        weights /= weights.sum()
    return weights


def _tilted(counts: Counts, pull: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The F that maximise l(F) + ∫ pull dF, by EM, for each row of `pull` (R, G).

    The M-step maximises Σ R_j log F_j + Σ pull_j F_j: F_j = R_j / (λ − pull_j), λ from Σ F = 1.
    """
    rows, top = np.arange(len(pull)), pull.argmax(axis=1)
    below = np.maximum(pull.max(axis=1, keepdims=True) - pull, 1e-12)
    below[rows, top] = np.inf
    for _ in range(STEPS):
        mass = counts.explained(weights)
        scale = (mass + pull).max(axis=1) + 1e-12  # left of the root, so Newton rises to it
        for _ in range(NEWTON):
            ratio = mass / (scale[:, None] - pull)
            short = ratio.sum(axis=1) - 1.0
            short[short < 1e-6] = 0.0
            if not short.any():
                break
            scale += short / (ratio / (scale[:, None] - pull)).sum(axis=1)
        weights = mass / (scale[:, None] - pull)
        weights /= weights.sum(axis=1, keepdims=True)
        # Where the data say nothing for the point that is pulled to most, it takes what is left.
        others = mass / below
        left = 1.0 - others.sum(axis=1)
        alone = (mass[rows, top] <= 1e-12) & (left > 0)
        others[rows, top] = left
        weights[alone] = others[alone]
    return weights


def profile(
    counts: Counts,
    values: np.ndarray,
    confidence: float,
    centre: np.ndarray,
    effect: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """The least and greatest mean of each row of `values` (V, G) over all F that the data allow.

    Args:
        centre: the likeliest F.
        effect: what the log-likelihood is divided by, because problems are not independent.
    """
    drop = effect * NormalDist().inv_cdf(0.5 + confidence / 2) ** 2 / 2
    allowed = counts.likelihood(centre) - drop
    aims = np.concatenate([-values, values])
    low, high = np.zeros(len(aims)), np.full(len(aims), 4.0 * float(counts.share.sum()))
    weights = np.tile(centre, (len(aims), 1))
    for _ in range(BISECTIONS):
        going = np.flatnonzero(high - low >= 0.02 * high)
        middle = np.where(low > 0, (low + high) / 2, high / 16)[going]
        spread_out = 0.8 * weights[going] + 0.1 / len(counts.p)
        spread_out[np.arange(len(going)), aims[going].argmax(axis=1)] += 0.1
        trial = _tilted(counts, middle[:, None] * aims[going], spread_out)
        inside = counts.likelihood(trial) >= allowed
        low[going[inside]] = middle[inside]
        high[going[~inside]] = middle[~inside]
        weights[going[inside]] = trial[inside]
    least, greatest = np.split((weights * aims).sum(axis=1), 2)
    return -least - NUMERIC, greatest + NUMERIC
