"""A key-value cache with room to grow: tokens are written in place, not copied every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

from bestofk.model_facts import attention_sizes, config_value


class RoomyLayer(DynamicLayer):
    """Keys and values (R, heads, capacity, d), of which the first `length` places are filled."""

    def __init__(self, keys: Tensor, values: Tensor, n: int, extra: int) -> None:
        super().__init__()
        self.length = keys.shape[-2]
        self.keys = _with_room(keys, n, extra)
        self.values = _with_room(values, n, extra)
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.length


def _with_room(states: Tensor, n: int, extra: int) -> Tensor:
    prompts, heads, length, size = states.shape
    roomy = states.new_empty(prompts, n, heads, length + extra, size)
    roomy[:, :, :, :length] = states[:, None]
    return roomy.flatten(0, 1)


def rows_that_fit(config: PretrainedConfig, length: int, room: float) -> int:
    """How many rows of `length` tokens have their float32 keys and values in `room` bytes."""
    _, shared, size = attention_sizes(config)
    row = 2 * 4 * length * shared * size * (config_value(config, "num_hidden_layers") or 0)
    return max(1, int(room // row)) if row else 2**31


def room_on(device: torch.device) -> float:
    """Bytes for keys and values: 4 GiB, or half of what is free on a GPU."""
    return torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else 4.0 * 2**30


def spread(cache: Cache, prompts: int, n: int, extra: int) -> None:
    """Repeat every prompt's state n times, with room for `extra` more tokens.

    Layers that are not plain attention keep their own kind.
    """
    layers: list[Any] = cache.layers
    for at, layer in enumerate(layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            keys, values = layer.keys, layer.values
            assert keys is not None
            assert values is not None
            layers[at] = RoomyLayer(keys, values, n, extra)
        else:
            layer.reorder_cache(torch.arange(prompts).repeat_interleave(n))
