"""Unbiased estimates of what k samples are worth, from n ≥ k samples of the same prompt.

Each is the mean of a statistic over all k-subsets of the group (a U-statistic), written so that it
costs one sort. Values in, values out; the sample axis is last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bestofk.types import reaches

from .arrays import Array, as_float64, as_numpy, constant, live_mask, positive_integer
from .binomials import order_statistic_weights
from .grouping import SmallGroups, gather, lay_out, scatter_groups
from .majority import numbered, votes_by_k
from .maximum import best_by_k, best_of_k


def max_at_k(
    rewards: Any,
    k: int,
    *,
    groups: Any = None,
    live: Any = None,
    small_groups: SmallGroups = "error",
    check: bool = True,
) -> Array:
    """Expected best reward of k samples.

        ρ_k = Σ_{i≥k} C(i-1, k-1) r_(i) / C(n, k)
            = r_(n) - Σ_m (r_(m+1) - r_(m)) C(m, k) / C(n, k)

    Claim: unbiased for E[max of k i.i.d. samples], for every k ≤ n; exact under ties.
    Limits: k = 1 is the mean, k = n the maximum. On 0/1 rewards it is pass@k.

    Args:
        rewards: real numbers, (..., n); NaN marks a sample that could not be scored.
        k: how many samples are drawn.
        groups: a group id per sample, when groups differ in size; rewards are then one row.
        live: True where a sample counts, the shape of rewards.
        small_groups: "error" (default) raises on a group with fewer than k live samples; "drop"
            gives it NaN and warns.
        check: False never looks at the values, so that jit, vmap and compile can trace the call:
            rewards must be finite, without `groups` and `live`.

    Returns:
        One estimate per group: the leading shape of rewards, or, with `groups`, one per distinct
        id in sorted order.

    Raises:
        ValueError: n < k; infinite rewards.

    >>> max_at_k([0.0, 0.5, 1.0], 2)
    array(0.83333333)

    References:
        Bagirov et al. 2025 (arXiv:2510.23393); Walder & Karkhanis 2025 (arXiv:2505.15201).
    """
    k = positive_integer(k, "k")
    which = {"groups": groups, "live": live, "small_groups": small_groups, "check": check}
    return _per_group(rewards, partial(best_of_k, k=k), k, f"max@{k}", **which)


def pass_at_k(
    correct: Any,
    k: int,
    *,
    threshold: float | None = None,
    groups: Any = None,
    live: Any = None,
    small_groups: SmallGroups = "error",
) -> Array:
    """Probability that at least one of k samples is correct.

        1 - C(n - c, k) / C(n, k)

    Claim: unbiased for 1 - (1 - p)^k, for every k ≤ n.

    Args:
        correct: 0/1 or booleans, (..., n); NaN marks a sample that could not be scored.
        k: how many samples are drawn.
        threshold: makes real rewards 0/1: reward ≥ threshold passes.
        groups, live, small_groups: as in `max_at_k`.

    Raises:
        ValueError: n < k; values other than 0, 1 and NaN without a threshold.

    >>> pass_at_k([True, False, False, False], 2)
    array(0.5)

    References:
        Chen et al. 2021 (arXiv:2107.03374), eq. 1.
    """
    values, restore = as_float64(correct, "correct")
    passed = zero_one(values, threshold, "pass@k", live)
    k = positive_integer(k, "k")
    which = {"groups": groups, "live": live, "small_groups": small_groups}
    return restore(_per_group(passed, partial(best_of_k, k=k), k, f"pass@{k}", **which))


def max_at_k_curve(rewards: Any, *, k_max: int | None = None, **which: Any) -> Array:
    """`max_at_k` for k = 1..k_max in one pass: shape (..., k_max).

    Args:
        k_max: the largest k; by default the smallest live count of any group.
        rewards, which: as in `max_at_k` (groups, live, small_groups).

    >>> max_at_k_curve([0.0, 0.0, 1.0])
    array([0.33333333, 0.66666667, 1.        ])
    """
    values, restore = as_float64(rewards, "rewards", keep_gradient=True)
    if k_max is None:
        layout = lay_out(values, **({"small_groups": "error"} | which))
        k_max = min((bucket.n for bucket in layout.buckets), default=1)
    k_max = positive_integer(k_max, "k_max")
    curve = partial(best_by_k, k_max=k_max)
    return restore(_per_group(values, curve, k_max, f"max@{k_max}", **which))


def l_statistic_at_k(
    rewards: Any, k: int, coefficients: str | Sequence[float], **which: Any
) -> Array:
    """Expected L-statistic of k samples: Σ_j α_j E[r_(j:k)], j = 1 the lowest.

        Σ_m r_(m) Σ_j α_j C(m-1, j-1) C(n-m, k-j) / C(n, k)

    Claim: unbiased for every k ≤ n.

    Args:
        rewards: real numbers, (..., n); NaN marks a sample that could not be scored.
        k: how many samples are drawn.
        coefficients: α_1..α_k, the lowest of k first; or "min", "median", "top2" (the mean of the
            best 2), "bottom2".
        which: groups, live, small_groups, as in `max_at_k`.

    >>> l_statistic_at_k([1.0, 2.0, 6.0], 2, (1, 0)), l_statistic_at_k([1.0, 2.0, 6.0], 2, "min")
    (array(1.33333333), array(1.33333333))

    References:
        OrderGrad (arXiv:2606.06096).
    """
    k = positive_integer(k, "k")
    if isinstance(coefficients, str):
        coefficients = named_coefficients(coefficients, k)
    alphas = tuple(float(alpha) for alpha in coefficients)
    if len(alphas) != k or not all(np.isfinite(alphas)):
        raise ValueError(
            f"coefficients must be {k} finite numbers, lowest of k first, got {alphas}"
        )

    def combine(rewards: Array) -> Array:
        ordered = array_namespace(rewards).sort(rewards, axis=-1)
        return ordered @ constant(order_statistic_weights(ordered.shape[-1], k, alphas), ordered)

    return _per_group(rewards, combine, k, f"an L-statistic of {k}", **which)


def named_coefficients(name: str, k: int) -> tuple[float, ...]:
    """The coefficients of "min" (also "all"), "median" (of an even k the mean of the middle two),
    "top<m>", "bottom<m>" or "atleast<m>" of k."""
    if name == "median":
        return tuple((float(j == (k - 1) // 2) + float(j == k // 2)) / 2 for j in range(k))
    match = re.fullmatch(
        r"(top|bottom|atleast)(\d+)", "bottom1" if name in ("min", "all") else name
    )
    if not match:
        raise ValueError(f"an L-statistic is min, median, top<m> or bottom<m>, got {name!r}")
    m = int(match[2])
    if not 1 <= m <= k:
        raise ValueError(f"cannot take {m} of {k} samples: need 1 ≤ m ≤ k")
    if match[1] == "atleast":  # of 0/1 rewards: the m-th best
        return tuple(float(j == k - m) for j in range(k))
    lowest = (1.0 / m,) * m + (0.0,) * (k - m)
    return lowest if match[1] == "bottom" else lowest[::-1]


def zero_one(
    values: Array, threshold: float | None, name: str, live: Any = None, *, check: bool = True
) -> Array:
    """`values` as 0/1 (NaN stays NaN), by the threshold or because they already are.

    Args:
        values: float64, (..., n).
        threshold: reward ≥ threshold passes, but for rounding; None takes 0, 1 and NaN only.
        name: what asks for 0/1 rewards, for the error.
        live: True where a sample counts, the shape of values; others may be anything.
        check: False takes the values as they are.
    """
    xp = array_namespace(values)
    if threshold is not None:
        if not np.isfinite(threshold):
            raise ValueError(f"threshold must be a finite number, got {threshold}")
        passed = xp.astype(reaches(values, threshold), xp.float64)
        return xp.where(xp.isnan(values), values, passed)
    if not check:
        return values
    fits = (values == 0) | (values == 1) | xp.isnan(values)
    if live is not None:
        fits = fits | constant(~live_mask(live, values.shape), values)
    if not bool(xp.all(fits)):
        odd = float(values.reshape(-1)[int(xp.argmax(xp.astype(~fits, xp.int8)))])
        raise ValueError(
            f"{name} takes rewards that are 0, 1 or NaN, got {odd!r}: give threshold= "
            "(reward ≥ threshold passes), or use max@k, which takes real rewards"
        )
    return values


def _per_group(
    rewards: Any,
    statistic: Callable[[Array], Array],
    k: int,
    name: str,
    *,
    groups: Any = None,
    live: Any = None,
    small_groups: SmallGroups = "error",
    check: bool = True,
) -> Array:
    """Apply a statistic of rewards (g, n) to every group."""
    values, restore = as_float64(rewards, "rewards", keep_gradient=True)
    need = f"{name} needs at least {k} samples per prompt"
    layout = lay_out(
        values,
        groups=groups,
        live=live,
        minimum=k,
        need=need,
        why=": draw more samples, or ask for a smaller k",
        small_groups=small_groups,
        check=check,
    )
    pieces = [statistic(gather(values, bucket)) for bucket in layout.buckets]
    result = scatter_groups(pieces, layout, values)
    if groups is None:
        result = result.reshape((*values.shape[:-1], *result.shape[1:]))
    return restore(result)


def maj_at_k(answers: Any, correct: Any, k: int) -> np.ndarray:
    """Probability that the most frequent answer among k samples is correct.

    The mean over all k-subsets of the group of: is the plurality answer correct, with ties broken
    uniformly at random. Computed without enumeration (`votes_by_k`).

    Claim: unbiased for the accuracy of majority voting over k i.i.d. samples, for every k ≤ n.
    Limits: k = 1 is the mean of `correct`; k = n is the vote of the whole group.

    Args:
        answers: hashable labels, (..., n); None and NaN do not vote.
        correct: 0/1 or booleans, (..., n), the same for all samples with the same answer.
        k: how many samples vote.

    Raises:
        ValueError: n < k; one answer marked both right and wrong.

    >>> maj_at_k(["4", "4", "5"], [1, 1, 0], 3)
    array(1.)

    References:
        Wang et al. 2022 (arXiv:2203.11171), self-consistency.
    """
    k = positive_integer(k, "k")
    right = as_numpy(as_float64(correct, "correct")[0])
    labels = as_numpy(answers) if hasattr(answers, "shape") else np.asarray(answers, dtype=object)
    if labels.shape != right.shape:
        raise ValueError(f"answers {labels.shape} and correct {right.shape} must have one shape")
    if labels.ndim == 0 or labels.shape[-1] < k:
        got = labels.shape[-1] if labels.ndim else 0
        raise ValueError(f"maj@{k} needs at least {k} samples per prompt, got {got}")
    if not np.isin(right, (0.0, 1.0)).all():
        raise ValueError("maj@k takes correctness that is 0 or 1 for every sample")
    n = labels.shape[-1]
    votes: list[float] = []
    for row, mark in zip(numbered(labels).reshape(-1, n), right.reshape(-1, n)):
        for answer in np.unique(row[row >= 0]):
            if len(set(mark[row == answer])) > 1:
                name = labels.reshape(-1, n)[len(votes)][row == answer][0]
                raise ValueError(f"answer {name!r} is marked both correct and wrong in one group")
        votes.append(votes_by_k(row, mark, k, k / n)[-1])
    return np.array(votes).reshape(labels.shape[:-1])
