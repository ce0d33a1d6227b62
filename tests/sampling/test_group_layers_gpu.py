"""Kernels of layers of the usual kind on CUDA, against PyTorch in float64 and transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.sampling.engine.layers import PlainOps
from bestofk.types import Group, Prompt
from fused_models import family
from policies import fixed, letters

pytestmark = pytest.mark.gpu

PROMPTS = [Prompt(str(i), "abcdefghij"[: 1 + (i * 3) % 9], "test") for i in range(12)]


def tokens(groups: list[Group]) -> list[tuple[int, ...]]:
    return [done.tokens for group in groups for done in group.completions]


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("own", [True, False], ids=["ours", "cublas"])
@pytest.mark.parametrize("rows", [1, 16, 40, 64, 200, 1024])
@pytest.mark.parametrize(("inner", "outputs"), [(576, 960), (48, 80)])
def test_products_with_norm_sum_and_gate_are_those_of_float64(
    rows: int, inner: int, outputs: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bestofk.sampling.engine import kernels as ours

    monkeypatch.setattr(ours, "in_one", lambda rows: own)
    torch.manual_seed(rows)
    for kind, near in ((torch.bfloat16, 1e-2), (torch.float32, 1e-5)):

        def draw(*shape: int, kind: Any = kind) -> torch.Tensor:
            return torch.randn(*shape, device="cuda").to(kind)

        x, gain, bias = draw(rows, inner), draw(inner), draw(outputs)
        weight, two = draw(outputs, inner), draw(2 * outputs, inner)
        into = draw(rows, outputs)
        exact = [each.double() for each in (x, gain, weight, bias)]
        eps = 1e-5
        plain = PlainOps.normed_linear(exact[0], exact[1], eps, exact[2], exact[3])
        assert off(ours.normed_linear(x, gain, eps, weight, bias), plain) < near
        plain = PlainOps.gated(exact[0], exact[1], eps, two.double())
        assert off(ours.gated(x, gain, eps, two), plain) < 2 * near
        plain = into.double() + exact[0] @ exact[2].t()
        assert off(ours.add_linear(x, weight, into), plain) < near
        for rank in (6, 16, 100):
            down = draw(rank, inner) / 9
            one, both = (draw(size, rank) / 9 for size in (outputs, 2 * outputs))
            plain = PlainOps.normed_linear(
                exact[0], exact[1], eps, exact[2], exact[3], (down.double(), one.double())
            )
            assert off(ours.normed_linear(x, gain, eps, weight, bias, (down, one)), plain) < near
            plain = PlainOps.gated(
                exact[0], exact[1], eps, two.double(), (down.double(), both.double())
            )
            assert off(ours.gated(x, gain, eps, two, (down, both)), plain) < 2 * near
            into = draw(rows, outputs)
            plain = PlainOps.add_linear(
                exact[0], exact[2], into.double(), (down.double(), one.double())
            )
            assert off(ours.add_linear(x, weight, into, (down, one)), plain) < near
        assert off(ours.norm(x, gain, eps), PlainOps.norm(exact[0], exact[1], eps)) < near


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("compiled", [False, True])
def test_greedy_tokens_are_those_of_transformers(name: str, compiled: bool) -> None:
    """In float32: biases, norms of heads and windows included."""
    model = fixed(lambda: family(name), device="cuda")
    params = Sampling(samples_per_prompt=2, max_new_tokens=30, temperature=0.0)
    expected = ModelSampler(model, letters(26, end=1)).sample(PROMPTS, seed=0, params=params)
    sampler = GroupSampler(model, letters(26, end=1), compiled=compiled, memory_gib=8, copied=True)
    assert tokens(sampler.sample(PROMPTS, seed=0, params=params)) == tokens(expected)
    assert sampler.mirror is not None
    assert sampler.mirror.fused_model is not None


@pytest.mark.parametrize("long", [False, True], ids=["short prompts", "prompts read by tiles"])
def test_wide_and_narrow_batches_draw_the_same(long: bool) -> None:
    """768 rows at once, refilled from 1,536, then fewer and fewer of them."""
    model = fixed(lambda: family("Llama"), device="cuda")
    text = "abcdefghijklmnopqrstuvwxyz" * 5
    prompts = [Prompt(str(i), text[i : i + (100 if long else 5)], "test") for i in range(24)]
    params = Sampling(samples_per_prompt=64, max_new_tokens=25)
    expected = ModelSampler(model, letters(26, end=1)).sample(prompts, seed=5, params=params)
    sampler = GroupSampler(model, letters(26, end=1), max_rows=768, memory_gib=8, copied=True)
    for _ in range(2):
        found = sampler.sample(prompts, seed=5, params=params)
        same = [a == b for a, b in zip(tokens(found), tokens(expected), strict=True)]
        assert sum(same) >= 0.97 * len(same)  # rounding may move a draw across a boundary
    assert sampler.engine is not None
    assert sampler.engine.long == long


def test_bf16_agrees_with_a_plain_forward_pass_and_repeats() -> None:
    model = fixed(lambda: family("Qwen3"), device="cuda")
    params = Sampling(samples_per_prompt=64, max_new_tokens=40)
    calls = []
    for _ in range(2):
        sampler = GroupSampler(model, letters(26, end=1), precision="bf16", memory_gib=8)
        calls += [tokens(sampler.sample(PROMPTS, seed=1, params=params)) for _ in range(2)]
        assert sampler.reason is None
        assert sampler.agreement is not None
        assert sampler.agreement[0] < 0.05
    assert calls[0] == calls[1] == calls[2] == calls[3]
