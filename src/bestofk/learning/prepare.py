"""What a learner does to a model before the first step: dropout off, a layout that changes nothing.

Does the model see the past only, and does packing change its log-probs?
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bestofk.learning import attention
from bestofk.learning.layout import BUILD, Batch, Row
from bestofk.learning.scorer import Scorer
from bestofk.learning.settings import Optimizer
from bestofk.model_facts import base_model
from bestofk.types import Group


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


LIMIT = 2e-4
"""Mean |log-prob difference| of packed and padded rows that float32 does not explain."""
NOISE = 3.0
"""In bfloat16, packed rows may be this many times as far from float32 as padded ones."""
GROUPS, ROWS = 2, 3
"""Groups and rows of each that are compared, at most."""


def probed(groups: Sequence[Group]) -> list[Row]:
    """Some rows of a real batch: siblings, and more than one group, where there are."""
    return [
        (p, i)
        for p, group in enumerate(groups[:GROUPS])
        for i in range(min(ROWS, len(group.trajectories)))
        if group.trajectories[i].drawn
    ]


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """While inside, every module computes in float32, its weights cast while it runs.

    For frozen weights in bfloat16, below adapters: one module's at a time need the memory. Those in
    4 bits are written out by their module, in the dtype that it is told.
    """
    kept: dict[nn.Parameter, Tensor] = {}

    def cast(module: nn.Module, *_: Any) -> None:
        for parameter in module._parameters.values():
            if parameter is not None and _is_reduced(parameter):
                kept[parameter] = parameter.data
                parameter.data = parameter.data.float()

    def restore(module: nn.Module, *_: Any) -> None:
        for parameter in module._parameters.values():
            if parameter is not None and parameter in kept:
                parameter.data = kept.pop(parameter)

    reduced = [
        module
        for module in model.modules()
        if any(p is not None and _is_reduced(p) for p in module._parameters.values())
    ]
    packed: dict[Any, Any] = {m: m.compute_dtype for m in model.modules() if _is_packed(m)}
    for module in packed:
        module.compute_dtype = torch.float32
    hooks = [module.register_forward_pre_hook(cast) for module in reduced]
    hooks += [module.register_forward_hook(restore, always_call=True) for module in reduced]
    try:
        with torch.compiler.set_stance("force_eager") if reduced else nullcontext():
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, before in packed.items():
            module.compute_dtype = before


def _is_reduced(weight: Tensor) -> bool:
    return weight.is_floating_point() and weight.dtype != torch.float32


def _is_packed(module: nn.Module) -> bool:
    """Whether it is a linear layer of bitsandbytes, its weight in 4 bits."""
    return hasattr(module._parameters.get("weight"), "quant_state")


@torch.no_grad()
def layout_gap(
    score: Callable[[Batch, bool], Tensor],
    groups: Sequence[Group],
    layout: str,
    device: torch.device,
    *,
    reduced: bool,
) -> tuple[float, float]:
    """Mean |log-prob difference| of rows in `layout` to padded rows in float32; and its limit.

    Args:
        score: token log-probs of a batch; with True in float32, whatever the run's precision.
        reduced: whether the run computes in bfloat16.
    """
    rows = probed(groups)
    if not rows:
        return 0.0, LIMIT
    padded = BUILD["padded"](groups, rows, device)
    exact = score(padded, True)
    noise = float((score(padded, False) - exact).abs().mean()) if reduced else 0.0
    result = score(BUILD[layout](groups, rows, device), False)
    return float((result - exact).abs().mean()), LIMIT + NOISE * noise


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
