"""Sums over all k-subsets of a group weighted by products of ratios, in O(nk), always in range.

**How the numbers stay in range.** Π_{j∈I} ρ_j grows like e^{k·log ρ}. For any λ > 0 let
p_j = ρ_j/(λ+ρ_j); then Π_{j∈I} ρ_j = λ^k Z · Π_{j∈I} p_j Π_{j∉I} (1-p_j) with Z = Π(1 + ρ_j/λ):
up to one known factor, the elementary symmetric polynomials are probabilities of independent coin
tosses (a Poisson-binomial distribution). Those lie in [0, 1] and their recurrence only averages, so
nothing overflows; λ is chosen so that about k tosses succeed, so what matters does not underflow
either. Only the final factor λ^k Z can leave the floats, and then we say so.

Shapes here: the sample axis comes first, (n, groups), samples in ascending order of reward. A
channel axis in the middle, (n, channels, groups), sums several rewards over the same tosses. k is
the size of the subsets, and tosses are of the same samples as the rewards. `check=False` is for
tracing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device

from .arrays import Array, by_order, scan, sort_with_order, stacked, without_gradient

LARGEST_LOG = 709.0
"""exp of more than this overflows float64."""
TRACED_HALVINGS = 9
"""Bisection steps for λ when the data may not be looked at: |log ρ| ≤ 100 to half a unit."""
LEAST_CHANCE = 1e-280
"""A chance below this has lost digits to underflow."""


@dataclass(frozen=True)
class Tosses:
    """The tilted group: (n, groups), or (n, 1, groups) for sums with channels."""

    log_ratio: Array
    """What the tosses are made of, (n, groups)."""
    heads: Array
    tails: Array
    log_scale: Array
    """k log λ + log Z, (groups,)."""

    def with_channels(self) -> Tosses:
        """The same tosses for rewards with a channel axis."""
        return Tosses(self.log_ratio, self.heads[:, None], self.tails[:, None], self.log_scale)


def toss(log_ratio: Array, k: int, *, check: bool = True) -> Tosses:
    """p_j and 1 - p_j for a λ under which about k of n tosses succeed.

    Without `check` it takes a fixed number of bisection steps.
    """
    xp = array_namespace(log_ratio)
    n = log_ratio.shape[0]
    fixed = without_gradient(log_ratio)
    # If all ratios were ρ, λ = ρ (n-k+1)/k would give p = k/(n+1): a bracket for bisection.
    offset = math.log((n - k + 1) / k)
    low = xp.min(fixed, axis=0) + offset
    high = xp.max(fixed, axis=0) + offset
    excess = 2 * n * k / (n + 1) - n  # heads minus tails, when k/(n+1) of the tosses succeed
    halvings = TRACED_HALVINGS
    if check:
        width = float(xp.max(high - low)) if low.shape[0] else 0.0
        halvings = max(0, math.ceil(math.log2(max(width, 1e-9) / 0.5)))
    for _ in range(halvings):
        middle = (low + high) / 2
        many = xp.sum(xp.tanh((fixed - middle) / 2), axis=0) > excess  # p = (1 + tanh(x/2))/2
        low = xp.where(many, middle, low)
        high = xp.where(many, high, middle)
    log_tilt = (low + high) / 2
    heads, tails, soft = _heads(log_ratio - log_tilt)
    return Tosses(log_ratio, heads, tails, k * log_tilt + xp.sum(soft, axis=0))


def _heads(log_odds: Array) -> tuple[Array, Array, Array]:
    """p, 1 - p and -log(1 - p), smooth everywhere so that autograd is right at 0 too."""
    xp = array_namespace(log_odds)
    soft = xp.logaddexp(log_odds, xp.zeros_like(log_odds))
    return xp.exp(log_odds - soft), xp.exp(-soft), soft


def by_rank(
    rewards: Array, log_ratio: Array, k: int, *, scores: Array | None = None, check: bool = True
) -> tuple[Array, Tosses, Array]:
    """Rewards (groups, n) by rank with the sample axis first, their tosses, and the order.

    Scores, (groups, n), sort instead of the rewards.
    """
    xp = array_namespace(rewards)
    order = sort_with_order(rewards if scores is None else scores)[1]
    ordered, logs = (
        xp.permute_dims(by_order(each, order), (1, 0)) for each in (rewards, log_ratio)
    )
    return ordered, toss(logs, k, check=check), order


def _step(state: Array, moved: Array, heads: Array, tails: Array) -> Array:
    """One toss: keep the state on tails, take the moved one on heads."""
    return tails * state + heads * moved


def up(values: Array) -> Array:
    """The same with one more head."""
    xp = array_namespace(values)
    return xp.concat([xp.zeros_like(values[:1]), values[:-1]], axis=0)


def down(values: Array) -> Array:
    """The same with one head less."""
    xp = array_namespace(values)
    return xp.concat([values[1:], xp.zeros_like(values[:1])], axis=0)


def _no_heads(tosses: Tosses, k: int) -> Array:
    """Chances of m < k heads before any toss."""
    xp = array_namespace(tosses.heads)
    none = xp.ones_like(tosses.heads[:1])
    return xp.concat([none, *[xp.zeros_like(none)] * (k - 1)], axis=0)


def _prefixes(rewards: Array, tosses: Tosses, k: int) -> tuple[Array, Any]:
    """Σ over all k-sets of chance × best reward; and for what is before each sample: chance of
    m < k heads, and the same Σ."""
    start = (_no_heads(tosses, k), array_namespace(rewards).zeros_like(rewards[0]))
    (_, total), before = scan(_longer_prefix, start, (rewards, tosses.heads, tosses.tails))
    return total, before


def _longer_prefix(state: Any, sample: Any) -> tuple[Any, Any]:
    """A step of `scan`: a function of the module, which JAX compiles once for every call."""
    (counts, best), (reward, heads, tails) = state, sample
    grown = _step(best, reward * counts[-1], heads, tails)
    return (_step(counts, up(counts), heads, tails), grown), state


def best_of_subsets(rewards: Array, tosses: Tosses, k: int, last: Array | None = None) -> Array:
    """Σ over all k-sets of chance × best reward, without the sample axis; `last` as in
    `with_and_without`."""
    if last is None:
        return _prefixes(rewards, tosses, k)[0]
    return tied_with_and_without(rewards[:, None], tosses.with_channels(), k, last)[2][0]


def with_and_without(
    rewards: Array, tosses: Tosses, k: int, last: Array | None = None
) -> tuple[Array, Array, Array]:
    """Σ over sets of chance × best, seen from each sample i with its own toss left out.

    First: sets of k - 1 other samples, i added. Second: sets of k others, without i. Third: sets of
    k of the whole group, without the sample axis.

    `ends[m]` carries, for the samples after i, Σ over sets of k - m of them of chance × best;
    shifted by one and closed with r_i it is the same for sets that contain i.

    Args:
        last: where samples tie, True for the last of each tie, (n, groups): the best reward is
            then the mean of those that tie for the best of the set.
    """
    xp = array_namespace(rewards)
    if last is not None and rewards.ndim == 2:
        sums = tied_with_and_without(rewards[:, None], tosses.with_channels(), k, last)
        return sums[0][:, 0], sums[1][:, 0], sums[2][0]
    if last is not None:
        return tied_with_and_without(rewards, tosses, k, last)
    total, (counts, best) = _prefixes(rewards, tosses, k)
    ends = xp.zeros((k, *rewards.shape[1:]), dtype=xp.float64, device=device(rewards))
    samples = (rewards, tosses.heads, tosses.tails, counts, best)
    start = (ends, xp.ones_like(tosses.heads[0]))
    _, (with_i, without_i) = scan(_from_sample, start, samples, reverse=True)
    return stacked(with_i), stacked(without_i), total


def _from_sample(state: Any, sample: Any) -> tuple[Any, Any]:
    (ends, none_after), (reward, heads, tails, before, best_before) = state, sample
    xp = array_namespace(ends)
    moved = xp.concat([ends[1:], (reward * none_after)[None]], axis=0)
    with_i = xp.sum(before * moved, axis=0)
    without_i = xp.sum(before * ends, axis=0) + best_before * none_after
    return (_step(ends, moved, heads, tails), none_after * tails), (with_i, without_i)


def tied_with_and_without(
    rewards: Array, tosses: Tosses, k: int, last: Array
) -> tuple[Array, Array, Array]:
    """`with_and_without` where samples tie: n steps forward, and the same back for the derivatives.

    A step tosses one sample. `inside[u]` is the chance of u heads in its tie so far, `paid[u]` the
    same times the sum of their rewards, `below` the chances of m heads below the tie. Where a tie
    ends, Σ_u paid[u]/u · below[k-u] is what its sets are worth. Each term of the sum over all sets
    has one factor heads_i or tails_i, so the derivatives in them are the sums with i and without.
    Rewards and tosses have channels.
    """
    xp = array_namespace(rewards)
    ends = xp.astype(last, xp.float64)[:, None]
    none = xp.zeros((k + 1, *rewards.shape[1:]), dtype=xp.float64, device=device(rewards))
    start = xp.concat([xp.ones_like(none[:1]), none[:-1]], axis=0)
    samples = (rewards, tosses.heads, tosses.tails, ends)
    (*_, worth), before = scan(_toss_in_tie, (start, start, start, none, none[0]), samples)
    after = (none, none, none, none, xp.ones_like(none[0]))
    _, (with_i, without_i) = scan(_back_in_tie, after, (*samples, *before), reverse=True)
    return stacked(with_i), stacked(without_i), worth


def _by_size(values: Array) -> Array:
    """values[u]/u · [k-u] lines up with the chances of k - u heads: reversed, and divided by u."""
    xp = array_namespace(values)
    size = xp.arange(1, values.shape[0], dtype=xp.float64, device=device(values))
    shares = values[1:] / xp.reshape(size, (-1, 1, 1))
    return xp.concat([xp.flip(shares, axis=0), xp.zeros_like(values[:1])], axis=0)


def _toss_in_tie(state: Any, sample: Any) -> tuple[Any, Any]:
    every, below, inside, paid, worth = state
    reward, heads, tails, end = sample
    xp = array_namespace(every)
    more = up(inside)
    every, grown = _step(every, up(every), heads, tails), _step(inside, more, heads, tails)
    paid = _step(paid, up(paid) + reward * more, heads, tails)
    worth = tails * worth + end * xp.sum(_by_size(paid) * below, axis=0)
    below = end * every + (1 - end) * below
    empty = xp.concat([xp.ones_like(grown[:1]), xp.zeros_like(grown[1:])], axis=0)
    after = (every, below, end * empty + (1 - end) * grown, (1 - end) * paid, worth)
    return after, state


def _back_in_tie(adjoint: Any, sample: Any) -> tuple[Any, Any]:
    """Derivatives of what all sets are worth in the state before a toss, and in the toss."""
    d_every, d_below, d_inside, d_paid, d_worth = adjoint
    reward, heads, tails, end, every, below, inside, paid, worth = sample
    xp = array_namespace(every)
    more, more_paid = up(inside), up(paid) + reward * up(inside)
    tossed = _step(paid, more_paid, heads, tails)
    d_every = d_every + end * d_below
    d_below = end * d_worth * _by_size(tossed) + (1 - end) * d_below
    # the k-th entry of `below` is never used: k - u heads below, u at least 1
    sizes = _by_size(xp.ones_like(below))
    closing = xp.flip(sizes * below, axis=0)  # [u] is below[k - u] / u
    d_paid = (1 - end) * d_paid + end * d_worth * closing
    d_inside = (1 - end) * d_inside
    with_i = xp.sum(d_every * up(every) + d_inside * more + d_paid * more_paid, axis=0)
    without_i = xp.sum(d_every * every + d_inside * inside + d_paid * paid, axis=0)
    without_i = without_i + d_worth * worth
    earlier = (
        _step(d_every, down(d_every), heads, tails),
        d_below,
        _step(d_inside, down(d_inside) + reward * down(d_paid), heads, tails),
        _step(d_paid, down(d_paid), heads, tails),
        tails * d_worth,
    )
    return earlier, (with_i, without_i)


def gain_over_normalised_others(
    rewards: Array,
    tosses: Tosses,
    k: int,
    *,
    last: Array | None = None,
    check: bool = True,
) -> Array:
    """Σ over sets of k - 1 others of chance × (best with i - M_i), i's own toss left out.

    M_i is the self-normalised max@k of the other samples: Σ over their k-sets of chance × best,
    over the same sum of chances. Rewards count from the group's best, so that nothing cancels and
    a group in which every k-set has the same best gives exact zeros. `last` as in
    `with_and_without`; without `check` there is no second try for ratios so far apart that M_i
    underflows.
    """
    xp = array_namespace(rewards)
    below = rewards - rewards[-1:]
    both = xp.stack([below, xp.ones_like(below)], axis=1)
    with_i, without_i, _ = with_and_without(both, tosses.with_channels(), k, last)
    share = without_i[:, 1]
    seen = share > 0
    others = xp.where(seen, without_i[:, 0], xp.zeros_like(share)) / xp.where(
        seen, share, xp.ones_like(share)
    )
    if check and bool(xp.any(share < LEAST_CHANCE)):
        again = xp.stack(
            [_normalised(below, tosses.log_ratio, k, i, last) for i in range(rewards.shape[0])]
        )
        others = xp.where(share < LEAST_CHANCE, again, others)
    return with_i[:, 0] - with_i[:, 1] * others


def _normalised(
    rewards: Array, log_ratio: Array, k: int, without: int, last: Array | None
) -> Array:
    """Self-normalised max@k of all samples but one, with tosses of their own: (groups,)."""
    xp = array_namespace(rewards)

    def others(each: Array) -> Array:
        return xp.concat([each[:without], each[without + 1 :]], axis=0)

    if last is not None:  # the one before a last sample that leaves becomes the last
        before = xp.arange(last.shape[0], device=device(last)) == without - 1
        last = others(last | (before[:, None] & last[without]))
    tosses = toss(others(log_ratio), k)
    best = best_of_subsets(others(rewards), tosses, k, last)
    return best / best_of_subsets(xp.ones_like(others(rewards)), tosses, k)


def lead_over_others(rewards: Array, tosses: Tosses, k: int) -> Array:
    """Σ over sets of k - 1 other samples of chance × (r_i - best)_+, i's own toss left out.

    A set that contains the sample before i leads it by nothing, so from rank to rank the sum keeps
    the sets without that sample and adds the gap times all sets: no term is negative. k ≥ 2.
    """
    xp = array_namespace(rewards)
    zero = xp.zeros_like(rewards[:1])
    gaps = rewards[1:] - rewards[:-1]
    start = (_no_heads(tosses, k), zero[0])
    _, (leads,) = scan(_next_lead, start, (gaps, tosses.heads[:-1], tosses.tails[:-1]))
    none_after = xp.flip(xp.cumulative_prod(xp.flip(tosses.tails, axis=0), axis=0), axis=0)
    none_after = xp.concat([none_after[1:], xp.ones_like(none_after[:1])], axis=0)
    return xp.concat([zero, stacked(leads)], axis=0) * none_after


def _next_lead(state: Any, sample: Any) -> tuple[Any, Any]:
    (counts, lead), (gap, heads, tails) = state, sample
    counts = _step(counts, up(counts), heads, tails)
    lead = tails * lead + gap * counts[-1]
    return (counts, lead), (lead,)


def scaled(values: Array, log_scale: Array, *, check: bool = True) -> Array:
    """values · exp(log_scale), through logarithms so that only the product has to be representable.

    Args:
        values: (..., groups) or (groups, n).
        log_scale: broadcasts against values.
        check: False does not look at the values.

    Raises:
        ValueError: it is not, and `check`; otherwise it is infinite there.
    """
    xp = array_namespace(values)
    filled = values != 0
    size = xp.log(xp.abs(xp.where(filled, values, xp.ones_like(values)))) + log_scale
    if 0 in size.shape:
        return values
    if check:
        largest = float(xp.max(xp.where(filled, size, xp.zeros_like(size))))
        if largest > LARGEST_LOG:
            raise ValueError(
                f"the importance weights do not fit into float64 (a k-subset weighs "
                f"e^{largest:.0f}): bound the ratios with truncate= (e.g. truncate=0.5, the "
                "largest log-ratio), or use self_normalise=True"
            )
    large = xp.exp(size)
    return xp.where(filled, xp.where(values < 0, -large, large), xp.zeros_like(values))


def log_elementary(log_ratio: Array, k: int, *, check: bool = True) -> Array:
    """log e_k(ρ), (groups, n) → (groups,); `check` as in `toss`."""
    xp = array_namespace(log_ratio)
    logs = xp.permute_dims(log_ratio, (1, 0))
    tosses = toss(logs, k, check=check)
    return tosses.log_scale + xp.log(best_of_subsets(xp.ones_like(logs), tosses, k))
