"""On-policy advantages: a group's rewards in, one number per sample out.

Every function takes float64 rewards (..., n), all live, and returns A (..., n) in the **mean
convention**: (1/n) Σ_i A_i ∇log π(y_i) estimates the gradient of the objective named. Papers that
use the sum convention (no 1/n) print A_i / n. Notation as in `procedures.maximum`; k, how many
samples the objective looks at, is at most n, or less than n where a function says so.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from bestofk.procedures.arrays import (
    Array,
    constant,
    cumulative_sum,
    sort_with_order,
    sums_above,
    unsort,
)
from bestofk.procedures.binomials import shares_of_gaps, survivors
from bestofk.procedures.maximum import subset_shortfall


def max_zscore(rewards: Array, k: int) -> Array:
    """z-score over the group of the subset means q_i ("BoN mean"), 0 where they do not differ.

    Claim: biased; the direction and size of ∇max@k are given up for a unit spread. On 0/1 rewards
    q takes two values, so this *is* GRPO except where fewer than k samples fail.

    References:
        The max@k paper (arXiv:2510.23393).
    """
    ordered, order = sort_with_order(rewards)
    return unsort(z_score(-subset_shortfall(ordered, k)), order)


def z_score(values: Array) -> Array:
    """(v - mean) / population standard deviation along the last axis; 0 where all are equal.

    >>> import numpy as np
    >>> z_score(np.array([[0.1, 0.1, 0.1], [0.0, 0.0, 3.0]]))
    array([[ 0.        ,  0.        ,  0.        ],
           [-0.70710678, -0.70710678,  1.41421356]])
    """
    xp = array_namespace(values)
    shifted = values - xp.max(values, axis=-1, keepdims=True)  # equal values become exact zeros
    centred = shifted - xp.mean(shifted, axis=-1, keepdims=True)
    return _divide(centred, xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True)))


def _divide(values: Array, by: Array) -> Array:
    """values / by, and 0 where `by` is 0."""
    xp = array_namespace(values)
    safe = xp.where(by > 0, by, xp.ones_like(by))
    return xp.where(by > 0, values / safe, xp.zeros_like(values))


def l_statistic(rewards: Array, k: int, coefficients: tuple[float, ...]) -> Array:
    """Any L-statistic of k samples: A_i = n (v(B) - v(B∖i)), k < n.

        A_i = Σ_{j<i} j W_j gap_j - Σ_{j≥i} (n-j) W_j gap_j,    gap_j = r_(j+1) - r_(j)

    with W_j the weight of the j-th of n - 1 samples in v: removing sample i moves every gap below i
    up by nothing and every gap above it down by one rank.

    Claim: unbiased for ∇ Σ_j α_j E[r_(j:k)]; centred; exactly 0 where no gap with a weight is open.

    Args:
        coefficients: α_1..α_k, the lowest of k first.

    References:
        OrderGrad (arXiv:2606.06096).
    """
    xp = array_namespace(rewards)
    ordered, order = sort_with_order(rewards)
    gaps = ordered[..., 1:] - ordered[..., :-1]
    shares = constant(shares_of_gaps(rewards.shape[-1], k, coefficients), ordered)
    below = cumulative_sum(gaps * shares[0])
    below = xp.concat([xp.zeros_like(below[..., :1]), below], axis=-1)
    return unsort(below - sums_above(gaps * shares[1]), order)


def mean(rewards: Array) -> Array:
    """Leave-one-out REINFORCE (RLOO): A_i = n/(n-1) (r_i - r̄).

    Claim: unbiased for the gradient of the mean reward; centred. max@1.
    """
    n = rewards.shape[-1]
    return dr_grpo(rewards) * (n / (n - 1))


def reinforce(rewards: Array) -> Array:
    """A_i = r_i. Unbiased for the gradient of the mean reward; no baseline."""
    return rewards * 1.0


def dr_grpo(rewards: Array) -> Array:
    """A_i = r_i - r̄: (n-1)/n times the gradient of the mean reward (arXiv:2503.20783)."""
    xp = array_namespace(rewards)
    shifted = rewards - xp.max(rewards, axis=-1, keepdims=True)
    return shifted - xp.mean(shifted, axis=-1, keepdims=True)


def grpo(rewards: Array) -> Array:
    """A_i = (r_i - r̄) / σ, population σ, 0 where all rewards agree (arXiv:2402.03300). Biased."""
    return z_score(rewards)


def bon_max_mean(rewards: Array) -> Array:
    """A_i = r_i - r̄ for the best of the group (every one of them if tied), else 0. k is n.

    Claim: biased (as published: Chow et al. 2024, arXiv:2412.15287, in the max@k paper).
    """
    xp = array_namespace(rewards)
    best = rewards == xp.max(rewards, axis=-1, keepdims=True)
    return xp.where(best, dr_grpo(rewards), xp.zeros_like(rewards))


def bon_max_second(rewards: Array) -> Array:
    """The best gets its lead over the second best, 0 when the best is tied; the rest get 0.

    Claim: 1/n of max@n:loo-1, so unbiased for ∇max@n up to that factor (as published: Tang et al.
    2025, arXiv:2503.19595; verl's grpo_passk without its std).
    """
    xp = array_namespace(rewards)
    ordered, order = sort_with_order(rewards)
    lead = ordered[..., -1:] - ordered[..., -2:-1]
    rest = xp.zeros_like(ordered[..., :-1])
    return unsort(xp.concat([rest, lead], axis=-1), order)


def maxrl(rewards: Array) -> Array:
    """A_i = (r_i - r̄) / r̄ on 0/1 rewards, 0 without a success.

    Claim: unbiased for Σ_{k<n} ∇max@k / k, the likelihood of success cut off at n.

    References:
        MaxRL (arXiv:2602.02710).
    """
    xp = array_namespace(rewards)
    return _divide(dr_grpo(rewards), xp.mean(rewards, axis=-1, keepdims=True))


def tailrl(rewards: Array) -> Array:
    """MaxRL for real rewards: rank i gets n Σ_{j≤i} gap_j / (n-j+1), then centred.

    Claim: unbiased for Σ_{k<n} ∇max@k / k; on 0/1 rewards the same as MaxRL.

    References:
        TailRL (arXiv:2609.02987).
    """
    xp = array_namespace(rewards)
    ordered, order = sort_with_order(rewards)
    share = constant(survivors(rewards.shape[-1]), ordered)
    climbed = cumulative_sum((ordered[..., 1:] - ordered[..., :-1]) / share)
    climbed = xp.concat([xp.zeros_like(climbed[..., :1]), climbed], axis=-1)
    return unsort(dr_grpo(climbed), order)


def rs_grpo(rewards: Array, beta: float) -> Array:
    """Risk-sensitive GRPO: A_i = (1/β) (e^{β r_i} / mean_j e^{β r_j} - 1).

    Claim: as published; β → 0 is Dr. GRPO.

    References:
        RS-GRPO (arXiv:2509.24261).
    """
    xp = array_namespace(rewards)
    tilted = xp.expm1(beta * (rewards - xp.max(rewards, axis=-1, keepdims=True)))  # e^… - 1
    average = xp.mean(tilted, axis=-1, keepdims=True)
    return (tilted - average) / (beta * (1.0 + average))
