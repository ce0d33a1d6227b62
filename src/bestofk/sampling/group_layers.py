"""Layers of the usual kind with fewer kernels: RMSNorm, rotary attention, RMSNorm, gated SiLU.

Llama, Qwen2, Qwen3, SmolLM and Mistral have such layers. A model is taken for one of them by its
parts and by its numbers: on a few tokens, logits by these layers must be those of its own forward
pass. A model that fails is run by its own modules, as all others are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bestofk.sampling.group_fields import Field, Rotation
from bestofk.sampling.group_ops import attend_plain

ALIKE = {torch.float32: 1e-4, torch.bfloat16: 0.04}
"""Largest ‖difference‖ / ‖logits‖ to the model's own forward pass."""
FIXED = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary positions whose angles do not depend on a sequence's length."""


@dataclass(eq=False)
class UsualLayer:
    """The weights of one layer."""

    site: Any
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

    def rotation(self, cos: Tensor, sin: Tensor) -> Rotation:
        return Rotation(cos, sin, self.query_gain, self.key_gain, self.head_eps)

    def heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(R, (heads + 2 shared) d) → query, key and value (R, heads, 1, d), as views."""
        site = self.site
        sizes = [site.heads, site.shared, site.shared]
        parts = qkv.view(len(qkv), sum(sizes), 1, site.size).split(sizes, 1)
        return parts[0], parts[1], parts[2]


@dataclass(eq=False)
class UsualModel:
    """A model of such layers, between its embedding and its head."""

    embedding: nn.Module
    layers: list[UsualLayer]
    last: Tensor
    last_eps: float
    head: Tensor
    rotary: nn.Module

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin (length, d) of all places."""
        device = self.head.device
        cos, sin = self.rotary(self.head, torch.arange(length, device=device)[None])
        return cos[0].contiguous(), sin[0].contiguous()

    def forward(self, ids: Tensor, attend: Callable[[UsualLayer, Tensor], Tensor]) -> Tensor:
        """Logits (R, V) of ids (R,), attention given: (layer, qkv) → (R, heads · d)."""
        ops = _ops(self.head)
        x = self.embedding(ids)
        for layer in self.layers:
            qkv = ops.normed_linear(x, layer.first, layer.first_eps, layer.qkv, layer.qkv_bias)
            x = ops.add_linear(attend(layer, qkv), layer.out, x)
            inner = ops.gated(x, layer.second, layer.second_eps, layer.gate_up)
            x = ops.add_linear(inner, layer.down, x)
        return F.linear(ops.norm(x, self.last, self.last_eps), self.head)

    @torch.no_grad()
    def alike(self, model: Any, dtype: torch.dtype) -> bool:
        """Whether it computes the model's own logits, on a few tokens."""
        count = 8
        ids = torch.arange(3, 3 + count, device=self.head.device) % self.head.shape[0]
        cos, sin = self.angles(count)
        if any(layer.site.size != cos.shape[-1] for layer in self.layers):
            return False  # only a part of each head is rotated
        place = torch.arange(count, device=ids.device)

        def attend(layer: UsualLayer, qkv: Tensor) -> Tensor:
            rotation, site = layer.rotation(cos, sin), layer.site
            q, k, v = (part[:, :, 0].transpose(0, 1) for part in layer.heads(qkv))
            q = rotation.turned(q, place, layer.query_gain)
            k = rotation.turned(k, place, layer.key_gain)
            share = site.heads // site.shared
            k, v = (part.repeat_interleave(share, 0) for part in (k, v))
            scores = (q.float() @ k.float().transpose(1, 2)) * site.scale
            distance = place[:, None] - place
            hidden = (distance < 0) | (distance >= (site.window or count))
            chances = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            return (chances @ v.float()).transpose(0, 1).flatten(1).to(qkv.dtype)

        logits = self.forward(ids, attend).float()
        expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
        gap = float((logits - expected).norm() / expected.norm().clamp_min(1e-12))
        return gap <= ALIKE[dtype]


