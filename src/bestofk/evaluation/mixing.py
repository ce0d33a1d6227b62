"""How success probabilities are spread over problems: several families, and none.

A problem has p ~ F, and c of its n samples pass. F is represented by weights on a grid of p that
holds 0 (never solved) and 1. Three families are fitted by maximum likelihood: Beta(a, b); the same
with a mass at 0; a logit-normal. Without a family, the set of all F that the data do not contradict
gives the ends of an interval: with l(F) the log-likelihood,

    [ min ∫ h dF , max ∫ h dF ]   over F with   l(F) ≥ max l − χ²/2,

the profile-likelihood interval of the mean of h(p). Claim: it holds whatever the shape of F, up to
the χ² approximation; it is wide exactly where n samples cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .betabinomial import fit, log_binomial_table

SMALL, LARGE = 36, 14
"""Points of the grid below one half, and above."""
STEPS = 60
"""Of the EM algorithm, from a warm start."""
NEWTON = 12
NUMERIC = 0.002
"""Added to the ends: EM comes near the maximum, not onto it."""
BISECTIONS = 10


@dataclass(frozen=True)
class Counts:
    """Problems by (passes, samples), and what each point of a grid says about them."""

    p: np.ndarray
    """(G,) the grid, 0 and 1 included."""
    share: np.ndarray
    """(C,) number of problems of each kind."""
    chance: np.ndarray
    """(C, G) probability of the kind at each p."""
    passes: np.ndarray
    samples: np.ndarray

    def likelihood(self, weights: np.ndarray) -> float:
        return float(self.share @ np.log(np.maximum(self.chance @ weights, 1e-300)))


def counts_of(passes: np.ndarray, samples: np.ndarray, largest_k: int) -> Counts:
    """The kinds of problems, on a grid that is fine enough for pass@largest_k."""
    kinds, number = np.unique(np.stack([passes, samples]), axis=1, return_counts=True)
    low = np.geomspace(0.02 / max(largest_k, 8), 0.5, SMALL)
    high = 1.0 - np.geomspace(0.1 / int(samples.max()), 0.45, LARGE)
    p = np.unique(np.concatenate([[0.0], low, high, [1.0]]))
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log1p(-p)
    c, n = kinds
    choose = np.array([log_binomial_table(int(size))[int(hit)] for hit, size in zip(c, n)])
    log = choose[:, None] + _times(c, log_p) + _times(n - c, log_q)
    return Counts(p, number.astype(float), np.exp(log), c, n)


def _times(count: np.ndarray, log: np.ndarray) -> np.ndarray:
    """count · log, with 0 · -∞ = 0."""
    finite = np.where(np.isfinite(log), log, 0.0)
    impossible = (count[:, None] > 0) & ~np.isfinite(log)[None]
    return np.where(impossible, -np.inf, np.outer(count, finite))


def families(counts: Counts) -> dict[str, np.ndarray]:
    """Weights (G,) of each family at its maximum likelihood."""
    shape = fit(counts.passes, counts.samples, counts.share[None])[0]
    result = {"beta": _best(counts, [(np.log(shape[0]), np.log(shape[1]))], _beta_weights)}
    start = np.log(shape)
    result["beta with a mass at 0"] = _best(
        counts,
        [(-2.0, start[0], start[1]), (0.0, 0.0, 0.0), (-1.0, 0.0, 1.0)],
        _inflated_weights,
    )
    mean = float((counts.share * (counts.passes + 0.5) / (counts.samples + 1)).sum())
    mean = np.clip(mean / counts.share.sum(), 0.01, 0.99)
    centre = float(np.log(mean / (1 - mean)))
    starts = [(centre, 0.0), (centre - 1.0, 1.0)]
    result["logit-normal"] = _best(counts, starts, _logit_normal_weights)
    return result


def _widths(p: np.ndarray) -> np.ndarray:
    """The share of (0, 1) that each inner point of the grid stands for."""
    inner = p[1:-1]
    edges = np.concatenate([[0.0], np.sqrt(inner[1:] * inner[:-1]), [1.0]])
    return np.diff(edges)


def _normalised(p: np.ndarray, log_density: np.ndarray, zero: float = 0.0) -> np.ndarray:
    log = log_density + np.log(_widths(p))
    inner = np.exp(log - log.max())
    return np.concatenate([[zero], (1 - zero) * inner / inner.sum(), [0.0]])


def _beta_weights(p: np.ndarray, theta: np.ndarray) -> np.ndarray:
    a, b = np.exp(np.clip(theta, -6, 9))
    inner = p[1:-1]
    return _normalised(p, (a - 1) * np.log(inner) + (b - 1) * np.log1p(-inner))


def _inflated_weights(p: np.ndarray, theta: np.ndarray) -> np.ndarray:
    zero = float(1 / (1 + np.exp(-np.clip(theta[0], -20, 20))))
    a, b = np.exp(np.clip(theta[1:], -6, 9))
    inner = p[1:-1]
    return _normalised(p, (a - 1) * np.log(inner) + (b - 1) * np.log1p(-inner), zero)


def _logit_normal_weights(p: np.ndarray, theta: np.ndarray) -> np.ndarray:
    inner = p[1:-1]
    spread = float(np.exp(np.clip(theta[1], -4, 3)))
    z = (np.log(inner) - np.log1p(-inner) - theta[0]) / spread
    return _normalised(p, -0.5 * z**2 - np.log(inner) - np.log1p(-inner))


def _best(
    counts: Counts,
    starts: Sequence[tuple[float, ...]],
    shape: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """The family's weights at the likeliest parameters: pattern search, step halved when stuck."""
    best, result = -np.inf, np.empty(0)
    for start in starts:
        theta = np.array(start, dtype=float)
        weights = shape(counts.p, theta)
        value, step = counts.likelihood(weights), 1.0
        while step > 0.02:
            moved = False
            for axis in range(len(theta)):
                for sign in (1.0, -1.0):
                    trial = theta.copy()
                    trial[axis] += sign * step
                    built = shape(counts.p, trial)
                    if (there := counts.likelihood(built)) > value + 1e-9:
                        theta, value, weights, moved = trial, there, built, True
            step = step if moved else step / 2
        if value > best:
            best, result = value, weights
    return result


def likeliest(counts: Counts, start: np.ndarray | None = None, steps: int = 300) -> np.ndarray:
    """The maximum-likelihood F without a family (EM from a flat start)."""
    weights = np.full(len(counts.p), 1 / len(counts.p)) if start is None else start
    return _tilted(counts, np.zeros(len(counts.p)), weights, steps)


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
    counts: Counts, values: np.ndarray, confidence: float, centre: np.ndarray
) -> tuple[float, float]:
    """The least and the greatest mean of `values` (G,) over all F that the data allow.

    Args:
        centre: the likeliest F.
    """
    allowed = counts.likelihood(centre) - NormalDist().inv_cdf(0.5 + confidence / 2) ** 2 / 2
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
    return max(0.0, ends[0] - NUMERIC), min(1.0, ends[1] + NUMERIC)
