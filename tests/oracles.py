"""References for tests: slower and more obvious than the code, never the same formula.

Statistics by brute force over subsets; gradients by exact enumeration of every outcome of a small
softmax policy, so that unbiasedness is an equation and not a Monte Carlo estimate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import comb

import numpy as np

Advantage = Callable[..., np.ndarray]


def subsets(n: int, k: int) -> Iterator[tuple[int, ...]]:
    return itertools.combinations(range(n), k)


def subset_mean(rewards: np.ndarray, k: int, statistic: Callable[[np.ndarray], float]) -> float:
    """Mean of a statistic over all k-subsets."""
    return float(np.mean([statistic(rewards[list(chosen)]) for chosen in subsets(len(rewards), k)]))


def q_value(rewards: np.ndarray, k: int, i: int) -> float:
    """Mean best over the k-subsets that contain sample i."""
    return float(np.mean([rewards[list(s)].max() for s in subsets(len(rewards), k) if i in s]))


def weighted_best(rewards: np.ndarray, ratio: np.ndarray, k: int) -> float:
    """J_k by its definition: Σ over k-subsets of Π ratio × best, over C(n, k)."""
    total = sum(
        np.prod(ratio[list(chosen)]) * rewards[list(chosen)].max()
        for chosen in subsets(len(rewards), k)
    )
    return float(total / comb(len(rewards), k))


@dataclass(frozen=True)
class Tabular:
    """A softmax over a few answers, each with a reward: everything about it is computable."""

    logits: np.ndarray
    rewards: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        shifted = np.exp(self.logits - self.logits.max())
        return shifted / shifted.sum()

    def scores(self) -> np.ndarray:
        """∇ log π(answer) in the logits, one row per answer."""
        return np.eye(len(self.logits)) - self.probabilities

    def outcomes(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """All ways to draw n answers, and their probabilities."""
        draws = np.array(list(itertools.product(range(len(self.logits)), repeat=n)))
        return draws, self.probabilities[draws].prod(axis=-1)

    def gradient(self, k: int, statistic: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """∇ E[statistic of k draws], by enumeration of all k-tuples and the score function."""
        draws, chance = self.outcomes(k)
        values = statistic(self.rewards[draws])
        return np.einsum("o,o,okd->d", chance, values, self.scores()[draws])

    def max_gradient(self, k: int) -> np.ndarray:
        return self.gradient(k, lambda rewards: rewards.max(axis=-1))

    def expected_update(self, advantage: Advantage, n: int) -> np.ndarray:
        """E[(1/n) Σ_i A_i ∇log π(y_i)] when the samples come from this policy."""
        draws, chance = self.outcomes(n)
        weights = advantage(self.rewards[draws])
        return np.einsum("o,on,ond->d", chance, weights, self.scores()[draws]) / n

    def expected_update_from(self, old: Tabular, advantage: Advantage, n: int) -> np.ndarray:
        """The same when the samples come from another policy, with their log-ratios."""
        draws, chance = old.outcomes(n)
        log_ratio = np.log(self.probabilities / old.probabilities)
        weights = advantage(self.rewards[draws], log_ratio[draws])
        return np.einsum("o,on,ond->d", chance, weights, self.scores()[draws]) / n


def policies() -> list[Tabular]:
    """Peaked, flat and uneven policies; 0/1, tied, real, negative and shifted rewards."""
    return [
        Tabular(np.array([0.3, -0.5, 1.1]), np.array([0.0, 1.0, 0.0])),
        Tabular(np.array([1.5, 0.0, -1.0]), np.array([0.2, 0.2, 1.0])),
        Tabular(np.array([0.0, 0.4, -0.3]), np.array([-1.3, 0.5, 2.7])),
        Tabular(np.array([0.7, -0.2, 0.1]), np.array([100.0, 101.0, 100.5])),
    ]
