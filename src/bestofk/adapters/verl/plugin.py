"""What verl imports in each of its processes, by entry point (group `verl.plugins`) or by
`VERL_USE_EXTERNAL_MODULES=bestofk.adapters.verl.plugin`: estimator, loss, hooks, agent loop.

Groups are verl's uids, wherever their rows are. Not counted in n: padding, rows whose response is
masked out whole (rejected), rewards that are NaN (could not be scored). A rollout of several rows
is one sample.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from typing import Any

import torch
from verl.trainer.ppo import core_algos

from .ppo_settings import NAME, chosen
from .ppo_steps import renew_before_each_step, unclipped
from .ppo_trainer import INPUTS, extend_trainer, refuse_legacy_trainer
from .rollout_rows import RolloutRow, row_advantages

TRAINER = "verl.trainer.ppo.v1.trainer_base"
LEGACY_TRAINER = "verl.trainer.ppo.ray_trainer"
WORKERS = "verl.workers.engine_workers"
AGENT_LOOPS = "verl.experimental.agent_loop.agent_loop"


def estimate(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any] | None = None,
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns (B, T), the same tensor twice: a rollout's on its live tokens.

    Args:
        token_level_rewards: (B, T); a row's reward is their sum.
        response_mask: (B, T), 1 where a token is trained on.
        index: a uid per row; inside the V1 trainer its keys also name the rollout.
        config: verl's `algorithm`, with a `bestofk` table.
    """
    objective = chosen(config)
    if index is None:
        raise ValueError("adv_estimator=bestofk needs a uid for every row; this batch has none")
    inputs: dict[str, Any] = {"rows": [RolloutRow(str(uid), str(i)) for i, uid in enumerate(index)]}
    inputs |= INPUTS.get({})
    if "rng" in objective.needs:
        inputs["rng"] = int(torch.randint(2**31, ()))
    trained = response_mask.bool().any(-1)
    by_row = row_advantages(objective, token_level_rewards.sum(-1), trained=trained, **inputs)
    advantages = by_row.unsqueeze(-1) * response_mask
    return advantages, advantages


def _offer_environments(module: Any) -> None:
    """`default_agent_loop=bestofk`: an environment as an agent loop."""
    target = "bestofk.adapters.verl.agent_loop.EnvironmentLoop"
    module._agent_loop_registry[NAME] = {"_target_": target}


def when_imported(name: str, then: Callable[[Any], None]) -> None:
    """Call `then(module)` now, or right after the module of that name is imported.

    A plug-in that imported verl's trainer or workers would settle verl's choice of hardware before
    the other plug-ins are loaded.
    """
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _WhenImported(name, then))


class _WhenImported(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: Any) -> None:
                execute(module)
                self.then(module)

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec


core_algos.register_adv_est(NAME)(estimate)
core_algos.register_policy_loss(NAME)(unclipped)
when_imported(TRAINER, extend_trainer)
when_imported(LEGACY_TRAINER, refuse_legacy_trainer)
when_imported(WORKERS, renew_before_each_step)
when_imported(AGENT_LOOPS, _offer_environments)
