"""A Triton kernel: two softmax attentions over different keys made one. On CUDA only."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def merge_kernel(A, LA, B, LB, T, H, D: tl.constexpr, DP: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """A and B (T, H, D) with log-sums LA and LB (H, T); the result goes to A and LA."""
    t = tl.program_id(0) * N + tl.arange(0, N)
    h = tl.program_id(1)
    d = tl.arange(0, DP)
    la = tl.load(LA + h.to(tl.int64) * T + t, mask=t < T, other=0.0)
    lb = tl.load(LB + h.to(tl.int64) * T + t, mask=t < T, other=float("inf"))
    lb = tl.where(lb == float("inf"), float("-inf"), lb)  # tokens that have no keys in B
    top = tl.maximum(la, lb)
    both = top + tl.log(tl.exp(la - top) + tl.exp(lb - top))
    at = (t.to(tl.int64) * H + h)[:, None] * D + d[None, :]
    ok = (t < T)[:, None] & (d < D)[None, :]
    a = tl.load(A + at, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(B + at, mask=ok, other=0.0).to(tl.float32)
    share = tl.exp(lb - both)[:, None]
    out = a * tl.exp(la - both)[:, None] + tl.where(share > 0.0, b * share, 0.0)
    tl.store(A + at, out.to(A.dtype.element_ty), mask=ok)
    tl.store(LA + h.to(tl.int64) * T + t, both, mask=t < T)


def merge(out: Tensor, total: Tensor, other: Tensor, other_total: Tensor) -> None:
    """In place in `out` (T, heads, d) and `total` (heads, T)."""
    length, heads, size = out.shape
    grid = (triton.cdiv(length, 32), heads)
    wide = triton.next_power_of_2(size)
    merge_kernel[grid](out, total, other, other_total, length, H=heads, D=size, DP=wide, N=32)
    assert out.is_contiguous()
    assert total.is_contiguous()
