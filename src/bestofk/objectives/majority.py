"""Majority voting over k samples, exactly: no resampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import as_float64, as_numpy, positive_integer


def maj_at_k(answers: Any, correct: Any, k: int) -> np.ndarray:
    """Probability that the most frequent answer among k samples is correct.

    The mean over all k-subsets of the group of: is the plurality answer correct, with ties broken
    uniformly at random. Computed without enumeration: the counts of the answers in a random
    k-subset are independent binomials conditioned on their sum, so one polynomial product per
    (correct answer, its count) gives the chance that every other answer has fewer votes, and how
    many tie.

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
    votes = [_vote(row, mark, k) for row, mark in zip(labels.reshape(-1, n), right.reshape(-1, n))]
    return np.array(votes).reshape(labels.shape[:-1])


def _vote(labels: np.ndarray, right: np.ndarray, k: int) -> float:
    counts: dict[Any, int] = {}
    marks: dict[Any, float] = {}
    silent = 0
    for label, mark in zip(labels.tolist(), right.tolist()):
        if label is None or label != label:
            silent += 1
            continue
        counts[label] = counts.get(label, 0) + 1
        if marks.setdefault(label, mark) != mark:
            raise ValueError(f"answer {label!r} is marked both correct and wrong in one group")
    n = len(labels)
    share = k / n
    everyone = _binomial(n, share)[k]
    total = 0.0
    for label, own in counts.items():
        if marks[label]:
            rivals = [count for other, count in counts.items() if other != label]
            total += _wins(own, rivals, silent, k, share)
    return float(min(1.0, total / everyone))


def _wins(own: int, rivals: list[int], silent: int, k: int, share: float) -> float:
    """Chance that an answer with `own` samples wins and k samples are drawn, each with `share`."""
    own_votes = _binomial(own, share)
    total = 0.0
    for votes in range(1, min(own, k) + 1):
        # by_ties[t, s]: t rivals tie with `votes`, s votes fall elsewhere, nobody has more
        by_ties = np.zeros((len(rivals) + 1, k - votes + 1))
        abstain = _binomial(silent, share)[: k - votes + 1]
        by_ties[0, : len(abstain)] = abstain
        for tied, count in enumerate(rivals):
            chances = _binomial(count, share)
            grown = np.zeros_like(by_ties)
            for drawn in range(min(count, votes, k - votes) + 1):
                moved = chances[drawn] * by_ties[: tied + 1, : by_ties.shape[1] - drawn]
                if drawn < votes:
                    grown[: tied + 1, drawn:] += moved
                else:
                    grown[1 : tied + 2, drawn:] += moved
            by_ties = grown
        shares = 1.0 / np.arange(1, len(rivals) + 2)
        total += own_votes[votes] * float(shares @ by_ties[:, k - votes])
    return total


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
