"""maj@k: k samples vote with their answers, and the most frequent answer is used.

Class a has c_a of the n samples and reward r_a. Silent samples count among the k and cannot win;
a set in which nobody votes is worth 0. With D_a(u) the chance of u heads among the class's coins
(`symmetric_sums`: on policy all ratios are 1) and y the tie rule,

    F = Σ_v ∫ dy [z^k] D_silent Σ_a r_a D_a(v) z^v Π_{b≠a} ( Σ_{u<v} D_b(u) z^u + y D_b(v) z^v )

is what all k-sets are worth, each times its chance: v votes win, and ∫_0^1 y^t dy = 1/(1+t) shares
a tie of 1+t answers evenly; Gauss-Legendre nodes make the integral exact. (To use the answer seen
first among those that tie is the same for independent draws.) F is linear in each D_b, so one pass
forward over the classes and one back give ∂F/∂D_b(u), and with them the sums over sets with a
sample and without it.

The gradient dies on both sides of a tie, exponentially in k, and behind a rival it raises other
wrong answers: for a higher vote GRPO is as good or better. It is an exact estimator, and it keeps
answers diverse.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import Array, as_numpy
from .binomials import log_binomial
from .procedure import ByBaseline, Procedure
from .symmetric_sums import Tosses, scaled, toss, with_and_without


def numbered(answers: np.ndarray) -> np.ndarray:
    """Answers (...,) as whole numbers, equal for equal ones; None and NaN, which do not vote, -1.

    Raises:
        ValueError: an answer is a list, a dict or a set.

    >>> numbered(np.array(["4", None, "5", "4"], dtype=object))
    array([ 0, -1,  1,  0])
    """
    numbers: dict[Any, int] = {}
    try:
        found = [
            -1 if each is None or each != each else numbers.setdefault(each, len(numbers))
            for each in answers.reshape(-1).tolist()
        ]
    except TypeError as error:
        raise ValueError(
            f"answers must be texts, numbers, tuples or None ({error}): turn others into texts"
        ) from None
    return np.array(found, dtype=np.int64).reshape(answers.shape)


def votes_by_k(labels: np.ndarray, marks: np.ndarray, k_max: int, share: float) -> np.ndarray:
    """Mean over all k-subsets of: is the leading answer right? For k = 1..k_max.

    The counts of the answers in a random k-subset are binomials conditioned on their sum, whatever
    the share of heads of their coins. Where one right answer has m votes, t others tie and the rest
    have fewer, it wins with probability 1/(1 + t): a product of polynomials, one per rival.

    Args:
        labels: (n,) whole numbers ≥ 0, equal for equal answers; -1 does not vote.
        marks: (n,) how right the answer is, the same for equal answers.
        share: of heads. k/n is precise at that k for every n; 1/2 at every k for n ≤ 1000.

    >>> votes_by_k(np.array([0, 0, 1]), np.array([1.0, 1.0, 0.0]), 3, 0.5).round(4)
    array([0.6667, 0.6667, 1.    ])
    """
    n, voting = len(labels), labels >= 0
    _, first, counts = np.unique(labels[voting], return_index=True, return_counts=True)
    right, coins = marks[voting][first], [_binomial(int(count), share) for count in counts]
    total = np.zeros(k_max + 1)
    for answer in np.flatnonzero(right > 0):
        rivals = [coin for other, coin in enumerate(coins) if other != answer]
        for votes in range(1, min(int(counts[answer]), k_max) + 1):
            last = k_max - votes
            able = [coin for coin in rivals if len(coin) > votes]
            beaten = n - int(counts[answer]) - sum(len(coin) - 1 for coin in able)
            ways = np.zeros((1, last + 1))
            fewer = _binomial(beaten, share)[: last + 1]
            ways[0, : len(fewer)] = fewer
            for coin in able:
                ways = _with_rival(ways, coin, votes)
            tied = (ways / np.arange(1, len(ways) + 1)[:, None]).sum(axis=0)
            total[votes:] += right[answer] * coins[answer][votes] * tied
    everyone = _binomial(n, share)[: k_max + 1]
    means = np.divide(total, everyone, out=np.zeros(k_max + 1), where=everyone > 0)
    return np.minimum(means[1:], 1.0)


def _with_rival(ways: np.ndarray, coin: np.ndarray, votes: int) -> np.ndarray:
    """Ways (ties so far, samples so far) with one more answer: it has fewer votes, or ties."""
    size = ways.shape[1]
    grown = np.zeros((len(ways) + 1, size))
    for ties, row in enumerate(ways):
        grown[ties] += np.convolve(row, coin[:votes])[:size]
    grown[1:, votes:] += coin[votes] * ways[:, : max(size - votes, 0)]
    return grown if grown[-1].any() else grown[:-1]


def _binomial(n: int, p: float) -> np.ndarray:
    """The binomial distribution, by products outward from its mode."""
    if p >= 1.0:
        return np.eye(n + 1)[n]
    mode = min(int((n + 1) * p), n)
    up = np.arange(mode, n)
    down = np.arange(mode, 0, -1)
    odds = p / (1.0 - p)
    above = np.cumprod((n - up) / (up + 1) * odds)
    below = np.cumprod(down / (n - down + 1) / odds)
    weights = np.concatenate([below[::-1], [1.0], above])
    return weights / weights.sum()


def vote_by_k(rewards: Array, k_max: int, answers: np.ndarray) -> np.ndarray:
    """U_k for k = 1..k_max, ties shared evenly: (g, k_max). An answer counts by its mean reward."""
    rows = []
    for row, labels in zip(as_numpy(rewards), answers):
        rows.append(votes_by_k(labels, means_of_answers(row, labels), k_max, k_max / len(row)))
    return np.array(rows)


def means_of_answers(rewards: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean reward of each sample's answer."""
    places = labels + 1
    sums, counts = np.bincount(places, rewards), np.bincount(places)
    return (sums / np.maximum(counts, 1))[places]


