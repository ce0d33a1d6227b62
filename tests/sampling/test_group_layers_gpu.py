"""Kernels of layers of the usual kind on CUDA, against PyTorch in float64 and transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bestofk.precision import float32_product
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.engine import plain_kernels
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.sampling.engine.operands import Rotation, SlotField
from bestofk.types import Group, Prompt
from fused_models import family
from policies import fixed, letters

pytestmark = pytest.mark.gpu

PROMPTS = [Prompt(str(i), "abcdefghij"[: 1 + (i * 3) % 9], "test") for i in range(12)]


def tokens(groups: list[Group]) -> list[tuple[int, ...]]:
    return [done.tokens.tolist() for group in groups for done in group.trajectories]


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("own", [True, False], ids=["ours", "cublas"])
@pytest.mark.parametrize("rows", [1, 16, 40, 64, 200, 1024])
@pytest.mark.parametrize(("inner", "outputs"), [(576, 960), (48, 80)])
def test_products_with_norm_sum_and_gate_are_those_of_float64(
    rows: int, inner: int, outputs: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bestofk.sampling.engine import kernels as ours

    monkeypatch.setattr(ours, "in_one", lambda weight, rows, adapter: own and adapter is None)
    torch.manual_seed(rows)
    half, whole = torch.bfloat16, torch.float32
    for residual, kind, near in ((whole, half, 1e-2), (half, half, 1e-2), (whole, whole, 1e-5)):

        def draw(*shape: int, kind: Any = kind) -> torch.Tensor:
            return torch.randn(*shape, device="cuda").to(kind)

        x, into = draw(rows, inner, kind=residual), draw(rows, outputs, kind=residual)
        gain, bias, given = draw(inner, kind=residual), draw(outputs), draw(rows, inner)
        weight, two = draw(outputs, inner), draw(2 * outputs, inner)
        delta = None if own else given
        eps = 1e-5

        def normed(
            name: str, *rest: Any, x: Any = x, gain: Any = gain, delta: Any = delta, eps: Any = eps
        ) -> tuple[torch.Tensor, torch.Tensor]:
            def double(value: Any) -> Any:
                if isinstance(value, tuple):
                    return tuple(map(double, value))
                return value.double() if isinstance(value, torch.Tensor) else value

            mine = getattr(ours, name)(x.clone(), delta, gain, eps, *rest)
            args = [double(value) for value in rest]
            plain = getattr(plain_kernels, name)
            return mine, plain(double(x), double(delta), double(gain), eps, *args)

        assert off(*normed("normed_linear", weight, bias)) < near
        assert off(*normed("gated", two)) < 2 * near
        for rank in (0, 6, 16, 100):
            down = draw(rank, inner) / 9
            one, both = (draw(size, rank) / 9 for size in (outputs, 2 * outputs))
            adapter = (down, one) if rank else None
            exact_sum = into.double() + given.double() @ weight.double().t()
            if rank:
                assert off(*normed("normed_linear", weight, bias, (down, one))) < near
                assert off(*normed("gated", two, (down, both))) < 2 * near
                exact_sum += given.double() @ down.double().t() @ one.double().t()
            found = into.clone()
            left = ours.add_linear(given, weight, found, adapter)
            assert (left is None) == (own and not rank)
            assert off(found if left is None else found + left, exact_sum) < near
        changed = x.clone()
        plain = x.double() + given.double()
        normal = ours.norm(changed, given, gain, eps, kind)
        assert normal.dtype == kind
        assert off(changed, plain) < (1e-6 if residual == whole else near)
        expected = plain_kernels.norm(plain, None, gain.double(), eps, torch.float64)
        assert off(normal, expected) < near


def test_logits_of_bfloat16_factors_have_the_sums_of_float32() -> None:
    torch.manual_seed(0)
    x, head = (torch.randn(n, 896, device="cuda").bfloat16() for n in (100, 5000))
    logits = float32_product(x, head)
    assert logits.dtype == torch.float32
    assert off(logits, x.double() @ head.double().t()) < 1e-5


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("compiled", [False, True])
def test_greedy_tokens_are_those_of_transformers(name: str, compiled: bool) -> None:
    """In float32: biases, norms of heads and windows included."""
    model = fixed(lambda: family(name), device="cuda")
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=30, temperature=0.0)
    expected = ModelSampler(model, letters(26, end=1)).sample(PROMPTS, seed=0, sampling=sampling)
    sampler = GroupSampler(model, letters(26, end=1), compiled=compiled, memory_gib=8, copied=True)
    assert tokens(sampler.sample(PROMPTS, seed=0, sampling=sampling)) == tokens(expected)
    assert sampler.resident.engine_model is not None
    assert sampler.resident.engine_model.fused_model is not None


@pytest.mark.parametrize("long", [False, True], ids=["short prompts", "prompts read by tiles"])
def test_wide_and_narrow_batches_draw_the_same(long: bool) -> None:
    """768 rows at once, refilled from 1,536, then fewer and fewer of them."""
    model = fixed(lambda: family("Llama"), device="cuda")
    text = "abcdefghijklmnopqrstuvwxyz" * 5
    prompts = [Prompt(str(i), text[i : i + (100 if long else 5)], "test") for i in range(24)]
    sampling = Sampling(samples_per_prompt=64, max_new_tokens=25)
    expected = ModelSampler(model, letters(26, end=1)).sample(prompts, seed=5, sampling=sampling)
    sampler = GroupSampler(model, letters(26, end=1), max_rows=768, memory_gib=8, copied=True)
    for _ in range(2):
        found = sampler.sample(prompts, seed=5, sampling=sampling)
        same = [a == b for a, b in zip(tokens(found), tokens(expected), strict=True)]
        assert sum(same) >= 0.97 * len(same)  # rounding may move a draw across a boundary
    assert sampler.engine is not None
    assert sampler.engine.state.long_prompts == long


def test_bf16_agrees_with_a_plain_forward_pass_and_repeats() -> None:
    model = fixed(lambda: family("Qwen3"), device="cuda")
    sampling = Sampling(samples_per_prompt=64, max_new_tokens=40)
    calls = []
    for _ in range(2):
        sampler = GroupSampler(model, letters(26, end=1), precision="bf16", memory_gib=8)
        calls += [tokens(sampler.sample(PROMPTS, seed=1, sampling=sampling)) for _ in range(2)]
        assert sampler.reason is None
        assert sampler.check.agreement is not None
        assert sampler.check.agreement[0] < 0.05
    assert calls[0] == calls[1] == calls[2] == calls[3]


@pytest.mark.parametrize("most", [4096, 16], ids=["16 parts", "2 parts"])
@pytest.mark.parametrize("split", [False, True], ids=["rows", "tiles"])
@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (300, 5.0)])
def test_attention_divided_between_programs_is_that_of_the_plain_formula(
    most: int, split: bool, window: int, cap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 1,100, 513 and 3 tokens of their own, one slot that has ended; ten times over."""
    from bestofk.sampling.engine import kernels as ours

    monkeypatch.setattr(ours, "MOST_PROGRAMS", most)
    monkeypatch.setattr(ours, "TILED", 1)
    torch.manual_seed(most)
    rows, heads, shared, size, span = 4, 6, 2, 64, 1200
    lengths, drawn = torch.tensor([900, 257, 30, 9]), torch.tensor([1100, 513, 3, 700])
    slots = torch.zeros(len(SlotField), rows, dtype=torch.int32)
    slots[SlotField.ENDED, 3] = 1
    slots[SlotField.GENERATED], slots[SlotField.PROMPT_LENGTH] = drawn, lengths
    slots[SlotField.PROMPT_START] = lengths.cumsum(0) - lengths
    slots[SlotField.KV_SLOT] = torch.tensor([2, 0, 3, 1])
    tiles = torch.full((rows, 2 + 8), -1, dtype=torch.int32)
    for r in range(3):
        tiles[r, :3] = torch.tensor([int(slots[SlotField.PROMPT_START, r]), int(lengths[r]), r])
    query, key, value, prompt_keys, prompt_values, own_keys, own_values = (
        torch.randn(*shape, device="cuda")
        for shape in (
            (rows, heads, 1, size), (rows, shared, 1, size), (rows, shared, 1, size),
            (1200, shared, size), (1200, shared, size),
            (rows * shared * span * size,), (rows * shared * span * size,),
        )
    )  # fmt: skip
    slots, tiles = slots.cuda(), tiles.cuda()
    limit = torch.tensor([span], dtype=torch.int32, device="cuda")
    arrived = torch.zeros(rows, shared, dtype=torch.int32, device="cuda")
    angle = torch.randn(4096, size // 2, device="cuda")
    cos, sin = (torch.cat([part, part], -1) for part in (angle.cos(), angle.sin()))
    gains = torch.rand(2, size, device="cuda")
    rotation = Rotation(cos, sin, gains[0], gains[1], 1e-5)
    stores = [(own_keys.clone(), own_values.clone()) for _ in range(2)]
    expected = plain_kernels.attend(
        query, key, value, prompt_keys, prompt_values, *stores[0], slots, tiles, limit, arrived,
        0.125, window, cap, split, True, rotation,
    )  # fmt: skip
    calls = [
        ours.attend(
            query, key, value, prompt_keys, prompt_values, stores[1][0], stores[1][1], slots,
            tiles, limit, arrived, 0.125, window, cap, split, True, rotation,
        )
        for _ in range(10)
    ]  # fmt: skip
    torch.testing.assert_close(calls[0], expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(call, calls[0]) for call in calls)
    torch.testing.assert_close(stores[1], stores[0], rtol=1e-5, atol=1e-5)
    assert not arrived.any()
