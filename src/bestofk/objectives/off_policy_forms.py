"""Off-policy forms that are not exact: the max@k paper's first order, own ratio, clipped ratio."""

from __future__ import annotations

from array_api_compat import array_namespace

from .arrays import Array, by_order, constant, cumulative_sum, sort_with_order, sums_above, unsort
from .binomials import shares_with_company
from .on_policy import max_canonical, max_leave_one_out_minus_one, max_no_baseline
from .symmetric_sums import scaled


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
    weights = unsort(diagonal + others + shared, order)
    if baseline == "none":
        return weights
    worth = max_no_baseline(rewards, k) - on_policy(rewards, k, baseline)
    mean_of_others = (xp.sum(delta, axis=-1, keepdims=True) - delta) / max(n - 1, 1)
    share = (1.0 + delta) * (1.0 + (k - 1) * mean_of_others)
    return weights - unsort(share, order) * worth


def on_policy(rewards: Array, k: int, baseline: str) -> Array:
    """The weights at ρ = 1, by the name of the baseline.

    Args:
        rewards: float64, (..., n), all live.
        k: how many samples the objective looks at.
        baseline: "canonical", "loo-1" or "none".
    """
    by_name = {
        "canonical": max_canonical,
        "loo-1": max_leave_one_out_minus_one,
        "none": max_no_baseline,
    }
    return by_name[baseline](rewards, k)


def own_ratio(
    rewards: Array,
    log_ratio: Array,
    k: int,
    *,
    baseline: str = "canonical",
    check: bool = True,
) -> Array:
    """ρ_i times the on-policy weight: corrects each sample and ignores its siblings. Biased.

    Args:
        rewards: float64, (..., n), all live.
        log_ratio: float64, (..., n), of whole completions.
        k: how many samples the objective looks at.
        baseline: "canonical", "loo-1" or "none".
        check: False never looks at the data; weights that do not fit are then infinite.

    Raises:
        ValueError: a ratio that does not fit into float64.
    """
    return scaled(on_policy(rewards, k, baseline), log_ratio, check=check)
