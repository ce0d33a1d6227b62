"""Pass@k Training (Chen et al. 2025, arXiv:2508.10751): advantages normalised over k-subsets, and
the designs built on them.

All functions: float64 rewards (..., n), all live, and 1 ≤ k ≤ n → A (..., n). None is unbiased for
∇pass@k: the normaliser σ depends on the group.
"""

from __future__ import annotations

import math

import numpy as np
from array_api_compat import array_namespace

from bestofk.procedures.arrays import (
    Array,
    as_float64,
    by_order,
    constant,
    is_array,
    sort_with_order,
    unsort,
)
from bestofk.procedures.binomials import best_share, first_of
from bestofk.procedures.maximum import subset_shortfall

from .on_policy import _divide, z_score


def analytical(rewards: Array, k: int) -> Array:
    """The analytical advantage: A_i = (q_i - ρ_k(B)) / σ, σ the spread of the best over k-subsets.

    On 0/1 rewards, with R̄ = ρ_k(B) and σ = √(R̄(1-R̄)):
        A_pos = (1 - R̄)/σ,   A_neg = (1 - R̄ - C(N_neg-1, k-1)/C(n-1, k-1))/σ
    On real rewards σ² = Σ_i w_i (r_(i) - ρ_k)², w_i = C(i-1, k-1)/C(n, k).

    Claim: centred; invariant to shift and scale of the rewards; exactly 0 when every k-subset has
    the same best (none correct, all correct, fewer than k wrong). k = 1 is GRPO. k ≤ n.

    References:
        The paper's analytical derivation; the real-valued form is ours, equal on 0/1 rewards.
    """
    xp = array_namespace(rewards)
    ordered, order = sort_with_order(rewards)
    shortfall = subset_shortfall(ordered, k)
    estimate = xp.mean(shortfall, axis=-1, keepdims=True)
    share = constant(best_share(rewards.shape[-1], k), ordered)
    spread = (ordered[..., -1:] - ordered - estimate) ** 2
    sigma = xp.sqrt(xp.sum(share * spread, axis=-1, keepdims=True))
    sigma = xp.where(estimate > 0, sigma, xp.zeros_like(sigma))
    return unsort(_divide(estimate - shortfall, sigma), order)


def full_sampling(rewards: Array, k: int, rng: np.random.Generator | Array) -> Array:
    """Random disjoint sets of k: z-score the sets' bests, every member gets its set's value.

    The n mod k samples left over get 0. As published; needs n ≥ 2k for two sets to differ.

    Args:
        rng: a generator, or uniform numbers (..., n).
    """
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    sets = n // k
    order = sort_with_order(_uniform(rng, tuple(rewards.shape), rewards))[1]
    shuffled = by_order(rewards, order)[..., : sets * k]
    best = xp.max(shuffled.reshape((*rewards.shape[:-1], sets, k)), axis=-1)
    values = xp.repeat(z_score(best), k, axis=-1)
    rest = xp.zeros_like(rewards[..., sets * k :])
    return unsort(xp.concat([values, rest], axis=-1), order)


def bootstrap(
    rewards: Array, k: int, rng: np.random.Generator | Array, sets: int | None = None
) -> Array:
    """Random k-sets: z-score their bests, a sample gets the SUM over the sets it is in.

    As published. Sets are drawn independently, without replacement inside a set.

    Args:
        rng: a generator, or uniform numbers (..., sets, n).
        sets: how many; n by default (the paper's N_group).
    """
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    draws = _uniform(rng, (*rewards.shape[:-1], sets or n, n), rewards)
    chosen = constant(first_of(n, k), rewards)  # by rank of the draw
    mask = unsort(xp.zeros_like(draws) + chosen, sort_with_order(draws)[1])
    low = xp.min(rewards, axis=-1, keepdims=True)[..., None]
    best = xp.max(xp.where(mask > 0, rewards[..., None, :], low), axis=-1)
    return xp.sum(mask * z_score(best)[..., None], axis=-2)


def _uniform(rng: np.random.Generator | Array, shape: tuple[int, ...], like: Array) -> Array:
    """Uniform random numbers: drawn from a generator, or given as an array."""
    if not is_array(rng):
        return constant(rng.random(shape), like)
    draws, _ = as_float64(rng, "rng")
    if draws.shape[-1] != shape[-1] or math.prod(draws.shape) != math.prod(shape):
        raise ValueError(
            f"rng as an array holds one uniform number per draw, {shape}, got {tuple(draws.shape)}"
        )
    return draws.reshape(shape)


def exceeding(rewards: Array, k: int) -> Array:
    """Analytical, scaled by 4 / (10 ln(N_pos + 0.5)) where N_pos ≥ 1: weight moves to hard prompts.

    0/1 rewards.
    """
    xp = array_namespace(rewards)
    positives = xp.sum(rewards, axis=-1, keepdims=True)
    some = xp.where(positives >= 1, positives, xp.ones_like(positives))
    return analytical(rewards, k) * (4.0 / (10.0 * xp.log(some + 0.5)))


def combination(rewards: Array, k: int) -> Array:
    """(N_pos/n) A_pass@k + (1 - N_pos/n) A_pass@1, both analytical. 0/1 rewards."""
    xp = array_namespace(rewards)
    accuracy = xp.mean(rewards, axis=-1, keepdims=True)
    return accuracy * analytical(rewards, k) + (1.0 - accuracy) * analytical(rewards, 1)


def adaptive(rewards: Array, k: int, entropy: Array, threshold: float) -> Array:
    """Prompts whose mean response entropy exceeds the threshold use A_pass@1, the rest A_pass@k.

    The threshold is the median over the whole rollout batch: the one design that looks across
    prompts, so the caller computes it once.

    Args:
        entropy: per group, (...,).
    """
    xp = array_namespace(rewards)
    return xp.where(entropy[..., None] > threshold, analytical(rewards, 1), analytical(rewards, k))


def drop_easy(rewards: Array, k: int, accuracy_threshold: float) -> Array:
    """Analytical, and 0 for groups whose accuracy exceeds the threshold. 0/1 rewards.

    Args:
        accuracy_threshold: share of correct samples above which a group gets 0.
    """
    xp = array_namespace(rewards)
    easy = xp.mean(rewards, axis=-1, keepdims=True) > accuracy_threshold
    values = analytical(rewards, k)
    return xp.where(easy, xp.zeros_like(values), values)
