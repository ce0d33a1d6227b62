"""Does what was enumerated hold on groups that are not: large, distinct, negative, far off policy?

Enumeration has three or four answers and about eight samples. Beyond it one identity is left: in
every unbiased estimator we know, A_i = c n ∂J_k/∂log ρ_i - b_i, where b_i does not see sample i.
So when the reward of sample i alone changes, A_i moves by c times the move of max@k without a
baseline, which is known for every n. A function that obeys this on groups like the enumerated
ones and not on others is wrong on those others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bestofk.objectives import objective

from .behaviour import Finding, _group, distinct
from .calling import Clock, JudgedFunction
from .policies import real_rewards

SIZES = (12, 24, 64, 256)
"""Samples per group; factorials leave float64 above 170."""
CLOSE = 1e-4


@dataclass(frozen=True)
class Probe:
    """Groups of a kind that was not enumerated."""

    name: str
    rewards: np.ndarray
    log_ratio: np.ndarray
    tolerance: float = CLOSE


class Cost:
    """What a probe of so many samples took, and so what a larger one will."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.seconds = clock, dict[int, float]()

    def affordable(self, size: int) -> bool:
        """Whether a probe ends in time if its cost grows on as a power of the size."""
        sizes = sorted(each for each in self.seconds if each < size)
        if len(sizes) < 2:
            return self.clock.left() > 0
        small, large = sizes[-2:]
        power = np.log(self.seconds[large] / self.seconds[small]) / np.log(large / small)
        cost = self.seconds[large] * (size / large) ** max(power, 1.0)
        return bool(cost < self.clock.left())


def elsewhere(estimator: JudgedFunction, k: int, n: int, *, real: bool, exact: bool) -> Finding:
    """One finding: bad where the identity fails, or where the advantages carry a gradient.

    Args:
        estimator: found exact or scaled by enumeration.
        exact: in the mean convention, so that c = 1 for every n.
    """
    small = 0.2 * np.random.default_rng(4).standard_normal(n)
    if estimator.off_policy and _flows(estimator, distinct(n) if real else _group(n, 1), small):
        text = (
            "a gradient flows from the advantages into log_ratio, so a loss that multiplies them "
            "with log π has another gradient: detach them"
        )
        return Finding("detached", "bad", text)
    slopes = [_slope(estimator, k, Probe("", _group(n, max(1, n // 3)), small))]
    if real:
        slopes += [
            _slope(estimator, k, Probe("", np.resize(levels, n), small))
            for levels in real_rewards(3).values()
        ]
    if any(slope is None for slope in slopes) or np.ptp(np.array(slopes, float)) > CLOSE:
        return Finding("elsewhere", "note", "of another form: only what was enumerated is judged")
    tried, slow = [], set()
    cost = Cost(estimator.clock)
    for probe in _probes(k, n, real, estimator.off_policy):
        size = len(probe.rewards)
        if not cost.affordable(size):
            slow.add(size)
            continue
        since = time.monotonic()
        try:
            slope = _slope(estimator, k, probe)
        except Exception:  # to raise is an answer
            continue
        cost.seconds[size] = time.monotonic() - since
        expected = 1.0 if exact else slopes[0] if len(probe.rewards) == n else slope
        if slope is None or not np.isclose(slope, expected or 0.0, rtol=10 * probe.tolerance):
            return Finding("elsewhere", "bad", f"wrong on {probe.name}, which are not enumerated")
        tried.append(probe.name)
    text = f"holds on {', '.join(dict.fromkeys(tried))}"
    text += f"; too slow to try at n = {', '.join(map(str, sorted(slow)))}" if slow else ""
    return Finding("elsewhere", "ok", text)


def _probes(k: int, n: int, real: bool, off_policy: bool) -> Iterator[Probe]:
    def ratios(size: int) -> np.ndarray:
        return 0.2 * np.random.default_rng(size).standard_normal(size)

    if real:
        yield Probe("rewards that all differ", distinct(n), ratios(n))
        yield Probe("negative rewards", -distinct(n), ratios(n))
    for size in SIZES:
        if size > max(n, k):
            yield Probe(f"groups of {size}", _group(size, size // 3), ratios(size))
            if real:
                yield Probe(f"groups of {size}", distinct(size), ratios(size))
    for size in (n, SIZES[-1]) if real else ():
        yield Probe("rewards around 1,000", 1000 + distinct(size), ratios(size), 5e-4)
    if off_policy:
        for far in (5.0, 40.0):
            logs = ratios(n)
            logs[:2] = far, -far
            rewards = distinct(n) if real else _group(n, n // 2)
            yield Probe(f"log-ratios of ±{far:g}", rewards, logs)


def _slope(estimator: JudgedFunction, k: int, probe: Probe) -> float | None:
    """c, by which A_i moves with its own reward; None where the samples do not agree on one."""
    rewards, n = probe.rewards, len(probe.rewards)
    plain = objective(f"max@{k}:none")
    logs = probe.log_ratio if estimator.off_policy else None
    low, high = rewards.min(), rewards.max()
    moves, moves_of_max = [], []
    for i in {0, 1, n // 2, int(rewards.argmax()), int(rewards.argmin())}:
        moved = rewards.copy()
        moved[i] = high if rewards[i] < (low + high) / 2 else low
        moves.append(estimator.one(rewards, logs)[i] - estimator.one(moved, logs)[i])
        one, other = (plain(each, log_ratio=logs)[i] for each in (rewards, moved))
        moves_of_max.append(one - other)
    observed, expected = np.array(moves), np.array(moves_of_max)
    if not np.isfinite(observed).all() or not expected.any():
        return None
    slope = float(observed @ expected / (expected @ expected))
    error = np.abs(observed - slope * expected).max()
    return slope if error <= probe.tolerance * abs(slope) * np.abs(expected).max() else None


def _flows(estimator: JudgedFunction, rewards: np.ndarray, logs: np.ndarray) -> bool:
    """Whether the advantages have a gradient in log_ratio, by the autograd of torch or JAX."""
    row = (slice(None), None)[estimator.wrapped]
    mix = np.linspace(1.0, 2.0, len(rewards))
    for library in ("torch", "jax"):
        if library not in sys.modules:
            continue
        try:
            if library == "torch":
                torch = sys.modules["torch"]
                log_ratio = torch.tensor(logs[row], requires_grad=True)
                result = estimator.fn(torch.tensor(rewards[row]), log_ratio)
                result = result[0] if isinstance(result, tuple) else result
                (gradient,) = torch.autograd.grad(
                    (result * torch.tensor(mix)).sum(), log_ratio, allow_unused=True
                )
            else:
                jax = sys.modules["jax"]

                def mixed(log_ratio, jax=jax):
                    result = estimator.fn(jax.numpy.asarray(rewards[row]), log_ratio)
                    result = result[0] if isinstance(result, tuple) else result
                    return (result * mix).sum()

                gradient = jax.grad(mixed)(jax.numpy.asarray(logs[row]))
        except Exception:  # it does not take these arrays, or has no graph
            continue
        if gradient is not None and np.abs(np.asarray(gradient)).max() > 1e-9:
            return True
    return False
