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

from array_api_compat import array_namespace

from bestofk.procedures.arrays import (
    Array,
    as_float64,
    by_order,
    constant,
    cumulative_sum,
    positive_integer,
    sort_with_order,
    sums_above,
    unsort,
    without_gradient,
)
from bestofk.procedures.binomials import log_binomial, shares_with_company
from bestofk.procedures.importance import pooled
from bestofk.procedures.maximum import MAX
from bestofk.procedures.symmetric_sums import (
    LARGEST_LOG,
    best_of_subsets,
    by_rank,
    scaled,
)


def truncated(log_ratio: Array, limit: float | None) -> Array:
    """Log-ratios bounded from above, min(log ρ, limit), straight through: the slope stays 1.

    It bounds the size of the advantages. It is not a trust region: a sample past the limit is
    pushed on; `trust_region_mask` is the region.

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
    sample_weights: Any = None,
    check: bool = True,
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
        sample_weights: α, for samples of several policies (`pooled`): the shape of rewards, or one
            row for all groups.
        check: False never looks at the values, for tracing: they must be finite.

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
    logs, _ = as_float64(log_ratio, "log_ratio", keep_gradient=True)
    if tuple(logs.shape) != tuple(values.shape):
        raise ValueError(f"rewards {values.shape} and log_ratio {logs.shape} must have one shape")
    k = positive_integer(k, "k")
    if not values.ndim or values.shape[-1] < k:
        got = values.shape[-1] if values.ndim else 0
        raise ValueError(f"max@{k} needs at least {k} samples per prompt, got {got}")
    for each, name in ((values, "rewards"), (without_gradient(logs), "log_ratio")):
        if check:
            require_finite(each, name, "leave out samples that could not be scored")
    check_truncate(truncate, k, bounded=self_normalise)
    logs = truncated(logs, truncate)
    if sample_weights is not None:
        alpha = weights_of_samples(sample_weights, values)
        logs = pooled(logs, log_weights(alpha, check=check), k, check=check)
    xp, n = array_namespace(values), values.shape[-1]
    ordered, tosses, _ = by_rank(values.reshape(-1, n), logs.reshape(-1, n), k, check=check)
    best = best_of_subsets(ordered, tosses, k)
    if self_normalise:
        result = best / best_of_subsets(xp.ones_like(ordered), tosses, k)
    else:
        log_scale = tosses.log_scale - log_binomial(n, k)
        if check:
            scaled(without_gradient(best), without_gradient(log_scale))  # raises: it overflows
        idle = (best == 0) & (log_scale > LARGEST_LOG)  # nothing to scale: keep 0 · ∞ out
        half = xp.exp(xp.where(idle, xp.zeros_like(log_scale), log_scale) / 2)
        result = best * half * half
    return result.reshape(values.shape[:-1])


def weights_of_samples(weights: Any, rewards: Array) -> Array:
    """α in the shape of the rewards."""
    alpha, _ = as_float64(weights, "sample_weights")
    xp = array_namespace(alpha)
    if tuple(alpha.shape) not in (tuple(rewards.shape), tuple(rewards.shape[-1:])):
        raise ValueError(
            f"sample_weights must have the shape of rewards, {tuple(rewards.shape)}, or be one row "
            f"for all groups, got {tuple(alpha.shape)}"
        )
    return xp.broadcast_to(alpha, rewards.shape)


def log_weights(alpha: Array, *, check: bool = True) -> Array:
    """log α of live samples."""
    xp = array_namespace(alpha)
    if check and not bool(xp.all(xp.isfinite(alpha) & (alpha > 0))):
        raise ValueError(
            "sample_weights must be finite and above 0: give samples that do not count live=False"
        )
    return xp.log(alpha)


def first_order(
    rewards: Array, log_ratio: Array, k: int, *, baseline: str = "canonical", clamp: float = 1.0
) -> Array:
    """The max@k paper's expansion in δ = ρ - 1, clamped to [-clamp, clamp].

        w'_ii = C(i-1,k-1)(1+δ_i) + C(i-2,k-2) Σ_{l<i} δ_l
        w'_ij = C(j-2,k-2)(1+δ_i+δ_j) + C(j-3,k-3) Σ_{l<j, l≠i} δ_l       (j > i)
        A_i = n/C(n,k) Σ_j w'_ij r_(j)

    minus, with a baseline, (1+δ_i) (1+(k-1) δ̄_{-i}) b_i, where δ̄_{-i} is the mean over the others
    and b_i the on-policy k ρ_k(B∖i) (canonical) or k ρ_{k-1}(B∖i) (loo-1): it does not see sample
    i, and a shift of all rewards cancels to first order. "none" is the paper's form.

    Claim: biased by terms of second order in the spread of the log-ratio; docs/conformance.md has
    the worst bias over its policies at each spread.

    Args:
        rewards: float64, (..., n), all live.
        log_ratio: float64, (..., n), of whole completions.
        k: how many samples the objective looks at.
        baseline: "canonical", "loo-1" or "none".
        clamp: bound on |δ|, positive.

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
    tables = constant(shares_with_company(n, k), ordered)
    own, pair, triple = tables[0], tables[1], tables[2]
    before = cumulative_sum(delta) - delta
    diagonal = ordered * (own * (1.0 + delta) + pair * before)
    others = sums_above((ordered * (pair * (1.0 + delta) + triple * before))[..., 1:])
    shared = delta * sums_above((ordered * (pair - triple))[..., 1:])
    result = unsort(diagonal + others + shared, order)
    if baseline == "none":
        return result
    worth = MAX.weights["none"](rewards, k) - MAX.weights[baseline](rewards, k)
    mean_of_others = (xp.sum(delta, axis=-1, keepdims=True) - delta) / max(n - 1, 1)
    share = (1.0 + delta) * (1.0 + (k - 1) * mean_of_others)
    return result - unsort(share, order) * worth


