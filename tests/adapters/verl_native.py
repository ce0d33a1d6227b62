"""verl's own estimators and the plug-in, through verl's own `compute_advantage`, one group a time.

    PYTHONPATH=research python tests/adapters/verl_native.py    a table of research/conformance.md

Left out: gae (needs a critic), remax (a greedy rollout's reward), gdpo (several rewards), both
optimal token baselines (quantities of the model): rewards alone do not determine them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_module
from verl import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage

from published import PublishedEstimator, table

K, N = 2, 4


@cache
def composed(*overrides: str) -> Any:
    """verl's configuration as its trainer composes it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def batch(rewards: torch.Tensor, uids: Any, mask: torch.Tensor) -> DataProto:
    """Rows with the reward on the last position, as verl's reward loop puts it."""
    scores = torch.zeros(mask.shape, dtype=rewards.dtype)
    scores[:, -1] = rewards
    return DataProto.from_dict(
        tensors={"token_level_rewards": scores, "response_mask": mask},
        non_tensors={"uid": np.array(uids, dtype=object)},
    )


def advantages(data: DataProto, algorithm: Any) -> torch.Tensor:
    """verl's own call, with its trainer's arguments."""
    return compute_advantage(
        data,
        adv_estimator=algorithm.adv_estimator,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        config=algorithm,
    ).batch["advantages"]


def one_group(*overrides: str) -> Callable[[np.ndarray], np.ndarray]:
    """Rewards (n,) → advantages (n,): one prompt, responses of one token."""
    algorithm = composed(*overrides).algorithm

    def estimator(rewards: np.ndarray) -> np.ndarray:
        values = torch.as_tensor(np.asarray(rewards, dtype=np.float64))
        if values.ndim != 1:
            raise ValueError("one group at a time")
        mask = torch.ones(len(values), 1, dtype=torch.int64)
        found = advantages(batch(values, ["a"] * len(values), mask), algorithm)[:, 0].numpy()
        # verl's loss divides by all rows; an estimator is judged by the mean over its live samples
        return found * float((~values.isnan()).double().mean())

    return estimator


def native(name: str, *more: str) -> Callable[[np.ndarray], np.ndarray]:
    return one_group(f"algorithm.adv_estimator={name}", *more)


def ours(text: str) -> Callable[[np.ndarray], np.ndarray]:
    return native("bestofk", f"+algorithm.bestofk.objective={text}")


NO_STD = "algorithm.norm_adv_by_std_in_grpo=False"
ENTRIES: tuple[PublishedEstimator, ...] = (
    PublishedEstimator("verl `grpo`", "", native("grpo"), 1, N),
    PublishedEstimator("verl `grpo`, std off", "", native("grpo", NO_STD), 1, N),
    PublishedEstimator("verl `grpo_vectorized`", "", native("grpo_vectorized"), 1, N),
    PublishedEstimator("verl `rloo`", "", native("rloo"), 1, N),
    PublishedEstimator("verl `rloo_vectorized`", "", native("rloo_vectorized"), 1, N),
    PublishedEstimator("verl `opo`", "", native("opo"), 1, N),
    PublishedEstimator("verl `gpg`", "", native("gpg"), 1, N),
    PublishedEstimator("verl `reinforce_plus_plus`", "", native("reinforce_plus_plus"), 1, N),
    PublishedEstimator(
        "verl `reinforce_plus_plus_baseline`", "", native("reinforce_plus_plus_baseline"), 1, N
    ),
    PublishedEstimator("verl `grpo_passk`", "", native("grpo_passk"), N, N),
    PublishedEstimator("verl `grpo_passk`, std off", "", native("grpo_passk", NO_STD), N, N),
    PublishedEstimator("bestofk `mean`", "", ours("mean"), 1, N),
    PublishedEstimator("bestofk `max@2`", "", ours("max@2"), K, N),
    PublishedEstimator("bestofk `pass@2`", "", ours("pass@2"), K, N),
    PublishedEstimator("bestofk `max@2:loo-1`", "", ours("max@2:loo-1"), K, N),
    PublishedEstimator("bestofk `max@4:loo-1`", "", ours("max@4:loo-1"), N, N),
)


def page() -> str:
    """The table."""
    return table([(entry, entry.judge()) for entry in ENTRIES])


if __name__ == "__main__":
    print(page())
