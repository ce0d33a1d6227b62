"""A policy's weights as another engine reads them: whole tensors under their names on disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from bestofk.common import base_model

LAYER = re.compile(r"(.*?\.\d+)\.")
"""Up to and with the first number in a name: the layer a weight belongs to."""


@torch.no_grad()
def named_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every weight, layer by layer, as `save_pretrained` would write them.

    LoRA adapters are folded into the weights they adapt, in new tensors: the model is not touched.
    A weight that is used twice (tied) comes once. Other tensors are the model's own: who keeps one
    copies it.
    """
    base = base_model(model)
    for _, layer in groupby(merged(base), key=lambda pair: _layer_of(pair[0])):
        yield from _as_on_disk(base, dict(layer)).items()


def merged(base: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every weight as if there were no adapters: theirs are added in."""
    adapted = {
        name: module
        for name, module in base.named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
    }
    for name, parameter in base.named_parameters():
        owner = next((each for each in adapted if name.startswith(f"{each}.")), None)
        if owner is None:
            yield name, parameter.detach()
            continue
        inner = name.removeprefix(f"{owner}.base_layer.")
        if inner == name:
            continue  # of the adapter itself
        weight = parameter.detach()
        if inner == "weight":
            for adapter in adapted[owner].active_adapters:
                weight = weight.float() + adapted[owner].get_delta_weight(adapter).float()
        yield f"{owner}.{inner}", weight.to(parameter.dtype)


def _layer_of(name: str) -> str:
    result = LAYER.match(name)
    return result[1] if result else ""


def _as_on_disk(base: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo what transformers does to some models' weights when it loads them."""
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(base, weights))
