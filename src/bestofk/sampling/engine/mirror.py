"""The policy as the group engine runs it: its own modules again, with attention replaced.

Weights are the policy's own tensors where their dtype is the one to sample in. Otherwise they are
cast, all together, once per call. Products of one input (queries, keys and values; gate and up) are
then one product.

In bfloat16 everything is rounded where the learner rounds it under autocast. Products are of
bfloat16, gains of norms and the sum that layers add to keep the policy's dtype, logits are float32.

LoRA adapters are low-rank products of their own beside those of the frozen weights, which are the
policy's tensors: nothing is held twice, and a small change is not lost in the rounding of a sum.
Adapters of other kinds are added into a copy of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from bestofk.model_facts import base_model
from bestofk.precision import float32_product
from bestofk.sampling.engine.layers import FusedModel, attend, causal, fused_model, plus
from bestofk.sampling.engine.operands import Adapter
from bestofk.sampling.weights import LowRank, adapted_modules, low_rank, merged

BACKEND = "bestofk_engine"
PLAIN = {
    "dropout", "scaling", "position_ids", "use_cache", "is_causal", "cache_position",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict",
}  # fmt: skip
"""Keyword arguments of attention that ask for nothing special."""
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear layers that are applied to one input, in this order."""
_NONE = torch.empty(0)
AT_ONCE = 64
"""Tensors cast by one call: bounds what adapters need in between."""


class CannotRun(Exception):
    """Why the group engine does not run a model."""


@dataclass(eq=False)
class Site:
    """One place where the model attends, and the keys and values kept for it."""

    module: nn.Module
    heads: int
    shared: int
    size: int
    scale: float
    window: int = 0
    cap: float = 0.0


