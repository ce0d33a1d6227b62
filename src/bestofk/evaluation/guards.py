"""Files that would give wrong numbers in silence: errors, and notes where a reader must decide."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .collect import Collector, as_numpy
from .unpacking import BadFile

LEAST_REPEATED = 32
"""Samples without texts that must repeat before a file counts as written twice."""


def check_samples(file: Path, samples: Collector, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Notes on a file that was read; answers that tell nothing are removed from it.

    Raises:
        BadFile: the reference answers were taken for the samples' answers; a file written twice.
    """
    problem = as_numpy(samples.problem, np.int64)
    reward = as_numpy(samples.reward, np.float64)
    _check_repeats(file, samples, problem, reward)
    notes: tuple[str, ...] = ()
    if len(samples.answer):
        answer = as_numpy(samples.answer, np.int64)
        if (answer < 0).all():
            del answer
            samples.answer = array("q")
            notes += (
                f"{columns.get('answer', 'the answer')} is empty everywhere: no majority voting",
            )
        else:
            _check_reference(file, columns.get("answer", "answer"), problem, reward, answer)
    if len(samples.problems) == len(problem) > 1:
        notes += (
            f"every problem has one sample, so only k = 1 can be estimated; if several samples "
            f"share a problem, name the column that they share with --map problem_id=... (it is "
            f"{columns.get('problem_id')!r} now)",
        )
    return notes


def _check_reference(
    file: Path, column: str, problem: np.ndarray, reward: np.ndarray, answer: np.ndarray
) -> None:
    """Answers that never change within a problem, although its samples pass and fail."""
    scored = ~np.isnan(reward)
    if not np.isin(reward[scored], (0.0, 1.0)).all():
        return
    order = np.argsort(problem, kind="stable")
    first = np.flatnonzero(np.diff(problem[order], prepend=-1))
    one_answer = np.maximum.reduceat(answer[order], first) == np.minimum.reduceat(
        answer[order], first
    )
    passes = np.maximum.reduceat(np.where(scored, reward, 0.0)[order], first) == 1
    fails = np.minimum.reduceat(np.where(scored, reward, 1.0)[order], first) == 0
    if one_answer.all() and (passes & fails).any():
        count = int((passes & fails).sum())
        raise BadFile(
            file,
            None,
            f"{column!r} holds one value per problem, although {count} problems have both right "
            "and wrong samples: it looks like the reference answer, not what the samples "
            "answered. Leave it out with --map answer= , or name the column of the samples' "
            "answers with --map answer=...",
        )


def _check_repeats(file: Path, samples: Collector, problem: np.ndarray, reward: np.ndarray) -> None:
    """A file whose second half repeats the first: without sample numbers nothing else shows it."""
    half, odd = divmod(len(problem), 2)
    if odd or half < 2 or len(samples.sample_id):
        return
    texts = as_numpy(samples.hashes, np.int64) if len(samples.hashes) == len(problem) else None
    columns = [problem, reward]
    columns += [] if texts is None else [texts]
    columns += [as_numpy(samples.answer, np.int64)] if len(samples.answer) else []
    same = all(np.array_equal(c[:half], c[half:], equal_nan=c is reward) for c in columns)
    telling = (
        len(np.unique(texts)) > 2
        if texts is not None
        else (half >= LEAST_REPEATED and len(np.unique(reward[:half])) > 1)
    )
    if same and telling:
        raise BadFile(
            file,
            half + 1,
            f"the second half repeats the first {half} samples one by one: was the file "
            "concatenated twice? Remove the repeat; if these are separate samples, number them "
            "in a column sample_id",
        )