def _nodes(k: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(votes to win, y, weight) of each term of the sum; 0 votes: nobody voted."""
    parts = [np.array([[0.0], [1.0], [1.0]])]
    for votes in range(1, most + 1):
        rivals = k // votes - 1  # that can tie: the degree in y
        points, weight = np.polynomial.legendre.leggauss(rivals // 2 + 1)
        parts.append(np.stack([np.full(len(weight), float(votes)), (points + 1) / 2, weight / 2]))
    return tuple(np.concatenate(parts, axis=1))


def _shifts(values: np.ndarray) -> np.ndarray:
    """(s, k + 1) → (s, k + 1, k + 1): the matrices that multiply polynomials by these."""
    size = values.shape[-1]
    lag = np.arange(size)[:, None] - np.arange(size)
    return np.where(lag >= 0, values[:, np.maximum(lag, 0)], 0.0)


def _coins(heads: np.ndarray, tails: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Chances of 0..k heads among all coins, and among all but each: (k + 1,), (c, k + 1)."""
    rows = np.zeros((len(heads) + 1, k + 1))
    rows[:, 0] = 1.0
    for j, (head, tail) in enumerate(zip(heads, tails)):
        tossed = tail * rows
        tossed[:, 1:] += head * rows[:, :-1]
        tossed[j] = rows[j]
        rows = tossed
    return rows[-1], rows[:-1]


def _with_and_without(
    rewards: np.ndarray, labels: np.ndarray, heads: np.ndarray, tails: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Σ over sets of chance × (worth - reference), as `symmetric_sums.with_and_without`, and the
    reference: the reward of the most frequent answer, so that groups without signal give zeros."""
    classes = [labels == -1, *(labels == each for each in np.unique(labels[labels >= 0]))]
    means = means_of_answers(rewards, labels)
    pay = np.array([0.0, *(means[each][0] for each in classes[1:])])
    sizes = [int(each.sum()) for each in classes]
    reference = float(pay[1 + int(np.argmax(sizes[1:]))]) if len(classes) > 1 else 0.0
    pay = pay - reference
    coins = [_coins(heads[each], tails[each], k) for each in classes]
    votes, y, weight = _nodes(k, min(k, max(sizes[1:], default=0)))
    u = np.arange(k + 1)
    fewer = np.where(u < votes[:, None], 1.0, np.where(u == votes[:, None], y[:, None], 0.0))
    won = (u == votes[:, None]) & (votes[:, None] > 0)
    nobody = np.broadcast_to(votes[:, None] == 0, fewer.shape)
    loses = [np.where(nobody, 0.0, 1.0), *[fewer] * (len(classes) - 1)]
    wins = [np.where(nobody, 1.0, 0.0), *[won * 1.0] * (len(classes) - 1)]
    lost = np.eye(k + 1)[[0] * len(votes)]
    paid, before = np.zeros_like(lost), []
    for (chances, _), lose, win, own in zip(coins, loses, wins, pay):
        before.append((lost, paid))
        shift = _shifts(chances * lose)
        paid = _times(shift, paid) + own * _times(_shifts(chances * win), lost)
        lost = _times(shift, lost)
    whole = float(weight @ paid[:, k])
    d_lost, d_paid = np.zeros_like(lost), weight[:, None] * np.eye(k + 1)[[k] * len(votes)]
    with_i, without_i = np.zeros(len(labels)), np.zeros(len(labels))
    for (chances, others), (lost, paid), lose, win, own, members in zip(
        coins[::-1], before[::-1], loses[::-1], wins[::-1], pay[::-1], classes[::-1]
    ):
        d_lose = _against(_shifts(paid), d_paid) + _against(_shifts(lost), d_lost)
        d_win = own * _against(_shifts(lost), d_paid)
        slope = (d_lose * lose + d_win * win).sum(axis=0)
        with_i[members] = others[:, :-1] @ slope[1:]
        without_i[members] = others @ slope
        shift = _shifts(chances * lose)
        d_lost = _against(shift, d_lost) + own * _against(_shifts(chances * win), d_paid)
        d_paid = _against(shift, d_paid)
    return with_i, without_i, whole, reference


def _times(shift: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.einsum("sij,sj->si", shift, values)


def _against(shift: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.einsum("sij,si->sj", shift, values)


def weights(
    rewards: Array,
    k: int,
    answers: np.ndarray,
    *,
    log_ratio: Array | None = None,
    baseline: str = "canonical",
    self_normalise: bool = False,
    check: bool = True,
) -> Array:
    """Advantages (g, n), on policy or with log-ratios, as `importance.exact` has them.

    Computed group by group on the host, in NumPy. All samples of an answer have one advantage on
    policy. Samples of one answer should have one reward; else the answer counts by their mean.
    """
    host = as_numpy(rewards)
    logs = np.zeros(host.shape) if log_ratio is None else as_numpy(log_ratio)
    rows = [
        _of_group(row, labels, ratios, k, baseline, self_normalise)
        for row, labels, ratios in zip(host, answers, logs)
    ]
    xp = array_namespace(rewards)
    result = np.array(rows).reshape(host.shape)
    return xp.asarray(result, device=device(rewards))


def _of_group(
    rewards: np.ndarray,
    labels: np.ndarray,
    log_ratio: np.ndarray,
    k: int,
    baseline: str,
    normalise: bool,
) -> np.ndarray:
    n = len(rewards)
    tosses: Tosses = toss(log_ratio[:, None], k)
    heads, tails = tosses.heads[:, 0], tosses.tails[:, 0]
    with_i, without_i, whole, reference = _with_and_without(rewards, labels, heads, tails, k)
    ones, ones_without, ones_whole = (
        each[..., 0] for each in with_and_without(np.ones((n, 1)), tosses, k)
    )
    if normalise:
        bracket = with_i - whole / ones_whole * ones
        return np.asarray(n * n / (n - k) * heads * bracket / ones_whole)
    if baseline == "none":
        bracket = with_i + reference * ones
    elif baseline == "loo-1" and k > 1:
        bracket = with_i - _with_and_without(rewards, labels, heads, tails, k - 1)[1]
    else:
        share = np.where(ones_without > 0, ones_without, 1.0)
        bracket = with_i - np.where(ones_without > 0, without_i / share, 0.0) * ones
    log_scale = tosses.log_scale + math.log(k) - log_binomial(n - 1, k - 1)
    return np.asarray(scaled(heads * bracket, log_scale))


def _off_policy(rewards: Array, log_ratio: Array, k: int, **options: Any) -> Array:
    return weights(rewards, k, log_ratio=log_ratio, **options)


MAJ = Procedure(
    name="maj",
    meaning="the expected reward of the most frequent answer among k samples",
    curve=vote_by_k,
    weights={name: ByBaseline(weights, name) for name in ("canonical", "loo-1", "none")},
    off_policy=_off_policy,
    needs=("answers",),
)
