"""Which rows of verl's batch are one rollout, and the advantage of each row.

An agent loop may return a rollout as several rows. verl's V1 trainer keeps each row under the key
`{uid}_{session}_{part}` and makes one sample of a session for its own `grpo` alone; any other
estimator gets every row as a sample of its own. For ours the keys go where the uids go.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
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
    def of_key(cls, uid: Any, key: str) -> RolloutRow:
        """From verl's key, `{uid}_{session}_{part}`."""
        rollout, _, part = key.rpartition("_")
        return cls(str(uid), rollout, int(part))

    @property
    def padding(self) -> bool:
        """Whether verl added the row to fill the batch; a uid of a prompt is a UUID."""
        return fullmatch(r"pad([0-9a-f]{32}|\d*)", self.uid) is not None


def row_advantages(
    objective: Objective,
    rewards: torch.Tensor,
    rows: Sequence[RolloutRow],
    trained: torch.Tensor,
    *,
    scores: torch.Tensor | None = None,
    log_ratio: torch.Tensor | None = None,
    **inputs: Any,
) -> torch.Tensor:
    """(B,): of each row's rollout, so that the mean over rows is the mean over prompts.

    verl's loss divides by all B rows: padding, rows of one rollout, samples that do not count.

    Args:
        objective: what is trained for.
        rewards: (B,); the last row of a rollout is the one that is scored.
        rows: B of them.
        trained: (B,), whether any token of the row enters the loss.
        scores: (B,), what chooses a sample; NaN leaves a sample out, like a reward of NaN.
        log_ratio: (B,), log π_θ − log π_old of each row.
        inputs: further ones of `Objective.__call__`.
    """
    last: dict[tuple[str, str], int] = {}
    for i, row in enumerate(rows):
        if not row.padding:
            latest = last.setdefault(row[:2], i)
            last[row[:2]] = i if row.part > rows[latest].part else latest
    result = rewards.new_zeros(len(last) + 1)  # the extra one belongs to padding
    place = {rollout: position for position, rollout in enumerate(last)}
    owner = torch.tensor([place.get(row[:2], len(last)) for row in rows], device=rewards.device)
    if last:
        live = torch.zeros(len(last) + 1, dtype=torch.bool, device=rewards.device)
        live[owner[trained]] = True
        scored = rewards[list(last.values())]
        if scores is not None:
            inputs["scores"] = scores.to(rewards.device)[list(last.values())]
            scored = scored.masked_fill(inputs["scores"].isnan(), torch.nan)
        uids = np.array([uid for uid, _ in last])
        if log_ratio is not None:
            by_rollout = log_ratio.new_zeros(len(last) + 1).index_add(0, owner, log_ratio)
            inputs["log_ratio"] = by_rollout[:-1]
        result[:-1] = group_advantages(
            scored, uids, objective, live=live[:-1], rows=len(rows), **inputs
        )
    return result[owner]


def scores_of(extra_fields: Sequence[Any], scorer: str) -> torch.Tensor:
    """(B,): what the reward function returned under the scorer's name; NaN where it did not."""
    values = [fields.get("reward_extra_info", {}).get(scorer) for fields in extra_fields]
    return torch.tensor([math.nan if each is None else each for each in values]).double()


def by_rollout(compute: Callable[..., Any], estimator: str) -> Callable[..., Any]:
    """verl's function, with a RolloutRow for every uid where it calls this estimator."""

    @functools.wraps(compute)
    def with_rollouts(data: Any, batch_keys: Sequence[str], adv_estimator: Any, **rest: Any) -> Any:
        uids = data.non_tensor_batch["uid"]
        if adv_estimator == estimator:
            rows = np.empty(len(uids), dtype=object)
            for i, (uid, key) in enumerate(zip(uids, batch_keys, strict=True)):
                rows[i] = RolloutRow.of_key(uid, key)
            data.non_tensor_batch["uid"] = rows
        try:
            return compute(data, batch_keys=batch_keys, adv_estimator=adv_estimator, **rest)
        finally:
            data.non_tensor_batch["uid"] = uids

    return with_rollouts