class Mirror:
    """The policy's modules with weights shared or cast, and its attention sites."""

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype,
        *,
        copied: bool = False,
        fused: bool = True,
    ) -> None:
        """
        Args:
            model: the policy, LoRA adapters included, with all of its weights.
            copied: copy the weights whatever their dtype: the policy's tensors do not stay.
            fused: run the common kind of layer by kernels of ours (`layers`).

        Raises:
            CannotRun: with the reason.
        """
        base = base_model(model)
        _check(base)
        self.dtype = dtype
        adapted = adapted_modules(base)
        if any(getattr(module, "lora_variant", None) for module in adapted.values()):
            raise CannotRun("its adapters are DoRA or another variant of LoRA")
        found = {name: low_rank(module) for name, module in adapted.items()}
        self.merging = None in found.values()
        """Whether adapters are added into the weights, being of a kind that is not a product."""
        held = _below(base, found)
        self.own = copied or self.merging or {p.dtype for p in held} != {dtype}
        """Whether the weights are a copy, to be refreshed."""
        self.changing = copied or self.merging or any(p.requires_grad for p in held)
        """Whether that copy is to be made anew for each call: frozen weights are copied once."""
        self.casts = 0
        self.shared: set[str] = set()
        """Names of the policy's tensors that need no copy although the others do."""
        ranks = {name: sum(len(one.down) for one in parts or ()) for name, parts in found.items()}
        self.model = _copied(base, dtype, self.own, {} if self.merging else ranks)
        _keep_residual(self.model, _residual(base, dtype))
        self.weights = dict(self.model.named_parameters())
        if self.own and not copied and not self.merging:
            self._share_embedding(base)
        self.low_rank = {
            name: module.adapter
            for name, module in self.model.named_modules()
            if isinstance(module, AdaptedLinear)
        }
        self.model.eval()  # its modules are its own; shared weights stay as the learner has them
        AttentionInterface.register(BACKEND, engine_attention)
        AttentionMaskInterface.register(BACKEND, lambda *args, **kwargs: None)
        self.plain = self.model.config._attn_implementation
        if str(self.plain).startswith("bestofk"):
            self.plain = "sdpa"
        self.refresh(model)
        self.sites = self._look()
        names = set(getattr(base, "_no_split_modules", None) or ())
        inside = {id(m) for s in self.sites for m in [s.module]}
        self.layers = [
            module
            for module in self.model.modules()
            if type(module).__name__ in names and inside & {id(m) for m in module.modules()}
        ]
        self.fused_model: FusedModel | None = None
        """The same weights as fused layers, if the model is of that kind."""
        candidate = fused_model(self.model, self.sites) if fused and self.joins else None
        if candidate is not None and candidate.alike(self._plain_logits):
            self.fused_model = candidate

    @property
    def joins(self) -> bool:
        """Whether products may be joined: the weights are a copy, or frozen below adapters."""
        return self.own or bool(self.low_rank)

    @torch.no_grad()
    def refresh(self, model: Any) -> None:
        """Take the policy's present weights, in one go; those that are shared are there already."""
        base = base_model(model)
        if self.own and (self.changing or not self.casts):
            self._take(merged(base, adapters=self.merging))
        if not self.merging:
            for name, adapter in adapted_modules(base).items():
                self._adapt(name, low_rank(adapter) or [])
        self.casts += 1

    def _share_embedding(self, base: Any) -> None:
        """Look embeddings up in the policy's own tensor, as the learner does, not in its cast."""
        embedding, theirs = self.model.get_input_embeddings(), base.get_input_embeddings()
        if type(embedding) is type(theirs):
            cast, embedding.weight = embedding.weight, theirs.weight
            if all(cast is not weight for weight in self.model.parameters()):  # no head's either
                self.weights = {n: w for n, w in self.weights.items() if w is not cast}
                self.shared = {n for n, w in base.named_parameters() if w is theirs.weight}

    def _take(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        into: list[Tensor] = []
        new: list[Tensor] = []
        for name, tensor in weights:
            if name in self.shared:
                continue
            if name not in self.weights:
                raise CannotRun(f"its weight {name} is adapted in a way that cannot be merged")
            into.append(self.weights[name])
            new.append(tensor)
            if len(new) >= AT_ONCE:
                torch._foreach_copy_(into, new)
                into, new = [], []
        if new:
            torch._foreach_copy_(into, new)

    def _adapt(self, name: str, parts: list[LowRank]) -> None:
        """The present adapters of a layer, its scale in the second matrix."""
        down, up = self.low_rank.get(name, (_NONE, _NONE))
        if len(down) != sum(len(one.down) for one in parts):
            raise CannotRun(f"the adapters of {name} are others than at the first call")
        if parts:
            down.copy_(torch.cat([one.down for one in parts]))
            up.copy_(torch.cat([one.up.float() * one.scale for one in parts], dim=1))

    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return sum(2 * s.shared * s.size for s in self.sites) * self.dtype.itemsize

    def held_bytes(self, model: nn.Module) -> float:
        """Bytes of the policy's weights, and of the copy that is sampled from."""
        copied = self.weights.values() if self.own else ()
        return float(
            sum(p.numel() * p.element_size() for each in (model.parameters(), copied) for p in each)
        )

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        """Logits (R, V) after the last of ids (R, L)."""
        with self._autocast():
            out = self.model(
                input_ids=ids, position_ids=places, use_cache=False, attention_mask=None,
                logits_to_keep=1,
            )  # fmt: skip
        return out.logits[:, -1]

    def _plain_logits(self, ids: Tensor) -> Tensor:
        with self.as_before():
            logits: Tensor = self.model(input_ids=ids[None], use_cache=False).logits[0]
        return logits

    def _autocast(self) -> torch.autocast:
        """For modules of transformers, as in the learner."""
        device = next(self.model.parameters()).device.type
        reduced = self.dtype != torch.float32
        return torch.autocast(device, self.dtype, enabled=reduced, cache_enabled=False)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """With the attention the policy came with, and rounded as the learner rounds."""
        config = self.model.config.get_text_config()
        before = config._attn_implementation
        self._set(self.plain)
        try:
            with self._autocast():
                yield
        finally:
            self._set(before)

    def _set(self, name: str) -> None:
        for config in {
            id(m.config): m.config for m in self.model.modules() if hasattr(m, "config")
        }.values():
            config._attn_implementation = name

    @torch.no_grad()
    def _look(self) -> list[Site]:
        """Run two tokens through the model and note where and how it attends."""
        self._set(BACKEND)
        seen: list[Site] = []
        calls: list[tuple[nn.Module, int]] = []
        hooks = [
            module.register_forward_pre_hook(lambda m, args: calls.append((m, id(args[0]))))
            for module in self.model.modules()
            if type(module) in LINEAR
        ]
        for module in self.model.modules():
            module.engine_look = seen
        device = next(self.model.parameters()).device
        ids = torch.tensor([[0, 1]], device=device)
        try:
            self.forward(ids, torch.arange(2, device=device)[None])
        except (TypeError, NotImplementedError, AttributeError) as error:
            raise CannotRun(f"its forward pass raised {type(error).__name__}: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()
            for module in self.model.modules():
                del module.engine_look
        layers = getattr(self.model.config.get_text_config(), "num_hidden_layers", len(seen))
        if not seen or len({id(site.module) for site in seen}) != layers:
            raise CannotRun(f"{len(seen)} of its {layers} layers use the attention interface")
        if self.joins:
            _join_products(self.model, calls)
        return seen


def _check(base: Any) -> None:
    config = base.config
    if getattr(config, "is_encoder_decoder", False):
        raise CannotRun("it is an encoder-decoder model")
    if not getattr(base, "_supports_attention_backend", False):
        raise CannotRun(f"{type(base).__name__} does not use transformers' attention interface")
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ["full_attention"])
    strange = kinds - {"full_attention", "sliding_attention"}
    if strange:
        raise CannotRun(f"it has layers of the kind {', '.join(sorted(strange))}")


def _below(base: Any, adapted: Any) -> list[nn.Parameter]:
    """The weights that are not of an adapter."""
    return [
        p
        for name, p in base.named_parameters()
        if not any(name.startswith(f"{each}.") for each in adapted) or ".base_layer." in name
    ]


def _copied(base: Any, dtype: torch.dtype, own: bool, ranks: dict[str, int]) -> Any:
    """The module tree again; parameters shared, or new ones of the given dtype.

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
        fresh = torch.empty(shape, dtype=kind, device=p.device) if own else p
        memo[id(p)] = nn.Parameter(fresh, requires_grad=False) if own else p
    copied = copy.deepcopy(base, memo)
    for at, parent in list(copied.named_modules()):
        for name, child in list(parent.named_children()):
            place = f"{at}.{name}" if at else name
            inner = getattr(child, "base_layer", child)
            if ranks.get(place):
                setattr(parent, name, AdaptedLinear(inner, ranks[place], dtype))
            elif inner is not child or _packed(inner):
                setattr(parent, name, _linear(inner) if _packed(inner) else inner)
    head = copied.get_output_embeddings()
    if type(head) is nn.Linear:
        copied.set_output_embeddings(Head(head))
    return copied


def _residual(base: Any, dtype: torch.dtype) -> torch.dtype:
    """What the learner's layers add to: the embedding's dtype, and that of the weights at least."""
    weight = base.get_input_embeddings().weight
    kind = weight.dtype if weight.is_floating_point() else dtype
    return torch.promote_types(kind, dtype)


def _keep_residual(model: Any, dtype: torch.dtype) -> None:
    model.get_input_embeddings().register_forward_hook(lambda module, args, out: out.to(dtype))


def _packed(module: nn.Module) -> bool:
    """Whether it is a linear layer of bitsandbytes, whose weight is not one of numbers."""
    return isinstance(module, nn.Linear) and type(module).__module__.startswith("bitsandbytes")


def _linear(given: Any) -> nn.Linear:
    """A plain linear layer with the tensors of another."""
    linear = nn.Linear(given.in_features, given.out_features, device="meta")
    linear.weight, linear.bias = given.weight, given.bias
    return linear


class AdaptedLinear(nn.Module):
    """A linear layer and its adapters, as products beside its own."""

    def __init__(self, linear: Any, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        like: dict[str, Any] = {"dtype": dtype, "device": self.weight.device}
        self.adapter: Adapter = (
            torch.zeros(rank, self.in_features, **like),
            torch.zeros(self.out_features, rank, **like),
        )

    def forward(self, x: Tensor) -> Tensor:
        return plus(F.linear(x, self.weight, self.bias), x, self.adapter)


class Head(nn.Module):
    """A linear layer whose output is float32."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            rows = x.to(self.weight.dtype).flatten(0, -2)
            logits = float32_product(rows, self.weight).unflatten(0, x.shape[:-1])
        return logits if self.bias is None else logits + self.bias.float()


LINEAR = (nn.Linear, AdaptedLinear)


class Joined(nn.Module):
    """One of several linear layers of the same input: the first computes the product of all."""

    def __init__(self, joined: tuple[Tensor, Tensor | None], adapter: Adapter | None,
                 box: list[Any], sizes: list[int], part: int) -> None:  # fmt: skip
        super().__init__()
        self.weight, self.bias = joined
        self.adapter, self.box, self.sizes, self.part = adapter, box, sizes, part

    def forward(self, x: Tensor) -> Tensor:
        if self.part == 0:
            whole = plus(F.linear(x, self.weight, self.bias), x, self.adapter)
            self.box[0] = whole.split(self.sizes, -1)
        mine: Tensor = self.box[0][self.part]
        if self.part == len(self.sizes) - 1:
            self.box[0] = None
        return mine


def _join_products(model: nn.Module, calls: list[tuple[nn.Module, int]]) -> None:
    """Make one product of those that were seen to follow each other with the same input."""
    order = {id(module): (at, given) for at, (module, given) in enumerate(calls)}
    once = len(order) == len(calls)
    for parent in list(model.modules()):
        for names in TOGETHER:
            parts = [getattr(parent, name, None) for name in names]
            if not once or any(type(p) not in LINEAR or id(p) not in order for p in parts):
                continue
            places = [order[id(p)] for p in parts]
            follow = [at for at, _ in places] == list(
                range(places[0][0], places[0][0] + len(parts))
            )
            if not follow or len({given for _, given in places}) != 1:
                continue
            _replace(parent, names, parts)


def _replace(parent: nn.Module, names: tuple[str, ...], parts: list[Any]) -> None:
    if len({p.bias is None for p in parts}) != 1:
        return
    sizes = [p.out_features for p in parts]
    weight = _one([p.weight for p in parts])
    bias = None if parts[0].bias is None else _one([p.bias for p in parts])
    adapter = _one_adapter([getattr(p, "adapter", None) for p in parts], sizes)
    box: list[Any] = [None]
    for at, name in enumerate(names):
        setattr(parent, name, Joined((weight, bias), adapter, box, sizes, at))


def _one(tensors: list[Tensor]) -> Tensor:
    """Matrices below each other as one, of which they are views from then on."""
    whole = torch.cat([tensor.detach() for tensor in tensors])
    for tensor, view in zip(tensors, whole.split([len(tensor) for tensor in tensors])):
        tensor.data = view  # what `refresh` copies into, or what the policy computes with
    return whole


def _one_adapter(adapters: list[Adapter | None], sizes: list[int]) -> Adapter | None:
    """Adapters of layers that were joined: each keeps its part of both matrices as a view."""
    some = [adapter for adapter in adapters if adapter is not None]
    if not some:
        return None
    down = _one([each for each, _ in some])
    up = down.new_zeros(sum(sizes), len(down))
    row = column = 0
    for adapter, size in zip(adapters, sizes):
        if adapter is not None:
            rank = len(adapter[0])
            adapter[1].data = up[row : row + size, column : column + rank].copy_(adapter[1])
            column += rank
        row += size
    return down, up


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
    """What the mirror's layers call: noting how they attend, prompts, or one token per row."""
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotated in float32
    scale = scaling or query.shape[-1] ** -0.5
    window, cap = sliding_window or 0, softcap or 0.0
    if hasattr(module, "engine_look"):
        _note(module, query, key, value, attention_mask, scale, window, cap, kwargs)
    elif not module.engine_prefill:
        out = attend(
            query, key, value, module.engine_pk, module.engine_pv, module.engine_ok,
            module.engine_ov, module.engine_slots, module.engine_tiles, module.engine_span,
            module.engine_arrived, scale, window, cap, module.engine_split, module.engine_parted,
        )  # fmt: skip
        return out, None
    else:
        for store, new in ((module.engine_pk, key), (module.engine_pv, value)):
            rows = new.transpose(1, 2).flatten(0, 1)
            store.index_copy_(0, module.engine_into, rows)  # type: ignore[operator,arg-type]
    return causal(query, key, value, scale, window, cap).transpose(1, 2), None


def _note(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float,
    window: int, cap: float, kwargs: dict[str, Any],
) -> None:  # fmt: skip
    special = sorted(k for k, given in kwargs.items() if given is not None and k not in PLAIN)
    if special:
        raise CannotRun(f"its attention takes {', '.join(special)}")
    if mask is not None:
        raise CannotRun("its attention takes a mask of its own")
    if key.shape[-1] != value.shape[-1] or query.shape[-1] != key.shape[-1]:
        raise CannotRun("its keys and values differ in size")
    if not getattr(module, "is_causal", True) or kwargs.get("is_causal") is False:
        raise CannotRun("it does not attend causally")
    heads, shared, size = query.shape[1], key.shape[1], query.shape[-1]
    module.engine_look.append(Site(module, heads, shared, size, scale, window, cap))
