"""Off policy: max@k of the current policy from samples of an older one, exactly, in O(nk).

With ρ_i = π_θ(y_i)/π_old(y_i), the importance-weighted estimate of max@k under π_θ is

    J_k(ρ) = 1/C(n,k) Σ_{|I|=k} Π_{j∈I} ρ_j · max_{j∈I} r_j
           = 1/C(n,k) Σ_j r_(j) ρ_(j) e_{k-1}(ρ_(1), …, ρ_(j-1)),

e_m the elementary symmetric polynomials. Its gradient in log π_θ is the exact unbiased off-policy
gradient of max@k (Bagirov et al. 2025, arXiv:2510.23393, expand it to first order instead).

**How the numbers stay in range.** J_k grows like e^{k·log ρ}. For any λ > 0 let
p_j = ρ_j/(λ+ρ_j); then Π_{j∈I} ρ_j = λ^k Z · Π_{j∈I} p_j Π_{j∉I} (1-p_j) with Z = Π(1 + ρ_j/λ):
up to one known factor, the polynomials are probabilities of independent coin tosses (a
Poisson-binomial distribution). Those lie in [0, 1] and their recurrence only averages, so nothing
overflows; λ is chosen so that about k tosses succeed, so what matters does not underflow either.
Only the final factor λ^k Z can leave the floats, and then we say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import (
    Array,
    as_float64,
    by_order,
    constant,
    cumulative_sum,
    sort_with_order,
    sums_above,
    unsort,
    without_gradient,
)
from .binomials import log_binomial, subset_share
from .on_policy import max_canonical, max_leave_one_out_minus_one, max_no_baseline

LARGEST_LOG = 709.0
"""exp of more than this overflows float64."""
CELLS = 1 << 22
"""At most this many numbers of the O(nk) table are held at once (32 MB)."""


@dataclass(frozen=True)
class _Tosses:
    """The tilted group, sample axis first: (n, groups)."""

    heads: Array
    tails: Array
    log_tilt: Array
    """log λ, (groups,)."""
    log_scale: Array
    """k log λ + log Z, (groups,)."""


def _toss(log_ratio: Array, k: int) -> _Tosses:
    """p_j and 1 - p_j for a λ under which about k of n tosses succeed; log_ratio is (n, groups)."""
    xp = array_namespace(log_ratio)
    n = log_ratio.shape[0]
    fixed = without_gradient(log_ratio)
    # If all ratios were ρ, λ = ρ (n-k+1)/k would give p = k/(n+1): a bracket for bisection.
    offset = float(np.log((n - k + 1) / k))
    low = xp.min(fixed, axis=0) + offset
    high = xp.max(fixed, axis=0) + offset
    target = n * k / (n + 1)
    width = float(xp.max(high - low)) if low.shape[0] else 0.0
    for _ in range(max(0, int(np.ceil(np.log2(max(width, 1e-9) / 0.5))))):
        middle = (low + high) / 2
        expected = xp.sum(_heads(fixed - middle)[0], axis=0)
        low = xp.where(expected > target, middle, low)
        high = xp.where(expected > target, high, middle)
    log_tilt = (low + high) / 2
    heads, tails, soft = _heads(log_ratio - log_tilt)
    return _Tosses(heads, tails, log_tilt, k * log_tilt + xp.sum(soft, axis=0))


def _heads(log_odds: Array) -> tuple[Array, Array, Array]:
    """p, 1 - p and -log(1 - p), smooth everywhere so that autograd is right at 0 too."""
    xp = array_namespace(log_odds)
    soft = xp.logaddexp(log_odds, xp.zeros_like(log_odds))
    return xp.exp(log_odds - soft), xp.exp(-soft), soft


def _step(state: Array, moved: Array, heads: Array, tails: Array) -> Array:
    """One toss: keep the state on tails, take the moved one on heads."""
    return tails * state + heads * moved


def _prefixes(rewards: Array, tosses: _Tosses, k: int) -> tuple[list[Array], list[Array]]:
    """For every prefix: chance of m < k heads, and Σ over its k-sets of chance × best reward."""
    xp = array_namespace(rewards)
    zero = xp.zeros_like(rewards[0])
    rest = xp.zeros((k - 1, rewards.shape[1]), dtype=xp.float64, device=device(rewards))
    counts = xp.concat([xp.ones_like(rewards[:1]), rest], axis=0)
    best = zero
    all_counts, all_best = [counts], [best]
    for j in range(rewards.shape[0]):
        heads, tails = tosses.heads[j], tosses.tails[j]
        best = _step(best, rewards[j] * counts[k - 1], heads, tails)
        moved = xp.concat([zero[None], counts[:-1]], axis=0)
        counts = _step(counts, moved, heads, tails)
        all_counts.append(counts)
        all_best.append(best)
    return all_counts, all_best


def _with_and_without(rewards: Array, tosses: _Tosses, k: int) -> tuple[Array, Array, Array]:
    """Σ over sets of chance × best, seen from each sample i with its own toss left out.

    First: sets of k - 1 other samples, i added. Second: sets of k others, without i. Third: sets of
    k of the whole group, (groups,).

    `ends[m]` carries, for the samples after i, Σ over sets of k - m of them of chance × best;
    shifted by one and closed with r_i it is the same for sets that contain i.
    """
    xp = array_namespace(rewards)
    counts, best = _prefixes(rewards, tosses, k)
    none_after = xp.ones_like(rewards[0])
    ends = xp.zeros_like(counts[0])
    with_i, without_i = [], []
    for i in range(rewards.shape[0] - 1, -1, -1):
        moved = xp.concat([ends[1:], (rewards[i] * none_after)[None]], axis=0)
        with_i.append(xp.sum(counts[i] * moved, axis=0))
        without_i.append(xp.sum(counts[i] * ends, axis=0) + best[i] * none_after)
        ends = _step(ends, moved, tosses.heads[i], tosses.tails[i])
        none_after = none_after * tosses.tails[i]
    return xp.stack(with_i[::-1]), xp.stack(without_i[::-1]), best[-1]


def _lead_over_others(rewards: Array, tosses: _Tosses, k: int) -> Array:
    """Σ over sets of k - 1 other samples of chance × (r_i - best)_+, i's own toss left out."""
    xp = array_namespace(rewards)
    shifted = rewards - rewards[-1:]
    counts, best = _prefixes(shifted, tosses, k - 1)
    full = xp.zeros_like(rewards[0])  # chance of exactly k - 1 heads in the prefix
    leads = []
    for i in range(rewards.shape[0]):
        leads.append(shifted[i] * full - best[i])
        full = _step(full, counts[i][k - 2], tosses.heads[i], tosses.tails[i])
    none_after = xp.flip(xp.cumulative_prod(xp.flip(tosses.tails, axis=0), axis=0), axis=0)
    none_after = xp.concat([none_after[1:], xp.ones_like(none_after[:1])], axis=0)
    return xp.stack(leads) * none_after


