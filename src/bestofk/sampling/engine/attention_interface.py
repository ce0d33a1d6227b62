"""Attention of the engine's model, through transformers' attention interface.

How each layer attends is noted by a trial pass; afterwards layers attend to the engine's memory.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bestofk.sampling.decode_attention import special
from bestofk.sampling.engine.layers import attend, causal
from bestofk.sampling.engine.state import AttentionLayer

BACKEND = "bestofk_engine"


class CannotRun(Exception):
    """Why the group engine does not run a model."""


def engine_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What the model's layers call: in the trial pass, for prompts, or for one token a slot."""
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotated in float32
    scale = scaling or query.shape[-1] ** -0.5
    window, cap = sliding_window or 0, softcap or 0.0
    layer: Any = getattr(module, "engine_layer", None)
    memory = None if layer is None else layer.memory
    if memory is None:
        _check(module, query, key, value, attention_mask, kwargs)
        heads, kv_heads, size = query.shape[1], key.shape[1], query.shape[-1]
        noted = AttentionLayer(module, heads, kv_heads, size, scale, window, cap)
        module.engine_layer = noted  # type: ignore[assignment]
    elif memory.state.prompt_places is None:
        state = memory.state
        out = attend(
            query, key, value, memory.prompt_keys, memory.prompt_values, memory.own_keys,
            memory.own_values, state.slots, state.tiles, state.span, memory.arrived, scale, window,
            cap, state.split, state.parted,
        )  # fmt: skip
        return out, None
    else:
        memory.store_prompts(*(new.transpose(1, 2).flatten(0, 1) for new in (key, value)))
    return causal(query, key, value, scale, window, cap).transpose(1, 2), None


def _check(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    kwargs: dict[str, Any],
) -> None:  # fmt: skip
    if names := special(kwargs):
        raise CannotRun(f"its attention takes {', '.join(names)}")
    if mask is not None:
        raise CannotRun("its attention takes a mask of its own")
    if key.shape[-1] != value.shape[-1] or query.shape[-1] != key.shape[-1]:
        raise CannotRun("its keys and values differ in size")
    if not getattr(module, "is_causal", True) or kwargs.get("is_causal") is False:
        raise CannotRun("it does not attend causally")
