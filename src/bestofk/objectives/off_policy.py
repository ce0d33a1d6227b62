"""Off policy: max@k of the current policy from samples of an older one, exactly, in O(nk).

With ρ_i = π_θ(y_i)/π_old(y_i), the importance-weighted estimate of max@k under π_θ is

    J_k(ρ) = 1/C(n,k) Σ_{|I|=k} Π_{j∈I} ρ_j · max_{j∈I} r_j
           = 1/C(n,k) Σ_j r_(j) ρ_(j) e_{k-1}(ρ_(1), …, ρ_(j-1)),

e_m the elementary symmetric polynomials. Its gradient in log π_θ is the exact unbiased off-policy
gradient of max@k (Bagirov et al. 2025, arXiv:2510.23393, expand it to first order instead).

Exact means: unbiased when θ does not depend on the group at hand, as in one pass over a batch or
with stale rollouts. A second step on the same samples is biased whatever the formula.
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace, is_numpy_array

from .arrays import Array, as_float64, positive_integer, unsort, without_gradient
from .binomials import log_binomial
from .symmetric_sums import (
    LARGEST_LOG,
    by_rank,
    gain_over_normalised_others,
    lead_over_others,
    log_elementary,
    prefixes,
    scaled,
    with_and_without,
)

CELLS = 1 << 22
"""At most this many numbers of the O(nk) table are held at once (32 MB)."""
CACHED_CELLS = 1 << 18
"""The same for NumPy, which makes a pass over memory per operation: these stay in the cache."""


def truncated(log_ratio: Array, limit: float | None) -> Array:
    """Log-ratios bounded from above, min(log ρ, limit), straight through: the slope stays 1.

    It bounds the size of the weights. It is not a trust region: a sample past the limit is pushed
    on; `trust_region_mask` is the region.

    Args:
        log_ratio: (...,).
        limit: the largest log-ratio; None changes nothing.
    """
    if limit is None:
        return log_ratio
    xp = array_namespace(log_ratio)
    excess = log_ratio - limit
    return log_ratio - without_gradient(xp.where(excess > 0, excess, xp.zeros_like(excess)))


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
    `advantages(rewards, "max@k:none", log_ratio=)` is n times that gradient, with or without
    `truncate`; other strings add baselines.

    Args:
        rewards: real numbers, (..., n), all live.
        log_ratio: log π_θ - log π_old of each whole completion, (..., n), float64 for full digits.
        k: how many samples are drawn.
        truncate: log-ratios above this count as this, in the value and in the gradient: a sample
            past the limit keeps the gradient of a sample at the limit (straight through). Biased.
        self_normalise: J_k · C(n,k)/e_k(ρ) instead: bounded by the rewards, always finite, biased,
            consistent.

    Returns:
        One estimate per group, float64: (...,).

    Raises:
        ValueError: n < k; values that are not finite; the value does not fit into float64.

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
    k = positive_integer(k, "k")
    _enough(values, k, f"max@{k}")
    _finite(values, "rewards")
    _finite(without_gradient(logs), "log_ratio")
    check_truncate(truncate, k, bounded=self_normalise)
    return value(values, truncated(logs, truncate), k, self_normalise=self_normalise)


def value(rewards: Array, log_ratio: Array, k: int, *, self_normalise: bool = False) -> Array:
    """`off_policy_max_at_k` on float64 arrays (..., n) that are known to be good.

    Args:
        rewards: float64, (..., n).
        log_ratio: float64, (..., n).
        k: how many samples are drawn.
        self_normalise: the bounded form.
    """
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    ordered, tosses, _ = by_rank(rewards.reshape(-1, n), log_ratio.reshape(-1, n), k)
    best = prefixes(ordered, tosses, k)[1][-1]
    if self_normalise:
        result = best / prefixes(xp.ones_like(ordered), tosses, k)[1][-1]
    else:
        log_scale = tosses.log_scale - log_binomial(n, k)
        scaled(without_gradient(best), without_gradient(log_scale))  # raises where it overflows
        idle = (best == 0) & (log_scale > LARGEST_LOG)  # nothing to scale: keep 0 · ∞ out
        half = xp.exp(xp.where(idle, xp.zeros_like(log_scale), log_scale) / 2)
        result = best * half * half
    return result.reshape(rewards.shape[:-1])


def exact(
    rewards: Array,
    log_ratio: Array,
    k: int,
    *,
    baseline: str = "canonical",
    self_normalise: bool = False,
    check: bool = True,
) -> Array:
    """The exact off-policy weights, without autograd.

        none        A_i = n ∂J_k/∂log ρ_i                           k ≤ n
        canonical   A_i = n ∂J_k/∂log ρ_i - k ρ_i b_i               k < n
                    b_i = e_{k-1}(B∖i)/C(n-1,k-1) · J_k(B∖i) C(n-1,k)/e_k(B∖i)
        loo-1       A_i = n ∂J_k/∂log ρ_i - k ρ_i J_{k-1}(B∖i)      k ≤ n, ≥ 0

    The canonical b_i is the self-normalised max@k of the others times the mean product of k - 1 of
    their ratios; at k = 1 it is the self-normalised mean of the others, for loo-1 too.

    Claim: each unbiased for ∇max@k of π_θ, in the mean convention, when θ does not depend on the
    group: E_old[ρ_i ∇log π_θ(y_i)] = 0 and a baseline does not see sample i. canonical and loo-1 do
    not change when a constant is added to all rewards, and are exactly 0 where all rewards agree.
    Centred only at ρ = 1, where they are the on-policy weights.
    Self-normalised: n²/(n-k) ∂/∂log ρ_i of J_k C(n,k)/e_k(ρ), denominator included; centred by
    itself, so it has no baseline; biased, consistent; at ρ = 1 it is the canonical weight; k < n.

    Right to 1e-9 of the group's largest weight whenever that fits into float64; otherwise
    ValueError. The self-normalised form is always finite.

    Args:
        rewards: float64, (..., n), all live.
        log_ratio: float64, (..., n), of whole completions.
        k: how many samples the objective looks at.
        baseline: "canonical", "loo-1" or "none".
        self_normalise: the bounded form.
        check: False never looks at the data, so that the function can be traced; weights that do
            not fit into float64 are then infinite.
    """
    n = rewards.shape[-1]
    flat, logs = rewards.reshape(-1, n), log_ratio.reshape(-1, n)
    cells = CACHED_CELLS if is_numpy_array(rewards) else CELLS
    many = max(1, cells // (n * k))
    xp = array_namespace(rewards)
    pieces = [
        _exact(flat[at : at + many], logs[at : at + many], k, baseline, self_normalise, check)
        for at in range(0, max(1, flat.shape[0]), many)
    ]
    return xp.concat(pieces, axis=0).reshape(rewards.shape)


def _exact(
    rewards: Array, log_ratio: Array, k: int, baseline: str, normalise: bool, check: bool
) -> Array:
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    ordered, tosses, order = by_rank(rewards, log_ratio, k, check=check)
    if normalise:
        below = ordered - ordered[-1:]  # it does not see a shift, and equal rewards become zeros
        both = xp.stack([below, xp.ones_like(below)], axis=1)
        with_i, _, whole = with_and_without(both, tosses.with_channels(), k)
        best, share = whole[0], whole[1]
        bracket = with_i[:, 0] - best / share * with_i[:, 1]
        weights = n * n / (n - k) * tosses.heads * bracket / share
    else:
        if baseline == "none":
            bracket = with_and_without(ordered, tosses, k)[0]
        elif baseline == "loo-1" and k > 1:
            bracket = lead_over_others(ordered, tosses, k)
        else:
            bracket = gain_over_normalised_others(ordered, tosses, k, check=check)
        log_scale = tosses.log_scale + math.log(k) - log_binomial(n - 1, k - 1)
        weights = scaled(tosses.heads * bracket, log_scale, check=check)
    return unsort(xp.permute_dims(weights, (1, 0)), order)


def effective_sample_size(log_ratio: Any, k: int) -> Array:
    """How many of the k-subsets still count, as a fraction in (0, 1]: (..., n) → (...,).

        e_k(ρ)² / (C(n,k) e_k(ρ²))

    A property of one estimate from these samples. It does not see a common shift of all ratios and
    is 1 at k = n, so inner steps are stopped by `ratio_divergence` and `effective_share` instead.

    Args:
        log_ratio: log π_θ - log π_old of each whole completion, (..., n), finite.
        k: the size of the subsets, 1 ≤ k ≤ n.

    Raises:
        ValueError: n < k; a log-ratio that is not finite.

    >>> effective_sample_size([0.0, 0.0, 0.0, 0.0], 2)
    array(1.)
    """
    logs, restore = as_float64(log_ratio, "log_ratio")
    k = positive_integer(k, "k")
    n = _enough(logs, k, f"the effective sample size of subsets of {k}")
    _finite(logs, "log_ratio")
    xp = array_namespace(logs)
    flat = logs.reshape(-1, n)
    size = 2 * log_elementary(flat, k) - log_elementary(2 * flat, k) - log_binomial(n, k)
    share = xp.exp(xp.where(size < 0, size, xp.zeros_like(size)))
    return restore(share.reshape(logs.shape[:-1]))


def check_truncate(truncate: float | None, k: int, *, bounded: bool) -> None:
    """The limit is a number, and with it no subset's weight leaves float64 (unless `bounded`)."""
    if truncate is None:
        return
    if not math.isfinite(truncate):
        raise ValueError(f"truncate is the largest log-ratio, a finite number, got {truncate}")
    if not bounded and k * truncate > LARGEST_LOG - 9:
        raise ValueError(
            f"truncate={truncate:g} with k = {k} lets a subset weigh e^{k * truncate:.0f}, more "
            f"than float64 holds: use at most {(LARGEST_LOG - 9) / k:.3g}, or "
            "self_normalise=True"
        )


def _enough(values: Array, k: int, what: str) -> int:
    n = values.shape[-1] if values.ndim else 0
    if k > n:
        raise ValueError(f"{what} needs at least {k} samples per prompt, got {n}")
    return n


def _finite(values: Array, name: str) -> None:
    xp = array_namespace(values)
    bad = ~xp.isfinite(values)
    if bool(xp.any(bad)):
        first = float(values[bad][0])
        raise ValueError(
            f"{name} must be finite for every sample, got {first}: leave out samples that could "
            "not be scored"
        )
