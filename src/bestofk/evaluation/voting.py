"""Majority voting at every k where the exact curve of `procedures.majority` takes too long.

Where many samples of many problems vote, they do so in random orders: the first k of a random order
are a random k-subset, so one walk votes at every k. That is unbiased too, and what is left of the
randomness of the orders is part of every interval over problems.
"""

from __future__ import annotations

import numpy as np

from bestofk.procedures.binomials import EXACT_SAMPLES
from bestofk.procedures.majority import Ties, means_of_answers

BUDGET = 16_000_000
"""Votes counted for one curve, over all problems and orders."""
MOST_ORDERS = 1024
CELLS = 1 << 22
"""Votes laid out at once."""
EXACT_WORK = 4e9
"""Multiplications, about, that an exact curve may take: some seconds."""


def exact_takes_too_long(sizes: np.ndarray, votes: np.ndarray, k_max: int) -> bool:
    """By the samples of each problem and the votes of each sample."""
    work = (sizes.astype(float) ** 2 * np.minimum(sizes, k_max) + 1e5 * sizes).sum()
    return bool(work * votes.max() > EXACT_WORK or sizes.max() > EXACT_SAMPLES)


def numbered_within(answers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Answers (N,) of one problem after another, numbered from 0 within each; -1 stays.

    >>> numbered_within(np.array([70, 50, 70, -1, 50]), np.array([3, 2]))
    array([ 1,  0,  1, -1,  1])
    """
    problem = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((answers, problem))
    is_new = np.diff(answers[order], prepend=-2) != 0
    is_new |= np.diff(problem[order], prepend=-1) != 0
    labels = np.empty_like(answers)
    labels[order] = np.cumsum(is_new)
    first = np.minimum.reduceat(labels, np.cumsum(sizes) - sizes)
    return np.where(answers < 0, -1, labels - first[problem])


def vote_in_orders(
    rewards: np.ndarray,
    labels: np.ndarray,
    votes: np.ndarray,
    sizes: np.ndarray,
    k_max: int,
    seed: int,
    ties: Ties,
) -> np.ndarray:
    """maj@k for k = 1..k_max, averaged over random orders of each problem's samples: (P, k_max).

    If samples with one answer are judged differently, the answer counts by their mean.

    Args:
        rewards: (N,) of the samples of one problem after another.
        labels: (N,) whole numbers, equal for equal answers of a problem; -1 does not vote.
        votes: (N,) how many a sample has.
        sizes: (P,) samples of each problem.
        ties: what a tie is worth.
    """
    count, starts = len(sizes), np.concatenate([[0], np.cumsum(sizes)])
    problem = np.repeat(np.arange(count), sizes)
    marks = means_of_answers(rewards, labels + problem * (int(labels.max()) + 2))
    orders = int(np.clip(BUDGET // max(1, count * k_max), 8, MOST_ORDERS))
    rng = np.random.default_rng(seed)
    first = starts[:-1, None] + np.arange(k_max)
    total = np.zeros((k_max, count))
    at_once = max(1, CELLS // int(starts[-1]))
    for start in range(0, orders, at_once):
        some = min(at_once, orders - start)
        shuffled = np.argsort(rng.random((some, starts[-1])) + problem, axis=1)  # within problems
        order = shuffled[:, first].transpose(2, 0, 1).reshape(k_max, -1)
        values = walk(labels[order], marks[order], votes[order], ties)
        total += values.reshape(k_max, some, count).sum(axis=1)
    curve = total.T / orders
    curve[:, 0] = np.add.reduceat(np.where(labels >= 0, marks, 0.0), starts[:-1]) / sizes
    return curve


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
