"""A learner's state as whole tensors by name: one form for any number of processes.

What one process wrote several can read, shared out (FSDP2) or not, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bestofk.learning.shard import placed, whole

Moments = Mapping[str, Mapping[str, Tensor]]


def taken(
    model: nn.Module, optimiser: Optimizer, *, keep: bool
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Trained weights, and what the optimiser remembers of each, by the weight's name.

    Args:
        keep: False on processes that take part in the gathering and have no use for its result.
    """
    remembered = unwrapped(optimiser).state
    weights: dict[str, Tensor] = {}
    moments: dict[str, dict[str, Tensor]] = {}
    for name, parameter in trained(model).items():
        result = {what: _own(value, keep) for what, value in remembered[parameter].items()}
        weight = _own(parameter, keep)
        if keep:
            weights[name] = weight
        if keep and result:
            moments[name] = result
    return weights, moments


def put(
    model: nn.Module, optimiser: Optimizer, weights: Mapping[str, Tensor], moments: Moments
) -> None:
    """The opposite of `taken`; every process brings all of the state.

    Raises:
        ValueError: the state is not this model's.
    """
    own = trained(model)
    differ = sorted(
        name
        for name in own.keys() | weights.keys() | moments.keys()
        if name not in own or name not in weights or own[name].shape != weights[name].shape
    )
    if differ:
        raise ValueError(
            f"the state is of another model: {len(differ)} parameters differ, first {differ[0]!r}"
        )
    remembered = unwrapped(optimiser).state
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(placed(weights[name], parameter))
            remembered[parameter] = {
                what: (
                    placed(value, parameter)
                    if value.dim()
                    else value.to(parameter.device, copy=True)
                )
                for what, value in moments.get(name, {}).items()
            }


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def unwrapped(optimiser: Any) -> Optimizer:
    """torch's own optimiser inside accelerate's."""
    return getattr(optimiser, "optimizer", optimiser)


def _own(value: Tensor, keep: bool) -> Tensor:
    gathered = whole(value)
    return gathered.cpu() if keep else gathered
