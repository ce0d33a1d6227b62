"""SkyRL: `trainer.algorithm.advantage_estimator=bestofk:max@8`; checked with skyrl 0.3.0.

SkyRL does not accept unknown configuration keys: the objective is part of the estimator's name.
`register("max@8")` makes the name known; `trainer.override_entrypoint=bestofk.adapters.skyrl` does
so for the name on the command line, then runs SkyRL's own entry point. SkyRL hands what is
registered to its Ray workers through an actor: a function of this module and a string here, so
bestofk must be installed on every node.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry
from skyrl.train.config import AlgorithmConfig, SkyRLTrainConfig

from bestofk.adapters.groups import group_advantages, on_policy_objective
from bestofk.objectives import ObjectiveWarning, objective

PREFIX = "bestofk:"
FLAG = "trainer.algorithm.advantage_estimator="
ENTRY = "trainer.override_entrypoint="


def register(text: str, *, name: str | None = None, **options: Any) -> str:
    """Make an objective known to SkyRL, with options of `bestofk.objective`; return its name.

    The name is `bestofk:` + text unless given. The same objective twice is harmless; another one
    under a name that is taken is SkyRL's ValueError.
    """
    on_policy_objective("SkyRL", text, options)
    name = name or PREFIX + text
    estimator = partial(estimate, text, tuple(sorted(options.items())))
    if name in AdvantageEstimatorRegistry.list_available():
        known = AdvantageEstimatorRegistry.get(name)
        if isinstance(known, partial) and known.args == estimator.args:
            return name
    AdvantageEstimatorRegistry.register(name, estimator)
    return name


def estimate(
    text: str,
    options: Sequence[tuple[str, Any]],
    *,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any],
    config: AlgorithmConfig,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns (B, T), the same tensor twice: a row's weight on its response.

    Rows of one uid are a group, in any order. Not counted in n, and given 0: the rows SkyRL adds
    to fill a batch, rows without a response, rows with a NaN reward. Of a step-wise trajectory
    SkyRL passes the last row here, and repeats its weight on the others.
    """
    check(config)
    chosen = on_policy_objective("SkyRL", text, dict(options))
    uids = [str(uid) for uid in index]
    real = len(uids) - _padding(uids)
    rewards = token_level_rewards.sum(dim=-1)
    weights = torch.zeros_like(rewards)
    weights[:real] = group_advantages(
        rewards[:real],
        np.array(uids[:real]),
        chosen,
        rows=len(uids),
        live=response_mask[:real].bool().any(dim=-1),
        rng=int(torch.randint(2**31, ())) if "rng" in chosen.needs else None,
    )
    advantages = weights.unsqueeze(-1) * response_mask
    return advantages, advantages


def check(config: AlgorithmConfig) -> None:
    """An error for a setting that destroys groups; a warning for one that biases the update."""
    if config.dynamic_sampling.type == "replace":
        raise ValueError(
            "trainer.algorithm.dynamic_sampling.type=replace copies groups under their own uid, so "
            "copies would count as samples: use filter, or null (a silent group gets weight 0)"
        )
    biased = []
    if config.advantage_batch_normalize:
        biased.append("advantage_batch_normalize=true rescales weights by the batch: set it false")
    if config.loss_reduction != "seq_mean_token_sum_norm":
        biased.append(
            f"loss_reduction={config.loss_reduction} divides by sampled lengths: "
            "seq_mean_token_sum_norm with max_seq_len divides by a constant"
        )
    for each in biased:
        warnings.warn(f"biased update: trainer.algorithm.{each}", ObjectiveWarning, stacklevel=3)


def main() -> None:
    """SkyRL's entry point, with the objective that the command line names registered first."""
    from skyrl.train.entrypoints import main_base

    sys.argv[1:] = [each for each in sys.argv[1:] if not each.startswith(ENTRY)]
    name = ([""] + [each.removeprefix(FLAG) for each in sys.argv if each.startswith(FLAG)])[-1]
    if not name.startswith(PREFIX):
        raise ValueError(f"{ENTRY}{__name__} needs {FLAG}{PREFIX}max@8 or the like, got {name!r}")
    config = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    text = register(name.removeprefix(PREFIX)).removeprefix(PREFIX)
    objective(text).require_samples(config.generator.n_samples_per_prompt)
    check(config.trainer.algorithm)
    main_base.main()


def _padding(uids: Sequence[str]) -> int:
    """How many rows at the end SkyRL added: their uids are exactly pad0, pad1, …"""
    last = re.fullmatch(r"pad(\d+)", uids[-1]) if uids else None
    count = int(last[1]) + 1 if last else 0
    return count if uids[len(uids) - count :] == [f"pad{i}" for i in range(count)] else 0
