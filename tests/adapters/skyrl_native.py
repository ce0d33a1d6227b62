"""SkyRL's own estimators and the plug-in, through SkyRL's own function, one group at a time.

    PYTHONPATH=research:examples:tests/adapters/on_cpu python tests/adapters/skyrl_native.py

prints the table of research/conformance.md. Left out: gae, which needs a critic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import compute_advantages_and_returns
from skyrl.train.config import SkyRLTrainConfig

from published import PublishedEstimator, table
from skyrl_best_of_k import register

K, N = 2, 4
UNBIASED = (
    "trainer.algorithm.loss_reduction=seq_mean_token_sum_norm",
    "trainer.algorithm.max_seq_len=8",
)


registered = cache(register)  # SkyRL takes a name once


@cache
def configured(*overrides: str) -> SkyRLTrainConfig:
    """SkyRL's configuration as its entry point parses it."""
    return SkyRLTrainConfig.from_cli_overrides([*UNBIASED, *overrides])


def advantages(
    name: str, rewards: torch.Tensor, uids: Sequence[str], mask: torch.Tensor, *overrides: str
) -> torch.Tensor:
    """SkyRL's own call, with its trainer's arguments; the reward is on the last token."""
    scores = torch.zeros(mask.shape, dtype=rewards.dtype)
    scores[:, -1] = rewards
    algorithm = configured(*overrides).trainer.algorithm
    return compute_advantages_and_returns(
        token_level_rewards=scores,
        response_mask=mask,
        index=uids,
        adv_estimator=name,
        config=algorithm,
        values=None,
        gamma=algorithm.gamma,
        lambd=algorithm.lambd,
        grpo_norm_by_std=algorithm.grpo_norm_by_std,
    )[0]


def one_group(name: str, *overrides: str) -> Callable[[np.ndarray], np.ndarray]:
    """Rewards (n,) → advantages (n,): one prompt, responses of one token."""

    def estimator(rewards: Any) -> np.ndarray:
        values = torch.as_tensor(np.asarray(rewards, dtype=np.float64))
        if values.ndim != 1:
            raise ValueError("one group at a time")
        mask = torch.ones(len(values), 1, dtype=torch.int64)
        found = advantages(name, values, ["a"] * len(values), mask, *overrides)[:, 0].numpy()
        # SkyRL's loss divides by all rows; an estimator is judged by the mean over its live samples
        return found * float((~values.isnan()).double().mean())

    return estimator


def entries() -> tuple[PublishedEstimator, ...]:
    no_std = "trainer.algorithm.grpo_norm_by_std=false"
    native = (
        PublishedEstimator("SkyRL `grpo`", "", one_group("grpo"), 1, N),
        PublishedEstimator("SkyRL `grpo`, std off", "", one_group("grpo", no_std), 1, N),
        PublishedEstimator("SkyRL `rloo`", "", one_group("rloo"), 1, N),
        PublishedEstimator("SkyRL `reinforce++`", "", one_group("reinforce++"), 1, N),
        PublishedEstimator("SkyRL `maxrl`", "", one_group("maxrl"), N, N),
    )
    ours = (("mean", 1), ("max@2", K), ("pass@2", K), ("max@2:loo-1", K), ("max@4:loo-1", N),
            ("maxrl", N))  # fmt: skip
    return native + tuple(
        PublishedEstimator(f"`bestofk:{text}`", "", one_group(registered(text)), k, N)
        for text, k in ours
    )


def page() -> str:
    """The table."""
    return table([(entry, entry.judge()) for entry in entries()])


if __name__ == "__main__":
    print(page())
