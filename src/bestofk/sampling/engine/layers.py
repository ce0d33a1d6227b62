"""What the group engine computes: attention, and layers of few kernels.

Layers of RMSNorm, rotary attention, RMSNorm and gated SiLU (Llama, Qwen2, Qwen3, SmolLM, Mistral)
run by fewer kernels. A model is taken for one of them by its parts and by its numbers: on a few
tokens, logits by these layers must be those of its own forward pass. A model that fails is run by
its own modules, as all others are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bestofk.agreement.tolerances import LAYERS
from bestofk.fp8 import Fp8Weight
from bestofk.precision import float32_product
from bestofk.sampling.engine import plain_kernels
from bestofk.sampling.engine.linear_layers import LINEAR, operand
from bestofk.sampling.engine.operands import Adapter, Rotation
from bestofk.sampling.engine.state import AttentionLayer


def kernels_for(operand: Tensor) -> Any:
    """Triton's kernels on CUDA, the same in PyTorch elsewhere."""
    if not operand.is_cuda:
        return plain_kernels
    from bestofk.sampling.engine import kernels

    return kernels


@torch.library.custom_op(
    "bestofk::group_attend", mutates_args=("own_keys", "own_values", "arrived"), device_types=None
)
def attend(
    query: Tensor, key: Tensor, value: Tensor, prompt_keys: Tensor, prompt_values: Tensor,
    own_keys: Tensor, own_values: Tensor, slots: Tensor, tiles: Tensor, span: Tensor,
    arrived: Tensor, scale: float, window: int, cap: float, split: bool, parted: bool,
) -> Tensor:  # fmt: skip
    """`plain_kernels.attend` as one operator of a graph."""
    return kernels_for(query).attend(
        query, key, value, prompt_keys, prompt_values, own_keys, own_values, slots, tiles, span,
        arrived, scale, window, cap, split, parted,
    )  # fmt: skip


@attend.register_fake
def _(query, *rest):
    rows, heads, _, size = query.shape
    return query.new_empty(rows, 1, heads, size)


def causal(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int, cap: float
) -> Tensor:
    """Attention of whole prompts, (P, heads, L, d)."""
    length = query.shape[2]
    if not cap and not (window and window < length):
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=True
        )
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = (query @ key.transpose(2, 3)).float() * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    positions = torch.arange(length, device=query.device)
    distance = positions[:, None] - positions
    hidden = (distance < 0) | (distance >= (window or length))
    return scores.masked_fill(hidden, -torch.inf).softmax(-1).to(value.dtype) @ value


HEAD = 16_384
"""Rows of the head that are cast at once."""
FIXED = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary positions whose angles do not depend on a sequence's length."""


