"""OpenRLHF's own estimators and the adapter, through its own function, one group at a time.

    PYTHONPATH=research:examples:tests/adapters/without_cuda \\
      python tests/adapters/openrlhf_native.py

prints the table of research/conformance.md. Left out: gae, which needs a critic.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

from openrlhf_best_of_k import use
from published import PublishedEstimator, table

K, N = 2, 4


def arguments(estimator: str, n: int, **reward: Any) -> SimpleNamespace:
    """What the advantage function reads of OpenRLHF's arguments, with its defaults."""
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage),
        actor=SimpleNamespace(loss_agg_mode="token-mean"),
        rollout=SimpleNamespace(n_samples_per_prompt=n, max_new_tokens=8),
        reward=SimpleNamespace(
            **{
                "clip_range": (-10, 10),
                "overlong_buffer_len": None,
                "overlong_penalty_factor": 1.0,
                "stop_properly_penalty_coef": None,
                **reward,
            }
        ),
    )
    if estimator.startswith("bestofk:"):
        use(args, estimator.removeprefix("bestofk:"))
    return args


def maker(args: Any, kl_coefficient: float = 0.0) -> RemoteExperienceMaker:
    """OpenRLHF's own, without models."""
    strategy = SimpleNamespace(args=args)
    control = FixedKLController(kl_coefficient)
    return RemoteExperienceMaker(None, None, None, None, control, strategy, None)


def experience(
    rewards: torch.Tensor,
    index: Sequence[int],
    prompts: Sequence[str],
    mask: torch.Tensor | None = None,
    kl: torch.Tensor | None = None,
) -> Experience:
    """Rows as OpenRLHF's models leave them."""
    mask = torch.ones(len(rewards), 1) if mask is None else mask
    return Experience(
        index=list(index),
        prompts=list(prompts),
        rewards=rewards.clone(),
        action_mask=mask,
        kl=torch.zeros(mask.shape, dtype=rewards.dtype) if kl is None else kl,
        response_length=mask.sum(-1),
        truncated=torch.zeros(len(rewards), dtype=torch.bool),
        info={"reward": rewards.clone()},
    )


def one_group(estimator: str) -> Callable[[Any], np.ndarray]:
    """Rewards (n,) → advantages (n,): one prompt, responses of one token."""

    def call(rewards: Any) -> np.ndarray:
        values = torch.as_tensor(np.asarray(rewards, dtype=np.float64))
        if values.ndim != 1:
            raise ValueError("one group at a time")
        rows = experience(values, range(len(values)), ["a"] * len(values))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "biased update: --reward.clip_range")
            made = maker(arguments(estimator, len(values))).compute_advantages_and_returns([rows])
        # its loss divides by all rows; an estimator is judged by the mean over its live samples
        return made[0].advantages[:, 0].numpy() * float((~values.isnan()).double().mean())

    return call


THEIRS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo", "reinforce", "flash_reinforce")
OURS = (("mean", 1), ("max@2", K), ("pass@2", K), ("max@2:loo-1", K), ("max@4:loo-1", N))
ENTRIES: tuple[PublishedEstimator, ...] = tuple(
    PublishedEstimator(f"OpenRLHF `{name}`", "", one_group(name), 1, N) for name in THEIRS
) + tuple(
    PublishedEstimator(f"`bestofk:{text}`", "", one_group(f"bestofk:{text}"), k, N)
    for text, k in OURS
)


def page() -> str:
    """The table."""
    return table([(entry, entry.judge()) for entry in ENTRIES])


if __name__ == "__main__":
    print(page())
