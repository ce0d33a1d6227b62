"""max@k in SkyRL: an advantage estimator made of `group_advantages`. Checked with skyrl 0.3.0.

python examples/skyrl_best_of_k.py max@8 generator.n_samples_per_prompt=16 \
  trainer.algorithm.loss_reduction=seq_mean_token_sum_norm trainer.algorithm.max_seq_len=2048

After the objective come SkyRL's own settings. SkyRL sends the estimator to its Ray workers;
bestofk must be installed on every node.
"""

from __future__ import annotations

import re
import sys
import warnings
from functools import partial

import numpy as np
import torch
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints import main_base

from bestofk.adapters import group_advantages
from bestofk.objectives import ObjectiveWarning, objective


def estimate(text, *, token_level_rewards, response_mask, index, config, **_):
    """Advantages and returns (B, T), the same tensor twice: a row's weight on its response.

    Rows of one uid are a group, in any order. Not counted in n, and given 0: the rows SkyRL adds
    to fill a batch (uids pad0, pad1, …), rows without a response, rows with a NaN reward.
    """
    if config.dynamic_sampling.type == "replace":
        raise ValueError(
            "trainer.algorithm.dynamic_sampling.type=replace copies groups under their own uid, so "
            "copies would count as samples: use filter, or null"
        )
    if config.advantage_batch_normalize or config.loss_reduction != "seq_mean_token_sum_norm":
        warnings.warn(
            "biased update: set trainer.algorithm.advantage_batch_normalize=false and "
            "loss_reduction=seq_mean_token_sum_norm with max_seq_len",
            ObjectiveWarning,
            stacklevel=2,
        )
    uids, rewards = np.array([str(uid) for uid in index]), token_level_rewards.sum(dim=-1)
    real = np.array([re.fullmatch(r"pad\d+", uid) is None for uid in uids])
    weights = torch.zeros_like(rewards)
    weights[real] = group_advantages(
        rewards[real],
        uids[real],
        text,
        rows=len(uids),
        live=response_mask[real].bool().any(dim=-1),
    )
    advantages = weights.unsqueeze(-1) * response_mask
    return advantages, advantages


def register(text):
    """Make an objective known to SkyRL, and return the name of its estimator."""
    AdvantageEstimatorRegistry.register(f"bestofk:{text}", partial(estimate, text))
    return f"bestofk:{text}"


def main():
    text, *settings = sys.argv[1:]
    settings.append(f"trainer.algorithm.advantage_estimator={register(text)}")
    config = SkyRLTrainConfig.from_cli_overrides(settings)
    objective(text).require_samples(config.generator.n_samples_per_prompt)
    sys.argv[1:] = settings
    main_base.main()


if __name__ == "__main__":
    main()