def _scaled(values: Array, log_scale: Array) -> Array:
    """values · exp(log_scale), through logarithms so that only the product has to be representable.

    Raises:
        ValueError: it is not.
    """
    xp = array_namespace(values)
    filled = values != 0
    size = xp.log(xp.abs(xp.where(filled, values, xp.ones_like(values)))) + log_scale
    if 0 in size.shape:
        return values
    largest = float(xp.max(xp.where(filled, size, xp.zeros_like(size))))
    if largest > LARGEST_LOG:
        raise ValueError(
            f"the importance weights do not fit into float64 (a k-subset weighs e^{largest:.0f}): "
            "bound the ratios with truncate= (e.g. truncate=0.5, the largest log-ratio), or use "
            "self_normalise=True"
        )
    return xp.where(filled, xp.sign(values) * xp.exp(size), xp.zeros_like(values))


def truncated(log_ratio: Array, limit: float | None) -> Array:
    """Log-ratios bounded from above: min(log ρ, limit). The trust region of the exact loss."""
    if limit is None:
        return log_ratio
    xp = array_namespace(log_ratio)
    return xp.where(log_ratio > limit, xp.full_like(log_ratio, limit), log_ratio)


def off_policy_max_at_k(
    rewards: Any,
    log_ratio: Any,
    k: int,
    *,
    truncate: float | None = None,
    self_normalise: bool = False,
) -> Array:
    """J_k(ρ): max@k of the current policy from samples of an older one, differentiable.

        J_k(ρ) = 1/C(n,k) Σ_{|I|=k} Π_{j∈I} ρ_j · max_{j∈I} r_j

    Claim: unbiased for max@k of π_θ; its gradient in log π_θ (through `log_ratio`, by the autograd
    of PyTorch or JAX) is the exact unbiased off-policy gradient, and at ρ = 1 it is k q_i / n.
    `advantages(..., log_ratio=)` gives the same gradient as weights, and with baselines.

    Args:
        rewards: real numbers, (..., n), all live.
        log_ratio: log π_θ - log π_old of each whole completion, (..., n), float64 for full digits.
        k: how many samples are drawn.
        truncate: cut log-ratios above this; what is cut has no gradient.
        self_normalise: J_k · C(n,k)/e_k(ρ) instead: bounded by the rewards, always finite, biased,
            consistent.

    Returns:
        One estimate per group, float64: (...,).

    Raises:
        ValueError: n < k; the value does not fit into float64.

    >>> off_policy_max_at_k([0.0, 1.0], [0.0, 0.0], 1)
    array(0.5)

    References:
        Bagirov et al. 2025 (arXiv:2510.23393), who expand this sum to first order.
    """
    values, _ = as_float64(rewards, "rewards")
    logs = log_ratio if hasattr(log_ratio, "dtype") else as_float64(log_ratio, "log_ratio")[0]
    xp = array_namespace(logs)
    logs = xp.astype(logs, xp.float64)  # keeps the graph, unlike as_float64
    if tuple(logs.shape) != tuple(values.shape):
        raise ValueError(f"rewards {values.shape} and log_ratio {logs.shape} must have one shape")
    _enough(values, k)
    if not bool(xp.all(xp.isfinite(without_gradient(logs)) & xp.isfinite(values))):
        raise ValueError("rewards and log_ratio must be finite")
    return value(values, truncated(logs, truncate), k, self_normalise=self_normalise)


