"""verl: `algorithm.adv_estimator=bestofk +algorithm.bestofk.objective=max@8`.

verl imports this module in each of its processes, by entry point (group `verl.plugins`) or by
`VERL_USE_EXTERNAL_MODULES=bestofk.adapters.verl`. verl hides errors of that import; this command
shows them, and checks the settings of a run:

    python -m bestofk.adapters.verl

Groups are verl's uids, wherever their rows are. Not counted in n: padding, rows whose response is
masked out whole (rejected), rewards that are NaN (could not be scored). A rollout of several rows
is one sample. With `actor.policy_loss.loss_mode=bestofk` each optimiser step has exact off-policy
weights (`verl_steps`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from verl.trainer.ppo import core_algos

from bestofk.adapters.verl_hooks import when_imported
from bestofk.adapters.verl_rollouts import RolloutRow, by_rollout, row_weights
from bestofk.adapters.verl_settings import NAME, chosen
from bestofk.adapters.verl_steps import unclipped, weigh_each_step
from bestofk.adapters.verl_trainer import PROGRESS, extend_trainer

V1 = "verl.trainer.ppo.v1.utils"
TRAINER = "verl.trainer.ppo.v1.trainer_base"
WORKERS = "verl.workers.engine_workers"


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
        index: a uid per row, or a RolloutRow (the V1 trainer's keys name the rollout).
        config: verl's `algorithm`, with a `bestofk` table.
    """
    objective = chosen(config)
    if index is None:
        raise ValueError("adv_estimator=bestofk needs a uid for every row; this batch has none")
    weights = row_weights(
        objective,
        token_level_rewards.sum(-1),
        [
            r if isinstance(r, RolloutRow) else RolloutRow(str(r), str(i))
            for i, r in enumerate(index)
        ],
        response_mask.bool().any(-1),
        progress=PROGRESS.get(),
        rng=int(torch.randint(2**31, ())) if "rng" in objective.needs else None,
    )
    advantages = weights.unsqueeze(-1) * response_mask
    return advantages, advantages


def _name_rollouts(module: Any) -> None:
    """verl's function gets the rows' keys; the trainer's module has a name for it, too."""
    name = "compute_advantage_for_multi_trajectories"
    for each in (module, sys.modules.get(TRAINER)):
        if each is not None and hasattr(each, name):
            setattr(each, name, by_rollout(getattr(each, name), NAME))


if __name__ == "__main__":  # verl imports this module by its name, and it is that one which counts
    from bestofk.adapters.verl_check import main

    sys.exit(main(sys.argv[1:]))
core_algos.register_adv_est(NAME)(estimate)
core_algos.register_policy_loss(NAME)(unclipped)
when_imported(V1, _name_rollouts)
when_imported(TRAINER, extend_trainer)
when_imported(WORKERS, weigh_each_step)
