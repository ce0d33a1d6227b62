"""select@k: of k samples the best-scored is used. Scores choose, rewards pay.

f(I) is the reward of the best-scored of I; where several tie for it, their mean. s_i are the
scores, r_[i] the rewards in order of the scores, which need not rise; ties form blocks T of t
samples, ranks a..b, with mean reward r̃_T. With S_m = C(m-1, k-1)/C(n-1, k-1) and gaps
g_m = r̃_[m+1] - r̃_[m]

    q_i = r̃_[n] - Σ_{m ≥ i} g_m S_m + (r_i - r̃_T) ([b S_b - (a-1) S_{a-1}]/k - S_b) / (t-1)

and U = Σ q_i / n: the kernel of max@k in order of the scores, plus a term inside ties. By symmetry,
sample i wins [C(b,k) - C(a-1,k)]/t of the C(b-1,k-1) subsets with i and top block T, and another
sample of T wins the rest.

A score of -inf loses to every number; among samples that all have it, one is drawn. Scores =
rewards is max@k, equal scores are the mean (RLOO), for every k. Nothing changes when scores are put
through an increasing function, or a constant is added to all rewards.

`soft`: scores are logits, and one of k is used with a chance in proportion to e^score. That is the
best-scored after independent Gumbel noise on every score (-log(-log u), u uniform), so hard weights
of noisy scores are unbiased for any number of draws; 16 of them cost a tenth of the variance. The
value is exact: with w = e^s, 1/W = ∫ e^{-λW} dλ turns the softmax into products over samples,

    U = 1/C(n,k) ∫ [z^k] Σ_j r_j w_j z x_j Π_{l≠j} (1 + z x_l) dλ,    x_l = e^{-λ w_l}.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import (
    Array,
    as_numpy,
    by_order,
    constant,
    cumulative_max,
    cumulative_sum,
    sort_with_order,
    unsort,
)
from .binomials import binomial, by_share, subset_share
from .importance import exact
from .maximum import last_by_k, subset_shortfall
from .procedure import Procedure, by_baseline


def _ranked(rewards: Array, scores: Array) -> tuple[Array, ...]:
    """In order of the scores: rewards less the last one, their means in ties, first and last rank
    of each tie (from 0), and the order."""
    xp = array_namespace(rewards)
    marks, order = sort_with_order(scores)
    values = by_order(rewards, order)
    values = values - values[..., -1:]  # where the best-scored have one reward: exact zeros
    n = rewards.shape[-1]
    rank = xp.arange(n, device=device(rewards)) + xp.zeros_like(order)
    differs = marks[..., 1:] != marks[..., :-1]

    def starts(differs: Array) -> Array:
        """The rank at which the tie of each sample starts."""
        zeros = xp.zeros_like(rank)
        ranks = xp.where(differs, rank[..., 1:], zeros[..., 1:])
        return cumulative_max(xp.concat([zeros[..., :1], ranks], axis=-1))

    first = starts(differs)
    last = n - 1 - xp.flip(starts(xp.flip(differs, axis=-1)), axis=-1)
    sums = cumulative_sum(values)
    before = xp.take_along_axis(sums, last, axis=-1) - xp.take_along_axis(sums, first, axis=-1)
    before = before + xp.take_along_axis(values, first, axis=-1)
    size = last - first + 1
    means = xp.where(size == 1, values, before / xp.astype(size, xp.float64))
    return values, means, first, last, order


def _shortfalls(rewards: Array, k: int, scores: Array) -> tuple[Array, Array]:
    """-q_i by rank, rewards counted from that of the last in order; and the order."""
    xp = array_namespace(rewards)
    values, means, first, last, order = _ranked(rewards, scores)
    n = rewards.shape[-1]
    shares = constant(subset_share(n - 1, k - 1), rewards)  # [m] is S_{m+1}

    def share(rank: Array) -> Array:
        return xp.reshape(xp.take(shares, xp.reshape(rank, (-1,)), axis=0), rank.shape)

    own, size = share(last), xp.astype(last - first, xp.float64)
    below = xp.where(first > 0, share(xp.where(first > 0, first - 1, first)), xp.zeros_like(own))
    wins = (xp.astype(last + 1, xp.float64) * own - xp.astype(first, xp.float64) * below) / k
    inside = (values - means) * (wins - own)
    inside = inside / xp.where(size > 0, size, xp.ones_like(size))
    return subset_shortfall(means, k) - means[..., -1:] - inside, order


def canonical(rewards: Array, k: int, scores: Array) -> Array:
    """A_i = k (q_i - U_k(B∖i)) = k n/(n-k) (q_i - U_k(B)), k < n.

    Claim: unbiased for ∇ select@k; sums to 0 over the group. A sample that is wrong and scores high
    is pushed down.

    >>> import numpy as np
    >>> canonical(np.array([0.0, 1.0, 0.0]), 2, np.array([3.0, 2.0, 1.0]))
    array([-2.,  1.,  1.])
    """
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    shortfall, order = _shortfalls(rewards, k, scores)
    return unsort(
        (xp.mean(shortfall, axis=-1, keepdims=True) - shortfall) * (k * n / (n - k)), order
    )


def leave_one_out_minus_one(rewards: Array, k: int, scores: Array) -> Array:
    """A_i = k (q_i - U_{k-1}(B∖i)), any k ≤ n: what i adds to k - 1 others. k = 1 is RLOO.

    Claim: unbiased for ∇ select@k, also at k = n.
    """
    if k == 1:
        return canonical(rewards, 1, scores)
    xp = array_namespace(rewards)
    n = rewards.shape[-1]
    shortfall, order = _shortfalls(rewards, k, scores)
    less = _shortfalls(rewards, k - 1, scores)[0]
    without = (n * xp.mean(less, axis=-1, keepdims=True) - (k - 1) * less) / (n - k + 1)
    return unsort(k * (without - shortfall), order)


def no_baseline(rewards: Array, k: int, scores: Array) -> Array:
    """A_i = k q_i, any k ≤ n. Claim: unbiased for ∇ select@k; not centred."""
    shortfall, order = _shortfalls(rewards, k, scores)
    top = by_order(rewards, order)[..., -1:]
    return unsort(k * (top - shortfall), order)


def chosen_by_k(rewards: Array, k_max: int, scores: Array) -> Array:
    """U_k for k = 1..k_max: (g, k_max)."""
    _, means, _, _, order = _ranked(rewards, scores)
    return by_order(rewards, order)[..., -1:] + last_by_k(means, k_max)


DRAWS = 16
"""Of noise for each score."""
FAR = 40.0
"""Of two scores this far apart, the lower one is never used: larger gaps change nothing."""
STEP = 0.3
"""Of the integral over log λ: its error is below 1e-13."""


def soft_weights(
    rewards: Array,
    k: int,
    scores: Array,
    noise: Array,
    *,
    baseline: str,
    log_ratio: Array | None = None,
    **form: Any,
) -> Array:
    """The mean over draws of the weights of select@k with noisy scores, also with log-ratios.

    Args:
        noise: Gumbel, (g, n, draws).
    """
    xp = array_namespace(rewards)
    shape = (noise.shape[0], noise.shape[2], noise.shape[1])

    def repeated(values: Array) -> Array:
        return xp.reshape(xp.broadcast_to(values[:, None, :], shape), (-1, shape[2]))

    marks = repeated(scores) + xp.reshape(xp.permute_dims(noise, (0, 2, 1)), (-1, shape[2]))
    if log_ratio is None:
        each = SELECT.weights[baseline](repeated(rewards), k, marks)
    else:
        ratios = repeated(log_ratio)
        each = exact(repeated(rewards), ratios, k, baseline=baseline, scores=marks, **form)
    return xp.mean(xp.reshape(each, shape), axis=1)


def soft_by_k(rewards: Array, k_max: int, scores: Array) -> np.ndarray:
    """U_k of the soft choice for k = 1..k_max, without noise: (g, k_max); on the host."""
    rows = [_soft_value(*row, k_max) for row in zip(as_numpy(rewards), as_numpy(scores))]
    return np.array(rows).reshape(-1, k_max)


def _soft_value(rewards: np.ndarray, scores: np.ndarray, k_max: int) -> np.ndarray:
    n, able = len(rewards), scores > -np.inf
    last = np.append(scores[able & (scores < np.inf)], 0.0).max()
    logs = np.where(scores == np.inf, last + FAR, scores)
    order = np.argsort(logs[able], kind="stable")
    steps = np.minimum(np.diff(logs[able][order], prepend=logs[able][order][:1]), FAR)
    near = np.full(n, -np.inf)  # the scores, the largest 0, without large gaps
    near[np.flatnonzero(able)[order]] = np.cumsum(steps) - steps.sum()
    low, high = -np.log(n) - FAR, steps.sum() + np.log(FAR)
    log_lambda = np.arange(low, high + STEP, STEP)[:, None]
    weight = np.exp(np.minimum(log_lambda + near, 700.0))  # λ w_l
    passed = np.exp(-weight)

    def up_to(largest: int, share: float) -> np.ndarray:
        products = np.zeros((len(weight), largest + 1))
        products[:, 0] = 1.0
        paid = np.zeros_like(products)
        for j, reward in enumerate(rewards):
            head = share * passed[:, j : j + 1]
            grown = head * (paid[:, :-1] + reward * weight[:, j : j + 1] * products[:, :-1])
            paid = (1 - share) * paid
            paid[:, 1:] += grown
            more = head * products[:, :-1]
            products = (1 - share) * products
            products[:, 1:] += more
        return np.asarray(STEP * paid.sum(axis=0)[1:] / binomial(n, share)[1 : largest + 1])

    value, below = by_share(n, k_max, up_to), rewards[~able]
    j = np.arange(k_max)
    none_able = np.cumprod(np.maximum(len(below) - j, 0) / (n - j))
    return value + none_able * (below.mean() if below.size else 0.0)


SELECT = Procedure(
    name="select",
    meaning="the expected reward of the best-scored among k samples",
    curve=chosen_by_k,
    weights={
        "canonical": canonical,
        "loo-1": leave_one_out_minus_one,
        "none": no_baseline,
    },
    off_policy=exact,
    needs=("scores",),
)
SOFT = Procedure(
    name="select",
    rule="soft",
    meaning="the expected reward of one of k samples, used with a chance in proportion to e^score",
    curve=soft_by_k,
    weights=by_baseline(soft_weights, "canonical", "loo-1", "none"),
    off_policy=soft_weights,
    needs=("scores", "noise"),
)
