"""What a decoding step of the group engine computes: attention, the draw, and fused layers.

Attention and the draw are operators that torch.compile takes as a whole. On CUDA they are Triton
kernels (`kernels`), elsewhere plain functions that say what the kernel computes.

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
from bestofk.precision import float32_product
from bestofk.sampling.draw import draw
from bestofk.sampling.engine.operands import Adapter, Rotation, SlotField
from bestofk.sampling.engine.state import AttentionLayer
from bestofk.sampling.sampler import Sampling


@torch.library.custom_op(
    "bestofk::group_attend", mutates_args=("own_keys", "own_values", "arrived"), device_types=None
)
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prompt_keys: Tensor,
    prompt_values: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    slots: Tensor,
    tiles: Tensor,
    span: Tensor,
    arrived: Tensor,
    scale: float,
    window: int,
    cap: float,
    split: bool,
    parted: bool,
) -> Tensor:
    """Attention of one new token per slot to its prompt, its own earlier tokens and itself.

    Args:
        query: (R, heads, 1, d), of the sequence in slot r.
        key, value: (R, kv_heads, 1, d), stored in `own_*` at the sequence's next place.
        prompt_keys, prompt_values: (C, kv_heads, d), the prompts one after another.
        own_keys, own_values: flat, (S, kv_heads, T, d) with T in `span`.
        slots: (6, S), see `SlotField`.
        tiles: (S / TILED, 2 + rows): a prompt's start and length, then its sequences' slots or -1.
        arrived: (S, kv_heads), zeros before and after: programs of one slot count here.
        window: keys a token sees, itself included; 0 is all.
        cap: of the scores (cap · tanh(x / cap)); 0 is none.
        split: read each prompt once per tile, not once per sequence.
        parted: sequences may be long, so several programs read the keys of one.

    Returns:
        (R, 1, heads, d); zeros where the slot has ended.
    """
    operands = (query, key, value, prompt_keys, prompt_values, own_keys, own_values, slots)
    if query.is_cuda:
        from bestofk.sampling.engine import kernels

        return kernels.attend(*operands, tiles, span, arrived, scale, window, cap, split, parted)
    return attend_plain(*operands, span, scale, window, cap)


@attend.register_fake
def _(  # type: ignore[no-untyped-def]
    query, key, value, prompt_keys, prompt_values, own_keys, own_values, slots, tiles, span,
    arrived, scale, window, cap, split, parted,
) -> Tensor:  # fmt: skip
    rows, heads, _, size = query.shape
    return query.new_empty(rows, 1, heads, size)


@torch.autocast("cpu", enabled=False)  # float32 below means float32
def attend_plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prompt_keys: Tensor,
    prompt_values: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    slots: Tensor,
    span: Tensor,
    scale: float,
    window: int,
    cap: float,
) -> Tensor:
    """`attend`, slot by slot."""
    rows, heads, _, size = query.shape
    kv_heads, limit = key.shape[1], int(span)
    per_slot = kv_heads * limit * size
    keys, values = (
        store[: store.numel() // per_slot * per_slot].view(-1, kv_heads, limit, size)
        for store in (own_keys, own_values)
    )
    out = torch.zeros(rows, 1, heads, size, dtype=query.dtype, device=query.device)
    table = slots.tolist()
    for r in range(rows):
        if table[SlotField.ENDED][r]:
            continue
        t, start, length = (
            table[f][r]
            for f in (SlotField.GENERATED, SlotField.PROMPT_START, SlotField.PROMPT_LENGTH)
        )
        kv_slot = table[SlotField.KV_SLOT][r]
        keys[kv_slot, :, t], values[kv_slot, :, t] = key[r, :, 0], value[r, :, 0]
        prompt = slice(start, start + length)
        k = torch.cat([prompt_keys[prompt].transpose(0, 1), keys[kv_slot, :, : t + 1]], dim=1)
        v = torch.cat([prompt_values[prompt].transpose(0, 1), values[kv_slot, :, : t + 1]], dim=1)
        grouped = query[r, :, 0].view(kv_heads, heads // kv_heads, size).float()
        scores = grouped @ k.float().transpose(1, 2) * scale
        if cap:
            scores = cap * torch.tanh(scores / cap)
        if window:
            scores[:, :, : max(0, k.shape[1] - window)] = -torch.inf
        out[r, 0] = (scores.softmax(-1) @ v.float()).reshape(heads, size).to(query.dtype)
    return out


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


def sample(
    logits: Tensor,
    slots: Tensor,
    span: Tensor,
    uniform: Tensor,
    ends: Tensor,
    tokens: Tensor,
    positions: Tensor,
    out: Tensor,
    log_probs: Tensor,
    temperature: float,
) -> None:
    """Sample the next token of every slot that has not ended, and move the slot on.

    Args:
        logits: (R, V), tokens that cannot be drawn at -inf.
        uniform, out, log_probs: flat, (sequences, T): the numbers to draw with, and where to write.
            A number −1 − id forces the token id: it ends nothing, and its log-prob is 0.
        ends: token ids that end a sequence, -1 for none.
        tokens, positions: (S,), what the next step feeds, and at which position.
        temperature: 0 takes the likeliest token.
    """
    operands = (logits, slots, span, uniform, ends, tokens, positions, out, log_probs)
    if logits.is_cuda:
        from bestofk.sampling.engine import kernels

        kernels.sample(*operands, temperature)
    else:
        sample_plain(*operands, temperature)


def sample_plain(
    logits: Tensor,
    slots: Tensor,
    span: Tensor,
    uniform: Tensor,
    ends: Tensor,
    tokens: Tensor,
    positions: Tensor,
    out: Tensor,
    log_probs: Tensor,
    temperature: float,
) -> None:
    """`sample`, by the present sampler's own draw."""
    live = (slots[SlotField.ENDED, : len(logits)] == 0).nonzero()[:, 0]
    generated = slots[SlotField.GENERATED, live]
    here = slots[SlotField.SEQUENCE, live].long() * span + generated
    numbers = uniform[here].double()
    chosen, logp = draw(
        logits[live].float(), numbers.clamp(min=0), Sampling(temperature=temperature)
    )
    forced = numbers < 0
    chosen = torch.where(forced, (-1 - numbers).long(), chosen)
    out[here], log_probs[here] = chosen.to(out.dtype), logp.masked_fill(forced, 0.0)
    over = torch.isin(chosen, ends.long()) & ~forced | (generated + 1 >= span)
    slots[SlotField.GENERATED, live] = generated + 1
    slots[SlotField.ENDED, live] = over.to(slots.dtype)
    tokens[live] = chosen
    positions[live] = (
        slots[SlotField.PROMPT_LENGTH, live] + generated + (~over).to(generated.dtype)
    ).long()


