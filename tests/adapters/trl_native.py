"""TRL's own advantages and ours inside TRL, judged by exact enumeration.

    PYTHONPATH=research python tests/adapters/trl_native.py    a table of research/conformance.md

Every estimator is TRL's `GRPOTrainer._generate_and_score_completions`, run for real: the tiny model
samples a token per row, a reward function hands out the rewards to be judged, and what is read is
the batch's `advantages`. A group is the batch of one prompt.

TRL's loss divides by all rows, unscored ones too, and an estimator is judged by the mean over its
live samples: what is read is multiplied with live/rows.
"""

import logging
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from bestofk.adapters.trl import BestOfKTrainer
from bestofk.models import load
from published import PublishedEstimator, table

K, N = 2, 4


def inside(trainer: type, **named: Any) -> Callable[[np.ndarray], np.ndarray]:
    """rewards (n,) or (groups, n) → the advantages that this trainer makes of them."""
    handed: list[float] = []

    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [None if np.isnan(value) else value for value in handed]

    options = {name: named.pop(name) for name in ("scale_rewards",) if name in named}
    policy = load("tiny-countdown")
    config = GRPOConfig(
        output_dir=tempfile.gettempdir(), num_generations=N, per_device_train_batch_size=N,
        max_completion_length=1, bf16=False, use_cpu=True, report_to=[], **options,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["1 2=3\n"]})
    run = trainer(
        policy.model, reward, config, train_dataset=data, processing_class=policy.tokenizer, **named
    )
    run.model.train()

    @cache
    def made(numbers: tuple[float, ...], n: int) -> np.ndarray:
        handed[:] = numbers
        run.num_generations = n
        output = run._generate_and_score_completions([{"prompt": "1 2=3\n"} for _ in numbers])
        return output["advantages"].double().numpy()

    def advantages(rewards: np.ndarray) -> np.ndarray:
        rewards = np.asarray(rewards, dtype=float)
        live = (~np.isnan(rewards)).mean(axis=-1, keepdims=True)
        found = made(tuple(rewards.reshape(-1).tolist()), rewards.shape[-1])
        return found.reshape(rewards.shape) * live

    return advantages


def entries() -> list[PublishedEstimator]:
    theirs = {
        "TRL, `scale_rewards='group'` (its default)": {"scale_rewards": "group"},
        "TRL, `scale_rewards='batch'`": {"scale_rewards": "batch"},
        "TRL, `scale_rewards='none'`": {"scale_rewards": "none"},
    }
    ours = {"max@2": K, "max@2:loo-1": K, "pass@2": K, "passk-training@2": K, "mean": 1, "grpo": 1}
    native = {name: inside(GRPOTrainer, **options) for name, options in theirs.items()}
    made = [
        PublishedEstimator(name, "", function, k, N)
        for k in (1, K)
        for name, function in native.items()
    ]
    return made + [
        PublishedEstimator(
            f"bestofk in TRL, `{text}`", "", inside(BestOfKTrainer, objective=text), k, N
        )
        for text, k in ours.items()
    ]


def judged() -> str:
    """The table, in markdown."""
    torch.set_num_threads(1)
    noise = [logging.getLogger(name) for name in ("trl", "bestofk")]
    levels = [each.level for each in noise]
    for each in noise:
        each.setLevel(logging.ERROR)  # TRL repeats every unscored row
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return table([(entry, entry.judge()) for entry in entries()])
    finally:
        for each, level in zip(noise, levels):
            each.setLevel(level)


if __name__ == "__main__":
    print(judged())
