"""What a learner does to a model before the first step: dropout off, a layout, an optimiser."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from bestofk.learning import attention
from bestofk.learning.scorer import Scorer
from bestofk.learning.settings import Optimizer
from bestofk.model_facts import base_model


def switch_off_dropout(model: nn.Module) -> None:
    """π_θ must be a function of its weights: the ratio of two passes would be noise otherwise."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        # Some modules keep the rate themselves, some read the config's in every pass.
        for owner in (module, getattr(module, "config", None)):
            for name, value in vars(owner).items() if owner is not None else ():
                if "drop" in name and isinstance(value, float):
                    setattr(owner, name, 0.0)


def choose_layout(model: nn.Module, layout: str) -> str:
    """The layout to use; packed only where attention can be replaced."""
    if layout not in ("auto", "packed"):
        return layout
    causal = base_model(model)
    if attention.install(causal):
        return "packed"
    if layout == "packed":
        raise ValueError(
            f"layout 'packed' replaces attention, which {type(causal).__name__} with "
            f"{causal.config._attn_implementation!r} attention does not allow; take 'padded'"
        )
    return "padded"


def reference_scorer(
    model: PreTrainedModel, reference: PreTrainedModel | None, scorer: Scorer, layout: str
) -> Scorer | None:
    """The frozen policy, laid out as the trained one."""
    if reference is None:
        return None
    if reference is model:
        raise ValueError("the reference is the trained model itself: give a frozen copy")
    switch_off_dropout(reference)
    reference.eval().requires_grad_(False)
    if layout == "packed":
        choose_layout(reference, layout)
    return Scorer(reference, scorer.temperature, scorer.chunk)


@contextmanager
def adapters_off(model: Any, scorer: nn.Module) -> Iterator[nn.Module]:
    with model.disable_adapter():
        yield scorer


def adamw(model: nn.Module, settings: Optimizer) -> torch.optim.AdamW:
    """Matrices decay, vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("the model has no parameter that requires a gradient: nothing to train")
    return torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=0.0,  # of the schedule, at every step
        betas=settings.adam[:2],
        eps=settings.adam[2],
        fused=True,
    )


def report(model: Any, gap: float, limit: float, *, layout: str) -> None:
    """Warn that rows are padded from now on.

    Raises:
        ValueError: layout "packed" was asked for by name.
    """
    what = (
        f"packed rows of {type(model).__name__} have log-probs {gap:.2g} per token away from "
        f"padded rows, more than {limit:.2g}"
    )
    if layout == "packed":
        raise ValueError(f"{what}: take layout 'padded'")
    warnings.warn(f"{what}; rows are padded from now on, which is slower", stacklevel=5)
