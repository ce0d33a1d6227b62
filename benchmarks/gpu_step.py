"""Whole RL steps on one GPU: sample, score, weigh, learn; needs CUDA.

    python benchmarks/gpu_step.py [135m] [15b] [3b-lora] [7b-lora] [3b-lora-fp8] [7b-lora-fp8]
                                  [--shape 8x16x128x256] [--rank N] [--memory GIB] [--steps N]
                                  [--kernels]

Random weights and no end token, so that every completion has its full length. The reward is the
length of the text modulo 7: noise, so that every group has signal. --memory limits the process to a
part of the card, as if it were a smaller one; a case that does not fit says so.
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import Any

import numpy as np
import torch

from _gpu import (
    kernels,
    made,
    needs_cuda,
    peaks,
    prompts,
    qwen_3b,
    qwen_7b,
    qwen_15b,
    reported,
    smollm_135m,
    wait,
    words,
)
from bestofk import objective
from bestofk.learning import Learner, Optimizer
from bestofk.sampling import Sampling
from bestofk.sampling.engine.group_sampler import GroupSampler, PlainCheck

SHAPES: dict[str, Any] = {
    "135m": {"make": smollm_135m, "shape": "32x16x64x128"},
    "15b": {"make": qwen_15b, "shape": "32x16x128x256"},
    "3b-lora": {"make": qwen_3b, "shape": "32x16x128x256", "lora_rank": 16},
    "7b-lora": {"make": qwen_7b, "shape": "32x16x128x256", "lora_rank": 16},
    "3b-lora-fp8": {"make": qwen_3b, "shape": "32x16x128x256", "lora_rank": 16, "fp8": True},
    "7b-lora-fp8": {"make": qwen_7b, "shape": "32x16x128x256", "lora_rank": 16, "fp8": True},
}


def measured(
    make: Any,
    shape: str,
    steps: int = 6,
    lora_rank: int = 0,
    fp8: bool = False,
    profiled: bool = False,
) -> dict[str, Any]:
    count, n, length, new = map(int, shape.split("x"))
    model = made(make, lora_rank=lora_rank, fp8=fp8)
    vocabulary = model.config.vocab_size
    learner = Learner(
        model,
        optimizer=Optimizer(learning_rate=1e-6),
        precision="bf16",
        tokens_per_micro_batch=None,
    )
    sampler = GroupSampler(model, words(vocabulary), precision="bf16")
    sampling = Sampling(samples_per_prompt=n, max_new_tokens=new)
    goal = objective("max@4")
    phases: list[dict[str, float]] = []
    gaps = []
    for step in range(steps):
        if step == 2:
            # the timed ones do not compare themselves with a plain pass
            sampler.check.calls = PlainCheck.FIRST
        asked = prompts(count, length, vocabulary, seed=step)
        wait()
        marks = [time.perf_counter()]
        groups = sampler.sample(asked, seed=step, sampling=sampling)
        marks.append(time.perf_counter())
        rewards = np.array([[len(c.text) % 7 / 7 for c in g.trajectories] for g in groups])
        weights = np.asarray(goal(rewards))
        marks.append(time.perf_counter())
        stats = learner.step(groups, weights)
        wait()
        marks.append(time.perf_counter())
        names = ("sample", "judge", "learn")
        phases.append(dict(zip(names, np.diff(marks).tolist())) | {"step": marks[-1] - marks[0]})
        gaps.append((stats["sampler_gap_mean"], stats["sampler_gap_max"]))
    later = phases[2:] or phases[-1:]
    found = {
        "shape": shape,
        "step_s": min(each["step"] for each in later),
        "step_s_mean": float(np.mean([each["step"] for each in later])),
        "phases": {name: float(np.mean([each[name] for each in later])) for name in later[0]},
        "first_step": phases[0],
        "sampler_gap_mean": gaps[-1][0],
        "sampler_gap_max": gaps[-1][1],
        "sampler": sampler.stats,
        "micro_batches": stats["micro_batches"],
        "budget": learner.batching.budget,
        "layers": sampler.resident.about["layers"],
        **peaks(),
    }
    if profiled:
        found["kernels"] = kernels(lambda: learner.step(groups, weights), 24)
    return found


def options_of(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(SHAPES))
    parser.add_argument("--shape", help="prompts x samples x prompt tokens x new tokens")
    parser.add_argument("--rank", type=int, help="rank of the adapters; 0 trains all weights")
    parser.add_argument("--memory", type=float, help="GiB of the card that the process may take")
    parser.add_argument("--steps", type=int, help="the first two are left out of the figures")
    parser.add_argument("--kernels", action="store_true", help="list those of a learner's step")
    return parser.parse_args(words)


def settings(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A model's arguments for `measured`, with what the options change."""
    asked = {"shape": options.shape, "lora_rank": options.rank, "steps": options.steps}
    asked["profiled"] = options.kernels
    return SHAPES[name] | {key: value for key, value in asked.items() if value is not None}


def main() -> None:
    options = options_of()
    needs_cuda()
    facts: dict[str, Any] = {}
    if options.memory:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(options.memory * 2**30 / total)
        facts["memory_gib"] = options.memory
    for name in options.models:
        asked = settings(name, options)
        facts |= {"shape": asked["shape"], "lora_rank": asked.get("lora_rank", 0)}
        facts["fp8"] = asked.get("fp8", False)
        reported("step", name, functools.partial(measured, **asked), **facts)


if __name__ == "__main__":
    main()