@dataclass(eq=False)
class FusedLayer:
    """The weights of one layer."""

    attention: AttentionLayer
    first: Tensor
    first_eps: float
    qkv: Tensor | Fp8Weight
    qkv_bias: Tensor | None
    out: Tensor | Fp8Weight
    second: Tensor
    second_eps: float
    gate_up: Tensor | Fp8Weight
    down: Tensor | Fp8Weight
    query_gain: Tensor | None = None
    key_gain: Tensor | None = None
    head_eps: float = 0.0
    qkv_adapter: Adapter | None = None
    out_adapter: Adapter | None = None
    gate_up_adapter: Adapter | None = None
    down_adapter: Adapter | None = None

    def exact(self) -> FusedLayer:
        """The same in float32."""

        def cast(value: Any) -> Any:
            if isinstance(value, Fp8Weight):
                return value._replace(dtype=torch.float32)
            if isinstance(value, tuple):
                return tuple(map(cast, value))
            return value.float() if isinstance(value, Tensor) else value

        return FusedLayer(**{each.name: cast(getattr(self, each.name)) for each in fields(self)})

    def rotation(self, cos: Tensor, sin: Tensor) -> Rotation:
        return Rotation(cos, sin, self.query_gain, self.key_gain, self.head_eps)

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(R, (heads + 2 shared) d) → query, key and value (R, heads, 1, d), as views."""
        own = self.attention
        sizes = [own.heads, own.kv_heads, own.kv_heads]
        parts = qkv.view(len(qkv), sum(sizes), 1, own.head_size).split(sizes, 1)
        return parts[0], parts[1], parts[2]

    def whole(
        self, qkv: Tensor, positions: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (P, heads, L, d) of texts that lie one after another, rotated."""
        query, key, value = (
            part.view(-1, len(positions), part.shape[1], part.shape[3]).transpose(1, 2)
            for part in self.heads(qkv)
        )
        rotation = self.rotation(*angles)
        query = rotation.rotated(query, positions, self.query_gain)
        return query, rotation.rotated(key, positions, self.key_gain), value

    def attend_whole(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention of such texts, (P · L, heads · d)."""
        own = self.attention
        out = causal(query, key, value, own.scale, own.window, own.cap)
        return out.transpose(1, 2).flatten(0, 1).flatten(1)


@dataclass(eq=False)
class FusedModel:
    """A model of such layers, between its embedding and its head.

    The sum that layers add to (the residual stream) has the embedding's dtype, as in the learner.
    """

    embedding: nn.Module
    layers: list[FusedLayer]
    last: Tensor
    last_eps: float
    head: Tensor
    rotary: nn.Module

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin (length, d) of all positions."""
        positions = torch.arange(length, device=self.head.device)[None]
        cos, sin = self.rotary(self.embedding(positions[:, :1]), positions)
        return cos[0].contiguous(), sin[0].contiguous()

    def hidden(
        self, ids: Tensor, attend: Callable[[FusedLayer, Tensor], Tensor], *, exact: bool = False
    ) -> Tensor:
        """What the head takes (R, H) of ids (R,), attention given: (layer, qkv) → (R, heads · d).

        Args:
            exact: in float32, whatever the weights: one layer's at a time are cast.
        """
        ops = plain_kernels if exact else kernels_for(self.head)
        x, delta = self.embedding(ids), None
        if exact:
            x = x.float()
        for layer in self.layers:
            delta = _through(layer.exact() if exact else layer, x, delta, attend, ops)
        kind = x.dtype if exact else self.head.dtype
        normed: Tensor = ops.norm(x, delta, self.last, self.last_eps, kind)
        return normed

    def forward(self, ids: Tensor, attend: Callable[[FusedLayer, Tensor], Tensor]) -> Tensor:
        """Logits (R, V) in float32."""
        return float32_product(self.hidden(ids, attend), self.head)

    def exact(self, ids: Tensor, attend: Callable[[FusedLayer, Tensor], Tensor]) -> Tensor:
        """The same with all else in float32 too."""
        x = self.hidden(ids, attend, exact=True)
        return torch.cat([F.linear(x, part.float()) for part in self.head.split(HEAD)], -1)

    def prompts(self, ids: Tensor, angles: tuple[Tensor, Tensor]) -> None:
        """Keys and values of prompts (P, L), to the layers' memory."""
        positions = torch.arange(ids.shape[1], device=ids.device)

        def attend(layer: FusedLayer, qkv: Tensor) -> Tensor:
            memory, (query, key, value) = (
                layer.attention.memory,
                layer.whole(qkv, positions, angles),
            )
            assert memory is not None
            memory.store_prompts(*(x.transpose(1, 2).flatten(0, 1) for x in (key, value)))
            return layer.attend_whole(query, key, value)

        self.hidden(ids.flatten(), attend)

    @torch.no_grad()
    def alike(self, plain: Callable[[Tensor], Tensor]) -> bool:
        """Whether it computes the model's own logits, on a few tokens; `plain` gives those of ids.

        Both are compared with these layers in float32. Two right passes in bfloat16 are about as
        far from that as each other, however deep the model is; a wrong one is farther.
        """
        count = 8
        ids = torch.arange(3, 3 + count, device=self.head.device) % self.head.shape[0]
        angles = self.angles(count)
        if any(layer.attention.head_size != angles[0].shape[-1] for layer in self.layers):
            return False  # only a part of each head is rotated
        positions = torch.arange(count, device=ids.device)

        def attend(layer: FusedLayer, qkv: Tensor) -> Tensor:
            return layer.attend_whole(*layer.whole(qkv, positions, angles))

        exact = self.exact(ids, attend)
        passes = self.forward(ids, attend), plain(ids)
        size = exact.norm().clamp_min(1e-12)
        near, far = sorted(float((each.float() - exact).norm() / size) for each in passes)
        return far <= LAYERS.limit(reduced=self.head.dtype != torch.float32, rounding=near)


def _through(
    layer: FusedLayer, x: Tensor, delta: Tensor | None, attend: Any, ops: Any
) -> Tensor | None:
    """One layer, in place: what was to be added to x, and what is still to be added after it."""
    qkv = ops.normed_linear(
        x, delta, layer.first, layer.first_eps, layer.qkv, layer.qkv_bias, layer.qkv_adapter
    )
    delta = ops.add_linear(attend(layer, qkv), layer.out, x, layer.out_adapter)
    inner = ops.gated(
        x, delta, layer.second, layer.second_eps, layer.gate_up, layer.gate_up_adapter
    )
    after: Tensor | None = ops.add_linear(inner, layer.down, x, layer.down_adapter)
    return after


def fused_model(model: Any, attention_layers: list[Any]) -> FusedModel | None:
    """The model's weights as such layers, or None where its parts are others.

    Its products of one input must have been joined; `FusedModel.alike` is still to be asked.
    """
    try:
        decoder = model.get_decoder()
        rotary = decoder.rotary_emb
        head = model.get_output_embeddings()
        if getattr(rotary, "rope_type", "default") not in FIXED or head.bias is not None:
            return None
        layers = [
            _layer(each, attends, head.weight.dtype)
            for each, attends in zip(decoder.layers, attention_layers, strict=True)
        ]
        last, eps = _norm(decoder.norm)
        return FusedModel(decoder.embed_tokens, layers, last, eps, head.weight, rotary)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None


def _norm(module: Any) -> tuple[Tensor, float]:
    if set(dict(module.named_parameters())) != {"weight"}:
        raise ValueError("a norm of another kind")
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return module.weight, float(eps)


def _layer(module: Any, attends: AttentionLayer, dtype: torch.dtype) -> FusedLayer:
    from transformers.activations import ACT2FN

    attention, mlp = module.self_attn, module.mlp
    parts = {name for name, _ in module.named_children()}
    qkv, gate_up = attention.q_proj, mlp.gate_proj
    outputs = (attention.o_proj, mlp.down_proj)
    is_common = (
        parts == {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
        and attends.module is attention
        and not attends.cap
        and type(mlp.act_fn) is type(ACT2FN["silu"])
        and len(getattr(qkv, "sizes", ())) == 3
        and len(getattr(gate_up, "sizes", ())) == 2
        and all(type(each) in LINEAR for each in outputs)
        and all(each.bias is None for each in (gate_up, *outputs))
    )
    if not is_common:
        raise ValueError("a layer of another kind")
    gains: dict[str, Any] = {}
    if hasattr(attention, "q_norm"):
        (query, eps), (key, _) = _norm(attention.q_norm), _norm(attention.k_norm)
        if query.shape != (attends.head_size,) or key.shape != (attends.head_size,):
            raise ValueError("norms of queries and keys of another kind")
        gains = {"query_gain": query, "key_gain": key, "head_eps": eps}
    return FusedLayer(
        attends,
        *_norm(module.input_layernorm),
        qkv.weight,
        qkv.bias,
        operand(attention.o_proj, dtype),
        *_norm(module.post_attention_layernorm),
        gate_up.weight,
        operand(mlp.down_proj, dtype),
        **gains,
        qkv_adapter=qkv.adapter,
        out_adapter=getattr(attention.o_proj, "adapter", None),
        gate_up_adapter=gate_up.adapter,
        down_adapter=getattr(mlp.down_proj, "adapter", None),
    )


def attend_fused(layer: FusedLayer, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`attend` with rotation: (R, (heads + 2 kv_heads) d) → (R, heads · d)."""
    shape, memory = layer.attention, layer.attention.memory
    assert memory is not None
    state = memory.state
    out: Tensor = kernels_for(qkv).attend(
        *layer.heads(qkv), memory.prompt_keys, memory.prompt_values, memory.own_keys,
        memory.own_values, state.slots, state.tiles, state.span, memory.arrived, shape.scale,
        shape.window, shape.cap, state.split, state.parted, layer.rotation(cos, sin),
    )  # fmt: skip
    return out.flatten(1)
