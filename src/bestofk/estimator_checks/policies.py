"""Small softmax policies about which everything is known: gradients and all outcomes.

An estimator is judged on these: its expected update is a finite sum over all outcomes of n draws,
so that a bias is an equation that fails, not a Monte Carlo estimate.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

OUTCOMES = 20_000
"""More outcomes than this are not enumerated one by one."""


@dataclass(frozen=True)
class TabularPolicy:
    """A softmax over a few answers, each with a reward; perhaps sampled from an older softmax."""

    label: str
    probabilities: np.ndarray
    """π_θ, the policy whose gradient is wanted."""
    rewards: np.ndarray
    old: np.ndarray
    """π_old, from which the samples come: π_θ itself on policy."""
    spread: float = 0.0
    """Standard deviation of log π_θ/π_old under π_old."""

    @property
    def kind(self) -> str:
        return "0/1" if np.isin(self.rewards, (0.0, 1.0)).all() else "real"

    @property
    def log_ratio(self) -> np.ndarray:
        return np.log(self.probabilities) - np.log(self.old)

    def gradient(self, k: int) -> np.ndarray:
        """∇ E[best of k draws] in the logits, in closed form.

        With levels v_1 < … < v_L and F_l = P(reward ≤ v_l), E[best] = Σ_l v_l (F_l^k - F_{l-1}^k),
        so ∇ = -Σ_{l<L} (v_{l+1} - v_l) k F_l^{k-1} ∇F_l, and ∂F_l/∂θ_d = π_d (1[r_d ≤ v_l] - F_l).
        """
        levels = np.unique(self.rewards)
        below = self.rewards[None, :] <= levels[:-1, None]
        share = below @ self.probabilities
        slope = self.probabilities * (below - share[:, None])
        return -(np.diff(levels) * k * share ** (k - 1)) @ slope


@dataclass(frozen=True)
class Outcomes:
    """All ways to draw n of a few answers: each ordered draw, or each multiset with its count."""

    draws: np.ndarray
    """(outcomes, n), which answer each sample is."""
    log_count: np.ndarray
    """log of how many ordered draws the row stands for, (outcomes,)."""
    ordered: bool

    @cached_property
    def answers(self) -> int:
        return int(self.draws.max()) + 1

    def chance(self, probabilities: np.ndarray) -> np.ndarray:
        return np.exp(self.log_count + np.log(probabilities)[self.draws].sum(axis=-1))

    def expected_update(self, policy: TabularPolicy, advantages: np.ndarray) -> np.ndarray:
        """E[(1/n) Σ_i A_i ∇log π_θ(y_i)] when the draws come from `policy.old`."""
        expected = self.chance(policy.old) @ self._by_answer(advantages)
        return (expected - expected.sum() * policy.probabilities) / self.draws.shape[-1]

    def variance(self, policy: TabularPolicy, advantages: np.ndarray) -> float:
        """E|g|² - |E g|² of the update g of one group: exact, like its mean."""
        per_answer = self._by_answer(advantages)
        total = per_answer.sum(axis=-1, keepdims=True)
        updates = (per_answer - total * policy.probabilities) / self.draws.shape[-1]
        mean = self.expected_update(policy, advantages)
        return float(self.chance(policy.old) @ ((updates - mean) ** 2).sum(axis=-1))

    def _by_answer(self, advantages: np.ndarray) -> np.ndarray:
        """The advantages of the samples with each answer, summed: (outcomes, answers)."""
        sums = [np.where(self.draws == a, advantages, 0.0).sum(-1) for a in range(self.answers)]
        return np.stack(sums, axis=-1)


def all_outcomes(answers: int, n: int, *, limit: int = OUTCOMES, seed: int = 0) -> Outcomes:
    """Every outcome of n draws: one by one up to `limit`, else up to order.

    Multisets are shown in a random order, so that a function that needs sorted input has no luck.
    They are right only for a function that treats samples alike; the caller checks that.
    """
    if answers**n <= limit:
        draws = np.array(list(itertools.product(range(answers), repeat=n)))
        return Outcomes(draws, np.zeros(len(draws)), True)
    if math.comb(n + answers - 1, n) > limit:
        raise ValueError(
            f"n = {n} has {math.comb(n + answers - 1, n):,} outcomes of {answers} answers up to "
            f"order, and at most {limit:,} are enumerated: judge with a smaller n"
        )
    draws = np.array(list(itertools.combinations_with_replacement(range(answers), n)))
    counts = np.stack([(draws == a).sum(axis=-1) for a in range(answers)])
    log_count = math.lgamma(n + 1) - np.vectorize(math.lgamma)(counts + 1.0).sum(axis=0)
    shuffled = np.random.default_rng(seed).permuted(draws, axis=-1)
    return Outcomes(shuffled, log_count, False)


def on_policy_cases(k: int, answers: int, seed: int) -> list[TabularPolicy]:
    """0/1 rewards at several accuracies; real, tied and negative rewards under several policies.

    The chance of a best answer is tied to k (so that a share of the k-sets misses it): otherwise a
    large k leaves no gradient to compare with.
    """
    rng = np.random.default_rng(seed)
    rare = [1 - 0.8 ** (1 / k), 1 - 0.5 ** (1 / k)]
    accuracies = [p for p in (0.2, 0.5, 0.8) if (1 - p) ** (k - 1) >= 1e-5]
    cases = []
    correct = np.array([0.0, 1.0, 0.0, 1.0])[:answers]
    for p in sorted({round(p, 12) for p in rare + accuracies}):
        shares = np.where(correct == 1, p, 1 - p) * _split(correct, rng)
        cases.append(TabularPolicy(f"accuracy {p:.2f}", shares, correct, shares))
    for name, rewards in real_rewards(answers).items():
        best = rewards == rewards.max()
        for missed in (0.8, 0.5, 0.2):
            p = 1 - missed ** (1 / k)
            shares = np.where(best, p, 1 - p) * _split(best, rng)
            label = f"{name}, best answer {p:.2f}"
            cases.append(TabularPolicy(label, shares, rewards, shares))
    return cases


SPREADS = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Standard deviations of the log-ratio at which off-policy estimators are judged."""


