"""The group engine on one GPU: tokens per second with log-probs, by shape; needs CUDA.

    python benchmarks/gpu_sampling.py [shape ...] [--no-kernels]

A shape is prompts × samples × prompt tokens × new tokens (64x16x64x256), or 15b, lora, tail, long,
short.
Times are of whole `sample` calls: prompts encoded, prefilled and decoded, completions with text and
log-probs on the host. long and short have exponential lengths; their share is of the speed of the
same model where every row has the mean length.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from typing import Any

from _gpu import (
    ENDS,
    SPREAD,
    check_mean,
    ending,
    free_memory,
    kernels,
    made,
    needs_cuda,
    peaks,
    prompts,
    qwen_3b,
    qwen_15b,
    reported,
    seconds,
    smollm_135m,
    words,
)
from bestofk.sampling import Sampling
from bestofk.sampling.engine import engine_model
from bestofk.sampling.engine.group_sampler import GroupSampler, PlainCheck

SHAPES = ("32x16x64x128", "64x16x64x256", "16x64x512x128")


def measured(make: Any, shape: str, *, profiled: bool = False, **changes: Any) -> dict[str, Any]:
    count, n, length, new = map(int, shape.split("x"))
    model = made(make, **changes)
    vocabulary = model.config.vocab_size
    sampler = GroupSampler(model, words(vocabulary), precision="bf16")
    sampling = Sampling(samples_per_prompt=n, max_new_tokens=new)
    asked = prompts(count, length, vocabulary)
    found = timed(sampler, asked, sampling)
    engine = sampler.engine
    assert engine is not None, sampler.reason
    replay = seconds(lambda: engine.steps.run(engine.steps.widths(count * n)[0], 1, sampling), 5)
    assert sampler.check.agreement is not None
    result = {
        "shape": shape, **found, "ms_per_step": min(found["seconds"]) / new * 1e3,
        "agreement_mean": sampler.check.agreement[0], "agreement_max": sampler.check.agreement[1],
        "idle_replay_ms": min(replay) * 1e3, **peaks(),
    }  # fmt: skip
    if profiled:
        result["kernels"] = kernels(lambda: sampler.sample(asked, seed=0, sampling=sampling))
    return result


def timed(
    sampler: GroupSampler, asked: Any, sampling: Sampling, repeats: int = 3
) -> dict[str, Any]:
    """Calls after two others, which compile, record and compare themselves with a plain pass."""
    tokens = 0

    def call() -> None:
        nonlocal tokens
        groups = sampler.sample(asked, seed=0, sampling=sampling)
        tokens = sum(len(c.tokens) for g in groups for c in g.trajectories)

    first = seconds(call, 2)[0]
    sampler.check.calls = PlainCheck.FIRST  # the timed ones do not compare themselves
    taken = seconds(call, repeats)
    assert sampler.engine is not None, sampler.reason
    return {
        "tokens_per_s": tokens / min(taken), "tokens": tokens, "seconds": taken, "first_s": first,
        "compile_s": sampler.engine.steps.compile_s, "prefill_s": sampler.stats["prefill_s"],
        "steps": sampler.stats["steps"], "busy": tokens / max(1, sampler.stats["slot_steps"]),
        "layers": sampler.resident.about["layers"],
    }  # fmt: skip


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
        sampling = Sampling(samples_per_prompt=n, max_new_tokens=new)
        found[name] = timed(sampler, asked[:count], sampling)
    return found


def spread(make: Any, mean: int, shape: str, ends: int, **changes: Any) -> dict[str, Any]:
    """Rows of exponential lengths against rows that all have the mean length; see `ending`.

    Args:
        mean: length with all end tokens; with fewer of them rows are longer.
    """
    count, n, length, limit = map(int, shape.split("x"))
    model = ending(make, mean, **changes)
    mean = mean * ENDS // ends
    vocabulary = model.config.vocab_size
    asked = prompts(count, length, vocabulary)
    found: dict[str, Any] = {}
    for name, ended_by, new in (("spread", list(range(ends)), limit), ("flat", None, mean)):
        model.generation_config.eos_token_id = ended_by
        sampler = GroupSampler(model, words(vocabulary), precision="bf16")
        sampling = Sampling(samples_per_prompt=n, max_new_tokens=new)
        found[name] = timed(sampler, asked, sampling, 2)
        check_mean(found[name]["tokens"] / (count * n), mean)
        del sampler
        free_memory()  # before the next one takes its own
    speed = {name: each["tokens_per_s"] for name, each in found.items()}
    return {
        "shape": shape, "mean": mean, "mean_tokens": found["spread"]["tokens"] / (count * n),
        "tokens_per_s": speed["spread"],
        "flat_tokens_per_s": speed["flat"], "share": speed["spread"] / speed["flat"],
        **found, **peaks(),
    }  # fmt: skip


def adapted(rank: int, merged: bool) -> dict[str, Any]:
    """LoRA at 3B: adapters as products of their own, or added into a copy of the weights."""
    usual = engine_model.low_rank
    engine_model.low_rank = (lambda module: None) if merged else usual
    try:
        return measured(qwen_3b, "32x16x128x64", lora_rank=rank)
    finally:
        engine_model.low_rank = usual


def cases(name: str, profiled: bool) -> Iterator[tuple[str, Any]]:
    if name == "tail":
        yield name, tail
    elif name == "15b":
        yield name, functools.partial(measured, qwen_15b, "32x16x128x256", profiled=profiled)
    elif name == "lora":
        for rank in (16, 64):
            for merged in (False, True):
                case = f"lora {rank} {'merged' if merged else 'products'}"
                yield case, functools.partial(adapted, rank, merged)
    elif name in SPREAD:
        make, mean, shapes = SPREAD[name]
        for shape, ends in shapes.items():
            yield f"{name} {shape}", functools.partial(spread, make, mean, shape, ends)
    else:
        yield name, functools.partial(measured, smollm_135m, name, profiled=profiled)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=[*SHAPES, "15b", "lora", "tail", *SPREAD])
    parser.add_argument("--no-kernels", action="store_true", help="leave out the list of kernels")
    asked = parser.parse_args(words)
    needs_cuda()
    for name in asked.shapes:
        for case, work in cases(name, not asked.no_kernels):
            reported("sampling", case, work)


if __name__ == "__main__":
    main()
