"""The learner on CUDA: bf16, packed, compiled; against float32 and padded rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bestofk.learning import Learner, Loss, Optimizer, layout
from policies import fixed, group, llama, random_groups

pytestmark = pytest.mark.gpu


def wide(**changes: Any) -> torch.nn.Module:
    """Heads of 64, as FlashAttention has them; weights as small as a trained model's."""
    shape = {"hidden_size": 192, "num_attention_heads": 6, "head_dim": 64}
    return llama(**shape, initializer_range=0.05, **changes)


def gradient(learner: Learner, groups: list, weights: np.ndarray, **given: object) -> torch.Tensor:
    seen: list[torch.Tensor] = []

    def look(*_: object) -> None:
        grads = (p.grad for p in learner.model.parameters())
        seen.extend(grad.flatten().clone() for grad in grads if grad is not None)

    hook = learner.update.optimizer.register_step_pre_hook(look)
    learner.step(groups, weights, **given)  # type: ignore[arg-type]
    hook.remove()
    return torch.cat(seen)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("loss", ["exact", "clipped", "kl"])
def test_gradients_are_those_of_float32_up_to_bf16(
    loss: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of 160 tokens attend to their prompt in several runs."""
    monkeypatch.setattr(layout, "RUN", 64)
    groups = random_groups(6, 8, longest=40)
    weights = np.random.default_rng(1).normal(size=(6, 8))
    losses = {"exact": Loss(), "clipped": Loss(name="clipped"), "kl": Loss(kl=0.1)}
    found = {}
    settings: dict[str, dict[str, Any]] = {
        "reference": {"layout": "padded", "precision": "fp32"},
        "padded": {"layout": "padded", "precision": "bf16", "compiled": False},
        "packed": {"layout": "auto", "precision": "bf16", "compiled": compiled},
    }
    for name, options in settings.items():
        learner = Learner(
            fixed(wide, device="cuda"),
            optimizer=Optimizer(learning_rate=1e-12, max_grad_norm=0.0),
            reference=fixed(wide, seed=2, device="cuda"),
            tokens_per_micro_batch=400,
            **options,
        )
        old, reference = learner.log_probs(groups), learner.log_probs(groups, reference=True)
        given = {"loss": losses[loss], "old": old, "reference": reference}
        found[name] = gradient(learner, groups, weights, **given)
        assert learner.batching.layout == ("padded" if options["layout"] == "padded" else "packed")

    def off(name: str) -> float:
        return float((found[name] - found["reference"]).norm() / found["reference"].norm())

    assert off("packed") < 2 * off("padded") + 1e-3
    assert off("packed") < 0.05


REFERENCE: dict[str, Any] = {"layout": "padded", "precision": "fp32"}
PACKED: dict[str, Any] = {"layout": "auto", "precision": "bf16"}


@pytest.mark.parametrize("loss", ["exact", "clipped", "gspo"])
def test_a_second_step_off_policy_has_the_gradient_of_float32(loss: str) -> None:
    """The policy has moved from the one that is scored as old: ratios are not 1, some clipped."""
    groups = random_groups(6, 8, longest=40)
    draw = np.random.default_rng(1)
    weights, log_ratio = draw.normal(size=(6, 8)), 0.1 * draw.normal(size=(6, 8))
    found = []
    for options in (REFERENCE, PACKED):
        model = fixed(wide, device="cuda")
        learner = Learner(
            model,
            optimizer=Optimizer(learning_rate=1e-12, max_grad_norm=0.0),
            tokens_per_micro_batch=400,
            **options,
        )
        old = learner.log_probs(groups)
        torch.manual_seed(0)
        with torch.no_grad():
            for p in model.parameters():  # as an optimiser step would move it, the same for both
                p.add_(0.02 * p.abs().mean() * torch.randn(p.shape).to(p))
        asked = weights * np.exp(log_ratio) if loss == "exact" else weights
        seen = gradient(learner, groups, asked, loss=Loss(name=loss), old=old)  # type: ignore[arg-type]
        found.append(seen)
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 0.06


def test_prompts_longer_than_all_completions_together() -> None:
    """What a kernel leaves out shows where the memory it was given held something else."""
    draw = np.random.default_rng(3)
    groups = [
        group(
            draw.integers(2, 60, size).tolist(), [draw.integers(2, 60, 4).tolist()] * 2, f"p{size}"
        )
        for size in (300, 20, 401)
    ]
    weights = draw.normal(size=(3, 2))
    found = []
    for options in (REFERENCE, PACKED | {"layout": "packed", "compiled": False}):
        learner = Learner(
            fixed(lambda: wide(max_position_embeddings=512), device="cuda"),
            optimizer=Optimizer(learning_rate=1e-12, max_grad_norm=0.0),
            **options,
        )
        torch.full((2**26,), torch.nan, device="cuda")
        found.append(gradient(learner, groups, weights))
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 0.06


def test_lora_has_the_gradient_of_float32() -> None:
    from peft import LoraConfig, get_peft_model

    groups = random_groups(6, 8, longest=40)
    weights = np.random.default_rng(1).normal(size=(6, 8))
    found = []
    for options in (REFERENCE, PACKED):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
            model: Any = get_peft_model(fixed(wide), config).to("cuda")
        learner = Learner(
            model,
            optimizer=Optimizer(learning_rate=1e-12, max_grad_norm=0.0),
            tokens_per_micro_batch=400,
            **options,
        )
        reference = learner.log_probs(groups, reference=True)  # with its adapters off
        found.append(gradient(learner, groups, weights, loss=Loss(kl=0.1), reference=reference))
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 0.06


def test_five_hundred_steps_need_no_more_memory() -> None:
    learner = Learner(fixed(wide, device="cuda"), precision="bf16", compiled=False)
    weights = np.random.default_rng(1).normal(size=(4, 4))
    used = []
    for step in range(500):
        learner.step(random_groups(4, 4, seed=step % 7), weights)
        if step in (50, 499):
            used.append(torch.cuda.memory_allocated())
    assert used[1] <= used[0] + 2**20


def test_a_step_that_does_not_fit_is_taken_in_smaller_micro_batches() -> None:
    """The process is limited to a memory between what small and large ones take."""
    draw = np.random.default_rng(0)
    groups = [group([2, 3, 4], rows) for rows in draw.integers(2, 30, (32, 8, 100)).tolist()]
    weights = draw.normal(size=(32, 8))

    def seasoned(tokens: int) -> Learner:
        options: dict[str, Any] = {"precision": "bf16", "compiled": False}
        learner = Learner(fixed(wide, device="cuda"), tokens_per_micro_batch=tokens, **options)
        learner.log_probs(groups[:1])
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return learner

    peaks = []
    for tokens in (1_024, 32_768):
        seasoned(tokens).step(groups, weights)
        peaks.append(torch.cuda.max_memory_reserved())
    assert peaks[1] > 2 * peaks[0]
    learner = seasoned(32_768)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(sum(peaks) / 2 / total)
    try:
        with pytest.warns(UserWarning, match="the GPU's memory was full"):
            stats = learner.step(groups, weights)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert learner.steps == 1
    assert 1_024 <= learner.batching.budget < 32_768
    assert stats["micro_batches"] > 1