def trust_region_mask(advantages: Any, log_ratio: Any, low: float, high: float) -> Array:
    """m_i: True where a finished advantage is kept, False where the sample has left the region.

        m_i = 0 if (A_i > 0 and ℓ_i > ε_high) or (A_i < 0 and ℓ_i < -ε_low), else 1

    with ℓ = log π_θ - log π_old of whole completions. A sample outside the region is no longer
    pushed outward; a push back inward is kept. The advantages come from the unmasked ratios of all
    siblings and are not renormalised.

    Claim: where nothing is masked, m A is A; elsewhere it is biased. It bounds the push on a sample
    and not |ℓ_i|: siblings and momentum still move it.

    Args:
        advantages: after their baseline, (...,).
        log_ratio: ℓ of each completion, the shape of advantages.
        low, high: ε_low and ε_high, at least 0; math.inf leaves a side open.

    Returns:
        Booleans, (...,). The masked share of live samples is 1 - mask.mean().

    Raises:
        ValueError: a bound that is negative or NaN; shapes that differ; NaN.

    >>> trust_region_mask([1.0, 1.0, -1.0, -1.0], [0.3, -0.3, 0.3, -0.3], 0.2, 0.2)
    array([False,  True,  True, False])
    """
    low, high = region((low, high))
    values, _ = as_float64(advantages, "advantages")
    logs, _ = as_float64(log_ratio, "log_ratio")
    if tuple(values.shape) != tuple(logs.shape):
        raise ValueError(
            f"advantages {tuple(values.shape)} and log_ratio {tuple(logs.shape)} must have one "
            "shape"
        )
    return inside_region(values, logs, low, high, check=True)


def inside_region(
    advantages: Array, log_ratio: Array, low: float, high: float, *, check: bool
) -> Array:
    """`trust_region_mask` of float64 arrays."""
    xp = array_namespace(advantages)
    counts = xp.isnan(log_ratio) & (advantages != 0)  # a sample that is not live may have any
    if check and bool(xp.any(xp.isnan(advantages) | counts)):
        raise ValueError("advantages, and log-ratios of samples that have one, must not be nan")
    up, down = (advantages > 0) & (log_ratio > high), (advantages < 0) & (log_ratio < -low)
    return ~(up | down)


