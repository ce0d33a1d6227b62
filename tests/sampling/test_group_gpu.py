"""The group engine on CUDA: kernels, graphs, compiled layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.types import Group, Prompt
from policies import MODELS, fixed, letters, llama

pytestmark = pytest.mark.gpu

PROMPTS = [Prompt(str(i), "abcdefghij"[: 1 + (i * 3) % 9], "test") for i in range(12)]


def tokens(groups: list[Group]) -> list[tuple[int, ...]]:
    return [done.tokens.tolist() for group in groups for done in group.trajectories]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("compiled", [False, True])
def test_greedy_tokens_are_those_of_transformers(name: str, compiled: bool) -> None:
    model = fixed(MODELS[name], device="cuda")
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=30, temperature=0.0)
    expected = ModelSampler(model, letters(26, end=1)).sample(PROMPTS, seed=0, sampling=sampling)
    sampler = GroupSampler(model, letters(26, end=1), compiled=compiled, memory_gib=8)
    found = sampler.sample(PROMPTS, seed=0, sampling=sampling)
    assert sampler.reason is None
    assert tokens(found) == tokens(expected)


@pytest.mark.parametrize("rows", [2048, 16])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(samples_per_prompt=8, max_new_tokens=40),
        Sampling(samples_per_prompt=8, max_new_tokens=40, temperature=0.7, top_p=0.8, top_k=20),
        Sampling(samples_per_prompt=8, max_new_tokens=40, stop=("c", "da")),
    ],
    ids=["plain", "truncated", "stop"],
)
def test_draws_are_those_of_the_present_sampler_in_float32(sampling: Sampling, rows: int) -> None:
    model = fixed(llama, device="cuda")
    expected = ModelSampler(model, letters(26, end=1)).sample(PROMPTS, seed=5, sampling=sampling)
    sampler = GroupSampler(model, letters(26, end=1), max_rows=rows, memory_gib=8)
    for _ in range(2):
        found = sampler.sample(PROMPTS, seed=5, sampling=sampling)
        same = [a == b for a, b in zip(tokens(found), tokens(expected), strict=True)]
        assert sum(same) >= 0.97 * len(same)  # rounding may move a draw across a boundary
    assert sampler.check.agreement is not None
    assert sampler.check.agreement[1] < 1e-3


def test_later_calls_with_other_prompts_are_right_too() -> None:
    """Prompts of a shape that comes again are computed by a recording of it."""
    model = fixed(llama, device="cuda")
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=12, temperature=0.0)
    sampler = GroupSampler(model, letters(26, end=1), memory_gib=8)
    for call in range(5):
        text = "abcdefghijklmnopqrstuvwxyz"[call:]
        prompts = [Prompt(str(i), text[i : i + 3 + (i + call) % 9], "test") for i in range(6)]
        scratch = torch.full((1 << 20,), 7, device="cuda")  # what was freed is overwritten
        expected = ModelSampler(model, letters(26, end=1)).sample(
            prompts, seed=0, sampling=sampling
        )
        assert tokens(sampler.sample(prompts, seed=0, sampling=sampling)) == tokens(expected)
        del scratch
    assert sampler.engine is not None
    assert sampler.engine.prefill.graphs


def test_the_same_call_twice_gives_the_same_tokens() -> None:
    model = fixed(llama, device="cuda")
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=60)
    calls = []
    for _ in range(2):
        sampler = GroupSampler(model, letters(26, end=1), precision="bf16", memory_gib=8)
        calls += [tokens(sampler.sample(PROMPTS, seed=1, sampling=sampling)) for _ in range(2)]
    assert calls[0] == calls[1] == calls[2] == calls[3]


def test_weights_are_taken_anew_at_every_call() -> None:
    model = fixed(llama, device="cuda")
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=8)
    for precision in ("fp32", "bf16"):
        sampler = GroupSampler(model, letters(26, end=1), precision=precision, memory_gib=8)
        before = tokens(sampler.sample(PROMPTS, seed=1, sampling=sampling))
        with torch.no_grad():
            for p in model.parameters():
                p.neg_()
        after = tokens(sampler.sample(PROMPTS, seed=1, sampling=sampling))
        fresh = GroupSampler(model, letters(26, end=1), precision=precision, memory_gib=8)
        assert before != after == tokens(fresh.sample(PROMPTS, seed=1, sampling=sampling))


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"])
def test_lora_is_sampled_with_its_adapters(targets: Any) -> None:
    """Also after a step; the frozen weights are the policy's own tensors."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    model: Any = get_peft_model(fixed(llama), config).to("cuda")
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=20, temperature=0.0)
    sampler = GroupSampler(model, letters(26, end=1), memory_gib=8)
    drawn = []
    for _ in range(3):
        expected = ModelSampler(model, letters(26, end=1)).sample(
            PROMPTS, seed=0, sampling=sampling
        )
        drawn.append(tokens(sampler.sample(PROMPTS, seed=0, sampling=sampling)))
        assert drawn[-1] == tokens(expected)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora" in name:
                    p.mul_(1.5)
    assert drawn[0] != drawn[2]
    assert sampler.resident.engine_model is not None
    assert sampler.resident.engine_model.fused_model is not None
    assert not sampler.resident.engine_model.copies
