"""Frozen linear layers in FP8 (e4m3): weights with a scale per output, inputs with one per token.

Scales are powers of two, so quantising rounds to four significant bits and does nothing else. A
weight times its scale is a number of bfloat16: gradients of inputs are products with it, and a
merged model holds exactly what was trained on.

Sampler and learner quantise the same way, or they would be two policies. An input is first rounded
to bfloat16, explicitly: compilers drop that rounding between operations that they join.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

E4M3 = torch.float8_e4m3fn
EXPONENT = 0x7F800000
"""The bits of a float32 that make its power of two."""
INVERSE = 0x7F000000
"""A power of two and its inverse, as integers of the same bits, add up to this."""
TOP = 128.0
"""The largest number of a row lies between this and twice this; e4m3 ends at 448."""
LEAST = 1e-30
"""Rows of smaller numbers are scaled as if they had this one."""
UNIT = 16
"""Sizes of a layer are multiples of this; the products on a GPU need it."""


class Fp8Weight(NamedTuple):
    """A matrix (N, K)."""

    values: Tensor
    scale: Tensor
    """(N, 1), in float32."""
    dtype: torch.dtype = torch.bfloat16
    """Of inputs and products."""

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x (..., K) in e4m3, and the power of two (..., 1) that each is to be multiplied by.

    Of x rounded to bfloat16, each number becomes the nearest that there is; ties go to even.
    """
    bits = x.float().view(torch.int32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & -0x10000
    rounded = bits.view(torch.float32)
    largest = rounded.abs().amax(-1, keepdim=True).clamp_min(LEAST)
    exponent = largest.view(torch.int32) & EXPONENT
    inverse = (INVERSE - exponent).view(torch.float32)
    return (rounded * (TOP * inverse)).to(E4M3), exponent.view(torch.float32) * (1 / TOP)


def dequantised(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """As numbers of a dtype; exactly, in bfloat16 and wider."""
    return values.to(dtype) * scale.to(dtype)


def scaled_product(
    values: Tensor, scale: Tensor, weight: Fp8Weight, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Quantised inputs (R, K) times a weight (N, K), transposed; sums are float32, then `dtype`."""
    bias = None if bias is None else bias.to(dtype)
    if values.is_cuda and dtype == torch.bfloat16:
        return torch._scaled_mm(
            values, weight.values.t(), scale, weight.scale.t(), bias=bias, out_dtype=dtype,
            use_fast_accum=True,
        )  # fmt: skip
    x = dequantised(values, scale, dtype)
    return F.linear(x, dequantised(weight.values, weight.scale, dtype), bias)


def product(x: Tensor, weight: Fp8Weight, bias: Tensor | None = None) -> Tensor:
    """linear(x) of inputs (..., K) quantised, in the dtype of x or of autocast.

    The gradient of inputs is as if they had not been rounded; the weight has none.
    """
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    rows = x.flatten(0, -2)
    values, scale = quantised(rows.detach())
    out: Tensor = fp8_product(rows, values, scale, weight.values, weight.scale, bias)
    return out.unflatten(0, x.shape[:-1])


@torch.library.custom_op("bestofk::fp8_product", mutates_args=(), device_types=None)
def fp8_product(
    x: Tensor, values: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """`scaled_product` as one operator of a graph; x (R, K) is what `values` were made of."""
    return scaled_product(values, scale, Fp8Weight(weight, weight_scale), bias, x.dtype)


@fp8_product.register_fake
def _(x, values, scale, weight, weight_scale, bias):
    return x.new_empty(x.shape[0], weight.shape[0])


def _keep_weight(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[3:5])


def _gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """By the weight, which is written out in the gradient's dtype for the time of the product."""
    weight, scale = ctx.saved_tensors
    return grad @ dequantised(weight, scale, grad.dtype), None, None, None, None, None


fp8_product.register_autograd(_gradient, setup_context=_keep_weight)


class Fp8Linear(nn.Linear):
    """A frozen linear layer in FP8."""

    row_scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        values, scale = quantised(linear.weight.detach())
        self.weight = nn.Parameter(values, requires_grad=False)
        self.bias = linear.bias
        self.register_buffer("row_scale", scale, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, Fp8Weight(self.weight, self.row_scale), self.bias)
