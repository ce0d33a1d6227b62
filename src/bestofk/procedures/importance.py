"""Off policy: the exact weights of an older policy's samples, in O(nk).

Every formula here holds for the maximum and for a choice by score: only the order differs in which
the samples of a subset come before each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from array_api_compat import array_namespace, is_numpy_array

from .arrays import Array, by_order, unsort
from .binomials import log_binomial
from .symmetric_sums import (
    Tosses,
    by_rank,
    gain_over_normalised_others,
    lead_over_others,
    log_elementary,
    scaled,
    with_and_without,
)

CELLS = 1 << 22
"""At most this many numbers of the O(nk) table are held at once (32 MB)."""
CACHED_CELLS = 1 << 18
"""The same for NumPy, which makes a pass over memory per operation: these stay in the cache."""


def exact(
    rewards: Array,
    log_ratio: Array,
    k: int,
    *,
    baseline: str = "canonical",
    self_normalise: bool = False,
    check: bool = True,
    scores: Array | None = None,
) -> Array:
    """The exact off-policy advantages, without autograd.

        none        A_i = n ∂J_k/∂log ρ_i                           k ≤ n
        canonical   A_i = n ∂J_k/∂log ρ_i - k ρ_i b_i               k < n
                    b_i = e_{k-1}(B∖i)/C(n-1,k-1) · J_k(B∖i) C(n-1,k)/e_k(B∖i)
        loo-1       A_i = n ∂J_k/∂log ρ_i - k ρ_i J_{k-1}(B∖i)      k ≤ n, ≥ 0

    The canonical b_i is the self-normalised max@k of the others times the mean product of k - 1 of
    their ratios; at k = 1 it is the self-normalised mean of the others, for loo-1 too.

    Claim: each unbiased for ∇max@k of π_θ, in the mean convention, when θ does not depend on the
    group: E_old[ρ_i ∇log π_θ(y_i)] = 0 and a baseline does not see sample i. canonical and loo-1 do
    not change when a constant is added to all rewards, and are exactly 0 where all rewards agree.
    Centred only at ρ = 1, where they are the on-policy ones.
    Self-normalised: n²/(n-k) ∂/∂log ρ_i of J_k C(n,k)/e_k(ρ), denominator included; centred by
    itself, so it has no baseline; biased, consistent; at ρ = 1 the canonical advantage; k < n.

    With scores J_k is the value of select@k, and only ≥ 0 does not hold.

    Right to 1e-9 of the group's largest advantage whenever that fits into float64; otherwise
    ValueError. The self-normalised form is always finite.

    Args:
        rewards: float64, (..., n), all live.
        log_ratio: float64, (..., n), of whole completions.
        k: how many samples the objective looks at.
        baseline: "canonical", "loo-1" or "none".
        self_normalise: the bounded form.
        check: False never looks at the data, so that the function can be traced; advantages that
            do not fit into float64 are then infinite.
        scores: (..., n), which choose the sample that is used; by default the rewards do.
    """
    n = rewards.shape[-1]
    flat, logs = rewards.reshape(-1, n), log_ratio.reshape(-1, n)
    marks = None if scores is None else scores.reshape(-1, n)
    cells = CACHED_CELLS if is_numpy_array(rewards) else CELLS
    many = max(1, cells // (n * k))
    pieces = []
    for at in range(0, max(1, flat.shape[0]), many):
        rows = slice(at, at + many)
        chosen = None if marks is None else marks[rows]
        pieces.append(
            _exact(flat[rows], logs[rows], chosen, k, baseline, self_normalise, check=check)
        )
    return array_namespace(rewards).concat(pieces, axis=0).reshape(rewards.shape)


def pooled(log_ratio: Array, log_alpha: Array, k: int, *, check: bool = True) -> Array:
    """Log-ratios with which J_k and its advantages are those of samples of several policies.

        J_α = Σ_{|I|=k} Π_{j∈I} α_j ρ_j · max_{j∈I} r_j / e_k(α),    ρ_j = π_θ(y_j)/μ_j(y_j)

    y_j ~ μ_j independent, α_j > 0 fixed before the samples are seen, for example by their age. It
    is J_k of log ρ + log α + (log C(n,k) - log e_k(α))/k, which this function returns.

    Claim: J_α and its gradient are unbiased for max@k of π_θ, because every k-subset is; baselines
    likewise. So k may exceed the number of fresh samples. θ must not have been trained on any of
    them: samples of an earlier epoch bring a bias through θ.

    Args:
        log_ratio, log_alpha: (..., n).
        k: how many samples the objective looks at.
        check: False for tracing.
    """
    n = log_ratio.shape[-1]
    log_sum = log_elementary(log_alpha.reshape(-1, n), k, check=check).reshape(log_ratio.shape[:-1])
    return log_ratio + log_alpha + ((log_binomial(n, k) - log_sum) / k)[..., None]


def _exact(
    rewards: Array,
    log_ratio: Array,
    scores: Array | None,
    k: int,
    baseline: str,
    normalise: bool,
    *,
    check: bool,
) -> Array:
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    ordered, tosses, order = by_rank(rewards, log_ratio, k, scores=scores, check=check)
    last = None if scores is None else _last_of_ties(by_order(scores, order), check=check)
    below = ordered - ordered[-1:]  # equal rewards become zeros
    if normalise:
        both = xp.stack([below, xp.ones_like(below)], axis=1)
        with_i, _, total = with_and_without(both, tosses.with_channels(), k, last)
        best, share = total[0], total[1]
        bracket = with_i[:, 0] - best / share * with_i[:, 1]
        result = n * n / (n - k) * tosses.heads * bracket / share
    else:
        if baseline == "none":
            bracket = with_and_without(ordered, tosses, k, last)[0]
        elif baseline == "loo-1" and k > 1 and scores is None:
            bracket = lead_over_others(ordered, tosses, k)
        elif baseline == "loo-1" and k > 1:  # the k - 1 others, with sample i and without
            bracket = with_and_without(below, tosses, k, last)[0]
            bracket = bracket - with_and_without(below, tosses, k - 1, last)[1]
        else:
            bracket = gain_over_normalised_others(ordered, tosses, k, last=last, check=check)
        log_scale = tosses.log_scale + math.log(k) - log_binomial(n - 1, k - 1)
        result = scaled(tosses.heads * bracket, log_scale, check=check)
    return unsort(xp.permute_dims(result, (1, 0)), order)


def weigh(
    sums: Callable[[int], tuple[Array, ...]],
    ones: tuple[Array, ...],
    tosses: Tosses,
    k: int,
    *,
    baseline: str,
    self_normalise: bool,
    check: bool = True,
) -> Array:
    """The advantages of any procedure, (n, groups), from its sums over sets; as `exact` has them.

    Args:
        sums: k → Σ over k-sets of chance × (worth - reference) with each sample and without it
            (`symmetric_sums.with_and_without`), of all, and the reference.
        ones: the same at k where every set is worth 1 and the reference is 0.
        tosses: of the samples, for k.
    """
    xp = array_namespace(tosses.heads)
    n = tosses.heads.shape[0]
    with_i, without_i, total, reference = sums(k)
    if self_normalise:
        bracket = with_i - total / ones[2] * ones[0]
        return n * n / (n - k) * tosses.heads * bracket / ones[2]
    if baseline == "none":
        bracket = with_i + reference * ones[0]
    elif baseline == "loo-1" and k > 1:
        bracket = with_i - sums(k - 1)[1]
    else:
        share = xp.where(ones[1] > 0, ones[1], xp.ones_like(ones[1]))
        bracket = with_i - xp.where(ones[1] > 0, without_i / share, 0.0 * share) * ones[0]
    log_scale = tosses.log_scale + math.log(k) - log_binomial(n - 1, k - 1)
    return scaled(tosses.heads * bracket, log_scale, check=check)


def _last_of_ties(ordered: Array, *, check: bool) -> Array | None:
    """True for the last of each tie, (n, groups), given scores by rank (groups, n); None if there
    are no ties."""
    xp = array_namespace(ordered)
    differs = ordered[:, 1:] != ordered[:, :-1]
    if check and bool(xp.all(differs)):
        return None
    last = xp.concat([differs, xp.ones_like(ordered[:, :1]) > 0], axis=1)
    return xp.permute_dims(last, (1, 0))