def plus(out: Tensor, x: Tensor, adapter: Adapter | None) -> Tensor:
    """A product and what adapters add to it."""
    return out if adapter is None else out + F.linear(F.linear(x, adapter[0]), adapter[1])


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
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    second: Tensor
    second_eps: float
    gate_up: Tensor
    down: Tensor
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
        ops = PlainOps if exact else _ops(self.head)
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
        count, length = ids.shape
        positions = torch.arange(length, device=ids.device)

        def attend(layer: FusedLayer, qkv: Tensor) -> Tensor:
            query, key, value = (
                part.view(count, length, -1, layer.attention.head_size).transpose(1, 2)
                for part in layer.heads(qkv)
            )
            rotation, shape = layer.rotation(*angles), layer.attention
            query = rotation.rotated(query, positions, layer.query_gain)
            key = rotation.rotated(key, positions, layer.key_gain)
            assert shape.memory is not None
            shape.memory.store_prompts(*(x.transpose(1, 2).flatten(0, 1) for x in (key, value)))
            out = causal(query, key, value, shape.scale, shape.window, shape.cap)
            return out.transpose(1, 2).reshape(count * length, -1)

        self.hidden(ids.flatten(), attend)

    @torch.no_grad()
    def alike(self, plain: Callable[[Tensor], Tensor]) -> bool:
        """Whether it computes the model's own logits, on a few tokens; `plain` gives those of ids.

        Both are compared with these layers in float32. Two right passes in bfloat16 are about as
        far from that as each other, however deep the model is; a wrong one is farther.
        """
        count = 8
        ids = torch.arange(3, 3 + count, device=self.head.device) % self.head.shape[0]
        cos, sin = self.angles(count)
        if any(layer.attention.head_size != cos.shape[-1] for layer in self.layers):
            return False  # only a part of each head is rotated
        position = torch.arange(count, device=ids.device)

        def attend(layer: FusedLayer, qkv: Tensor) -> Tensor:
            rotation, shape = layer.rotation(cos, sin), layer.attention
            q, k, v = (part[:, :, 0].transpose(0, 1) for part in layer.heads(qkv))
            q = rotation.rotated(q, position, layer.query_gain)
            k = rotation.rotated(k, position, layer.key_gain)
            share = shape.heads // shape.kv_heads
            k, v = (part.repeat_interleave(share, 0) for part in (k, v))
            scores = (q.float() @ k.float().transpose(1, 2)) * shape.scale
            distance = position[:, None] - position
            hidden = (distance < 0) | (distance >= (shape.window or count))
            chances = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            return (chances @ v.float()).transpose(0, 1).flatten(1).to(qkv.dtype)

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
            _layer(each, attends)
            for each, attends in zip(decoder.layers, attention_layers, strict=True)
        ]
        last, eps = _norm(decoder.norm)
        return FusedModel(decoder.embed_tokens, layers, last, eps, head.weight, rotary)
    except (AttributeError, NotImplementedError, TypeError, ValueError, _Other):
        return None


