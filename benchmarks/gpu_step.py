"""Whole RL steps on one GPU: sample, score, weigh, learn; needs CUDA.

    python benchmarks/gpu_step.py [135m] [15b] [3b-lora] [7b-lora]

Random weights and no end token, so that every completion has its full length. The reward is the
length of the text modulo 7: noise, so that every group has signal.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch

from _gpu import made, needs_cuda, prompts, qwen_3b, qwen_7b, qwen_15b, smollm_135m, words
from bestofk import objective
from bestofk.learning import Learner, Optimisation
from bestofk.sampling import Sampling
from bestofk.sampling.engine.group_sampler import GroupSampler

SHAPES: dict[str, Any] = {
    "135m": {"make": smollm_135m, "shape": "32x16x64x128"},
    "15b": {"make": qwen_15b, "shape": "32x16x128x256"},
    "3b-lora": {"make": qwen_3b, "shape": "32x16x128x256", "lora_rank": 16},
    "7b-lora": {"make": qwen_7b, "shape": "32x16x128x256", "lora_rank": 16},
}


def measured(make: Any, shape: str, steps: int = 6, lora_rank: int = 0) -> dict[str, Any]:
    count, n, length, new = map(int, shape.split("x"))
    model = made(make, lora_rank=lora_rank)
    vocabulary = model.config.vocab_size
    learner = Learner(
        model,
        optimisation=Optimisation(learning_rate=1e-6),
        precision="bf16",
        tokens_per_micro_batch=None,
    )
    sampler = GroupSampler(model, words(vocabulary), precision="bf16")
    params = Sampling(samples_per_prompt=n, max_new_tokens=new)
    goal = objective("max@4")
    phases: list[dict[str, float]] = []
    gaps = []
    for step in range(steps):
        asked = prompts(count, length, vocabulary, seed=step)
        torch.cuda.synchronize()
        marks = [time.perf_counter()]
        groups = sampler.sample(asked, seed=step, params=params)
        marks.append(time.perf_counter())
        rewards = np.array([[len(c.text) % 7 / 7 for c in g.completions] for g in groups])
        weights = np.asarray(goal(rewards))
        marks.append(time.perf_counter())
        stats = learner.step(groups, weights)
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        names = ("sample", "judge", "learn")
        phases.append(dict(zip(names, np.diff(marks).tolist())) | {"step": marks[-1] - marks[0]})
        gaps.append((stats["sampler_gap_mean"], stats["sampler_gap_max"]))
    later = phases[2:]
    return {
        "shape": shape,
        "step_s": min(each["step"] for each in later),
        "step_s_mean": float(np.mean([each["step"] for each in later])),
        "phases": {name: float(np.mean([each[name] for each in later])) for name in later[0]},
        "first_step": phases[0],
        "sampler_gap_mean": gaps[-1][0],
        "sampler_gap_max": gaps[-1][1],
        "sampler": sampler.stats,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def main(asked: list[str]) -> dict[str, Any]:
    results = {}
    for name in asked or list(SHAPES):
        results[name] = measured(**SHAPES[name])
        print(name, json.dumps(results[name]), flush=True)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return results


if __name__ == "__main__":
    needs_cuda()
    main(sys.argv[1:])
