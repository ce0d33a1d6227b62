"""The policy as the group engine runs it: its own modules again, with attention replaced.

Weights are the policy's own tensors where their dtype is the one to sample in. Otherwise they are
cast, all together, once per call. Products of one input (queries, keys and values; gate and up) are
then one product.

In bfloat16 everything is rounded where the learner rounds it under autocast. Products are of
bfloat16, gains of norms and the sum that layers add to keep the policy's dtype, logits are float32.

LoRA adapters are low-rank products of their own beside those of the frozen weights, which are the
policy's tensors (in FP8 too): nothing is held twice, and a small change is not lost in the rounding
of a sum.
Adapters of other kinds are added into a copy of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from bestofk.fp8 import E4M3
from bestofk.model_facts import adapted_modules, base_model, decoder_layers, merged
from bestofk.sampling.engine.attention_interface import BACKEND, CannotRun, engine_attention
from bestofk.sampling.engine.layers import FusedModel, fused_model
from bestofk.sampling.engine.linear_layers import (
    LINEAR,
    AdaptedLinear,
    Float32Head,
    is_packed,
    join_products,
    plain_linear,
)
from bestofk.sampling.engine.state import AttentionLayer
from bestofk.sampling.weights import LowRank, low_rank

AT_ONCE = 64
"""Tensors cast by one call: bounds what adapters need in between."""


def _residual_dtype(base: Any, dtype: torch.dtype) -> torch.dtype:
    """What the learner's layers add to has the embedding's dtype, and that of weights at least."""
    embedding = base.get_input_embeddings().weight.dtype
    return torch.promote_types(embedding, dtype) if embedding.is_floating_point else dtype


class EngineModel:
    """The policy's modules with weights shared or cast, and its attention layers."""

    def __init__(self, model: Any, dtype: torch.dtype, *, copied: bool = False) -> None:
        """
        Args:
            model: the policy, LoRA adapters included, with all of its weights.
            copied: copy the weights whatever their dtype: the policy's tensors do not stay.

        Raises:
            CannotRun: with the reason.
        """
        base = base_model(model)
        _check(base)
        self.dtype = dtype
        adapted = adapted_modules(base)
        if any(getattr(module, "lora_variant", None) for module in adapted.values()):
            raise CannotRun("its adapters are DoRA or another variant of LoRA")
        adapters = {name: low_rank(module) for name, module in adapted.items()}
        self.merging = None in adapters.values()
        """Whether adapters are added into the weights, being of a kind that is not a product."""
        weights = _weights_below(base, adapters)
        kinds = {p.dtype for p in weights}
        if E4M3 in kinds and (copied or self.merging):
            raise CannotRun("its weights are in FP8, and not all adapters are products beside them")
        self.copies = copied or self.merging or kinds - {E4M3} != {dtype}
        """Whether the weights are a copy, to be refreshed."""
        self.reloads = copied or self.merging or any(p.requires_grad for p in weights)
        """Whether that copy is to be made anew for each call: frozen weights are copied once."""
        self.loads = 0
        ranks = {
            name: sum(len(one.down) for one in parts or ()) for name, parts in adapters.items()
        }
        self.model = _copied(base, dtype, self.copies, {} if self.merging else ranks)
        residual = torch.float32 if E4M3 in kinds else _residual_dtype(base, dtype)
        self.model.get_input_embeddings().register_forward_hook(
            lambda module, args, out: out.to(residual)
        )
        self.weights = dict(self.model.named_parameters())
        self.shared_names = {name for name, p in self.weights.items() if p.dtype == E4M3}
        """Names of the policy's tensors that need no copy although the others do."""
        if self.copies and not copied and not self.merging:
            self._share_embedding(base)
        self.adapters = {
            name: module.adapter
            for name, module in self.model.named_modules()
            if isinstance(module, AdaptedLinear)
        }
        self.model.eval()  # its modules are its own; shared weights stay as the learner has them
        AttentionInterface.register(BACKEND, engine_attention)
        AttentionMaskInterface.register(BACKEND, lambda *args, **kwargs: None)
        self.plain_backend = self.model.config._attn_implementation
        if str(self.plain_backend).startswith("bestofk"):
            self.plain_backend = "sdpa"
        self.load_weights(model)
        self.attention_layers = self._find_attention()
        inside = {id(layer.module) for layer in self.attention_layers}
        self.decoder_layers = [
            layer
            for layer in decoder_layers(self.model)
            if inside & {id(module) for module in layer.modules()}
        ]
        self.fused_model: FusedModel | None = None
        """The same weights as fused layers, if the model is of that kind."""
        if self.joins_products:
            candidate = fused_model(self.model, self.attention_layers)
            if candidate is not None and candidate.alike(self._plain_logits):
                self.fused_model = candidate

    @property
    def joins_products(self) -> bool:
        """Whether products may be joined: the weights are a copy, or frozen below adapters."""
        return self.copies or bool(self.adapters)

    @torch.no_grad()
    def load_weights(self, model: Any) -> None:
        """Take the policy's present weights, in one go; those that are shared are there already."""
        base = base_model(model)
        if self.copies and (self.reloads or not self.loads):
            self._copy(merged(base, adapters=self.merging))
        if not self.merging:
            for name, adapter in adapted_modules(base).items():
                self._load_adapter(name, low_rank(adapter) or [])
        self.loads += 1

    def _share_embedding(self, base: Any) -> None:
        """Look embeddings up in the policy's own tensor, as the learner does, not in its cast."""
        embedding, theirs = self.model.get_input_embeddings(), base.get_input_embeddings()
        if type(embedding) is type(theirs):
            cast, embedding.weight = embedding.weight, theirs.weight
            if all(cast is not weight for weight in self.model.parameters()):  # no head's either
                self.weights = {n: w for n, w in self.weights.items() if w is not cast}
                self.shared_names |= {n for n, w in base.named_parameters() if w is theirs.weight}

    def _copy(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        targets: list[Tensor] = []
        new: list[Tensor] = []
        for name, tensor in weights:
            if name in self.shared_names:
                continue
            if name not in self.weights:
                raise CannotRun(f"its weight {name} is adapted in a way that cannot be merged")
            targets.append(self.weights[name])
            new.append(tensor)
            if len(new) >= AT_ONCE:
                torch._foreach_copy_(targets, new)
                targets, new = [], []
        if new:
            torch._foreach_copy_(targets, new)

    def _load_adapter(self, name: str, parts: list[LowRank]) -> None:
        """The present adapters of a layer, its scale in the second matrix."""
        rank = sum(len(one.down) for one in parts)
        if rank != (len(self.adapters[name][0]) if name in self.adapters else 0):
            raise CannotRun(f"the adapters of {name} are others than at the first call")
        if parts:
            down, up = self.adapters[name]
            down.copy_(torch.cat([one.down for one in parts]))
            up.copy_(torch.cat([one.up.float() * one.scale for one in parts], dim=1))

    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return (
            sum(2 * each.kv_heads * each.head_size for each in self.attention_layers)
            * self.dtype.itemsize
        )

    def held_bytes(self, model: nn.Module) -> float:
        """Bytes of the policy's weights, and of the copy that is sampled from."""
        copied = self.weights.values() if self.copies else ()
        return float(
            sum(p.numel() * p.element_size() for each in (model.parameters(), copied) for p in each)
        )

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits (R, V) after the last of ids (R, L)."""
        with self._autocast():
            out = self.model(
                input_ids=ids, position_ids=positions, use_cache=False, attention_mask=None,
                logits_to_keep=1,
            )  # fmt: skip
        return out.logits[:, -1]

    def _plain_logits(self, ids: Tensor) -> Tensor:
        with self.plain_attention():
            logits: Tensor = self.model(input_ids=ids[None], use_cache=False).logits[0]
        return logits

    def _autocast(self) -> torch.autocast:
        """For modules of transformers, as in the learner."""
        device = next(self.model.parameters()).device.type
        reduced = self.dtype != torch.float32
        return torch.autocast(device, self.dtype, enabled=reduced, cache_enabled=False)

    @contextmanager
    def plain_attention(self) -> Iterator[None]:
        """With the attention the policy came with, and rounded as the learner rounds."""
        config = self.model.config.get_text_config()
        before = config._attn_implementation
        self._set_backend(self.plain_backend)
        try:
            with self._autocast():
                yield
        finally:
            self._set_backend(before)

    def _set_backend(self, name: str) -> None:
        for config in {
            id(m.config): m.config for m in self.model.modules() if hasattr(m, "config")
        }.values():
            config._attn_implementation = name

    @torch.no_grad()
    def _find_attention(self) -> list[AttentionLayer]:
        """Run two tokens through the model and note where and how it attends."""
        self._set_backend(BACKEND)
        calls: list[tuple[nn.Module, int]] = []
        hooks = [
            module.register_forward_pre_hook(lambda m, args: calls.append((m, id(args[0]))))
            for module in self.model.modules()
            if type(module) in LINEAR
        ]
        device = next(self.model.parameters()).device
        ids = torch.tensor([[0, 1]], device=device)
        try:
            self.forward(ids, torch.arange(2, device=device)[None])
        except (TypeError, NotImplementedError, AttributeError) as error:
            raise CannotRun(f"its forward pass raised {type(error).__name__}: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()
        noted = [getattr(module, "engine_layer", None) for module in self.model.modules()]
        attention = [layer for layer in noted if layer is not None]
        layers = getattr(self.model.config.get_text_config(), "num_hidden_layers", len(attention))
        if not attention or len(attention) != layers:
            raise CannotRun(f"{len(attention)} of its {layers} layers use the attention interface")
        if self.joins_products:
            join_products(self.model, calls, self.dtype)
        return attention


def _check(base: Any) -> None:
    if not getattr(base, "_supports_attention_backend", False):
        raise CannotRun(f"{type(base).__name__} does not use transformers' attention interface")
    kinds = set(getattr(base.config.get_text_config(), "layer_types", None) or ["full_attention"])
    unsupported = kinds - {"full_attention", "sliding_attention"}
    if unsupported:
        raise CannotRun(f"it has layers of the kind {', '.join(sorted(unsupported))}")


def _weights_below(base: Any, adapted: Any) -> list[nn.Parameter]:
    """The weights that are not of an adapter."""
    return [
        p
        for name, p in base.named_parameters()
        if not any(name.startswith(f"{each}.") for each in adapted) or ".base_layer." in name
    ]


def _copied(base: Any, dtype: torch.dtype, new: bool, ranks: dict[str, int]) -> Any:
    """The module tree again; parameters shared, or new ones of the given dtype (not those in FP8).

    Args:
        ranks: of the layers whose adapters are products of their own.
    """
    memo: dict[int, Any] = {}
    biases = {id(m.bias) for m in base.modules() if isinstance(m, nn.Linear)}
    for p in base.parameters():
        shape = p.quant_state.shape if hasattr(p, "quant_state") else p.shape
        kind = dtype if p.is_floating_point() or hasattr(p, "quant_state") else p.dtype
        if p.dim() < 2 and id(p) not in biases and p.is_floating_point():
            kind = torch.promote_types(dtype, p.dtype)  # gains of norms
        if not new or p.dtype == E4M3:
            memo[id(p)] = p
        else:
            fresh = torch.empty(shape, dtype=kind, device=p.device)
            memo[id(p)] = nn.Parameter(fresh, requires_grad=False)
    copied = copy.deepcopy(base, memo)
    for at, parent in list(copied.named_modules()):
        for name, child in list(parent.named_children()):
            place = f"{at}.{name}" if at else name
            inner = getattr(child, "base_layer", child)
            if ranks.get(place):
                setattr(parent, name, AdaptedLinear(inner, ranks[place], dtype))
            elif inner is not child or is_packed(inner):
                setattr(parent, name, plain_linear(inner) if is_packed(inner) else inner)
    head = copied.get_output_embeddings()
    if type(head) is nn.Linear:
        copied.set_output_embeddings(Float32Head(head))
    return copied
