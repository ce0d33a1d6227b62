"""max@k: the best of k samples is used.

Notation: r_(1) ≤ … ≤ r_(n); ρ_k(B) the estimate of max@k from the group B; q_i the mean of the best
over the k-subsets that contain sample i; B∖i the group without sample i.

One kernel does the work. Write the best of a subset as r_(n) minus the gaps above it; then

    q_i = r_(n) - Σ_{m ≥ i} (r_(m+1) - r_(m)) C(m-1, k-1) / C(n-1, k-1)        (i, m are ranks)

is one cumulative sum after the sort, all its terms have one sign, ties need no care, and a group in
which every k-subset has the same best gives exact zeros.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from .arrays import Array, constant, cumulative_sum, sort_with_order, sums_above, unsort
from .binomials import subset_share, subset_share_by_k
from .importance import exact
from .procedure import Procedure


def subset_shortfall(ordered: Array, k: int, scale: float = 1.0) -> Array:
    """r_(n) - q_i by rank: how far the k-subsets with sample i fall short of the group's best.

    Args:
        ordered: ascending rewards, (..., n).
        scale: multiplies the result.

    >>> import numpy as np
    >>> subset_shortfall(np.array([0.0, 0.0, 1.0]), 2)
    array([0.5, 0.5, 0. ])
    """
    n = ordered.shape[-1]
    share = constant(subset_share(n - 1, k - 1)[: n - 1] * scale, ordered)
    return sums_above((ordered[..., 1:] - ordered[..., :-1]) * share)


def max_canonical(rewards: Array, k: int) -> Array:
    """max@k with the canonical baseline: what the group's estimate owes to each sample.

        A_i = k (q_i - ρ_k(B∖i)) = n (ρ_k(B) - ρ_k(B∖i)) = k n/(n-k) (q_i - ρ_k(B)),   k < n

    Claim: unbiased for ∇max@k; sums to 0 over the group. k = 1 is leave-one-out REINFORCE.

    >>> import numpy as np
    >>> max_canonical(np.array([0.0, 0.0, 1.0]), 2)
    array([-1., -1.,  2.])

    References:
        OrderGrad (arXiv:2606.06096); MaxPO (arXiv:2606.06080).
    """
    xp = array_namespace(rewards)
    ordered, order = sort_with_order(rewards)
    n = rewards.shape[-1]
    shortfall = subset_shortfall(ordered, k, scale=k * n / (n - k))
    return unsort(xp.mean(shortfall, axis=-1, keepdims=True) - shortfall, order)


def max_no_baseline(rewards: Array, k: int) -> Array:
    """max@k without a baseline: A_i = k q_i, any k ≤ n.

    Claim: unbiased for ∇max@k; not centred, so of high variance.

    References:
        PKPO's s (arXiv:2505.15201), n times; the max@k paper's n·r̃_i (arXiv:2510.23393).
    """
    ordered, order = sort_with_order(rewards)
    return unsort(k * (ordered[..., -1:] - subset_shortfall(ordered, k)), order)


def max_leave_one_out(rewards: Array, k: int) -> Array:
    """max@k with PKPO's leave-one-out baseline: A_i = k (q_i - n/(n-1) ρ_k(B∖i)), k < n.

    Claim: unbiased for ∇max@k; slightly off-centre.

    References:
        PKPO's s_loo (arXiv:2505.15201), n times.
    """
    xp = array_namespace(rewards)
    ordered, order = sort_with_order(rewards)
    n = rewards.shape[-1]
    q = ordered[..., -1:] - subset_shortfall(ordered, k)
    others = (n * xp.mean(q, axis=-1, keepdims=True) - k * q) / (n - k)
    return unsort(k * (q - n / (n - 1) * others), order)


def max_leave_one_out_minus_one(rewards: Array, k: int) -> Array:
    """max@k against the best of k - 1 others: A_i = k (q_i - ρ_{k-1}(B∖i)) ≥ 0, any k ≤ n.

    Written as k Σ_{m ≤ i} gap_m C(m-1, k-1)/C(n-1, k-1), a sum of non-negative terms.

    Claim: unbiased for ∇max@k, also at k = n, where only the best sample is paid, n times its
    lead. Never pushes a sample down. k = 1 is defined as leave-one-out REINFORCE.

    Variance: with four answers the canonical baseline has .9 to 7 times this one's; with 64 answers
    mostly .5 to 1.0 times, unless success is rare (benchmarks/variance.py). The
    scores ∇log π of different samples overlap when answers are few; those of a language model
    hardly do.

    References:
        PKPO's recommended s_loo-1 (arXiv:2505.15201), n times.
    """
    if k == 1:
        return max_canonical(rewards, 1)
    xp = array_namespace(rewards)
    ordered, order = sort_with_order(rewards)
    n = rewards.shape[-1]
    share = constant(subset_share(n - 1, k - 1)[1:], ordered)
    lead = cumulative_sum((ordered[..., 1:] - ordered[..., :-1]) * share)
    return unsort(k * xp.concat([xp.zeros_like(lead[..., :1]), lead], axis=-1), order)


def best_of_k(rewards: Array, k: int) -> Array:
    """ρ_k(B) = r_(n) - Σ_m (r_(m+1) - r_(m)) C(m, k) / C(n, k): (g, n) → (g,)."""
    ordered = array_namespace(rewards).sort(rewards, axis=-1)
    share = constant(subset_share(rewards.shape[-1], k)[1:-1], ordered)
    return ordered[..., -1] - (ordered[..., 1:] - ordered[..., :-1]) @ share


def best_by_k(rewards: Array, k_max: int) -> Array:
    """`best_of_k` for k = 1..k_max in one pass: (g, k_max)."""
    return last_by_k(array_namespace(rewards).sort(rewards, axis=-1), k_max)


def last_by_k(ordered: Array, k_max: int) -> Array:
    """The mean of what comes last in a k-subset, for k = 1..k_max: (g, n) → (g, k_max)."""
    share = constant(subset_share_by_k(ordered.shape[-1], k_max), ordered)
    return ordered[..., -1:] - (ordered[..., 1:] - ordered[..., :-1]) @ share


MAX = Procedure(
    name="max",
    meaning="the expected best reward among k samples",
    curve=best_by_k,
    weights={
        "canonical": max_canonical,
        "loo": max_leave_one_out,
        "loo-1": max_leave_one_out_minus_one,
        "none": max_no_baseline,
    },
    off_policy=exact,
)
