"""Attention over packed groups, as an attention backend of transformers.

Outside attention a packed batch has no padding and one copy of each prompt. Here, and only here,
rows are gathered to rectangles: prompts attend causally to themselves, completions to their prompt
and to themselves. Models that pass keyword arguments down to their attention (all that support
transformers' attention interface) run it unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bestofk.learning.flash_groups import FlatSegments, flash_attention
from bestofk.learning.layout import Segments

BACKEND = "bestofk_groups"


def group_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segments: Segments | FlatSegments | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention; over packed groups where `segments` says how they lie.

    Args:
        query, key, value: (1, heads, T, d) when packed.

    Returns:
        (1, T, heads, d).
    """
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if isinstance(segments, FlatSegments):
        return flash_attention(module, query, key, value, segments, kwargs.get("scaling"))
    kwargs.pop("is_causal", None)
    keys, values, queries = _flat(key), _flat(value), _flat(query)
    shape = (query.shape[1], key.shape[1], query.shape[-1], value.shape[-1])
    prompts, _ = sdpa_attention_forward(
        module,
        _take(queries, segments.prompts, shape[0], shape[2]),
        _take(keys, segments.prompts, shape[1], shape[2]),
        _take(values, segments.prompts, shape[1], shape[3]),
        None,
        is_causal=True,
        **kwargs,
    )
    rows, _ = sdpa_attention_forward(
        module,
        _take(queries, segments.rows, shape[0], shape[2]),
        _take(keys, segments.context, shape[1], shape[2]),
        _take(values, segments.context, shape[1], shape[3]),
        segments.visible,
        is_causal=False,
        **kwargs,
    )
    width = shape[0] * shape[3]
    both = torch.cat([prompts.reshape(-1, width), rows.reshape(-1, width)])
    return F.embedding(segments.back, both).view(1, -1, shape[0], shape[3]), None


def _flat(states: Tensor) -> Tensor:
    """(1, heads, T, d) → (T, heads · d)."""
    return states[0].transpose(0, 1).flatten(1)


def _take(states: Tensor, places: Tensor, heads: int, size: int) -> Tensor:
    """(T, heads · d) gathered at (B, L) → (B, heads, L, d).

    `embedding` and not indexing: its backward pass adds up repeated places fast, and in a fixed
    order on CPU.
    """
    return F.embedding(places, states).view(*places.shape, heads, size).transpose(1, 2)


def install(model: nn.Module) -> bool:
    """Put the backend into the model if its attention can be replaced; whether it was.

    Without `segments` it is plain SDPA, so sampling and everything else go on as before.
    """
    config: PretrainedConfig = model.config  # type: ignore[assignment]
    if not getattr(model, "_supports_attention_backend", False) or _special(config):
        return False
    if config._attn_implementation not in ("sdpa", BACKEND):
        return False
    AttentionInterface.register(BACKEND, group_attention)
    AttentionMaskInterface.register(BACKEND, sdpa_mask)
    config._attn_implementation = BACKEND
    return True


def _special(config: PretrainedConfig) -> bool:
    """Windows, soft caps, sinks and recurrent layers are not computed here."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    capped = getattr(config, "attn_logit_softcapping", None)
    return kinds != {"full_attention"} or capped is not None or bool(_window(config))


def _window(config: PretrainedConfig) -> int | None:
    if not getattr(config, "use_sliding_window", True):
        return None
    return getattr(config, "sliding_window", None)
