"""OpenRLHF's own training program, from its flags to its last step, with models that need no GPU.

Its parser, its Ray trainer, its sampler, filter, experience maker and loop are real. In place of
vLLM an engine gives each prompt's samples the rewards that the prompt spells, and in place of the
DeepSpeed models a group answers constant log-probabilities and keeps what it is to train on.
Workers import this module, so it imports nothing of bestofk.
"""

from __future__ import annotations

import time
from typing import Any

import ray
import torch

LOG_PROB, BASE_LOG_PROB = -1.0, -1.5


class _Engine:
    """The prompt `3 0.5 1 0` waits three ticks and has samples of rewards .5, 1 and 0."""

    def get_num_unfinished_requests(self) -> int:
        return 0

    def generate_responses(
        self, prompt: str, label: str, num_samples: int, **_: Any
    ) -> list[dict[str, Any]]:
        wait, *rewards = (float(word) for word in prompt.split())
        assert len(rewards) == num_samples
        time.sleep(wait / 20)
        return [
            {
                "prompt": prompt,
                "label": label,
                "observation_tokens": [5, 6] + [7] * (1 + number),
                "action_ranges": [(2, 3 + number)],
                "reward": reward,
                "scores": reward,
                "rollout_log_probs": None,
                "truncated": False,
            }
            for number, reward in enumerate(rewards)
        ]


class _Kept:
    """The experiences that reached the learner."""

    def __init__(self) -> None:
        self.experiences: list[Any] = []

    def add(self, experiences: list[Any]) -> None:
        self.experiences += experiences

    def get(self) -> list[Any]:
        return self.experiences


Engine: Any = ray.remote(num_cpus=0)(_Engine)
Kept: Any = ray.remote(num_cpus=0)(_Kept)


class Group:
    """What OpenRLHF's trainer asks of a group of model actors."""

    def __init__(self, nodes: int, gpus: int, kind: Any, **_: Any) -> None:
        name = kind.__ray_metadata__.class_name
        self.log_prob = BASE_LOG_PROB if name == "ReferenceModelActor" else LOG_PROB
        self.kept = Kept.options(name="kept", get_if_exists=True).remote()

    def async_init_model_from_pretrained(self, *_: Any) -> list[Any]:
        return []

    async_save_model = async_init_model_from_pretrained

    def async_run_method(self, method_name: str, **_: Any) -> list[Any]:
        return [ray.put({"kl": 0.0} if method_name == "fit" else None)]

    def async_run_method_batch(self, method_name: str, **lists: Any) -> list[Any]:
        if method_name == "append":
            return [self.kept.add.remote(lists["experience"])]
        masks = lists["action_mask"]
        return [ray.put([torch.full(mask.shape, self.log_prob) for mask in masks])]


def rows(experiences: list[Any]) -> list[tuple[str, float, list[float], bool]]:
    """(prompt, reward, advantages of the response's tokens) of every row."""
    return [
        (prompt, float(reward), values[mask.bool()].tolist(), each.kl is None)
        for each in experiences
        for prompt, reward, values, mask in zip(
            each.prompts, each.rewards, each.advantages, each.action_mask
        )
    ]
