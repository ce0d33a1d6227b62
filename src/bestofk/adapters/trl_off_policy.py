"""Several optimiser steps per batch in TRL: what the exact off-policy weights need to know.

An optimiser step has whole groups. Before its first micro-batch all of them are scored under the
current weights; `bestofk.objectives` turns rewards and log-ratios into weights, plain numbers, and
the loss is the unclipped −(1/rows) Σ A_i Σ_t log π(y_it): TRL's own, once π_old is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bestofk.adapters.inner_steps import weigh_and_measure
from bestofk.adapters.trl_rows import in_loss, progress_of, score_rows, shared
from bestofk.objectives import Objective

REWARDS = "bestofk_rewards"
OLD = "old_per_token_logps"
IMAGES = ("pixel_values", "num_images")


class InnerStepsEnded(Exception):
    """The policy has moved too far from this batch: its remaining optimiser steps are left out."""


def keep_rewards(output: dict[str, Any], rewards: Tensor, live: Tensor) -> None:
    """Let each row carry its reward (NaN where it is not live) to the optimiser steps.

    Args:
        output: the rows of this process, as TRL made them.
        rewards, live: of the same rows.
    """
    if any(output.get(name) is not None for name in IMAGES):
        raise ValueError(
            "num_iterations or steps_per_generation above one step per batch: images have no exact "
            "off-policy weights here yet; take one optimiser step per batch (num_iterations=1, "
            "steps_per_generation left out)"
        )
    output[REWARDS] = rewards.masked_fill(~live, torch.nan).to(output["advantages"].device)


def for_loss(batch: dict[str, Any]) -> dict[str, Any]:
    """The micro-batch without π_old: TRL's ratio is then 1 and its gradient A ∇log π."""
    return {name: value for name, value in batch.items() if name not in (REWARDS, OLD)}


def weigh_step(trainer: Any, batches: Sequence[dict[str, Any]]) -> float:
    """Write the exact weights of one optimiser step's groups, of all processes together.

    Returns:
        The effective share of their samples, the same on all processes.
    """
    known = torch.cat([batch[REWARDS] for batch in batches]).double()
    mine = torch.stack([known, log_ratios(trainer, batches)], dim=1)
    everyone = trainer.accelerator.gather(mine).cpu().reshape(-1, trainer.num_generations, 2)
    rewards, log_ratio = everyone.unbind(dim=-1)
    live = ~rewards.isnan()
    inputs: dict[str, Any] = {"log_ratio": log_ratio, "progress": progress_of(trainer.state)}

    def weigh(objective: Objective) -> Tensor:
        return shared(objective, rewards, live, **inputs)[0]

    weights, result = weigh_and_measure(
        trainer.training_objective, weigh, log_ratio, live, inputs["progress"]
    )
    start = trainer.accelerator.process_index * len(mine)
    own = weights.reshape(-1)[start : start + len(mine)]
    for batch, part in zip(batches, own.split([len(batch[REWARDS]) for batch in batches])):
        batch["advantages"] = part.to(batch["advantages"])
    for name, value in result.items():
        trainer._metrics["train"][name].append(value)
    return result["effective_share"]


@torch.no_grad()
def log_ratios(trainer: Any, batches: Sequence[dict[str, Any]]) -> Tensor:
    """(rows,): log π_θ − log π_old of each completion, over the tokens of the loss, in float64."""
    result = []
    for batch in batches:
        moved = score_rows(trainer, batch)[0].double() - batch[OLD].double()
        result.append(torch.where(in_loss(batch).bool(), moved, 0.0).sum(dim=1))
    return torch.cat(result)
