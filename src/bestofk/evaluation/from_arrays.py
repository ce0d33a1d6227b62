"""Samples from arrays: for callers who have rewards in memory rather than in a file."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from .results import Samples


def samples(
    rewards: Sequence[Sequence[float | None]] | Sequence[Sequence[float]] | np.ndarray,
    *,
    name: str = "samples",
    problems: Sequence[str] | None = None,
    answers: Sequence[Sequence[Hashable]] | None = None,
    clusters: Sequence[Hashable] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Samples:
    """One run from one row of rewards per problem; rows may differ in length.

    Args:
        rewards: one sequence per problem; NaN or None = unscored.
        problems: their ids; by default "0", "1", ...
        answers: the same layout; None = no answer.
        clusters: the source, topic or template of each problem, where problems of one are alike.
        columns: `tokens`, `logprobs`, in the same layout.

    Raises:
        ValueError: lengths that do not fit; an id that occurs twice; infinite rewards.
    """
    rows = [_numbers(row) for row in rewards]
    ids = [str(i) for i in range(len(rows))] if problems is None else [str(p) for p in problems]
    for what, given in (("problem ids", ids), ("clusters", clusters)):
        if given is not None and len(given) != len(rows):
            raise ValueError(f"{len(rows)} rows of rewards but {len(given)} {what}")
    if len(set(ids)) != len(ids):
        twice = next(p for p in ids if ids.count(p) > 1)
        raise ValueError(f"problem id {twice!r} occurs twice: join its samples into one row")
    order = sorted(range(len(ids)), key=ids.__getitem__)
    flat = np.concatenate([rows[i] for i in order]) if rows else np.empty(0)
    if np.isinf(flat).any():
        raise ValueError("rewards must be finite, or NaN where scoring failed")
    sizes = [len(rows[i]) for i in order]
    numbered = None
    if answers is not None:
        numbers: dict[Hashable, int] = {}
        labels = [a for i in order for a in answers[i]]
        numbered = np.array(
            [-1 if a is None else numbers.setdefault(a, len(numbers)) for a in labels],
            dtype=np.int64,
        )
    extra: dict[str, Any] = {
        key: np.concatenate([np.asarray(column[i], dtype=float) for i in order])
        for key, column in columns.items()
    }
    for key, column in {**extra, **({} if numbered is None else {"answers": numbered})}.items():
        if len(column) != len(flat):
            raise ValueError(f"{key} has {len(column)} entries for {len(flat)} rewards")
    return Samples(
        name=name,
        problems=tuple(ids[i] for i in order),
        clusters=None if clusters is None else tuple(str(clusters[i]) for i in order),
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        rewards=flat,
        answers=numbered,
        metadata=dict(metadata or {}),
        **extra,
    )


def _numbers(row: Sequence[float | None] | np.ndarray) -> np.ndarray:
    if isinstance(row, np.ndarray):
        return row.astype(float)
    return np.array([np.nan if value is None else value for value in row], dtype=float)
