"""Packed, padded and one by one are the numbers of a plain pass over each row alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bestofk.learning import Learner, Optimizer
from bestofk.learning.layout import micro_batches
from bestofk.models.load import Lora, with_adapters
from bestofk.types import Group
from policies import MODELS, fixed, group, llama, random_groups, with_turns


def naive(
    model: torch.nn.Module, groups: Sequence[Group], temperature: float = 1.0
) -> list[Tensor]:
    """Log-probs of every row's own tokens from a plain forward pass over all of its text."""
    rows = []
    for one in groups:
        for done in one.trajectories:
            ids = torch.tensor([[*one.prompt_tokens, *done.tokens]])
            steps = (model(input_ids=ids).logits[0].float() / temperature).log_softmax(-1)
            start = len(one.prompt_tokens) - 1
            every = steps[start:-1].gather(-1, ids[0, start + 1 :, None])[:, 0]
            rows.append(every[np.flatnonzero(done.own)])
    return rows


LAYOUTS = [("auto", 10_000), ("auto", 40), ("padded", 10_000), ("padded", 40), ("single", 10_000)]


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("layout", "budget"), LAYOUTS)
def test_every_layout_gives_the_log_probs_of_a_plain_forward_pass(
    name: str, layout: str, budget: int, turns: bool
) -> None:
    groups = with_turns(random_groups(5, 4)) if turns else random_groups(5, 4)
    model = fixed(MODELS[name])
    with torch.no_grad():
        wanted = naive(model, groups, temperature=0.7)
    learner = Learner(model, layout=layout, tokens_per_micro_batch=budget, temperature=0.7)
    chosen = "padded" if name == "gemma2" else "packed"
    assert learner.batching.layout == (chosen if layout == "auto" else layout)
    found = [row for one in learner.log_probs(groups).tokens for row in one]
    for row, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(row, expected.numpy(), atol=2e-5)


def gradients(learner: Learner, groups: Sequence[Group], weights: np.ndarray) -> list[np.ndarray]:
    seen: list[np.ndarray] = []

    def look(*_: object) -> None:
        seen.extend(p.grad.numpy().copy() for p in learner.model.parameters() if p.grad is not None)

    learner.update.optimizer.register_step_pre_hook(look)
    learner.step(groups, weights)
    return seen


@pytest.mark.parametrize(("checkpointing", "turns"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize(("layout", "budget"), LAYOUTS)
def test_every_layout_gives_the_gradient_of_a_plain_forward_pass(
    name: str, layout: str, budget: int, checkpointing: bool, turns: bool
) -> None:
    groups = with_turns(random_groups(4, 3)) if turns else random_groups(4, 3)
    weights = np.random.default_rng(1).normal(size=(4, 3))
    model = fixed(MODELS[name])
    parts = [a * row.sum() for a, row in zip(weights.flat, naive(model, groups), strict=True)]
    wanted = torch.autograd.grad(-torch.stack(parts).sum() / 12, list(model.parameters()))
    learner = Learner(
        model,
        layout=layout,
        tokens_per_micro_batch=budget,
        gradient_checkpointing=checkpointing,
        optimizer=Optimizer(max_grad_norm=0.0),
        logits_at_once=60 * 7,
    )
    found = gradients(learner, groups, weights)
    scale = max(float(g.abs().max()) for g in wanted)
    for mine, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine / scale, expected.numpy() / scale, atol=2e-5)


def adapted(dtype: torch.dtype) -> Any:
    """Frozen weights of this dtype below adapters that are not zero."""

    def make() -> Any:
        plain: Any = llama()
        model: Any = with_adapters(plain.to(dtype), Lora(rank=4))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        return model

    return fixed(make)


def test_lora_has_the_gradient_of_plain_peft() -> None:
    """Frozen weights in float32 exactly; in bfloat16 up to its rounding, packed all the same."""
    groups = random_groups(4, 3)
    weights = np.random.default_rng(1).normal(size=(4, 3))
    for dtype, precision, near in ((torch.float32, "fp32", 1e-4), (torch.bfloat16, "bf16", 0.1)):
        model = adapted(dtype)
        plain = adapted(dtype).float()
        own = [p for p in plain.parameters() if p.requires_grad]
        parts = [a * row.sum() for a, row in zip(weights.flat, naive(plain, groups), strict=True)]
        wanted = torch.autograd.grad(-torch.stack(parts).sum() / 12, own)
        learner = Learner(
            model,
            precision=precision,
            optimizer=Optimizer(max_grad_norm=0.0),
            logits_at_once=60 * 7,
        )
        found = gradients(learner, groups, weights)
        assert learner.batching.layout == "packed"
        assert {each.dtype for each in found} == {np.dtype("float32")}
        scale = max(float(g.abs().max()) for g in wanted)
        for mine, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine / scale, expected.numpy() / scale, atol=near)
        assert {p.dtype for p in model.parameters() if not p.requires_grad} == {dtype}


def test_a_packed_batch_computes_each_prompt_once_and_no_padding() -> None:
    groups = [group(range(2, 22), [[5] * 3, [6] * 9, [7]]), group([2, 3], [[5], [6] * 4, [7] * 2])]
    learner = Learner(fixed(llama), layout="packed")
    learner.log_probs(groups)  # the first batch is also scored padded
    seen: list[int] = []
    layers = learner.model.get_decoder().layers
    layers[0].mlp.register_forward_hook(lambda m, inputs, out: seen.append(out[0].numel() // 32))
    learner.log_probs(groups)
    # the last token of a completion predicts nothing and is not computed
    assert seen == [20 + 2 + 8 + 0 + 2 + 0 + 3 + 1]


@pytest.mark.parametrize("layout", ["packed", "padded", "single"])
@pytest.mark.parametrize("budget", [1, 30, 64, 10_000])
def test_micro_batches_hold_every_row_once_within_the_budget(layout: str, budget: int) -> None:
    groups = random_groups(7, 6)
    rows = [(p, i) for p in range(7) for i in range(6) if (p + i) % 5]
    cut = micro_batches(groups, rows, budget=budget, layout=layout)
    assert sorted(row for batch in cut for row in batch) == sorted(rows)
    for batch in cut:
        prompts = {p: len(groups[p].prompt_tokens) for p, _ in batch}
        lengths = [len(groups[p].trajectories[i].tokens) for p, i in batch]
        if layout == "packed":
            size = sum(prompts.values()) + sum(lengths)
        else:
            widest = max(prompts[p] + x for (p, _), x in zip(batch, lengths, strict=True))
            size = widest * len(batch)
        assert size <= budget or len(batch) == 1
    if layout == "single":
        assert all(len(batch) == 1 for batch in cut)


def test_packed_where_attention_cannot_be_replaced_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Gemma2ForCausalLM.*take 'padded'"):
        Learner(fixed(MODELS["gemma2"]), layout="packed")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cuda_gives_the_numbers_of_the_cpu(precision: str) -> None:
    groups = random_groups(5, 4)
    here = Learner(fixed(llama)).sequence_log_probs(groups)
    there = Learner(fixed(llama, device="cuda"), precision=precision).sequence_log_probs(groups)
    np.testing.assert_allclose(there, here, rtol=0.02 if precision == "bf16" else 1e-4)