def region(bounds: Any) -> tuple[float, float]:
    """(ε_low, ε_high) from a pair, or from one number for both.

    >>> region(0.2)
    (0.2, 0.2)
    """
    pair = tuple(bounds) if isinstance(bounds, tuple | list) else (bounds, bounds)
    try:
        low, high = (float(bound) for bound in pair)
    except (TypeError, ValueError, OverflowError):
        low = high = math.nan
    if not (low >= 0 and high >= 0) or any(isinstance(bound, bool | str) for bound in pair):
        raise ValueError(
            "trust_region is (low, high), how far a sequence log-ratio may fall and rise before "
            f"its sample is masked, both at least 0, or one number for both; got {bounds!r}"
        )
    return low, high


def clipped_advantages(
    advantages: Any,
    log_ratio: Any,
    low: float = 0.2,
    high: float = 0.2,
    *,
    reference_log_ratio: Any = None,
    kl: float = 0.0,
) -> Array:
    """What multiplies ∇log π_θ in PPO's clipped loss with a KL penalty, as plain numbers.

        L_i = min(ρ_i A_i, clip(ρ_i, 1 - low, 1 + high) A_i) - β (e^{-ℓ'_i} - 1 + ℓ'_i)
        dL_i/d log π_θ = ρ_i A_i m_i - β (1 - e^{-ℓ'_i}),
        m_i = 0 if (A_i > 0 and ρ_i > 1 + high) or (A_i < 0 and ρ_i < 1 - low), else 1

    with ℓ' = log π_θ - log π_reference. The comparison for the exact form: A are on-policy
    advantages, and only the own ratio of a sample (or token) enters. The max@k paper's equation 4
    has ratios of whole completions and the KL to π_old: pass log_ratio as reference_log_ratio too.

    Claim: biased off policy; at ρ = 1 and β = 0 it is A.

    Args:
        advantages: on policy, (...,): one per sample, or spread over tokens.
        log_ratio: log π_θ - log π_old, the shape of advantages.
        low, high: how far ρ may leave 1, at least 0.
        reference_log_ratio: ℓ', the shape of advantages; needed where kl > 0.
        kl: β, at least 0.

    Raises:
        ValueError: shapes that differ; a bound or β that is negative; kl without its log-ratio.

    >>> clipped_advantages([1.0, 1.0], [0.1, 0.3])
    array([1.10517092, 0.        ])

    References:
        Bagirov et al. 2025 (arXiv:2510.23393), equation 4; A is a z-score there (equation 5 for
        rewards, `max@k:zscore` for their "BoN mean"). They do not state the estimator of the KL;
        this one is GRPO's (Shao et al. 2024, arXiv:2402.03300).
    """
    low, high = region((low, high))
    if not 0 <= kl < math.inf:
        raise ValueError(f"kl is the coefficient of the penalty, at least 0, got {kl}")
    if kl and reference_log_ratio is None:
        raise ValueError("kl > 0 needs reference_log_ratio=, log π_θ - log π_reference")
    values, restore = as_float64(advantages, "advantages")
    logs, _ = as_float64(log_ratio, "log_ratio")
    xp = array_namespace(values)
    lower = -math.log1p(-low) if low < 1 else math.inf
    inside = trust_region_mask(values, logs, lower, math.log1p(high))
    result = xp.where(inside, values * xp.exp(logs), xp.zeros_like(values))
    if kl:
        reference, _ = as_float64(reference_log_ratio, "reference_log_ratio")
        result = result + kl * xp.expm1(-reference)
    return restore(result)


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


def require_finite(values: Array, name: str, remedy: str) -> None:
    """Raise where a value is NaN or infinite."""
    xp = array_namespace(values)
    bad = ~xp.isfinite(values)
    if bool(xp.any(bad)):
        raise ValueError(
            f"{name} must be finite for every live sample, got {float(values[bad][0])}: {remedy}"
        )
