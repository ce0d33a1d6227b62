"""The learner on CUDA: bf16, packed, compiled; against float32 and padded rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bestofk.learning import Learner, Loss, Optimisation
from policies import fixed, llama, random_groups

pytestmark = pytest.mark.gpu


def wide() -> torch.nn.Module:
    """Heads of 64, as FlashAttention has them; weights as small as a trained model's."""
    return llama(hidden_size=192, num_attention_heads=6, head_dim=64, initializer_range=0.05)


def gradient(learner: Learner, groups: list, weights: np.ndarray, **given: object) -> torch.Tensor:
    seen: list[torch.Tensor] = []

    def look(*_: object) -> None:
        seen.extend(p.grad.flatten().clone() for p in learner.model.parameters())  # type: ignore[union-attr]

    hook = learner.optimiser.register_step_pre_hook(look)
    learner.step(groups, weights, **given)  # type: ignore[arg-type]
    hook.remove()
    return torch.cat(seen)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("loss", ["exact", "clipped", "kl"])
def test_gradients_are_those_of_float32_up_to_bf16(loss: str, compiled: bool) -> None:
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
            optimisation=Optimisation(learning_rate=1e-12, max_grad_norm=0.0),
            reference=fixed(wide, seed=2, device="cuda"),
            tokens_per_micro_batch=400,
            **options,
        )
        old, reference = learner.score(groups), learner.score(groups, reference=True)
        given = {"loss": losses[loss], "old": old, "reference": reference}
        found[name] = gradient(learner, groups, weights, **given)
        assert learner.layout == ("padded" if options["layout"] == "padded" else "packed")

    def off(name: str) -> float:
        return float((found[name] - found["reference"]).norm() / found["reference"].norm())

    assert off("packed") < 2 * off("padded") + 1e-3
    assert off("packed") < 0.05


def test_five_hundred_steps_need_no_more_memory() -> None:
    learner = Learner(fixed(wide, device="cuda"), precision="bf16", compiled=False)
    weights = np.random.default_rng(1).normal(size=(4, 4))
    used = []
    for step in range(500):
        learner.step(random_groups(4, 4, seed=step % 7), weights)
        if step in (50, 499):
            used.append(torch.cuda.memory_allocated())
    assert used[1] <= used[0] + 2**20
