"""verl: `algorithm.adv_estimator=bestofk +algorithm.bestofk.objective=max@8`.

verl imports this module in each of its processes, by entry point (group `verl.plugins`) or by
`VERL_USE_EXTERNAL_MODULES=bestofk.adapters.verl`. It hides what goes wrong there; this says it:

    python -m bestofk.adapters.verl

Groups are verl's uids, wherever their rows are. Not counted in n: padding, rows whose response is
masked out whole (rejected), rewards that are NaN (could not be scored). A rollout of several rows
is one sample.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from re import fullmatch
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos

from bestofk.adapters.verl_rollouts import Row, name_rollouts
from bestofk.objectives import Objective, objective

NAME = "bestofk"
OFF_POLICY = ("off_policy", "truncate", "self_normalise", "clamp")
NOT_GIVEN = {
    "entropy": "choose another design",
    "progress": "run the stages one after the other, each from the last checkpoint",
}


def estimate(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any] | None = None,
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns (B, T), the same tensor twice: a rollout's weight on its live tokens.

    Args:
        token_level_rewards: (B, T); a row's reward is their sum.
        response_mask: (B, T), 1 where a token is trained on.
        index: a uid per row, or a Row (the V1 trainer's keys name the rollout).
        config: verl's `algorithm`, with a `bestofk` table.
    """
    goal = chosen(config)
    if index is None:
        raise ValueError("adv_estimator=bestofk needs a uid for every row; this batch has none")
    rows = [row if isinstance(row, Row) else Row(str(row), str(i)) for i, row in enumerate(index)]
    last: dict[tuple[str, str], int] = {}  # the last row of every rollout: the one that is scored
    for i, row in enumerate(rows):
        if not fullmatch(r"pad([0-9a-f]{32}|\d*)", row.uid):  # a uid of verl's is a UUID
            seen = last.setdefault(row[:2], i)
            last[row[:2]] = i if row.part > rows[seen].part else seen
    place = {rollout: position for position, rollout in enumerate(last)}
    owner = torch.tensor([place.get(row[:2], -1) for row in rows], device=response_mask.device)
    live = torch.zeros(len(last) + 1, dtype=torch.bool, device=owner.device)
    live[owner[response_mask.bool().any(-1)]] = True
    weights = token_level_rewards.new_zeros(len(last) + 1)  # the extra one belongs to padding
    if last:
        weights[:-1] = goal(
            token_level_rewards.sum(-1)[list(last.values())],
            groups=np.array([uid for uid, _ in last]),
            live=live[:-1],
            rng=int(torch.randint(2**31, ())) if "rng" in goal.needs else None,
        )
    advantages = weights[owner].unsqueeze(-1) * response_mask
    return advantages, advantages


def chosen(config: Mapping[str, Any] | None) -> Objective:
    """The objective of `algorithm.bestofk`: `objective` and the options of `bestofk.objective`."""
    table = (config or {}).get(NAME)
    options = OmegaConf.to_container(table) if OmegaConf.is_config(table) else table
    if not isinstance(options, dict) or "objective" not in options:
        raise ValueError(
            "adv_estimator=bestofk needs an objective: add +algorithm.bestofk.objective=max@8 "
            f"(algorithm.bestofk is {options!r})"
        )
    for name in sorted(set(OFF_POLICY) & set(options)):
        raise ValueError(f"algorithm.bestofk.{name}: verl gives an estimator no log-ratios to use")
    goal = objective(options["objective"], **{k: v for k, v in options.items() if k != "objective"})
    for name in sorted(goal.needs & set(NOT_GIVEN)):
        raise ValueError(
            f"objective {goal} needs {name}, which verl does not give: {NOT_GIVEN[name]}"
        )
    return goal


if __name__ == "__main__":  # verl imports this module by its name, and it is that one which counts
    from bestofk.adapters.verl_check import main

    sys.exit(main(sys.argv[1:]))
core_algos.register_adv_est(NAME)(estimate)
name_rollouts(NAME)