def value(rewards: Array, log_ratio: Array, k: int, *, self_normalise: bool = False) -> Array:
    """`off_policy_max_at_k` on float64 arrays that are known to be good."""
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    by_rank, tosses, _ = _ranked(rewards, log_ratio, k)
    best = _prefixes(by_rank, tosses, k)[1][-1]
    if self_normalise:
        result = best / _prefixes(xp.ones_like(by_rank), tosses, k)[1][-1]
    else:
        log_scale = tosses.log_scale - log_binomial(n, k)
        _scaled(without_gradient(best), without_gradient(log_scale))  # raises where it overflows
        idle = (best == 0) & (log_scale > LARGEST_LOG)  # nothing to scale: keep 0 · ∞ out
        half = xp.exp(xp.where(idle, xp.zeros_like(log_scale), log_scale) / 2)
        result = best * half * half
    return result.reshape(rewards.shape[:-1])


def _ranked(rewards: Array, log_ratio: Array, k: int) -> tuple[Array, _Tosses, Array]:
    """Samples by rank, sample axis first: rewards (n, groups), tosses, order."""
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    ordered, order = sort_with_order(rewards.reshape(-1, n))
    logs = xp.permute_dims(by_order(log_ratio.reshape(-1, n), order), (1, 0))
    return xp.permute_dims(ordered, (1, 0)), _toss(logs, k), order


