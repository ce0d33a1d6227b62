"""Which rows of verl's batch are one rollout, and the advantage of each row.

An agent loop may return a rollout as several rows. verl's V1 trainer keeps each row under the key
`{uid}_{session}_{part}` and makes one sample of a session for its own `grpo` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from re import fullmatch
from typing import Any, NamedTuple

import numpy as np
import torch

from bestofk.adapters.groups import group_advantages
from bestofk.objectives import Objective


class RolloutRow(NamedTuple):
    """A row of the batch: the prompt it answers, the rollout it is of, which part of it."""

    uid: str
    rollout: str
    part: int = 0

    @classmethod
    def of_key(cls, key: str) -> RolloutRow:
        """From verl's key, `{uid}_{session}_{part}`."""
        uid, session, part = key.rsplit("_", 2)
        return cls(uid, f"{uid}_{session}", int(part))

    @property
    def padding(self) -> bool:
        """Whether verl added the row to fill the batch; a uid of a prompt is a UUID."""
        return fullmatch(r"pad([0-9a-f]{32}|\d*)", self.uid) is not None


def last_rows(rows: Sequence[RolloutRow]) -> dict[tuple[str, str], int]:
    """Where the last row of each rollout is, which is the one that is scored; padding has none."""
    last: dict[tuple[str, str], int] = {}
    for i, row in enumerate(rows):
        if not row.padding and row.part >= rows[last.setdefault(row[:2], i)].part:
            last[row[:2]] = i
    return last


def row_advantages(
    objective: Objective,
    rewards: torch.Tensor,
    rows: Sequence[RolloutRow],
    trained: torch.Tensor,
    *,
    scores: torch.Tensor | None = None,
    **inputs: Any,
) -> torch.Tensor:
    """(B,): of each row's rollout, so that the mean over rows is the mean over prompts.

    verl's loss divides by all B rows: padding, rows of one rollout, samples that do not count.

    Args:
        rewards: (B,), as all that follow.
        trained: whether any token of the row enters the loss.
        scores: what chooses a sample; NaN leaves a sample out, like a reward of NaN.
        inputs: further ones of `Objective.__call__`.
    """
    last = last_rows(rows)
    if not last:
        return torch.zeros_like(rewards)
    scored_at = torch.tensor([last.get(row[:2], i) for i, row in enumerate(rows)])
    is_padding = torch.tensor([row.padding for row in rows])
    live = torch.zeros_like(is_padding)
    live[scored_at[trained.cpu() & ~is_padding]] = True
    if scores is not None:
        inputs["scores"] = scores.to(rewards.device)
        rewards = rewards.masked_fill(inputs["scores"].isnan(), torch.nan)
    (some_uid, _), *_ = last
    uids = np.array([some_uid if row.padding else row.uid for row in rows])
    return group_advantages(rewards, uids, objective, live=live, **inputs)[scored_at]


def scores_of(extra_fields: Sequence[Any], scorer: str) -> torch.Tensor:
    """(B,): what the reward function returned under the scorer's name; NaN where it did not."""
    values = [fields.get("reward_extra_info", {}).get(scorer) for fields in extra_fields]
    return torch.tensor([math.nan if each is None else each for each in values]).double()