def usual(model: Any, sites: list[Any]) -> UsualModel | None:
    """The model's weights as such layers, or None where its parts are others.

    Its products of one input must have been joined; `UsualModel.alike` is still to be asked.
    """
    try:
        decoder = model.get_decoder()
        rotary = decoder.rotary_emb
        head = model.get_output_embeddings()
        if getattr(rotary, "rope_type", "default") not in FIXED or head.bias is not None:
            return None
        layers = [_layer(each, site) for each, site in zip(decoder.layers, sites, strict=True)]
        last, eps = _norm(decoder.norm)
        return UsualModel(decoder.embed_tokens, layers, last, eps, head.weight, rotary)
    except (AttributeError, NotImplementedError, TypeError, ValueError, _Other):
        return None


class _Other(Exception):
    """A part is not of the usual kind."""


def _norm(module: Any) -> tuple[Tensor, float]:
    if set(dict(module.named_parameters())) != {"weight"}:
        raise _Other
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if eps is None:
        raise _Other
    return module.weight, float(eps)


def _layer(module: Any, site: Any) -> UsualLayer:
    attention, mlp = module.self_attn, module.mlp
    parts = {name for name, _ in module.named_children()}
    if parts != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        raise _Other
    if site.module is not attention or site.cap or type(mlp.act_fn) is not _silu():
        raise _Other
    qkv, gate_up = attention.q_proj, mlp.gate_proj
    for joined, count in ((qkv, 3), (gate_up, 2)):
        if len(getattr(joined, "sizes", ())) != count:
            raise _Other
    plain = (attention.o_proj, mlp.down_proj)
    if any(type(each) is not nn.Linear or each.bias is not None for each in plain):
        raise _Other
    if gate_up.bias is not None:
        raise _Other
    gains: dict[str, Any] = {}
    if hasattr(attention, "q_norm"):
        (query, eps), (key, _) = _norm(attention.q_norm), _norm(attention.k_norm)
        if query.shape != (site.size,) or key.shape != (site.size,):
            raise _Other
        gains = {"query_gain": query, "key_gain": key, "head_eps": eps}
    return UsualLayer(
        site,
        *_norm(module.input_layernorm),
        qkv.weight,
        qkv.bias,
        attention.o_proj.weight,
        *_norm(module.post_attention_layernorm),
        gate_up.weight,
        mlp.down_proj.weight,
        **gains,
    )


def _silu() -> type:
    from transformers.activations import ACT2FN

    return type(ACT2FN["silu"])


def attend_usual(
    layer: UsualLayer, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, tiles: Tensor,
    span: Tensor, split: bool,
) -> Tensor:  # fmt: skip
    """`group_ops.attend` with rotation: (R, (heads + 2 shared) d) → (R, heads · d)."""
    site, rotation = layer.site, layer.rotation(cos, sin)
    module = site.module
    query, key, value = layer.heads(qkv)
    store = (module.engine_pk, module.engine_pv, module.engine_ok, module.engine_ov, slots)
    settings = (site.scale, site.window, site.cap)
    if qkv.is_cuda:
        from bestofk.sampling import group_kernels

        out = group_kernels.attend(
            query, key, value, *store, tiles, span, *settings, split, rotation
        )
        return out.flatten(1)
    place = (slots[Field.LENGTH, : len(qkv)] + slots[Field.DRAWN, : len(qkv)]).long()[:, None]
    place = place.clamp(max=len(cos) - 1)  # of slots that have ended
    query = rotation.turned(query, place, layer.query_gain)
    key = rotation.turned(key, place, layer.key_gain)
    return attend_plain(query, key, value, *store, span, *settings).flatten(1)


class PlainOps:
    """The kernels of `group_linear`, in PyTorch."""

    @staticmethod
    def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
        z = x.float()
        return (z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps) * gain.float()).to(x.dtype)

    @staticmethod
    def normed_linear(
        x: Tensor, gain: Tensor, eps: float, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        return F.linear(PlainOps.norm(x, gain, eps), weight, bias)

    @staticmethod
    def gated(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
        gate, up = F.linear(PlainOps.norm(x, gain, eps), weight).chunk(2, -1)
        return F.silu(gate) * up

    @staticmethod
    def add_linear(x: Tensor, weight: Tensor, into: Tensor) -> Tensor:
        return into + F.linear(x, weight)


def _ops(weight: Tensor) -> Any:
    if not weight.is_cuda:
        return PlainOps
    from bestofk.sampling import group_linear

    return group_linear
