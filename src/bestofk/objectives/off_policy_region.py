"""How far the policy may move on one batch: a trust region, a distance, the clipped form.

All take the log-ratio ℓ = log π_θ - log π_old of whole completions (`clipped_weights`: of whatever
the loss clips).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from .arrays import Array, as_float64, constant, live_mask, positive_integer


def trust_region_mask(weights: Any, log_ratio: Any, low: float, high: float) -> Array:
    """m_i: True where a finished weight is kept, False where the sample has left the region.

        m_i = 0 if (A_i > 0 and ℓ_i > ε_high) or (A_i < 0 and ℓ_i < -ε_low), else 1

    A sample outside the region is no longer pushed outward; a push back inward is kept. The weights
    come from the unmasked ratios of all siblings and are not renormalised.

    Claim: where nothing is masked, m A is A; elsewhere it is biased. It bounds the push on a sample
    and not |ℓ_i|: siblings and momentum still move it.

    Args:
        weights: finished weights, after their baseline, (...,).
        log_ratio: log π_θ - log π_old of each whole completion, the shape of weights.
        low, high: ε_low and ε_high, at least 0; math.inf leaves a side open.

    Returns:
        Booleans, (...,). The masked share of live samples is 1 - mask.mean().

    Raises:
        ValueError: a bound that is negative or NaN; shapes that differ.

    >>> trust_region_mask([1.0, 1.0, -1.0, -1.0], [0.3, -0.3, 0.3, -0.3], 0.2, 0.2)
    array([False,  True,  True, False])
    """
    low, high = region((low, high))
    built, _ = as_float64(weights, "weights")
    logs, _ = as_float64(log_ratio, "log_ratio")
    if tuple(built.shape) != tuple(logs.shape):
        raise ValueError(
            f"weights {tuple(built.shape)} and log_ratio {tuple(logs.shape)} must have one shape"
        )
    return inside(built, logs, low, high)


def inside(weights: Array, log_ratio: Array, low: float, high: float) -> Array:
    """`trust_region_mask` on arrays that are known to be good."""
    return ~(((weights > 0) & (log_ratio > high)) | ((weights < 0) & (log_ratio < -low)))


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


def ratio_divergence(log_ratio: Any, live: Any = None) -> float:
    """D: how far π_θ has moved from π_old on these samples, in nats.

        D = mean over live completions of (ρ - 1 - ℓ) ≥ 0

    Claim: E_old[D] = KL(π_old ‖ π_θ), since E_old[ρ] = 1; every term is at least 0, so a common
    shift of all ratios is seen too. About σ²/2 for a small spread σ of ℓ.

    Args:
        log_ratio: log π_θ - log π_old of each whole completion, (...,).
        live: True where a completion counts, the shape of log_ratio; all by default.

    Returns:
        A float; infinite where a ratio overflows, 0 without live completions.

    Raises:
        ValueError: a live log-ratio that is NaN.

    >>> ratio_divergence([0.0, 0.0])
    0.0
    """
    logs, _ = as_float64(log_ratio, "log_ratio")
    xp = array_namespace(logs)
    used = None if live is None else live_mask(live, logs.shape, "log_ratio")
    logs = xp.reshape(logs, (-1,))
    if used is not None:
        logs = logs[constant(used.reshape(-1), logs)]
    if bool(xp.any(xp.isnan(logs))):
        raise ValueError(
            "log_ratio must be a number for every live completion, got nan: pass live= to leave "
            "out completions that were not scored"
        )
    with np.errstate(over="ignore"):
        return float(xp.mean(xp.expm1(logs) - logs)) if logs.shape[0] else 0.0


def effective_share(divergence: float, k: int) -> float:
    """ESS_k: the share of k-subsets that still count when the policies are D apart.

        ESS_k = exp(-2 k D)

    About e^{-kσ²} for log-ratios of a small spread σ, the effective sample size of products of k
    independent ratios. A trainer ends its inner steps below a floor; the stop depends on the data,
    so no unbiasedness is claimed for it.

    Args:
        divergence: D of `ratio_divergence`, at least 0.
        k: how many samples the objective looks at.

    Raises:
        ValueError: D < 0 or NaN; k < 1.

    >>> effective_share(0.0, 8)
    1.0
    """
    if not divergence >= 0:
        raise ValueError(f"divergence is a mean of ρ - 1 - log ρ, at least 0, got {divergence}")
    return math.exp(-2.0 * positive_integer(k, "k") * divergence)


def clipped_weights(
    weights: Any,
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

    with ℓ' = log π_θ - log π_reference. The comparison for the exact weights: A are on-policy
    weights, and only the own ratio of a sample (or token) enters. The max@k paper's equation 4 has
    ratios of whole completions and the KL to π_old: pass log_ratio as reference_log_ratio too.

    Claim: biased off policy; at ρ = 1 and β = 0 it is A.

    Args:
        weights: on-policy weights, (...,): one per sample, or spread over tokens.
        log_ratio: log π_θ - log π_old, the shape of weights.
        low, high: how far ρ may leave 1, at least 0.
        reference_log_ratio: ℓ', the shape of weights; needed where kl > 0.
        kl: β, at least 0.

    Raises:
        ValueError: shapes that differ; a bound or β that is negative; kl without its log-ratio.

    >>> clipped_weights([1.0, 1.0], [0.1, 0.3])
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
    built, restore = as_float64(weights, "weights")
    logs, _ = as_float64(log_ratio, "log_ratio")
    xp = array_namespace(built)
    upper = math.log1p(high)
    lower = math.log1p(-low) if low < 1 else -math.inf
    kept = ~(((built > 0) & (logs > upper)) | ((built < 0) & (logs < lower)))
    result = xp.where(kept, built * xp.exp(logs), xp.zeros_like(built))
    if kl:
        reference, _ = as_float64(reference_log_ratio, "reference_log_ratio")
        result = result + kl * xp.expm1(-reference)
    return restore(result)
