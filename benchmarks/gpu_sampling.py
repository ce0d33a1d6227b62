"""The group engine on one GPU: tokens per second with log-probs, by shape; needs CUDA.

    python benchmarks/gpu_sampling.py [shape ...]      e.g. 64x16x64x256, or 15b, tail

A shape is prompts × samples × prompt tokens × new tokens. Times are of whole `sample` calls:
prompts encoded, prefilled and decoded, completions with text and log-probs on the host.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from _gpu import kernels, made, needs_cuda, prompts, qwen_15b, seconds, smollm_135m, words
from bestofk.sampling import Sampling
from bestofk.sampling.engine.group_sampler import CHECKED, GroupSampler

SHAPES = ("32x16x64x128", "64x16x64x256", "16x64x512x128")


def measured(make: Any, shape: str, *, profiled: bool = False, **changes: Any) -> dict[str, Any]:
    count, n, length, new = map(int, shape.split("x"))
    model = made(make, **changes)
    vocabulary = model.config.vocab_size
    sampler = GroupSampler(model, words(vocabulary), precision="bf16")
    params = Sampling(samples_per_prompt=n, max_new_tokens=new)
    asked = prompts(count, length, vocabulary)
    first = seconds(lambda: sampler.sample(asked, seed=0, params=params), 1)[0]
    seconds(lambda: sampler.sample(asked, seed=0, params=params), CHECKED)  # they check themselves
    again = seconds(lambda: sampler.sample(asked, seed=0, params=params))
    best, stats = min(again), dict(sampler.stats)
    engine = sampler.engine
    assert engine is not None, sampler.reason
    replay = seconds(lambda: engine.run(engine.widths(count * n)[0], 1, params), 5)
    assert sampler.agreement is not None
    result = {
        "shape": shape, "tokens_per_s": count * n * new / best, "seconds": again,
        "first_s": first, "compile_s": engine.seconds["compile"], "ms_per_step": best / new * 1e3,
        "agreement_mean": sampler.agreement[0], "agreement_max": sampler.agreement[1],
        "prefill_s": stats["prefill_s"], "idle_replay_ms": min(replay) * 1e3,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }  # fmt: skip
    if profiled:
        result["kernels"] = profile_of(sampler, asked, params)
    return result


def profile_of(sampler: GroupSampler, asked: Any, params: Sampling) -> list[Any]:
    return kernels(lambda: sampler.sample(asked, seed=0, params=params))


def tail(rows: int = 1024, n: int = 16, turns: int = 4) -> dict[str, Any]:
    """Rows of exponential lengths (mean 64, limit 512) against rows of 64 tokens each.

    A vocabulary of 512 with 8 end tokens and nearly uniform draws ends a row with 1/64 per token.
    """
    found: dict[str, Any] = {}
    asked = prompts(rows // n * turns, 64, 512)
    for name, count, ends, new in (
        ("equal", rows // n, None, 64),
        ("exponential", rows // n, list(range(8)), 512),
        ("equal_refilled", rows // n * turns, None, 64),
        ("exponential_refilled", rows // n * turns, list(range(8)), 512),
    ):
        model = made(smollm_135m, vocab_size=512, initializer_range=0.001)
        model.generation_config.eos_token_id = ends
        sampler = GroupSampler(model, words(512), precision="bf16", max_rows=rows)
        params = Sampling(samples_per_prompt=n, max_new_tokens=new)
        one = asked[:count]
        groups = sampler.sample(one, seed=0, params=params)
        tokens = sum(len(c.tokens) for g in groups for c in g.completions)
        best = min(seconds(lambda s=sampler, o=one, p=params: s.sample(o, seed=0, params=p)))
        found[name] = {"tokens": tokens, "seconds": best, "tokens_per_s": tokens / best,
                       "steps": sampler.stats["steps"],
                       "busy": tokens / max(1, sampler.stats["slot_steps"])}  # fmt: skip
    return found


def main(asked: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for shape in asked or [*SHAPES, "15b", "tail"]:
        try:
            if shape == "tail":
                results[shape] = tail()
            elif shape == "15b":
                results[shape] = measured(qwen_15b, "32x16x128x256", profiled=True)
            else:
                results[shape] = measured(smollm_135m, shape, profiled=True)
        except Exception as error:  # the other shapes are still worth having
            import traceback

            traceback.print_exc()
            results[shape] = {"error": f"{type(error).__name__}: {error}"[:500]}
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        print(
            shape,
            json.dumps({k: v for k, v in results[shape].items() if k != "kernels"}),
            flush=True,
        )
        for kernel, ms, calls in results[shape].get("kernels", []):
            print(f"    {ms:9.2f} ms {calls:7d}x {kernel[:90]}", flush=True)
    return results


if __name__ == "__main__":
    needs_cuda()
    main(sys.argv[1:])