def exact(
    rewards: Array,
    log_ratio: Array,
    k: int,
    *,
    baseline: str = "canonical",
    self_normalise: bool = False,
) -> Array:
    """The exact off-policy weights, without autograd.

        canonical   A_i = n ∂J_k/∂log ρ_i - k ρ_i J_k(B∖i)          k < n
        loo-1       A_i = n ∂J_k/∂log ρ_i - k ρ_i J_{k-1}(B∖i)      k ≤ n, ≥ 0
        none        A_i = n ∂J_k/∂log ρ_i                           k ≤ n

    Claim: each unbiased for ∇max@k of π_θ, in the mean convention: E_old[ρ_i ∇log π_θ(y_i)] = 0 and
    a baseline does not see sample i. Centred only at ρ = 1, where they are the on-policy weights.
    Self-normalised: n ∂/∂log ρ_i of J_k C(n,k)/e_k(ρ), denominator included; centred by itself, so
    it has no baseline; biased, consistent; at ρ = 1 it is 1 - k/n of the canonical weight.

    Right to 1e-9 of the group's largest weight whenever that fits into float64; otherwise
    ValueError. The self-normalised form is always finite.
    """
    n = rewards.shape[-1]
    flat, logs = rewards.reshape(-1, n), log_ratio.reshape(-1, n)
    many = max(1, CELLS // (n * k))
    xp = array_namespace(rewards)
    pieces = [
        _exact(flat[at : at + many], logs[at : at + many], k, baseline, self_normalise)
        for at in range(0, max(1, flat.shape[0]), many)
    ]
    return xp.concat(pieces, axis=0).reshape(rewards.shape)


def _exact(rewards: Array, log_ratio: Array, k: int, baseline: str, normalise: bool) -> Array:
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    by_rank, tosses, order = _ranked(rewards, log_ratio, k)
    if normalise:
        with_i, _, best = _with_and_without(by_rank, tosses, k)
        share_i, _, share = _with_and_without(xp.ones_like(by_rank), tosses, k)
        weights = n * tosses.heads * (with_i - best / share * share_i) / share
    else:
        if baseline == "loo-1" and k > 1:
            bracket = _lead_over_others(by_rank, tosses, k)
        else:
            bracket, without_i, _ = _with_and_without(by_rank, tosses, k)
            if baseline != "none":
                bracket = bracket - xp.exp(tosses.log_tilt) * (k / (n - k)) * without_i
        log_scale = tosses.log_scale + float(np.log(k)) - log_binomial(n - 1, k - 1)
        weights = _scaled(tosses.heads * bracket, log_scale)
    return unsort(xp.permute_dims(weights, (1, 0)), order)


def first_order(
    rewards: Array, log_ratio: Array, k: int, *, baseline: str = "canonical", clamp: float = 1.0
) -> Array:
    """The max@k paper's expansion in δ = ρ - 1, clamped to [-clamp, clamp].

        w'_ii = C(i-1,k-1)(1+δ_i) + C(i-2,k-2) Σ_{l<i} δ_l
        w'_ij = C(j-2,k-2)(1+δ_i+δ_j) + C(j-3,k-3) Σ_{l<j, l≠i} δ_l       (j > i)
        A_i = n/C(n,k) Σ_j w'_ij r_(j)

    minus, with a baseline b_i that does not see sample i, (1+δ_i) b_i: the on-policy k ρ_k(B∖i)
    (canonical) or k ρ_{k-1}(B∖i) (loo-1); "none" is the paper's form.

    Claim: biased, by about 3 % at a standard deviation of .2 in the log-ratio and 20 % at .5.

    References:
        Bagirov et al. 2025 (arXiv:2510.23393). They do not state the clamp; ours is a choice.
    """
    xp = array_namespace(rewards)
    ordered, order = sort_with_order(rewards)
    n = rewards.shape[-1]
    # exp is clamped from above in the exponent: no overflow on the way to the clamp
    capped = xp.where(log_ratio > 1.0 + clamp, xp.full_like(log_ratio, 1.0 + clamp), log_ratio)
    delta = xp.clip(xp.expm1(capped), -clamp, clamp)
    delta = by_order(delta, order)
    rank = np.arange(1, n + 1)
    own = k * subset_share(n - 1, k - 1)
    pair = own * (k - 1) / np.maximum(rank - 1, 1)
    triple = pair * max(k - 2, 0) / np.maximum(rank - 2, 1)
    own_c, pair_c, triple_c = (constant(table, ordered) for table in (own, pair, triple))
    before = cumulative_sum(delta) - delta
    diagonal = ordered * (own_c * (1.0 + delta) + pair_c * before)
    others = sums_above((ordered * (pair_c * (1.0 + delta) + triple_c * before))[..., 1:])
    shared = delta * sums_above((ordered * (pair_c - triple_c))[..., 1:])
    weights = unsort(diagonal + others + shared, order)
    return weights - (1.0 + unsort(delta, order)) * _on_policy_baseline(rewards, k, baseline)


def _on_policy_baseline(rewards: Array, k: int, baseline: str) -> Array:
    return max_no_baseline(rewards, k) - on_policy(rewards, k, baseline)


def on_policy(rewards: Array, k: int, baseline: str) -> Array:
    """The weights at ρ = 1, by the name of the baseline."""
    by_name = {
        "canonical": max_canonical,
        "loo-1": max_leave_one_out_minus_one,
        "none": max_no_baseline,
    }
    return by_name[baseline](rewards, k)


def own_ratio(rewards: Array, log_ratio: Array, k: int, *, baseline: str = "canonical") -> Array:
    """ρ_i times the on-policy weight: corrects each sample and ignores its siblings. Biased.

    Raises:
        ValueError: a ratio that does not fit into float64.
    """
    return _scaled(on_policy(rewards, k, baseline), log_ratio)


def effective_sample_size(log_ratio: Any, k: int) -> Array:
    """How many of the k-subsets still count, as a fraction in (0, 1]: (..., n) → (...,).

        e_k(ρ)² / (C(n,k) e_k(ρ²))

    >>> effective_sample_size([0.0, 0.0, 0.0, 0.0], 2)
    array(1.)
    """
    logs, restore = as_float64(log_ratio, "log_ratio")
    n = _enough(logs, k)
    xp = array_namespace(logs)
    flat = logs.reshape(-1, n)
    size = 2 * _log_elementary(flat, k) - _log_elementary(2 * flat, k) - log_binomial(n, k)
    share = xp.exp(xp.where(size < 0, size, xp.zeros_like(size)))
    return restore(share.reshape(logs.shape[:-1]))


def _enough(values: Array, k: int) -> int:
    n = values.shape[-1] if values.ndim else 0
    if not 1 <= k <= n:
        raise ValueError(f"max@{k} needs at least {max(1, k)} samples per prompt, got {n}")
    return n


def _log_elementary(log_ratio: Array, k: int) -> Array:
    """log e_k(ρ), (groups, n) → (groups,)."""
    xp = array_namespace(log_ratio)
    logs = xp.permute_dims(log_ratio, (1, 0))
    tosses = _toss(logs, k)
    return tosses.log_scale + xp.log(_prefixes(xp.ones_like(logs), tosses, k)[1][-1])
