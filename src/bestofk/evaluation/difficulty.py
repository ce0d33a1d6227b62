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

import numpy as np

SMALLEST, LARGEST = 1e-3, 1e4
"""a and b are kept inside: beyond, the likelihood is flat."""
GRID = 180
"""Points of the success probability at which posteriors are held."""
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


def miss(a: float, b: float, k: int) -> float:
    """E[(1 - p)^k] for p ~ Beta(a, b): B(a, b + k) / B(a, b)."""
    from scipy.special import betaln

    return float(np.exp(betaln(a, b + k) - betaln(a, b)))


def posterior(samples: int, a: float, b: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every c = 0..samples: the posterior of p on a grid, and the chance of each c given p.

    Returns:
        p (G,), posterior (samples + 1, G) with rows that sum to 1, chance (G, samples + 1).
    """
    edge = np.concatenate([np.geomspace(1e-9, 0.05, GRID // 3), np.linspace(0.05, 0.5, GRID // 6)])
    left = np.unique(edge)
    p = np.unique(np.concatenate([left, 1.0 - left]))
    middle = np.concatenate([[0.0], (p[1:] + p[:-1]) / 2, [1.0]])
    c = np.arange(samples + 1)
    like = log_chance(c, np.full(samples + 1, samples), p)
    joint = like + (a - 1) * np.log(p) + (b - 1) * np.log1p(-p) + np.log(np.diff(middle))
    joint = np.exp(joint - joint.max(axis=1, keepdims=True))
    return p, joint / joint.sum(axis=1, keepdims=True), np.exp(like.T)


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

    def likelihood(self, weights: np.ndarray) -> float:
        return float(self.share @ np.log(np.maximum(self.chance @ weights, 1e-300)))


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
    flat = np.full(len(counts.p), 1 / len(counts.p))
    return _tilted(counts, np.zeros(len(counts.p)), flat, steps)


def _tilted(counts: Counts, pull: np.ndarray, weights: np.ndarray, steps: int) -> np.ndarray:
    """The F that maximises l(F) + ∫ pull dF, by EM.

    The M-step maximises Σ R_j log F_j + Σ pull_j F_j: F_j = R_j / (λ − pull_j), λ from Σ F = 1.
    """
    flat, top = not pull.any(), int(pull.argmax())
    for _ in range(steps):
        mixed = np.maximum(counts.chance @ weights, 1e-300)
        mass = weights * (counts.chance.T @ (counts.share / mixed))
        if flat:
            weights = mass / mass.sum()
            continue
        if mass[top] <= 1e-12:  # the data say nothing for the point that is pulled to most
            room = np.where(np.arange(len(pull)) == top, np.inf, pull[top] - pull)
            there = mass / np.maximum(room, 1e-12)
            if (left := 1.0 - there.sum()) > 0:
                weights = there
                weights[top] = left
                continue
        scale = float((mass + pull).max()) + 1e-12  # left of the root, so Newton rises to it
        for _ in range(NEWTON):
            ratio = mass / (scale - pull)
            short = ratio.sum() - 1.0
            if short < 1e-6:
                break
            scale += short / (ratio / (scale - pull)).sum()
        weights = mass / (scale - pull)
        weights /= weights.sum()
    return weights


def profile(
    counts: Counts,
    values: np.ndarray,
    confidence: float,
    centre: np.ndarray,
    effect: float = 1.0,
) -> tuple[float, float]:
    """The least and the greatest mean of `values` (G,) over all F that the data allow.

    Args:
        centre: the likeliest F.
        effect: what the log-likelihood is divided by, because problems are not independent.
    """
    drop = effect * NormalDist().inv_cdf(0.5 + confidence / 2) ** 2 / 2
    allowed = counts.likelihood(centre) - drop
    ends = []
    for sign in (-1.0, 1.0):
        low, high = 0.0, 4.0 * float(counts.share.sum())
        inside, weights = float(centre @ values), centre
        for _ in range(BISECTIONS):
            middle = (low + high) / 2 if low else high / 16
            spread_out = 0.8 * weights + 0.1 / len(weights)
            spread_out[np.argmax(sign * values)] += 0.1
            trial = _tilted(counts, sign * middle * values, spread_out, STEPS)
            if counts.likelihood(trial) >= allowed:
                low, inside, weights = middle, float(trial @ values), trial
            else:
                high = middle
            if high - low < 0.02 * high:
                break
        ends.append(inside)
    return ends[0] - NUMERIC, ends[1] + NUMERIC
