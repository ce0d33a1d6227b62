"""Attention over packed groups on CUDA: two passes of FlashAttention, and no padding.

A packed sequence is [prompt | y_1 | y_2 | ... | prompt | y_1 | ...]. Every part attends causally to
itself; then all completions of a group, as one run of queries, attend to their prompt, which is
read once. The two results are one softmax over both: with L the log of a softmax's denominator,

    L = log(e^L_a + e^L_b),    out = e^(L_a − L) out_a + e^(L_b − L) out_b.

The gradient needs no more than this L and this out: each pass's backward, given them in the place
of its own, yields exactly its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bestofk.learning.transfer import there


@dataclass(frozen=True)
class FlatSegments:
    """Where the parts of a packed sequence begin."""

    parts: Tensor
    """(parts + 1,) int32: prompts and completions in order."""
    queries: Tensor
    """(2 G + 1,) int32: per group its prompt, then all of its completions together."""
    keys: Tensor
    """(2 G + 1,) int32: the prompts' tokens those attend to: none, then all of the prompt."""
    prompt_at: Tensor
    """Places of the prompts' tokens."""
    longest: tuple[int, int, int]
    """Tokens of the longest part, of the longest run of queries, of the longest prompt. What lies
    beyond them is not computed, and not even set."""


def flat_segments(
    prompts: Sequence[int], completions: Sequence[Sequence[int]], device: torch.device | str
) -> FlatSegments:
    """From the lengths of each group's prompt and completions, as they lie in the sequence."""
    sizes = [size for p, own in zip(prompts, completions) for size in (p, *own)]
    runs = [size for p, own in zip(prompts, completions) for size in (p, sum(own))]
    seen = [size for p in prompts for size in (0, p)]
    begins = np.cumsum([0, *runs])[:-1:2]
    at = np.concatenate([np.arange(b, b + p) for b, p in zip(begins, prompts)])

    def ends(lengths: Sequence[int]) -> Tensor:
        return there(np.cumsum([0, *lengths]).astype(np.int32), device)

    longest = (max(sizes), max(runs), max(prompts))
    return FlatSegments(
        parts=ends(sizes),
        queries=ends(runs),
        keys=ends(seen),
        prompt_at=there(at, device),
        longest=(_up(longest[0]), _up(longest[1]), _up(longest[2])),
    )


def _up(length: int) -> int:
    """A few values for all lengths: they are part of what a layer is compiled for."""
    return max(128, 1 << (length - 1).bit_length())


Three = tuple[Tensor, Tensor, Tensor]


