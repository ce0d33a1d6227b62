"""Whether rows give the same log-probs packed and padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bestofk.agreement.tolerances import LAYOUT
from bestofk.types import Group

GROUPS, ROWS = 2, 3
"""Groups and rows of each that are compared, at most."""


def probed(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """Some rows of a real batch: siblings, and more than one group, where there are."""
    return [
        (p, i)
        for p, group in enumerate(groups[:GROUPS])
        for i in range(min(ROWS, len(group.trajectories)))
        if group.trajectories[i].drawn
    ]


@torch.no_grad()
def layout_gap(score: Callable[[str, bool], Tensor], *, reduced: bool) -> tuple[float, float]:
    """Mean |log-prob difference| of packed rows to padded ones in float32; and its limit.

    Args:
        score: token log-probs of the rows in a layout; with True in float32, whatever the run's
            precision.
        reduced: whether the run computes in bfloat16.
    """
    exact = score("padded", True)
    rounding = float((score("padded", False) - exact).abs().mean()) if reduced else 0.0
    gap = float((score("packed", False) - exact).abs().mean())
    return gap, LAYOUT.limit(reduced=reduced, rounding=rounding)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """While inside, every module computes in float32, its weights cast while it runs.

    For frozen weights in bfloat16, below adapters: one module's at a time need the memory. Those in
    4 bits are written out by their module, in the dtype that it is told. Nothing may be compiled.
    """
    originals: dict[nn.Parameter, Tensor] = {}

    def cast(module: nn.Module, *_: Any) -> None:
        for parameter in module._parameters.values():
            if parameter is not None and _is_reduced(parameter):
                originals[parameter] = parameter.data
                parameter.data = parameter.data.float()

    def restore(module: nn.Module, *_: Any) -> None:
        for parameter in module._parameters.values():
            if parameter is not None and parameter in originals:
                parameter.data = originals.pop(parameter)

    reduced = [
        module
        for module in model.modules()
        if any(p is not None and _is_reduced(p) for p in module._parameters.values())
    ]
    in_4_bits: dict[Any, Any] = {
        module: module.compute_dtype
        for module in model.modules()
        if hasattr(module, "compute_dtype")
    }
    for module in in_4_bits:
        module.compute_dtype = torch.float32
    hooks = [module.register_forward_pre_hook(cast) for module in reduced]
    hooks += [module.register_forward_hook(restore, always_call=True) for module in reduced]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, before in in_4_bits.items():
            module.compute_dtype = before


def _is_reduced(weight: Tensor) -> bool:
    return weight.is_floating_point() and weight.dtype != torch.float32
