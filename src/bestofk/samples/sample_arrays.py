"""The samples of one run as arrays, and how to make them from rewards in memory."""

from __future__ import annotations

import html
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from bestofk.messages import counted


@dataclass(frozen=True, kw_only=True, repr=False)
class Samples:
    """The samples of one run, one problem after another, without their texts.

    Sample s of problem p stands at flat position `offsets[p] + s` of every per-sample array.
    """

    name: str
    """What to call the run in tables and legends."""
    problems: tuple[str, ...]
    """Problem ids, sorted; runs are paired by them."""
    clusters: tuple[str, ...] | None = None
    """(P,) the source, topic or template of each problem, where problems of one are alike."""
    offsets: np.ndarray
    """(P + 1,) int64."""
    rewards: np.ndarray
    """(N,) float64; NaN = unscored."""
    answers: np.ndarray | None = None
    """(N,) int64, equal numbers for equal answers; -1 = no answer. None where the file has none."""
    scores: np.ndarray | None = None
    """(N,) float64 of the selector that chooses among a problem's samples; NaN = none."""
    tokens: np.ndarray | None = None
    """(N,) float64 number of tokens of each completion; NaN = not stated."""
    logprobs: np.ndarray | None = None
    """(N,) float64 log-probability of each completion under the policy that sampled it."""
    turns: np.ndarray | None = None
    """(N,) float64 messages of the policy in each trajectory; NaN = one turn, or not stated."""
    lines: np.ndarray | None = None
    """(N,) int64 line (or row, from 1) of the file each sample was read from."""
    texts: Mapping[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """By problem index, a bounded excerpt of the completions: for the compression ratio."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Where it came from: path, format, mapping, model, task, sampling, run_id, ... where known."""

    @property
    def sizes(self) -> np.ndarray:
        """(P,) samples per problem, unscored ones included."""
        return np.diff(self.offsets)

    @cached_property
    def live(self) -> np.ndarray:
        """(P,) scored samples per problem: the n that estimates use."""
        return self.count(~np.isnan(self.rewards))

    def count(self, mask: np.ndarray) -> np.ndarray:
        """(P,) how many of each problem's samples a mask (N,) holds."""
        filled = self.sizes > 0
        counts = np.zeros(len(self.problems), dtype=np.int64)
        if filled.any():
            counts[filled] = np.add.reduceat(mask, self.offsets[:-1][filled], dtype=np.int64)
        return counts

    @cached_property
    def unscored(self) -> int:
        return int(np.isnan(self.rewards).sum())

    def cluster_of(self, problems: np.ndarray) -> np.ndarray | None:
        """The number of each kept problem's cluster, from 0; None where there are no clusters."""
        if self.clusters is None:
            return None
        names, number = np.unique(np.array(self.clusters)[problems], return_inverse=True)
        if len(names) < 2:
            raise ValueError(
                f"{self.name}: all problems are in one cluster ({names[0]!r}), so nothing shows "
                "how clusters differ; leave --cluster out, or name another column"
            )
        return np.asarray(number)

    @property
    def most_turns(self) -> int:
        """Of the longest trajectory; 1 where the file has none of several turns."""
        turns = np.ones(1) if self.turns is None else self.turns
        return int(np.nan_to_num(turns, nan=1.0, posinf=1.0).max(initial=1.0))

    def within(self, turns: int, *, lowest: float | None = None) -> Samples:
        """The run with at most so many turns: a longer trajectory gets the least reward that there
        can be, by default 0, or that of the run where it is negative."""
        if turns >= self.most_turns or self.turns is None:
            return self
        scored = ~np.isnan(self.rewards)
        lowest = self.rewards[scored].min(initial=0.0) if lowest is None else lowest
        return replace(self, rewards=np.where((self.turns > turns) & scored, lowest, self.rewards))

    def of(self, problem: int) -> slice:
        """The flat positions of one problem's samples."""
        return slice(int(self.offsets[problem]), int(self.offsets[problem + 1]))

    @property
    def extent(self) -> str:
        """Problems × samples, and how many are unscored, in words."""
        clusters = None if self.clusters is None else len(set(self.clusters))
        lost = f", {self.unscored:,} unscored" if self.unscored else ""
        each = per_problem(self.sizes.tolist() or [0])
        return f"{in_clusters(len(self.problems), clusters)} × {each}{lost}"

    def __repr__(self) -> str:
        return f"{self.name}: {self.extent}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>"

    def to_pandas(self) -> Any:
        """One row per sample: problem, reward."""
        import pandas

        problems = np.repeat(np.array(self.problems, dtype=object), self.sizes)
        return pandas.DataFrame({"problem": problems, "reward": self.rewards})


def in_clusters(problems: int, clusters: int | None) -> str:
    """
    >>> in_clusters(60, None), in_clusters(1, None), in_clusters(60, 6)
    ('60 problems', '1 problem', '60 problems in 6 clusters')
    """
    inside = "" if clusters is None else f" in {counted(clusters, 'cluster')}"
    return counted(problems, "problem") + inside


def per_problem(n: Iterable[int]) -> str:
    low, high = min(n), max(n)
    return counted(low, "sample") if low == high else f"{low} to {high} samples"


def samples(
    rewards: Sequence[Sequence[float | None]] | Sequence[Sequence[float]] | np.ndarray,
    *,
    name: str = "samples",
    problems: Sequence[str] | None = None,
    answers: Sequence[Sequence[Hashable]] | None = None,
    clusters: Sequence[Hashable] | None = None,
    **columns: Any,
) -> Samples:
    """One run from one row of rewards per problem; rows may differ in length.

    Args:
        rewards: one sequence per problem; NaN or None = unscored.
        problems: their ids; by default "0", "1", ...
        answers: the same layout; None = no answer.
        clusters: the source, topic or template of each problem, where problems of one are alike.
        columns: `scores`, `tokens`, `logprobs`, `turns`, in the same layout, or None.

    Raises:
        ValueError: lengths that do not fit; an id that occurs twice; infinite rewards.
    """
    try:
        rows = [np.array(row, dtype=float) for row in rewards]
    except (TypeError, ValueError) as error:
        raise ValueError(f"rewards are one row of numbers for each problem: {error}") from None
    if any(row.ndim != 1 for row in rows):
        raise ValueError("rewards are one row of numbers for each problem, like [[1, 0], [0, 0]]")
    ids = [str(i) for i in range(len(rows))] if problems is None else [str(p) for p in problems]
    for what, names in (("problem ids", ids), ("clusters", clusters)):
        if names is not None and len(names) != len(rows):
            raise ValueError(f"{len(rows)} rows of rewards but {len(names)} {what}")
    if len(set(ids)) != len(ids):
        twice = next(p for p in ids if ids.count(p) > 1)
        raise ValueError(f"problem id {twice!r} occurs twice: join its samples into one row")
    order = sorted(range(len(ids)), key=ids.__getitem__)
    flat = np.concatenate([rows[i] for i in order]) if rows else np.empty(0)
    if np.isinf(flat).any():
        raise ValueError("rewards must be finite, or NaN where scoring failed")
    sizes = [len(rows[i]) for i in order]
    columns = {key: column for key, column in columns.items() if column is not None}
    for key, column in {**columns, **({} if answers is None else {"answers": answers})}.items():
        if [len(row) for row in column] != [len(row) for row in rows]:
            raise ValueError(f"{key} and rewards have rows of other lengths: one entry per sample")
    extra: dict[str, Any] = {
        key: np.concatenate([np.asarray(column[i], dtype=float) for i in order])
        for key, column in columns.items()
    }
    if answers is not None:
        numbers: dict[Hashable, int] = {None: -1}
        labels = [a for i in order for a in answers[i]]
        numbered = [numbers.setdefault(a, len(numbers) - 1) for a in labels]
        extra["answers"] = np.array(numbered, dtype=np.int64)
    return Samples(
        name=name,
        problems=tuple(ids[i] for i in order),
        clusters=None if clusters is None else tuple(str(clusters[i]) for i in order),
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        rewards=flat,
        **extra,
    )
