"""Linear layers of the engine's model: adapters beside weights, float32 logits, joined products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bestofk.fp8 import Fp8Linear, Fp8Weight
from bestofk.precision import float32_product
from bestofk.sampling.engine.operands import Adapter
from bestofk.sampling.engine.plain_kernels import linear, plus

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear layers that are applied to one input, in this order."""


def is_packed(module: nn.Module) -> bool:
    """Whether it is a linear layer of bitsandbytes, whose weight is not one of numbers."""
    return isinstance(module, nn.Linear) and type(module).__module__.startswith("bitsandbytes")


def plain_linear(layer: Any) -> nn.Linear:
    """A plain linear layer with the tensors of another."""
    linear = nn.Linear(layer.in_features, layer.out_features, device="meta")
    linear.weight, linear.bias = layer.weight, layer.bias
    return linear


def operand(layer: Any, dtype: torch.dtype) -> Tensor | Fp8Weight:
    """The weight of a linear layer whose inputs have this dtype."""
    scale = getattr(layer, "row_scale", None)
    return layer.weight if scale is None else Fp8Weight(layer.weight, scale, dtype)


class AdaptedLinear(nn.Module):
    """A linear layer and its adapters, as products beside its own."""

    def __init__(self, layer: Any, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.row_scale: Tensor | None = getattr(layer, "row_scale", None)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        like: dict[str, Any] = {"dtype": dtype, "device": self.weight.device}
        self.adapter: Adapter = (
            torch.zeros(rank, self.in_features, **like),
            torch.zeros(self.out_features, rank, **like),
        )

    def forward(self, x: Tensor) -> Tensor:
        return plus(linear(x, operand(self, x.dtype), self.bias), x, self.adapter)


class Float32Head(nn.Module):
    """A linear layer whose output is float32."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            rows = x.to(self.weight.dtype).flatten(0, -2)
            logits = float32_product(rows, self.weight).unflatten(0, x.shape[:-1])
        return logits if self.bias is None else logits + self.bias.float()


LINEAR = (nn.Linear, AdaptedLinear, Fp8Linear)


class JoinedLinear(nn.Module):
    """One of several linear layers of the same input: the first computes the product of all."""

    def __init__(self, joined: tuple[Tensor | Fp8Weight, Tensor | None], adapter: Adapter | None,
                 box: list[Any], sizes: list[int], part: int) -> None:  # fmt: skip
        super().__init__()
        self.weight, self.bias = joined
        self.adapter, self.box, self.sizes, self.part = adapter, box, sizes, part

    def forward(self, x: Tensor) -> Tensor:
        if self.part == 0:
            product = plus(linear(x, self.weight, self.bias), x, self.adapter)
            self.box[0] = product.split(self.sizes, -1)
        mine: Tensor = self.box[0][self.part]
        if self.part == len(self.sizes) - 1:
            self.box[0] = None
        return mine


def join_products(model: nn.Module, calls: list[tuple[nn.Module, int]], dtype: torch.dtype) -> None:
    """Make one product of those that were seen to follow each other with the same input."""
    order = {id(module): (at, source) for at, (module, source) in enumerate(calls)}
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
            if not follow or len({source for _, source in places}) != 1:
                continue
            _join(parent, names, parts, dtype)


def _join(parent: nn.Module, names: tuple[str, ...], parts: list[Any], dtype: torch.dtype) -> None:
    weights = [operand(p, dtype) for p in parts]
    if len({(p.bias is None, isinstance(w, Fp8Weight)) for p, w in zip(parts, weights)}) != 1:
        return
    sizes = [p.out_features for p in parts]
    values = _stacked([p.weight for p in parts])
    weight: Tensor | Fp8Weight = values
    if isinstance(weights[0], Fp8Weight):
        weight = Fp8Weight(values, torch.cat([p.row_scale for p in parts]), dtype)
    bias = None if parts[0].bias is None else _stacked([p.bias for p in parts])
    adapter = _stacked_adapter([getattr(p, "adapter", None) for p in parts], sizes)
    box: list[Any] = [None]
    for at, name in enumerate(names):
        setattr(parent, name, JoinedLinear((weight, bias), adapter, box, sizes, at))


def _stacked(tensors: list[Tensor]) -> Tensor:
    """Matrices below each other as one, of which they are views from then on."""
    stacked = torch.cat([tensor.detach() for tensor in tensors])
    for tensor, view in zip(tensors, stacked.split([len(tensor) for tensor in tensors])):
        tensor.data = view  # what `load_weights` copies into, or what the policy computes with
    return stacked


def _stacked_adapter(adapters: list[Adapter | None], sizes: list[int]) -> Adapter | None:
    """Adapters of layers that were joined: each keeps its part of both matrices as a view."""
    some = [adapter for adapter in adapters if adapter is not None]
    if not some:
        return None
    down = _stacked([each for each, _ in some])
    up = down.new_zeros(sum(sizes), len(down))
    row = column = 0
    for adapter, size in zip(adapters, sizes):
        if adapter is not None:
            rank = len(adapter[0])
            adapter[1].data = up[row : row + size, column : column + rank].copy_(adapter[1])
            column += rank
        row += size
    return down, up
