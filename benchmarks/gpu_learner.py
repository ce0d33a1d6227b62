"""The learner on one GPU: a step's seconds, row-tokens per second, peak memory; needs CUDA.

    python benchmarks/gpu_learner.py [shape ...] [--no-kernels]      e.g. 20x32x512x128, or 15b

A shape is prompts × samples × prompt tokens × new tokens. A row-token is a token of prompt or
completion as the rows stand (the prompt repeated), whatever is computed.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import numpy as np
import torch

from _gpu import (
    DEVICE,
    kernels,
    made,
    needs_cuda,
    peaks,
    qwen_15b,
    reported,
    seconds,
    smollm_135m,
)
from bestofk.learning import Learner, Optimizer
from bestofk.types import Group, Prompt, Trajectory

SHAPES = ("32x16x64x128", "20x32x512x128")


def random_groups(shape: str, vocabulary: int) -> list[Group]:
    count, n, length, new = map(int, shape.split("x"))
    draw = np.random.default_rng(0)

    def tokens(size: int) -> tuple[int, ...]:
        return tuple(draw.integers(3, vocabulary, size).tolist())

    return [
        Group(
            Prompt(f"p{p}", "", "bench"),
            tuple(Trajectory(tokens(new), log_probs=np.zeros(new)) for _ in range(n)),
            tokens(length),
        )
        for p in range(count)
    ]


def measured(make: Any, shape: str, *, profiled: bool = True, **settings: Any) -> dict[str, Any]:
    count, n, length, new = map(int, shape.split("x"))
    model = made(make)
    groups = random_groups(shape, model.config.vocab_size)
    weights = np.random.default_rng(1).normal(size=(count, n))
    options = {"tokens_per_micro_batch": None, "precision": "bf16", **settings}
    learner = Learner(model, optimizer=Optimizer(learning_rate=1e-6), **options)
    first = seconds(lambda: learner.step(groups, weights), 1)[0]
    second = seconds(lambda: learner.step(groups, weights), 1)[0]
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    again = seconds(lambda: learner.step(groups, weights), 4)
    stats = learner.step(groups, weights)
    parameters = sum(p.numel() for p in model.parameters())
    packed = count * (length + n * (new - 1))
    result: dict[str, Any] = {
        "shape": shape, "seconds": again,
        "row_tokens_per_s": count * n * (length + new) / min(again),
        "first_s": first, "second_s": second, "layout": learner.batching.layout,
        "micro_batches": stats["micro_batches"], "budget": learner.batching.budget,
        **peaks(),
        "tflops_on_packed": 6 * parameters * packed / min(again) / 1e12,
        "score_s": min(seconds(lambda: learner.log_probs(groups), 2)),
    }  # fmt: skip
    if profiled:
        result["kernels"] = kernels(lambda: learner.step(groups, weights), 18)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=[*SHAPES, "15b"])
    parser.add_argument("--no-kernels", action="store_true", help="leave out the list of kernels")
    asked = parser.parse_args()
    needs_cuda()
    for name in asked.shapes:
        case = (qwen_15b, "32x16x128x256") if name == "15b" else (smollm_135m, name)
        work = functools.partial(measured, *case, profiled=not asked.no_kernels)
        reported("learner", name, work)


if __name__ == "__main__":
    main()
