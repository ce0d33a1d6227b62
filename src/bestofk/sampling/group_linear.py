"""Triton kernels for a layer's products, with what stands before and after them.

A step of a few rows is bound by the number of its kernels, not by their work. So the norm before a
product, and the activation or the sum after it, are part of the product's kernel. Imported on a
CUDA machine only; `group_layers` has their twins.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from bestofk.sampling.group_kernels import dependent, hand_over, power

FEW_ROWS = 16
"""Products of more rows are left to cuBLAS. On an H200 a step of SmolLM2-135M's shape takes .89 ms
with our products and .98 ms with cuBLAS's at 16 rows, but 1.18 and 1.07 ms at 64."""


@triton.jit
def linear_kernel(  # type: ignore[no-untyped-def]
    X, W, BIAS, GAIN, OUT, rows, N, K, eps,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr,
    PAIR: tl.constexpr, ADD: tl.constexpr, BIASED: tl.constexpr, EVEN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """OUT (rows, N) = norm(X) Wᵀ + bias; W is (N, K).

    NORM: X / rms(X) · gain, the division after the product. PAIR: W is (2 N, K), gate above up, and
    OUT = silu(gate) · up. ADD: the product is added to what OUT holds.
    """
    pid = tl.program_id(0)
    down = tl.cdiv(rows, BM)
    m = (pid % down) * BM + tl.arange(0, BM)
    n = (pid // down) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    real = n < N
    x_at = X + tl.where(m < rows, m, 0)[:, None] * K + k[None, :]
    w_at = W + tl.where(real, n, 0)[None, :] * K + k[:, None]
    hand_over(PDL)
    acc = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    for s in range(0, K, BK):
        if EVEN:
            x = tl.load(x_at + s)
            w = tl.load(w_at + s)
        else:
            x = tl.load(x_at + s, mask=(s + k < K)[None, :], other=0.0)
            w = tl.load(w_at + s, mask=(s + k < K)[:, None], other=0.0)
        if NORM:
            z = x.to(tl.float32)
            squares += tl.sum(z * z, 1)
            gain = tl.load(GAIN + s + k, mask=s + k < K, other=0.0).to(tl.float32)
            x = (z * gain[None, :]).to(w.dtype)
        acc = tl.dot(x, w, acc, input_precision="ieee")
        if PAIR:
            if EVEN:
                w2 = tl.load(w_at + N * K + s)
            else:
                w2 = tl.load(w_at + N * K + s, mask=(s + k < K)[:, None], other=0.0)
            up = tl.dot(x, w2, up, input_precision="ieee")
    if NORM:
        scale = tl.rsqrt(squares / K + eps)[:, None]
        acc = acc * scale
        up = up * scale
    if BIASED:
        acc += tl.load(BIAS + n, mask=real, other=0.0).to(tl.float32)[None, :]
    if PAIR:
        acc = acc / (1.0 + tl.exp(-acc)) * up
    inside = (m < rows)[:, None] & real[None, :]
    out = OUT + m[:, None] * N + n[None, :]
    if ADD:
        acc += tl.load(out, mask=inside, other=0.0).to(tl.float32)
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def norm_kernel(X, GAIN, OUT, K, eps, KP: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """A row of X / rms(X) · gain."""
    at = tl.program_id(0) * K + tl.arange(0, KP)
    real = tl.arange(0, KP) < K
    gain = tl.load(GAIN + tl.arange(0, KP), mask=real, other=0.0).to(tl.float32)
    hand_over(PDL)
    x = tl.load(X + at, mask=real, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / K + eps)
    tl.store(OUT + at, (y * gain).to(OUT.dtype.element_ty), mask=real)


@triton.jit
def gate_kernel(X, OUT, N, B: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """silu(gate) · up of (rows, 2 N)."""
    row = tl.program_id(0)
    n = tl.program_id(1) * B + tl.arange(0, B)
    hand_over(PDL)
    gate = tl.load(X + row * 2 * N + n, mask=n < N, other=0.0).to(tl.float32)
    up = tl.load(X + row * 2 * N + N + n, mask=n < N, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(OUT + row * N + n, value.to(OUT.dtype.element_ty), mask=n < N)


def blocks(bytes_each: int) -> dict[str, int]:
    """Sizes of a program's part of the product: enough programs, and enough in flight for each."""
    if bytes_each > 2:
        return {"BM": 16, "BN": 32, "BK": 32, "num_warps": 4, "num_stages": 2}
    return {"BM": 16, "BN": 16, "BK": 128, "num_warps": 4, "num_stages": 4}


def launch(
    x: Tensor, weight: Tensor, out: Tensor, *, bias: Tensor | None = None,
    gain: Tensor | None = None, eps: float = 0.0, pair: bool = False, add: bool = False,
) -> Tensor:  # fmt: skip
    """`linear_kernel`, into `out`."""
    rows, inner = x.shape
    outputs = weight.shape[0] // (2 if pair else 1)
    sizes = blocks(x.element_size())
    pdl = dependent()
    programs = triton.cdiv(rows, sizes["BM"]) * triton.cdiv(outputs, sizes["BN"])
    linear_kernel[(programs,)](
        x, weight, x if bias is None else bias, x if gain is None else gain, out, rows, outputs,
        inner, eps, NORM=gain is not None, PAIR=pair, ADD=add, BIASED=bias is not None,
        EVEN=inner % sizes["BK"] == 0, PDL=pdl, launch_pdl=pdl, **sizes,
    )  # fmt: skip
    return out


def in_one(rows: int) -> bool:
    """Whether our kernel takes a product of so many rows."""
    return rows <= FEW_ROWS


def norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """`group_layers.normed_plain`."""
    out, pdl = torch.empty_like(x), dependent()
    norm_kernel[(len(x),)](
        x, gain, out, x.shape[1], eps, KP=power(x.shape[1]), PDL=pdl, launch_pdl=pdl, num_warps=4
    )
    return out


def normed_linear(
    x: Tensor, gain: Tensor, eps: float, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """linear(norm(x))."""
    if in_one(len(x)):
        out = x.new_empty(len(x), len(weight))
        return launch(x, weight, out, bias=bias, gain=gain, eps=eps)
    return F.linear(norm(x, gain, eps), weight, bias)


def gated(x: Tensor, gain: Tensor, eps: float, weight: Tensor) -> Tensor:
    """silu(gate) · up of norm(x)."""
    size = len(weight) // 2
    out = x.new_empty(len(x), size)
    if in_one(len(x)):
        return launch(x, weight, out, gain=gain, eps=eps, pair=True)
    both, pdl = F.linear(norm(x, gain, eps), weight), dependent()
    gate_kernel[(len(x), triton.cdiv(size, 1024))](
        both, out, size, B=1024, PDL=pdl, launch_pdl=pdl, num_warps=4
    )
    return out


def add_linear(x: Tensor, weight: Tensor, into: Tensor) -> Tensor:
    """into += linear(x)."""
    if in_one(len(x)):
        return launch(x, weight, into, add=True)
    return into.addmm_(x, weight.t())
