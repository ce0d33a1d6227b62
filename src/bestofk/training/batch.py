"""One batch of rollouts: the groups of a step, their verdicts, and their slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bestofk.types import Group, Verdict


class ProcessGroup(Protocol):
    """The processes of a run, as far as a batch needs them."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, on every process."""
        ...


@dataclass(frozen=True)
class RolloutBatch:
    """This process's groups of one step, with their verdicts."""

    groups: tuple[Group, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    position: int = 0
    """Where the next step takes its prompts from."""
    refilled: int = 0
    """Groups of all processes that dynamic sampling drew instead of others."""

    @property
    def rewards(self) -> np.ndarray:
        """(P, n); NaN where scoring broke."""
        return rewards_of(self.verdicts)

    def live(self, least: int) -> np.ndarray:
        """(P, n): True where a sample counts. A group with too few of them is dropped whole."""
        scored = ~np.isnan(self.rewards)
        return scored & (scored.sum(axis=1, keepdims=True) >= least)

    def take(self, rows: Sequence[int]) -> tuple[Group, ...]:
        """Some of the groups."""
        return tuple(self.groups[i] for i in rows)


def rewards_of(verdicts: Sequence[Sequence[Verdict]]) -> np.ndarray:
    """(P, n); NaN where scoring broke."""
    return np.array([[verdict.reward for verdict in row] for row in verdicts])


def slots_of(processes: ProcessGroup, prompts: int) -> range:
    """This process's slots of a batch of P prompts: a block.

    What is in a slot does not depend on how many processes there are.
    """
    rank, size = processes.rank, processes.size
    return range(rank * prompts // size, (rank + 1) * prompts // size)


def whole_groups(groups: int, passes: int, mini_batches: int) -> Iterator[tuple[list[int], bool]]:
    """Rows of each optimiser step, and whether it is their first; groups stay whole.

    Slot s belongs to mini-batch s mod M, so that each process gives the same share to every one.

    >>> [rows for rows, _ in whole_groups(4, passes=1, mini_batches=2)]
    [[0, 2], [1, 3]]
    """
    for number in range(passes):
        for part in range(mini_batches):
            yield list(range(part, groups, mini_batches)), number == 0
