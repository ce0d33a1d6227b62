"""Majority voting at every k in one pass: exact where that is feasible.

Exact votes are those of `procedures.majority.votes_by_k`. Where that would take too long (many
samples of many problems), the samples are voted on in random orders: the first k of a random order
are a random k-subset, so one walk votes at every k. That is unbiased too, and what is left of the
randomness of the orders is part of every interval over problems.
"""

from __future__ import annotations

import numpy as np

from bestofk.procedures.binomials import EXACT_SAMPLES
from bestofk.procedures.majority import Ties, votes_by_k
from bestofk.samples import Samples

BUDGET = 16_000_000
"""Votes counted for one curve, over all problems and orders."""
MOST_ORDERS = 1024
CELLS = 1 << 22
"""Votes laid out at once."""
EXACT_WORK = 4e9
"""Multiplications, about, that an exact curve may take: some seconds."""


def majority_curve(
    samples: Samples,
    correct: np.ndarray,
    kept: np.ndarray,
    k_max: int,
    seed: int,
    *,
    ties: Ties = "shared",
    votes: np.ndarray | None = None,
) -> tuple[np.ndarray, int]:
    """maj@k of each kept problem for k = 1..k_max: (P', k_max); and the number of orders averaged.

    0 orders means exact. A sample without an answer does not vote. If
    samples with one answer are judged differently, the answer counts by their mean.

    Args:
        correct: (N,) 0/1, NaN = unscored: such samples are left out.
        kept: problems with at least k_max scored samples.
        ties: what a tie is worth; by default it is broken evenly.
        votes: (N,) how many a sample has, by default one.
    """
    votes = np.ones(len(correct), np.int64) if votes is None else votes
    labels, marks, own, sizes = _relabel(samples, correct, kept, votes)
    work = (sizes.astype(float) ** 2 * np.minimum(sizes, k_max) + 1e5 * sizes).sum()
    if work * own.max() > EXACT_WORK or sizes.max() > EXACT_SAMPLES:
        return _by_orders(labels, marks, own, sizes, k_max, seed, ties)
    ends = np.cumsum(sizes)
    rows = [
        votes_by_k(labels[at], marks[at], k_max, 0.5, ties=ties, votes=own[at])
        for at in map(slice, ends - sizes, ends)
    ]
    return np.array(rows), 0


def _by_orders(
    labels: np.ndarray,
    marks: np.ndarray,
    own: np.ndarray,
    sizes: np.ndarray,
    k_max: int,
    seed: int,
    ties: Ties,
) -> tuple[np.ndarray, int]:
    """maj@k averaged over random orders of each problem's samples, and how many."""
    count, starts = len(sizes), np.concatenate([[0], np.cumsum(sizes)])
    orders = int(np.clip(BUDGET // max(1, count * k_max), 8, MOST_ORDERS))
    rng = np.random.default_rng(seed)
    problem = np.repeat(np.arange(count), sizes)
    first = starts[:-1, None] + np.arange(k_max)
    total = np.zeros((k_max, count))
    at_once = max(1, CELLS // int(starts[-1]))
    for done in range(0, orders, at_once):
        some = min(at_once, orders - done)
        shuffled = np.argsort(rng.random((some, starts[-1])) + problem, axis=1)  # within problems
        order = shuffled[:, first].transpose(2, 0, 1).reshape(k_max, -1)
        votes = walk(labels[order], marks[order], own[order], ties)
        total += votes.reshape(k_max, some, count).sum(axis=1)
    curve = total.T / orders
    curve[:, 0] = np.add.reduceat(np.where(labels >= 0, marks, 0.0), starts[:-1]) / sizes
    return curve, orders


def walk(
    labels: np.ndarray, marks: np.ndarray, votes: np.ndarray | int = 1, ties: Ties = "shared"
) -> np.ndarray:
    """Chance that the leading answer is right after each vote, one order per column: (k, orders).

    Args:
        labels: (k, orders) whole numbers ≥ 0, equal for equal answers; -1 does not vote.
        marks: (k, orders) how right the answer is.
        votes: how many each has.

    >>> walk(np.array([[0], [1], [1]]), np.array([[1.0], [0.0], [0.0]])).T
    array([[1. , 0.5, 0. ]])
    """
    width = int(labels.max(initial=0)) + 1
    silent = labels < 0
    some_silent = bool(silent.any())
    orders = labels.shape[1]
    counts = np.zeros(orders * (width + 1), dtype=np.int32)
    base = np.arange(orders) * (width + 1)
    lead = np.zeros(orders, dtype=np.int32)
    leaders = np.ones(orders)
    right = np.zeros(orders)
    result = np.empty(labels.shape)
    for step, (label, mark, own) in enumerate(zip(labels, marks, votes + 0 * labels)):
        place = base + label + 1  # the first place is for those who do not vote
        count = counts[place] + own
        counts[place] = count
        if some_silent:
            count = np.where(silent[step], -1, count)
        ahead = count > lead
        level = count == lead
        lead = np.where(ahead, count, lead)
        leaders = np.where(ahead, 1.0, leaders + level)
        if ties == "count":
            right = np.where(ahead, mark, np.where(level, np.maximum(right, mark), right))
            result[step] = right
            continue
        right = np.where(ahead, mark, right + level * mark)
        result[step] = np.where(leaders > 1, 0.0, right) if ties == "wrong" else right / leaders
    return result


def _relabel(
    samples: Samples, correct: np.ndarray, kept: np.ndarray, votes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scored samples of the kept problems: answers numbered in each, how right, votes; sizes."""
    assert samples.answers is not None
    labels, marks, counts, sizes = [], [], [], []
    for problem in kept:
        span = samples.of(int(problem))
        scored = ~np.isnan(correct[span])
        right = correct[span][scored]
        own = votes[span][scored]
        answer = np.where(own > 0, samples.answers[span][scored], -1)
        names, label = np.unique(answer, return_inverse=True)
        mark = (np.bincount(label, right) / np.bincount(label))[label]
        if names.size and names[0] < 0:
            label = label - 1
        labels.append(label)
        marks.append(mark)
        counts.append(np.where(answer >= 0, own, 1))
        sizes.append(len(answer))
    flat = [np.concatenate(each) for each in (labels, marks, counts)]
    return flat[0], flat[1], flat[2], np.array(sizes)
