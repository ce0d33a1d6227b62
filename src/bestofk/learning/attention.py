"""Attention over packed groups, as an attention backend of transformers.

Outside attention a packed batch has no padding and one copy of each prompt. On CPU, here and only
here, rows are gathered to rectangles: prompts attend causally to themselves, completions to their
prompt and to themselves. Models that pass keyword arguments down to their attention (all that
support transformers' attention interface) run it unchanged.

On CUDA it is two passes of FlashAttention, and no padding. A packed sequence is
[prompt | y_1 | y_2 | ... | prompt | y_1 | ...]. Every part attends causally to itself; then the
completions of a group, in long runs of queries, attend to their prompt, which is read once a run.
The two results are one softmax over both: with L the log of a softmax's denominator,

    L = log(e^L_a + e^L_b),    out = e^(L_a − L) out_a + e^(L_b − L) out_b.

The gradient needs no more than this L and this out: each pass's backward, given them in the place
of its own, yields exactly its share.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bestofk.learning.layout import FlatSegments, Segments

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
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    slides = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    return kinds != {"full_attention"} or capped or bool(slides)


@torch.library.custom_op("bestofk::flash_groups", mutates_args=())
def flash_groups(
    query: Tensor, key: Tensor, value: Tensor, parts: Tensor, queries: Tensor, keys: Tensor,
    prompt_at: Tensor, first: Tensor, a: int, b: int, c: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (T, heads, d) and the log of the softmax's denominators (heads, T)."""
    from bestofk.learning.merge_kernel import merge

    out, total = _forward(query, key, value, parts, parts, a, a, True, scale)
    shared = key[prompt_at], value[prompt_at]
    other, other_total = _forward(query, *shared, queries, keys, b, c, False, scale)
    merge(out, total, other, other_total)
    return out, total


@flash_groups.register_fake
def _(query, key, value, parts, queries, keys, prompt_at, first, a, b, c, scale):
    return torch.empty_like(query), query.new_empty(
        query.shape[1], query.shape[0], dtype=torch.float32
    )


@torch.library.custom_op("bestofk::flash_groups_backward", mutates_args=())
def flash_groups_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor,
    parts: Tensor, queries: Tensor, keys: Tensor, prompt_at: Tensor, first: Tensor, a: int, b: int,
    c: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value."""
    forward = (out, total)
    grad = grad.contiguous()
    dq, dk, dv = _backward(grad, query, key, value, *forward, parts, parts, a, a, True, scale)
    shared = key[prompt_at], value[prompt_at]
    more, pk, pv = _backward(grad, query, *shared, *forward, queries, keys, b, c, False, scale)
    add_runs(dk, pk, prompt_at, first)
    add_runs(dv, pv, prompt_at, first)
    return dq.add_(more), dk, dv


def add_runs(gradient: Tensor, runs: Tensor, prompt_at: Tensor, first: Tensor) -> None:
    """What all runs of completions say of their prompts' tokens, into the gradient, in float32."""
    sums = torch.zeros_like(runs, dtype=torch.float32).index_add_(0, first, runs.float())
    # A token of several runs is written once for each, with the same value.
    gradient[prompt_at] = (gradient[prompt_at] + sums[first]).to(gradient.dtype)


@flash_groups_backward.register_fake
def _(grad, query, key, value, *rest):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, a, b, c, scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.sizes = (a, b, c, scale)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, *where, out, total = ctx.saved_tensors
    result = flash_groups_backward(grad, query, key, value, out, total, *where, *ctx.sizes)
    return *result, *[None] * 9


flash_groups.register_autograd(_differentiate, setup_context=_keep)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, most_q: int, most_k: int,
    causal: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    result = torch.ops.aten._flash_attention_forward(
        q, k, v, ends_q, ends_k, most_q, most_k, 0.0, causal, False, scale=scale
    )
    return result[0], result[1]


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, ends_q: Tensor,
    ends_k: Tensor, most_q: int, most_k: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which there is not
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, total, ends_q, ends_k, most_q, most_k, 0.0, causal, seed, seed,
        scale=scale,
    )  # fmt: skip
    return result


def flash_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, segments: FlatSegments,
    scaling: float | None,
) -> tuple[Tensor, None]:  # fmt: skip
    """For transformers' attention interface: query (1, heads, T, d) → (1, T, heads, d)."""
    scale = scaling or query.shape[-1] ** -0.5
    q, k, v = (each[0].transpose(0, 1).to(value.dtype).contiguous() for each in (query, key, value))
    out, _ = flash_groups(
        q, k, v, segments.parts, segments.queries, segments.keys, segments.prompt_at,
        segments.first, *segments.longest, scale,
    )  # fmt: skip
    return out[None], None


def fits(size: int, dtype: torch.dtype) -> bool:
    """What FlashAttention computes."""
    return size % 8 == 0 and size <= 256 and dtype in (torch.bfloat16, torch.float16)
