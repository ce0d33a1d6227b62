"""A policy's weights as another engine reads them: whole tensors under their names on disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bestofk.model_facts import base_model, merged

LAYER = re.compile(r"(.*?\.\d+)\.")
"""Up to and with the first number in a name: the layer a weight belongs to."""


@torch.no_grad()
def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every weight, layer by layer, as `save_pretrained` would write them.

    LoRA adapters are folded into the weights they adapt, in new tensors: the model is not touched.
    A weight that is used twice (tied) comes once. Other tensors are the model's own: who keeps one
    copies it.
    """
    from transformers.core_model_loading import revert_weight_conversion

    def layer_of(pair: tuple[str, Tensor]) -> str:
        result = LAYER.match(pair[0])
        return result[1] if result else ""

    base = base_model(model)
    for _, layer in groupby(merged(base), key=layer_of):
        yield from revert_weight_conversion(base, dict(layer)).items()


class LowRank(NamedTuple):
    """One adapter of a linear layer: the layer adds scale · up (down x)."""

    down: Tensor
    """(rank, inputs)."""
    up: Tensor
    """(outputs, rank)."""
    scale: float


def low_rank(module: Any) -> list[LowRank] | None:
    """What a peft layer adds, where it is plain LoRA on a linear layer; None where it is not."""
    linear = isinstance(module.base_layer, nn.Linear)
    names = [name for name in module.active_adapters if name in getattr(module, "lora_A", ())]
    strange = (
        module.merged or getattr(module, "lora_variant", None)
        or any(getattr(module, "lora_bias", {}).values())
        or getattr(module, "fan_in_fan_out", False)
    )  # fmt: skip
    if not linear or strange or len(names) < len(module.active_adapters):
        return None
    return [
        LowRank(module.lora_A[n].weight, module.lora_B[n].weight, module.scaling[n]) for n in names
    ]