@torch.library.custom_op("bestofk::flash_groups", mutates_args=())
def flash_groups(
    query: Tensor, key: Tensor, value: Tensor, parts: Tensor, queries: Tensor, keys: Tensor,
    prompt_at: Tensor, a: int, b: int, c: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (T, heads, d) and the log of the softmax's denominators (heads, T)."""
    if not query.is_cuda:
        return _plain(query, key, value, parts, queries, prompt_at, scale)
    from bestofk.learning.merge_kernel import merge

    out, total = _forward(query, key, value, parts, parts, a, a, True, scale)
    shared = key[prompt_at], value[prompt_at]
    other, other_total = _forward(query, *shared, queries, keys, b, c, False, scale)
    merge(out, total, other, other_total)
    return out, total


@flash_groups.register_fake
def _(query, key, value, parts, queries, keys, prompt_at, a, b, c, scale):
    return torch.empty_like(query), query.new_empty(
        query.shape[1], query.shape[0], dtype=torch.float32
    )


@torch.library.custom_op("bestofk::flash_groups_backward", mutates_args=())
def flash_groups_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor,
    parts: Tensor, queries: Tensor, keys: Tensor, prompt_at: Tensor, a: int, b: int, c: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value."""
    if not query.is_cuda:
        return _plain_backward(grad, query, key, value, parts, queries, prompt_at, scale)
    known = (out, total)
    grad = grad.contiguous()
    dq, dk, dv = _backward(grad, query, key, value, *known, parts, parts, a, a, True, scale)
    shared = key[prompt_at], value[prompt_at]
    more, pk, pv = _backward(grad, query, *shared, *known, queries, keys, b, c, False, scale)
    return dq.add_(more), dk.index_add_(0, prompt_at, pk), dv.index_add_(0, prompt_at, pv)


@flash_groups_backward.register_fake
def _(grad, query, key, value, *rest):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, a, b, c, scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.sizes = (a, b, c, scale)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, parts, queries, keys, prompt_at, out, total = ctx.saved_tensors
    result = flash_groups_backward(
        grad, query, key, value, out, total, parts, queries, keys, prompt_at, *ctx.sizes
    )
    return *result, *[None] * 8


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
) -> Three:  # fmt: skip
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which there is not
    result: Three = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, total, ends_q, ends_k, most_q, most_k, 0.0, causal, seed, seed,
        scale=scale,
    )  # fmt: skip
    return result


def _chances(
    query: Tensor, key: Tensor, parts: Tensor, queries: Tensor, prompt_at: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The softmax over the whole sequence (heads, T, T) and the logs of its denominators."""
    length = len(query)
    place = torch.arange(length)
    part = torch.searchsorted(parts.long(), place, right=True) - 1
    run = torch.searchsorted(queries.long(), place, right=True) - 1
    is_prompt = torch.zeros(length, dtype=torch.bool)
    is_prompt[prompt_at] = True
    own = (part[:, None] == part) & (place[:, None] >= place)
    to_prompt = (run[:, None] // 2 == run // 2) & is_prompt & ~is_prompt[:, None]
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
    scores = scores.masked_fill(~(own | to_prompt), -torch.inf)
    return scores.softmax(-1), scores.logsumexp(-1)


def _plain(
    query: Tensor, key: Tensor, value: Tensor, parts: Tensor, queries: Tensor, prompt_at: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same by one mask over the whole sequence."""
    share = query.shape[1] // key.shape[1]
    k, v = (each.repeat_interleave(share, 1) for each in (key, value))
    chances, total = _chances(query, k, parts, queries, prompt_at, scale)
    return torch.einsum("hqk,khd->qhd", chances, v.float()).to(query.dtype), total


def _plain_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, parts: Tensor, queries: Tensor,
    prompt_at: Tensor, scale: float,
) -> Three:  # fmt: skip
    share = query.shape[1] // key.shape[1]
    k, v = (each.repeat_interleave(share, 1).float() for each in (key, value))
    chances, _ = _chances(query, k, parts, queries, prompt_at, scale)
    grad = grad.float()
    by_chance = torch.einsum("qhd,khd->hqk", grad, v)
    by_score = chances * (by_chance - (chances * by_chance).sum(-1, keepdim=True)) * scale
    dq = torch.einsum("hqk,khd->qhd", by_score, k)
    dk = torch.einsum("hqk,qhd->khd", by_score, query.float())
    dv = torch.einsum("hqk,qhd->khd", chances, grad)
    shape = (len(key), key.shape[1], share, -1)
    return (
        dq.to(query.dtype),
        dk.view(shape).sum(2).to(key.dtype),
        dv.view(shape).sum(2).to(value.dtype),
    )


def flash_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, segments: FlatSegments,
    scaling: float | None,
) -> tuple[Tensor, None]:  # fmt: skip
    """For transformers' attention interface: query (1, heads, T, d) → (1, T, heads, d)."""
    scale = scaling or query.shape[-1] ** -0.5
    q, k, v = (each[0].transpose(0, 1).to(value.dtype).contiguous() for each in (query, key, value))
    out, _ = flash_groups(
        q, k, v, segments.parts, segments.queries, segments.keys, segments.prompt_at,
        *segments.longest, scale,
    )  # fmt: skip
    return out[None], None


def fits(size: int, dtype: torch.dtype) -> bool:
    """What FlashAttention computes."""
    return size % 8 == 0 and size <= 256 and dtype in (torch.bfloat16, torch.float16)
