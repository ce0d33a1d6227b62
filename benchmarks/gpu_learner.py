"""The learner on one GPU: a step's seconds, row-tokens per second, peak memory; needs CUDA.

    python benchmarks/gpu_learner.py [shape ...]       e.g. 20x32x512x128, or 15b

A shape is prompts × samples × prompt tokens × new tokens. A row-token is a token of prompt or
completion as the rows stand (the prompt repeated), whatever is computed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from _gpu import kernels, made, needs_cuda, qwen_15b, seconds, smollm_135m
from bestofk.learning import Learner, Optimisation
from bestofk.types import Completion, Group, Prompt

SHAPES = ("32x16x64x128", "20x32x512x128")


def random_groups(shape: str, vocabulary: int) -> list[Group]:
    count, n, length, new = map(int, shape.split("x"))
    draw = np.random.default_rng(0)

    def tokens(size: int) -> tuple[int, ...]:
        return tuple(draw.integers(3, vocabulary, size).tolist())

    return [
        Group(
            Prompt(f"p{p}", "", "bench"),
            tuple(Completion("", tokens(new), (0.0,) * new) for _ in range(n)),
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
    learner = Learner(model, optimisation=Optimisation(learning_rate=1e-6), **options)
    first = seconds(lambda: learner.step(groups, weights), 1)[0]
    second = seconds(lambda: learner.step(groups, weights), 1)[0]
    torch.cuda.reset_peak_memory_stats()
    again = seconds(lambda: learner.step(groups, weights), 4)
    stats = learner.step(groups, weights)
    parameters = sum(p.numel() for p in model.parameters())
    packed = count * (length + n * (new - 1))
    result: dict[str, Any] = {
        "shape": shape, "seconds": again,
        "row_tokens_per_s": count * n * (length + new) / min(again),
        "first_s": first, "second_s": second, "layout": learner.layout,
        "micro_batches": stats["micro_batches"], "budget": learner.budget,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "tflops_on_packed": 6 * parameters * packed / min(again) / 1e12,
        "score_s": min(seconds(lambda: learner.log_probs(groups), 2)),
    }  # fmt: skip
    if profiled:
        result["kernels"] = kernels(lambda: learner.step(groups, weights), 18)
    return result


def main(asked: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for shape in asked or [*SHAPES, "15b"]:
        try:
            large = shape == "15b"
            make = qwen_15b if large else smollm_135m
            results[shape] = measured(make, "32x16x128x256" if large else shape)
        except Exception as error:  # the other shapes are still worth having
            import traceback

            traceback.print_exc()
            results[shape] = {"error": f"{type(error).__name__}: {error}"[:500]}
        torch.cuda.empty_cache()
        shown = {k: v for k, v in results[shape].items() if k != "kernels"}
        print(shape, json.dumps(shown), flush=True)
        for kernel, ms, calls in results[shape].get("kernels", []):
            print(f"    {ms:9.2f} ms {calls:7d}x {kernel[:90]}", flush=True)
    return results


if __name__ == "__main__":
    needs_cuda()
    main(sys.argv[1:])
