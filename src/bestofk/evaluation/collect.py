"""Samples gathered row by row in little memory: numbers only, in growing arrays."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .results import Samples

EXCERPT_PROBLEMS, EXCERPT_TEXTS, EXCERPT_CHARACTERS = 400, 16, 2000
"""Bounds of the texts kept for the compression ratio: at most 13 million characters."""
EXCERPT_LINES = 5_000
"""Texts for the compression ratio come from the first lines of a file only."""


class Collector:
    """Columns of one run, in the order of the file."""

    def __init__(self) -> None:
        self.problems: dict[str, int] = {}
        self.problem = array("i")
        self.reward = array("d")
        self.line = array("q")
        self.sample_id = array("q")
        self.answer = array("q")
        self.status = array("h")
        self.statuses: dict[str, int] = {}
        self.tokens = array("d")
        self.logprob = array("d")
        self.new_logprob = array("d")
        self.hashes = array("q")
        self.texts: dict[int, list[str]] = {}
        self.uniform: dict[str, Any] = {}

    def number(self, problem: str) -> int:
        """The problem's number, given when it is first seen."""
        return self.problems.setdefault(problem, len(self.problems))

    def state(self, status: Any) -> int:
        """The status's number; -1 for none."""
        return -1 if status is None else self.statuses.setdefault(str(status), len(self.statuses))

    def keep_text(self, problem: int, text: Any) -> None:
        """Keep a completion for the compression ratio, within the bounds."""
        if problem >= EXCERPT_PROBLEMS or not isinstance(text, str):
            return
        kept = self.texts.setdefault(problem, [])
        if len(kept) < EXCERPT_TEXTS:
            kept.append(text[:EXCERPT_CHARACTERS])

    def keep_hash(self, text: Any) -> None:
        """Remember a completion by its hash, to notice a file that repeats itself."""
        self.hashes.append(hash(text if isinstance(text, str) else repr(text)))

    def duplicate(self) -> tuple[int, int] | None:
        """Lines of two samples of one problem with the same number, where there are any."""
        if not len(self.sample_id):
            return None
        problem, sample = as_numpy(self.problem, np.int64), as_numpy(self.sample_id, np.int64)
        low, span = int(sample.min()), int(sample.max()) - int(sample.min()) + 1
        if span < 1 << 31 and (np.diff(np.sort(problem * span + (sample - low))) > 0).all():
            return None
        order = np.lexsort((np.arange(len(problem)), sample, problem))
        same = (np.diff(problem[order]) == 0) & (np.diff(sample[order]) == 0)
        if not same.any():
            return None
        lines = as_numpy(self.line, np.int64)[order]
        at = np.flatnonzero(same)
        first = at[lines[at + 1].argmin()]
        return int(lines[first]), int(lines[first + 1])

    def finish(self, name: str, metadata: Mapping[str, Any]) -> Samples:
        """The run, problems sorted by id and samples in the order of the file."""
        names = sorted(self.problems)
        rank = np.empty(len(names), dtype=np.int64)
        rank[[self.problems[each] for each in names]] = np.arange(len(names))
        problem = rank[as_numpy(self.problem, np.int64)] if names else np.empty(0, dtype=np.int64)
        order = np.argsort(problem, kind="stable")
        sizes = np.bincount(problem, minlength=len(names))

        def column(values: Sequence[Any], dtype: Any) -> np.ndarray | None:
            return as_numpy(values, dtype)[order] if len(values) else None

        rewards = column(self.reward, np.float64)
        return Samples(
            name=name,
            problems=tuple(names),
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            rewards=np.empty(0) if rewards is None else rewards,
            sample_ids=column(self.sample_id, np.int64),
            answers=column(self.answer, np.int64),
            statuses=column(self.status, np.int16),
            status_names=tuple(self.statuses),
            tokens=column(self.tokens, np.float64),
            logprobs=column(self.logprob, np.float64),
            new_logprobs=column(self.new_logprob, np.float64),
            lines=column(self.line, np.int64),
            texts={int(rank[p]): tuple(texts) for p, texts in self.texts.items()},
            metadata=dict(metadata),
        )


def as_numpy(values: Any, dtype: Any) -> np.ndarray:
    """An array("…") as NumPy, without a copy where the types agree."""
    return np.frombuffer(values, dtype=np.dtype(values.typecode)).astype(dtype, copy=False)


def run_name(path: Path) -> str:
    """What to call the run of a file: its name, or its folder's where the name says only a step.

    >>> run_name(Path("runs/a/evaluations/000050.jsonl")), run_name(Path("b.jsonl.gz"))
    ('a 000050', 'b')
    """
    stem = path.name.split(".jsonl")[0] if ".jsonl" in path.name else path.stem
    stem = stem.removesuffix(".csv").removesuffix(".tsv")
    if stem.isdigit():
        folder = path.parent
        folder = folder.parent if folder.name in ("evaluations", "samples") else folder
        return f"{folder.name} {stem}".strip()
    return stem
