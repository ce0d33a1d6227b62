"""Which samples go on the page, and how much of each.

A page that opens at once cannot hold a million completions. It holds, of every problem it can, the
best sample of each run, those that were the best of the first 1, 2, 4, … drawn, and the first ones;
of a long completion its beginning and its end. What was left out is said on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

HEAD = 2000
TAIL = 1000
"""Characters kept of a longer completion: answers stand at the end."""
LEAST = 2
"""Samples per problem and run worth showing at all."""


@dataclass(frozen=True)
class Excerpts:
    """The samples on the page, grouped by problem and run."""

    problems: list[dict[str, Any]]
    statuses: list[str]
    total: int
    rule: str

    def data(self) -> dict[str, Any]:
        shown = sum(len(group["items"]) for one in self.problems for group in one["runs"])
        return {
            "problems": self.problems,
            "statuses": self.statuses,
            "total": self.total,
            "shown": shown,
            "rule": self.rule,
        }


def bests(rewards: np.ndarray) -> list[tuple[int, int]]:
    """(k, index of the best of the first k) at every power of two below n, and at n.

    The first of equals counts, as it would for somebody who draws one after another; an unscored
    sample never does.

    >>> bests(np.array([0.0, 0.5, np.nan, 1.0, 1.0]))
    [(1, 0), (2, 1), (4, 3), (5, 3)]
    """
    depths = sorted({2**i for i in range(64) if 2**i < rewards.size} | {rewards.size})
    found = []
    for k in depths:
        first = rewards[:k]
        if not np.isnan(first).all():
            found.append((k, int(np.nanargmax(first))))
    return found


def choose(rewards: np.ndarray, quota: int) -> list[int]:
    """Up to `quota` indices: the best of all, the bests of the first 1, 2, 4, …, then the first.

    >>> choose(np.array([0.0, 0.0, 0.5, 0.0, 0.0, 1.0]), 3)
    [0, 2, 5]
    """
    wanted = [index for _, index in reversed(bests(rewards))]
    order = dict.fromkeys([*wanted[:1], *wanted[:0:-1], *range(rewards.size)])
    return sorted(list(order)[:quota])


def shares(
    groups: Sequence[int], interesting: Sequence[bool], runs: int, limit: int
) -> tuple[list[int], int]:
    """Which problems to show and how many samples of each run, within `limit` samples.

    Problems that some runs solve and others do not come first, the rest evenly spread over the set.
    """
    affordable = limit // (LEAST * max(runs, 1))
    if affordable >= len(groups):
        return list(groups), limit // max(1, len(groups) * runs)
    first = [p for p, mark in zip(groups, interesting) if mark][:affordable]
    rest = [p for p, mark in zip(groups, interesting) if not mark]
    picks = np.linspace(0, len(rest) - 1, affordable - len(first)).round().astype(int)
    return sorted({*first, *(rest[i] for i in picks)}), LEAST


def cut(text: str) -> dict[str, Any]:
    """A completion, or its beginning and end with the number of characters between.

    >>> cut("short")
    {'t': 'short', 'e': None, 'cut': 0}
    """
    if len(text) <= HEAD + TAIL:
        return {"t": text, "e": None, "cut": 0}
    return {"t": text[:HEAD], "e": text[-TAIL:], "cut": len(text) - HEAD - TAIL}


def item(index: int, reward: float, status: int | None, row: Mapping[str, Any]) -> dict[str, Any]:
    """One sample as the page reads it; `row` is what its file says."""
    answer = row.get("answer")
    return {
        "i": index + 1,
        "r": reward,
        "s": status,
        "a": None if answer is None else str(answer)[:200],
        "f": row.get("finish_reason"),
        "n": row.get("n_tokens"),
        **({"seed": row["seed"]} if row.get("seed") is not None else {}),
        **cut(str(row.get("completion") or "")),
    }
