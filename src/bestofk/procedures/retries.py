"""retry@k: draw until a sample passes, at most k times; every draw has a price λ.

A sample passes when its reward reaches `stop`. What is used is the first that passes, else the best
of the k. Since the draws are in no order, the reward is that of select@k with scores min(r, stop)
and ties shared evenly, and E[draws] = Σ_{j<k} (1 - pass@j), so that

    f = select@k - λ E[draws] = select@k + λ Σ_{j=1}^{k-1} pass@j - λ k.

On 0/1 rewards this is pass@k + λ Σ_{j<k} pass@j, a mixture of maxima: λ is the price of one draw.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from bestofk.types import reaches

from .arrays import Array
from .importance import exact
from .maximum import MAX, best_by_k
from .procedure import Procedure, by_baseline
from .selection import SELECT, chosen_by_k


def _passes_and_scores(rewards: Array, stop: float) -> tuple[Array, Array]:
    xp = array_namespace(rewards)
    passes = reaches(rewards, stop)
    scores = xp.where(passes, xp.full_like(rewards, stop), rewards)
    return xp.astype(passes, xp.float64), scores


def weights(
    rewards: Array, k: int, *, price: float, stop: float = 1.0, baseline: str = "canonical"
) -> Array:
    """Advantages (g, n): those of the reward plus λ times those of pass@1, …, pass@(k-1).

    Claim: unbiased for the gradient of reward - λ · draws; the baseline as in `Procedure`.
    """
    passes, scores = _passes_and_scores(rewards, stop)
    total = SELECT.weights[baseline](rewards, k, scores)
    for j in range(1, k if price else 1):
        total = total + price * MAX.weights[baseline](passes, j)
    return total


def off_policy(
    rewards: Array, log_ratio: Array, k: int, *, price: float, stop: float = 1.0, **form: Any
) -> Array:
    """The same with log-ratios; `form` as in `importance.exact`."""
    passes, scores = _passes_and_scores(rewards, stop)
    total = exact(rewards, log_ratio, k, scores=scores, **form)
    for j in range(1, k if price else 1):
        total = total + price * exact(passes, log_ratio, j, **form)
    return total


def draws_by_k(rewards: Array, k_max: int, stop: float = 1.0) -> Array:
    """Expected draws until the first pass, at most k, for k = 1..k_max: (g, k_max).

    >>> import numpy as np
    >>> draws_by_k(np.array([[0.0, 0.0, 0.0, 1.0]]), 4)
    array([[1.  , 1.75, 2.25, 2.5 ]])
    """
    xp = array_namespace(rewards)
    missed = 1.0 - best_by_k(_passes_and_scores(rewards, stop)[0], k_max)
    return xp.cumulative_sum(
        xp.concat([xp.ones_like(missed[:, :1]), missed[:, :-1]], axis=1), axis=1
    )


def net_by_k(rewards: Array, k_max: int, *, price: float = 0.0, stop: float = 1.0) -> Array:
    """U_k for k = 1..k_max: the expected reward minus the price of the draws."""
    reward = chosen_by_k(rewards, k_max, _passes_and_scores(rewards, stop)[1])
    return reward - price * draws_by_k(rewards, k_max, stop)


RETRY = Procedure(
    name="retry",
    meaning="the expected reward of drawing until a sample passes, at most k times, less the price "
    "of the draws",
    curve=net_by_k,
    weights=by_baseline(weights, "canonical", "loo-1", "none"),
    off_policy=off_policy,
)