def off_policy_cases(k: int, answers: int, seed: int) -> list[TabularPolicy]:
    """Policies of which half the k-sets miss the best answer, moved away from π_old by SPREADS."""
    rng = np.random.default_rng(seed)
    half = 1 - 0.5 ** (1 / k)
    sets = {"0/1": np.array([0.0, 1.0, 0.0, 1.0])[:answers], **real_rewards(answers)}
    # a best that two answers with different ratios share, and the same with 0/1 rewards
    sets["tied best"] = np.array([0.9, 0.3, 0.9, 0.1])[:answers]
    sets["0/1, tied best"] = np.array([1.0, 0.0, 1.0, 0.0])[:answers]
    cases = []
    for name, rewards in sets.items():
        best = rewards == rewards.max()
        old = np.where(best, half, 1 - half) * _split(best, rng)
        direction = rng.standard_normal(answers)
        for spread in SPREADS:
            label = f"{name}, log-ratio sd {spread:g}"
            cases.append(TabularPolicy(label, _moved(old, direction, spread), rewards, old, spread))
    return cases


def real_rewards(answers: int) -> dict[str, np.ndarray]:
    """Rewards in [0, 1] without ties, and rewards around zero with one."""
    if answers == 3:
        sets = {"real": [0.15, 1.0, 0.6], "shifted": [0.5, -1.3, 2.7]}
    else:
        sets = {"real": [0.4, 1.0, 0.15, 0.72], "shifted": [0.5, -1.3, 2.7, 0.5]}
    return {name: np.array(values) for name, values in sets.items()}


def _split(marked: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random shares that sum to 1 inside the marked answers and inside the others."""
    shares = rng.uniform(0.5, 2.0, size=len(marked))
    for inside in (marked == 1, marked != 1):
        shares[inside] /= shares[inside].sum()
    return shares


def _moved(old: np.ndarray, direction: np.ndarray, spread: float) -> np.ndarray:
    """π_θ ∝ π_old e^{t·direction}: the spread of log π_θ/π_old is t times that of the direction."""
    if spread == 0:
        return old
    centred = direction - old @ direction
    logits = np.log(old) + spread * centred / np.sqrt(old @ centred**2)
    moved = np.exp(logits - logits.max())
    return moved / moved.sum()