class _Other(Exception):
    """A part is not of that kind."""


def _norm(module: Any) -> tuple[Tensor, float]:
    if set(dict(module.named_parameters())) != {"weight"}:
        raise _Other
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if eps is None:
        raise _Other
    return module.weight, float(eps)


def _layer(module: Any, attends: AttentionLayer) -> FusedLayer:
    attention, mlp = module.self_attn, module.mlp
    parts = {name for name, _ in module.named_children()}
    if parts != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        raise _Other
    if attends.module is not attention or attends.cap or type(mlp.act_fn) is not _silu():
        raise _Other
    qkv, gate_up = attention.q_proj, mlp.gate_proj
    for joined, count in ((qkv, 3), (gate_up, 2)):
        if len(getattr(joined, "sizes", ())) != count:
            raise _Other
    plain = (attention.o_proj, mlp.down_proj)
    if any(not _is_linear(each) or each.bias is not None for each in plain):
        raise _Other
    if gate_up.bias is not None:
        raise _Other
    gains: dict[str, Any] = {}
    if hasattr(attention, "q_norm"):
        (query, eps), (key, _) = _norm(attention.q_norm), _norm(attention.k_norm)
        if query.shape != (attends.head_size,) or key.shape != (attends.head_size,):
            raise _Other
        gains = {"query_gain": query, "key_gain": key, "head_eps": eps}
    return FusedLayer(
        attends,
        *_norm(module.input_layernorm),
        qkv.weight,
        qkv.bias,
        attention.o_proj.weight,
        *_norm(module.post_attention_layernorm),
        gate_up.weight,
        mlp.down_proj.weight,
        **gains,
        qkv_adapter=qkv.adapter,
        out_adapter=getattr(attention.o_proj, "adapter", None),
        gate_up_adapter=gate_up.adapter,
        down_adapter=getattr(mlp.down_proj, "adapter", None),
    )


def _is_linear(module: Any) -> bool:
    return type(module) is nn.Linear or hasattr(module, "adapter")


def _silu() -> type:
    from transformers.activations import ACT2FN

    return type(ACT2FN["silu"])


def attend_fused(layer: FusedLayer, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`attend` with rotation: (R, (heads + 2 kv_heads) d) → (R, heads · d)."""
    shape, rotation = layer.attention, layer.rotation(cos, sin)
    memory = shape.memory
    assert memory is not None
    state, slots = memory.state, memory.state.slots
    query, key, value = layer.heads(qkv)
    stores = (memory.prompt_keys, memory.prompt_values, memory.own_keys, memory.own_values)
    settings = (shape.scale, shape.window, shape.cap)
    if qkv.is_cuda:
        from bestofk.sampling.engine import kernels

        out = kernels.attend(
            query, key, value, *stores, slots, state.tiles, state.span, memory.arrived, *settings,
            state.split, state.parted, rotation,
        )  # fmt: skip
        return out.flatten(1)
    position = slots[[SlotField.PROMPT_LENGTH, SlotField.GENERATED], : len(qkv)].sum(0)[:, None]
    position = position.long().clamp(max=len(cos) - 1)  # of slots that have ended
    query = rotation.rotated(query, position, layer.query_gain)
    key = rotation.rotated(key, position, layer.key_gain)
    return attend_plain(query, key, value, *stores, slots, state.span, *settings).flatten(1)


class PlainOps:
    """The kernels of `kernels`, in PyTorch."""

    @staticmethod
    def norm(
        x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, dtype: torch.dtype
    ) -> Tensor:
        """x / rms(x) · gain in `dtype`, after delta was added to x."""
        if delta is not None:
            x += delta
        z = x if x.dtype == torch.float64 else x.float()
        normed = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps) * gain.to(z.dtype)
        return normed.to(dtype)

    @staticmethod
    def normed_linear(
        x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, weight: Tensor,
        bias: Tensor | None, adapter: Adapter | None = None,
    ) -> Tensor:  # fmt: skip
        normed = PlainOps.norm(x, delta, gain, eps, weight.dtype)
        return plus(F.linear(normed, weight, bias), normed, adapter)

    @staticmethod
    def gated(
        x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, weight: Tensor,
        adapter: Adapter | None = None,
    ) -> Tensor:  # fmt: skip
        both = PlainOps.normed_linear(x, delta, gain, eps, weight, None, adapter)
        gate, up = both.chunk(2, -1)
        return F.silu(gate) * up

    @staticmethod
    def add_linear(
        x: Tensor, weight: Tensor, into: Tensor, adapter: Adapter | None = None
    ) -> Tensor | None:
        """What is to be added to `into`, which some kernels do at once."""
        return plus(F.linear(x, weight), x, adapter)


def _ops(weight: Tensor) -> Any:
    if not weight.is_cuda:
        return PlainOps
    from bestofk.sampling.engine import kernels

    return kernels
