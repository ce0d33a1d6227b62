"""Majority voting at every k in one pass.

The first k samples of a random order are a random k-subset, so one walk along an order votes at
every k. Averaging the walks over orders is unbiased for maj@k; over all orders it is the exact mean
over subsets (`bestofk.objectives.maj_at_k` for one k and few samples). What is left of the
randomness of the orders is noise of mean zero in each problem's value, and so is part of every
interval over problems.
"""

from __future__ import annotations

import numpy as np

from .results import Samples

BUDGET = 16_000_000
"""Votes counted for one curve, over all problems and orders."""
MOST_ORDERS = 1024
CELLS = 1 << 22
"""Votes laid out at once."""


def majority_curve(
    samples: Samples, correct: np.ndarray, kept: np.ndarray, k_max: int, seed: int
) -> tuple[np.ndarray, int]:
    """maj@k of each kept problem for k = 1..k_max, and the number of orders averaged: (P', k_max).

    Ties are broken evenly. A sample without an answer does not vote. If samples with one answer are
    judged differently, the answer counts by their mean.

    Args:
        correct: (N,) 0/1, NaN = unscored: such samples are left out.
        kept: problems with at least k_max scored samples.
    """
    labels, marks, sizes = _relabel(samples, correct, kept)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    orders = int(np.clip(BUDGET // max(1, len(kept) * k_max), 8, MOST_ORDERS))
    rng = np.random.default_rng(seed)
    total = np.zeros((k_max, len(kept)))
    steps = np.arange(k_max)[:, None]
    done = 0
    while done < orders:
        # one shuffle per problem, entered at evenly spread places: each entry is a random order
        turns = min(orders - done, max(1, int(sizes.min())))
        key = rng.random(starts[-1]) + np.repeat(np.arange(len(kept)), sizes)
        shuffle = np.argsort(key)
        entries = np.arange(turns)[:, None] * sizes // turns
        for at in range(0, turns, max(1, CELLS // (len(kept) * k_max))):
            some = entries[at : at + max(1, CELLS // (len(kept) * k_max))]
            place = (some.reshape(-1) + steps) % np.tile(sizes, len(some))
            order = shuffle[np.tile(starts[:-1], len(some)) + place]
            votes = walk(labels[order], marks[order])
            total += votes.reshape(k_max, len(some), len(kept)).sum(axis=1)
        done += turns
    curve = total.T / done
    curve[:, 0] = np.add.reduceat(np.where(labels >= 0, marks, 0.0), starts[:-1]) / sizes
    return curve, done


def walk(labels: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Chance that the leading answer is right after each vote, one order per column: (k, orders).

    Args:
        labels: (k, orders) whole numbers ≥ 0, equal for equal answers; -1 does not vote.
        marks: (k, orders) how right the answer is.

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
    for step, (label, mark) in enumerate(zip(labels, marks)):
        place = base + label + 1  # the first place is for those who do not vote
        count = counts[place] + 1
        counts[place] = count
        if some_silent:
            count = np.where(silent[step], -1, count)
        ahead = count > lead
        level = count == lead
        lead = np.where(ahead, count, lead)
        leaders = np.where(ahead, 1.0, leaders + level)
        right = np.where(ahead, mark, right + level * mark)
        result[step] = right / leaders
    return result


def _relabel(
    samples: Samples, correct: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scored samples of the kept problems: answers numbered within each, how right, sizes."""
    assert samples.answers is not None
    labels, marks, sizes = [], [], []
    for problem in kept:
        span = samples.of(int(problem))
        scored = ~np.isnan(correct[span])
        right = correct[span][scored]
        answer = samples.answers[span][scored]
        names, label = np.unique(answer, return_inverse=True)
        mark = (np.bincount(label, right) / np.bincount(label))[label]
        if names.size and names[0] < 0:
            label = label - 1
        labels.append(label)
        marks.append(mark)
        sizes.append(len(answer))
    return np.concatenate(labels), np.concatenate(marks), np.array(sizes)
