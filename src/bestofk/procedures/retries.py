"""retry@k: draw until a sample passes, at most k times; every draw has a price λ.

A sample passes when its reward reaches `stop`. What is used is the first that passes, else the best
of the k. Since the draws are in no order, the reward is that of select@k with scores min(r, stop)
and ties shared evenly, and E[draws] = Σ_{j<k} (1 - pass@j), so that

    f = select@k - λ E[draws] = select@k + λ Σ_{j=1}^{k-1} pass@j - λ k.

On 0/1 rewards this is pass@k + λ Σ_{j<k} pass@j, a mixture of maxima: λ is the price of one draw.

`tokens`: the price is for each token of a draw. A draw that comes m-th is paid when the m - 1
before it fail, so that with ℓ_i the tokens of sample i

    E[tokens] = Σ_{m≤k} E[f_m],    f_m(I) = 1/m Σ_{i∈I} ℓ_i Π_{j∈I, j≠i} (1 - pass_j),  |I| = m.

One pass of n steps forward over the samples and one back sum f_m over all sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace, device

from bestofk.types import reaches

from .arrays import Array, scan, stacked
from .importance import exact, pooled, weigh
from .maximum import MAX
from .procedure import Procedure, by_baseline
from .selection import SELECT, chosen_by_k
from .symmetric_sums import Tosses, down, toss, up, with_and_without


def _passes_and_scores(rewards: Array, stop: float) -> tuple[Array, Array]:
    xp = array_namespace(rewards)
    passes = reaches(rewards, stop)
    scores = xp.where(passes, xp.full_like(rewards, stop), rewards)
    return xp.astype(passes, xp.float64), scores


def weights(
    rewards: Array,
    k: int,
    *,
    price: float,
    baseline: str,
    stop: float = 1.0,
    tokens: Array | None = None,
    log_ratio: Array | None = None,
    log_alpha: Array | None = None,
    self_normalise: bool = False,
    check: bool = False,
) -> Array:
    """Advantages (g, n): those of the reward plus λ times those of pass@1, …, pass@(k-1).

    Claim: unbiased for the gradient of reward - λ · draws, or λ · tokens; the baseline as in
    `Procedure`, with log-ratios all as in `importance.exact`.
    """
    form: dict[str, Any] = {"baseline": baseline, "self_normalise": self_normalise, "check": check}

    def ratios(size: int) -> Array:
        if log_alpha is not None:
            return pooled(log_ratio, log_alpha, size, check=check)
        return array_namespace(rewards).zeros_like(rewards) if log_ratio is None else log_ratio

    def best(values: Array, size: int, **scores: Array) -> Array:
        if log_ratio is not None:
            return exact(values, ratios(size), size, **scores, **form)
        return (SELECT if scores else MAX).weights[baseline](values, size, **scores)

    passes, scores = _passes_and_scores(rewards, stop)
    total = best(rewards, k, scores=scores)
    if tokens is not None and price:
        return total - price * _token_weights(tokens, passes, ratios, k, **form)
    for j in range(1, k if price else 1):
        total = total + price * best(passes, j)
    return total


def _token_weights(
    tokens: Array,
    passes: Array,
    ratios: Callable[[int], Array],
    k: int,
    *,
    baseline: str,
    check: bool,
    self_normalise: bool,
) -> Array:
    """Advantages of E[tokens]; exactly 0 where all sets take the same.

    Args:
        ratios: the log-ratios of sets of a size.
    """
    xp = array_namespace(tokens)
    spent, fails = (xp.permute_dims(each, (1, 0)) for each in (tokens, 1.0 - passes))
    form: dict[str, Any] = {"baseline": baseline, "self_normalise": self_normalise, "check": check}
    total = xp.zeros_like(spent)
    for m in range(1, k + 1):
        tosses = toss(xp.permute_dims(ratios(m), (1, 0)), m, check=check)
        ones = with_and_without(xp.ones_like(spent), tosses, m)

        def sums(size: int, m: int = m, tosses: Tosses = tosses) -> tuple[Array, ...]:
            paid = spent if size == m else spent * fails  # of m - 1 others, if all of them fail
            return (*_token_sums(paid, fails, tosses, size), 0.0)

        total = total + weigh(sums, ones, tosses, m, **form)
    if baseline != "none":
        same = xp.all(spent == spent[:1], axis=0)
        if k > 1:
            same = same & xp.all(fails == fails[:1], axis=0)
        total = xp.where(same, xp.zeros_like(total), total)
    return xp.permute_dims(total, (1, 0))


def _token_sums(tokens: Array, fails: Array, tosses: Tosses, m: int) -> tuple[Array, Array, Array]:
    """Σ over m-sets of chance × f_m with each sample, without it, and of all: (n, g), …, (g,)."""
    xp = array_namespace(tokens)
    none = xp.zeros((m + 1, tokens.shape[1]), dtype=xp.float64, device=device(tokens))
    start = xp.concat([xp.ones_like(none[:1]), none[:-1]], axis=0)
    samples = (tokens, fails, tosses.heads, tosses.tails)
    (_, paid), before = scan(_draw, (start, none), samples)
    after = (none, xp.concat([none[:-1], xp.ones_like(none[:1])], axis=0))
    _, (with_i, without_i) = scan(_draw_back, after, (*samples, *before), reverse=True)
    return stacked(with_i) / m, stacked(without_i) / m, paid[-1] / m


def _draw(state: Any, sample: Any) -> tuple[Any, Any]:
    """Chances of u draws that all fail; and of u draws of which one is paid and the rest fail,
    times its tokens."""
    (failed, paid), (tokens, fails, heads, tails) = state, sample
    more = up(failed)
    after = (
        tails * failed + heads * fails * more,
        tails * paid + heads * (fails * up(paid) + tokens * more),
    )
    return after, state


def _draw_back(adjoint: Any, sample: Any) -> tuple[Any, Any]:
    (d_failed, d_paid), (tokens, fails, heads, tails, failed, paid) = adjoint, sample
    xp = array_namespace(failed)
    more = up(failed)
    with_i = xp.sum(d_failed * fails * more + d_paid * (fails * up(paid) + tokens * more), axis=0)
    without_i = xp.sum(d_failed * failed + d_paid * paid, axis=0)
    earlier = (
        tails * d_failed + heads * (fails * down(d_failed) + tokens * down(d_paid)),
        tails * d_paid + heads * fails * down(d_paid),
    )
    return earlier, (with_i, without_i)


def draws_by_k(rewards: Array, k_max: int, stop: float = 1.0, tokens: Array | None = None) -> Array:
    """Expected draws until the first pass, at most k, for k = 1..k_max: (g, k_max); or tokens.

        Σ_{j<k} [ℓ_pass C(F, j) + ℓ_fail C(F-1, j)] / (n C(n-1, j)),

    with F the samples that fail, ℓ_pass and ℓ_fail the sums over those that pass and fail: sample
    i is drawn after j others that all failed.

    >>> import numpy as np
    >>> draws_by_k(np.array([[0.0, 0.0, 0.0, 1.0]]), 4)
    array([[1.  , 1.75, 2.25, 2.5 ]])
    """
    xp, n = array_namespace(rewards), rewards.shape[-1]
    passes, _ = _passes_and_scores(rewards, stop)
    tokens = xp.ones_like(rewards) if tokens is None else tokens
    fails = xp.sum(1.0 - passes, axis=-1, keepdims=True)
    j = xp.arange(k_max - 1, dtype=xp.float64, device=device(rewards))
    zero, total = xp.zeros_like(fails - j), 0.0
    for drawn, others in ((passes, fails), (1.0 - passes, fails - 1.0)):
        spent = xp.sum(tokens * drawn, axis=-1, keepdims=True) / n
        fail_again = xp.where(others > j, (others - j) / (n - 1 - j), zero)
        chance = xp.concat([xp.ones_like(fails), xp.cumulative_prod(fail_again, axis=1)], axis=1)
        total = total + xp.cumulative_sum(spent * chance, axis=1)
    return total


def net_by_k(
    rewards: Array,
    k_max: int,
    *,
    price: float = 0.0,
    stop: float = 1.0,
    tokens: Array | None = None,
) -> Array:
    """U_k for k = 1..k_max: the expected reward minus the price of the draws, or their tokens."""
    reward = chosen_by_k(rewards, k_max, _passes_and_scores(rewards, stop)[1])
    return reward - price * draws_by_k(rewards, k_max, stop, tokens)


RETRY = Procedure(
    name="retry",
    meaning="the expected reward of drawing until a sample passes, at most k times, less the price "
    "of the draws",
    curve=net_by_k,
    weights=by_baseline(weights, "canonical", "loo-1", "none"),
    off_policy=weights,
    weighs_sizes=True,
)
RETRY_TOKENS = replace(
    RETRY,
    rule="tokens",
    meaning=RETRY.meaning.replace("the draws", "their tokens"),
    needs=("tokens",),
)
