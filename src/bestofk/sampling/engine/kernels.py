"""Triton kernels of the group engine, imported with CUDA only; `plain_kernels`: what they compute.

A step of a few rows is bound by the number of its kernels, not by their work. So the norm before a
product, and the activation or the sum after it, are part of the product's kernel.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from bestofk.fp8 import E4M3, EXPONENT, INVERSE, LEAST, TOP, Fp8Weight, scaled_product
from bestofk.sampling.engine.operands import PART, TILED, Adapter, Rotation

LOG2E = tl.constexpr(1.4426950408889634)
NONE = tl.constexpr(-1e30)


@triton.jit
def hand_over(PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait for the kernel before, which this one was launched beside, and let the next one come."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _rotated(  # type: ignore[no-untyped-def]
    X, at, d, inside, position, COS, SIN, GAIN, eps,
    D: tl.constexpr, ROPE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Vectors (M, D) of heads as attention takes them: normed (NORM) and rotated (ROPE)."""
    x = tl.load(X + at[:, None] + d[None, :], mask=inside, other=0.0)
    if ROPE:
        other = tl.where(d < D // 2, d + D // 2, d - D // 2)
        y = tl.load(X + at[:, None] + other[None, :], mask=inside, other=0.0).to(tl.float32)
        kind = x.dtype
        z = x.to(tl.float32)
        if NORM:
            scale = tl.rsqrt(tl.sum(z * z, 1) / D + eps)[:, None]
            z = z * scale * tl.load(GAIN + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
            y = y * scale * tl.load(GAIN + other, mask=d < D, other=0.0).to(tl.float32)[None, :]
        angle = position[:, None] * D + d[None, :]
        cos = tl.load(COS + angle, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(SIN + angle, mask=inside, other=0.0).to(tl.float32)
        x = (z * cos + tl.where(d < D // 2, -y, y) * sin).to(kind)
    return x


@triton.jit
def _scores(q, k, scale, cap, CAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Attention scores in base 2; q (M, D), k (B, D)."""
    x = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if CAP:
        x = cap * (2.0 / (1.0 + tl.exp(-2.0 * x / cap)) - 1.0)
    return x * LOG2E


@triton.jit
def _join(x, visible, v, top, total, acc):
    """One more block of keys in a running softmax."""
    x = tl.where(visible, x, NONE)
    high = tl.maximum(top, tl.max(x, 1))
    shrink = tl.exp2(top - high)
    e = tl.where(visible, tl.exp2(x - high[:, None]), 0.0)
    total = total * shrink + tl.sum(e, 1)
    acc = acc * shrink[:, None] + tl.dot(e.to(v.dtype), v, input_precision="ieee")
    return high, total, acc


@triton.jit
def _both(top, total, acc, top2, total2, acc2):
    """Two parts of one softmax, joined."""
    high = tl.maximum(top, top2)
    scale = tl.exp2(top - high)
    scale2 = tl.exp2(top2 - high)
    return high, total * scale + total2 * scale2, acc * scale[:, None] + acc2 * scale2[:, None]


@triton.jit
def prefix_kernel(  # type: ignore[no-untyped-def]
    Q, PK, PV, ACC, TOP, SUM, SLOTS, TILES, COS, SIN, QG, scale, cap, window, sq0, sq1, S, eps,
    HK: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, B: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr,
    ROPE: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attention of a tile's rows, siblings of one prompt, to that prompt: its keys read once.

    A tile is (start, length, slot, slot, ...) with -1 for an empty position.
    """
    hand_over(PDL)
    tile = TILES + tl.program_id(0) * (2 + ROWS)
    h = tl.program_id(1)
    at = tl.arange(0, ROWS * GP)
    head = at % GP
    slot = tl.load(tile + 2 + at // GP)
    if tl.max(slot, 0) >= 0:
        start = tl.load(tile).to(tl.int64)
        length = tl.load(tile + 1)
        d = tl.arange(0, DP)
        b = tl.arange(0, B)
        real = (slot >= 0) & (head < G)
        inside = real[:, None] & (d < D)[None, :]
        position = length + tl.load(SLOTS + slot, mask=slot >= 0, other=0)
        q = _rotated(Q, slot.to(tl.int64) * sq0 + (h * G + head) * sq1, d, inside, position,
                    COS, SIN, QG, eps, D, ROPE, NORM)  # fmt: skip
        top = tl.full((ROWS * GP,), NONE, tl.float32)
        total = tl.zeros((ROWS * GP,), tl.float32)
        acc = tl.zeros((ROWS * GP, DP), tl.float32)
        first = 0
        if WINDOW:
            earliest = tl.min(tl.where(slot >= 0, position, 1 << 30), 0)
            first = tl.maximum(earliest - window + 1, 0) // B * B
        for s in range(first, length, B):
            j = s + b
            ok = (j < length)[:, None] & (d < D)[None, :]
            keys = ((start + j) * HK + h)[:, None] * D + d[None, :]
            x = _scores(q, tl.load(PK + keys, mask=ok, other=0.0), scale, cap, CAP)
            visible = (j < length)[None, :] & real[:, None]
            if WINDOW:
                visible = visible & (position[:, None] - j[None, :] < window)
            v = tl.load(PV + keys, mask=ok, other=0.0)
            top, total, acc = _join(x, visible, v, top, total, acc)
        row = slot * (HK * G) + h * G + head
        tl.store(TOP + row, top, mask=real)
        tl.store(SUM + row, total, mask=real)
        tl.store(ACC + row.to(tl.int64)[:, None] * D + d[None, :], acc, mask=inside)


@triton.jit
def row_kernel(  # type: ignore[no-untyped-def]
    Q, K, V, PK, PV, OK, OV, OUT, ACC, TOP, SUM, SLOTS, SPAN, COS, SIN, QG, KG, MACC, MTOP, MSUM,
    ARRIVED, scale, cap, window, sq0, sq1, sk0, sk1, sv0, sv1, S, eps,
    HK: tl.constexpr, G: tl.constexpr, M: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    B: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr,
    ROPE: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr, PARTS: tl.constexpr,
    LEAST: tl.constexpr,
):  # fmt: skip
    """Attention of one row's newest token to the row itself, whose key and value it also stores.

    The prompt's part comes from `prefix_kernel` (SPLIT) or is computed here, row by row. The row's
    own keys are divided between up to PARTS programs; the last of them to end joins the parts.
    """
    slot = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    part = tl.program_id(2)
    g = tl.arange(0, M)
    d = tl.arange(0, DP)
    b = tl.arange(0, B)
    wide = d < D
    inside = (g < G)[:, None] & wide[None, :]
    out = OUT + (slot * HK + h) * G * D + g[:, None] * D + d[None, :]
    # All loads before the branch: they wait for memory together.
    ended = tl.load(SLOTS + S + slot)
    t = tl.load(SLOTS + slot)
    span = tl.load(SPAN)
    length = tl.load(SLOTS + 3 * S + slot)
    start = tl.load(SLOTS + 2 * S + slot).to(tl.int64)
    kv_slot = tl.load(SLOTS + 5 * S + slot).to(tl.int64)
    hand_over(PDL)  # the table does not change within a step
    begin = 0
    if WINDOW:
        begin = tl.maximum(t - window + 1, 0) // B * B
    end = t
    parts = 1
    if PARTS > 1:
        each = tl.maximum(tl.cdiv(tl.cdiv(t - begin, PARTS), B) * B, LEAST)
        parts = tl.maximum(tl.cdiv(t - begin, each), 1)
        begin += part * each
        end = tl.minimum(begin + each, t)
    if (ended == 0) & (part < parts):
        here = length + t
        q = _rotated(Q, slot * sq0 + (h * G + g) * sq1, d, inside, here + g * 0, COS, SIN, QG, eps,
                    D, ROPE, NORM)  # fmt: skip
        one = tl.arange(0, 1)
        k = _rotated(K, slot * sk0 + h * sk1 + one, d, wide[None, :], here + one, COS, SIN, KG, eps,
                    D, ROPE, NORM)  # fmt: skip
        k = tl.reshape(k, (DP,))
        v = tl.load(V + slot * sv0 + h * sv1 + d, mask=wide, other=0.0)
        own = (kv_slot * HK + h) * span * D
        # The first part has the newest token and the prompt.
        first = part == 0
        if first:
            tl.store(OK + own + t * D + d, k, mask=wide)
            tl.store(OV + own + t * D + d, v, mask=wide)
        x = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
        if CAP:
            x = cap * (2.0 / (1.0 + tl.exp(-2.0 * x / cap)) - 1.0)
        top = tl.where(first, x * LOG2E, NONE)
        total = tl.where(first, tl.full((M,), 1.0, tl.float32), 0.0)
        acc = tl.zeros((M, DP), tl.float32) + tl.where(first, v.to(tl.float32), 0.0)[None, :]
        row = (slot * HK + h) * G + g
        if SPLIT:
            if (length > 0) & first:
                high = tl.load(TOP + row, mask=g < G, other=NONE)
                more = tl.load(SUM + row, mask=g < G, other=0.0)
                prompt = tl.load(ACC + row[:, None] * D + d[None, :], mask=inside, other=0.0)
                top, total, acc = _both(top, total, acc, high, more, prompt)
        else:
            since = 0
            if WINDOW:
                since = tl.maximum(length + t - window + 1, 0) // B * B
            for s in range(since, tl.where(first, length, 0), B):
                j = s + b
                ok = (j < length)[:, None] & wide[None, :]
                keys = ((start + j) * HK + h)[:, None] * D + d[None, :]
                x2 = _scores(q, tl.load(PK + keys, mask=ok, other=0.0), scale, cap, CAP)
                visible = (j < length)[None, :]
                if WINDOW:
                    visible = visible & (length + t - j < window)[None, :]
                values = tl.load(PV + keys, mask=ok, other=0.0)
                top, total, acc = _join(x2, visible, values, top, total, acc)
        for s in range(begin, end, B):
            j = s + b
            ok = (j < end)[:, None] & wide[None, :]
            keys = own + j[:, None] * D + d[None, :]
            x3 = _scores(q, tl.load(OK + keys, mask=ok, other=0.0), scale, cap, CAP)
            visible = (j < end)[None, :]
            if WINDOW:
                visible = visible & (t - j < window)[None, :]
            values = tl.load(OV + keys, mask=ok, other=0.0)
            top, total, acc = _join(x3, visible, values, top, total, acc)
        arrived = 1
        if PARTS > 1:  # noqa: SIM102 (decided when it is compiled)
            if parts > 1:
                heads = HK * G * tl.num_programs(0).to(tl.int64)
                to = part * heads + row
                tl.store(MTOP + to, top, mask=g < G)
                tl.store(MSUM + to, total, mask=g < G)
                tl.store(MACC + to[:, None] * D + d[None, :], acc, mask=inside)
                tl.debug_barrier()  # all of this program's numbers are written before it counts
                arrived = tl.atomic_add(ARRIVED + slot * HK + h, 1, sem="acq_rel") + 1
                if arrived == parts:
                    top = tl.full((M,), NONE, tl.float32)
                    total = tl.zeros((M,), tl.float32)
                    acc = tl.zeros((M, DP), tl.float32)
                    for p in range(parts):
                        at = p * heads + row
                        high = tl.load(MTOP + at, mask=g < G, other=NONE, cache_modifier=".cg")
                        more = tl.load(MSUM + at, mask=g < G, other=0.0, cache_modifier=".cg")
                        other = tl.load(MACC + at[:, None] * D + d[None, :], mask=inside, other=0.0,
                                        cache_modifier=".cg")  # fmt: skip
                        top, total, acc = _both(top, total, acc, high, more, other)
                    tl.store(ARRIVED + slot * HK + h, 0)
        if arrived == parts:
            tl.store(out, (acc / total[:, None]).to(OUT.dtype.element_ty), mask=inside)
    if (ended != 0) & (part == 0):
        tl.store(out, tl.zeros((M, DP), OUT.dtype.element_ty), mask=inside)


@triton.jit
def mass_kernel(LOGITS, PARTS, SLOTS, inverse, stride, V, S, N, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Maximum and sum of exponentials of one stretch of a row's logits."""
    slot = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1)
    if tl.load(SLOTS + S + slot) == 0:
        at = c * C + tl.arange(0, C)
        x = tl.load(LOGITS + slot * stride + at, mask=at < V, other=NONE).to(tl.float32)
        x = tl.maximum(x * inverse, NONE)
        high = tl.max(x, 0)
        tl.store(PARTS + (slot * N + c) * 2, high)
        tl.store(PARTS + (slot * N + c) * 2 + 1, tl.sum(tl.exp(x - high), 0))


@triton.jit
def sample_kernel(  # type: ignore[no-untyped-def]
    LOGITS, PARTS, SLOTS, SPAN, UNIFORM, ENDS, TOKENS, POSITIONS, OUT, LOGP, inverse, stride, V, S,
    N, C: tl.constexpr, NP: tl.constexpr, E: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """Invert the distribution function at this row's uniform number; note token and log-prob.

    A negative number is a forced token. The row then moves one token on, or ends. Nothing is read
    back by the host.
    """
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(SLOTS + S + slot) == 0:
        t = tl.load(SLOTS + slot)
        span = tl.load(SPAN)
        here = tl.load(SLOTS + 4 * S + slot).to(tl.int64) * span + t
        number = tl.load(UNIFORM + here)
        forced = number < 0.0
        c = tl.arange(0, NP)
        highs = tl.load(PARTS + (slot * N + c) * 2, mask=c < N, other=NONE)
        sums = tl.load(PARTS + (slot * N + c) * 2 + 1, mask=c < N, other=0.0)
        high = tl.max(highs, 0)
        mass = sums * tl.exp(highs - high)
        mass_total = tl.sum(mass, 0)
        likeliest = tl.argmax(highs, 0)
        chosen = likeliest
        target = 0.0
        if not GREEDY:
            target = number * mass_total
            upto = tl.cumsum(mass, 0)
            result = tl.sum((upto <= target).to(tl.int32), 0)
            chosen = tl.where(result < N, result, likeliest)
            target = target - tl.sum(tl.where(c < chosen, mass, 0.0), 0)
        i = tl.arange(0, C)
        at = chosen * C + i
        x = tl.load(LOGITS + slot * stride + at, mask=at < V, other=NONE).to(tl.float32)
        x = tl.maximum(x * inverse, NONE)
        best = tl.argmax(x, 0)
        offset = best
        if not GREEDY:
            e = tl.exp(x - high)
            below = tl.sum((tl.cumsum(e, 0) <= target).to(tl.int32), 0)
            lives = tl.sum(tl.where(i == below, e, 0.0), 0) > 0.0
            offset = tl.where(lives, below, best)
        value = tl.sum(tl.where(i == offset, x, 0.0), 0)
        token = tl.where(forced, (-1.0 - number).to(tl.int32), chosen * C + offset)
        logp = 0.0
        if not GREEDY:
            logp = tl.where(forced, 0.0, value - high - tl.log(mass_total))
        tl.store(OUT + here, token)
        tl.store(LOGP + here, logp)
        ends = tl.load(ENDS + tl.arange(0, E))
        ends_here = (tl.sum((ends == token).to(tl.int32), 0) > 0) & (number >= 0.0)
        over = ends_here | (t + 1 >= span)
        tl.store(SLOTS + slot, t + 1)
        tl.store(SLOTS + S + slot, over.to(tl.int32))
        tl.store(TOKENS + slot, token.to(tl.int64))
        # A row that has ended keeps a position it had: tables of positions may end at the limit.
        more = tl.where(over, 0, 1)
        tl.store(POSITIONS + slot, (tl.load(SLOTS + 3 * S + slot) + t + more).to(tl.int64))


def power(count: int) -> int:
    """The next power of two."""
    return 1 << max(0, count - 1).bit_length()


def shapes(size: int, bytes_each: int, programs: int, parted: bool) -> dict[str, int]:
    """Keys per block, warps and stages of the kernels: what a multiprocessor's memory holds.

    Few programs, and those of long rows, read more keys at once each: nothing else hides the wait
    for memory.
    """
    if size * bytes_each > 256:
        return {"block": 32, "warps": 4, "stages": 1, "tile_block": 32, "tile_stages": 1}
    few = programs <= FEW and bytes_each <= 2
    tuned = {**TUNED, "block": 128, "warps": 4} if few else TUNED
    if parted and programs > VERY_FEW:
        tuned = {**TUNED, "block": 64, "warps": 2}
    return {**tuned, "tile_block": 64} if size > 64 else tuned


TUNED = {"block": 32, "warps": 1, "stages": 2, "tile_block": 128, "tile_stages": 2}
FEW = 528
"""Programs, four for each multiprocessor of a large card."""
VERY_FEW = 66
"""Programs that read long rows, so few that the parts of a row do not fill the card either."""


MOST_PARTS = 16
MOST_PROGRAMS = 8192
"""Programs that a row's own keys are divided between, and of all rows together: at most. Programs
without work cost time too."""


def dependent() -> bool:
    """Whether kernels may be launched before the one they wait for has ended (Hopper)."""
    return torch.cuda.get_device_capability() >= (9, 0)


def attend(
    query: Tensor, key: Tensor, value: Tensor, prompt_keys: Tensor, prompt_values: Tensor,
    own_keys: Tensor, own_values: Tensor, slots: Tensor, tiles: Tensor, span: Tensor,
    arrived: Tensor, scale: float, window: int, cap: float, split: bool, parted: bool,
    rotation: Rotation | None = None,
) -> Tensor:  # fmt: skip
    """`plain_kernels.attend`, by two kernels (split) or one."""
    rows, heads, _, size = query.shape
    kv_heads = key.shape[1]
    g, wide = heads // kv_heads, max(16, power(size))
    out = torch.empty(rows, 1, heads, size, device=query.device, dtype=query.dtype)
    acc = top = total = out
    tuned = shapes(size, query.element_size(), rows * kv_heads, parted)
    pdl = rotation is not None and dependent()
    normed = rotation is not None and rotation.query_gain is not None
    cos, sin, query_gain, key_gain, eps = rotation or (out, out, None, None, 0.0)
    flags = {
        "D": size, "DP": wide, "CAP": cap > 0, "WINDOW": window > 0, "HK": kv_heads, "G": g,
        "ROPE": rotation is not None, "NORM": normed, "PDL": pdl, "launch_pdl": pdl,
    }  # fmt: skip
    common = (scale, cap, window, query.stride(0), query.stride(1))
    if split:
        acc = torch.empty(rows, heads, size, device=query.device)
        top = torch.empty(rows, heads, device=query.device)
        total = torch.empty_like(top)
        prefix_kernel[(max(1, rows // TILED), kv_heads)](
            query, prompt_keys, prompt_values, acc, top, total, slots, tiles, cos, sin,
            query_gain if normed else out, *common, slots.stride(0), eps, GP=power(g),
            ROWS=tiles.shape[1] - 2, B=tuned["tile_block"], num_warps=4,
            num_stages=tuned["tile_stages"], **flags,
        )  # fmt: skip
    parts = max(1, min(MOST_PARTS, MOST_PROGRAMS // (rows * kv_heads))) if parted else 1
    joined = (out, out, out)
    if parts > 1:
        joined = (
            torch.empty(parts, rows, heads, size, device=query.device),
            torch.empty(parts, rows, heads, device=query.device),
            torch.empty(parts, rows, heads, device=query.device),
        )
    row_kernel[(rows, kv_heads, parts)](
        query, key, value, prompt_keys, prompt_values, own_keys, own_values, out, acc, top, total,
        slots, span, cos, sin, query_gain if normed else out, key_gain if normed else out, *joined,
        arrived, *common, key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        slots.stride(0), eps,
        M=max(16, power(g)), B=tuned["block"], SPLIT=split, PARTS=parts, LEAST=PART,
        num_warps=tuned["warps"], num_stages=tuned["stages"], **flags,
    )  # fmt: skip
    return out


CHUNK = 4096
"""Logits of a row that one program reads."""


def sample(
    logits: Tensor, slots: Tensor, span: Tensor, uniform: Tensor, ends: Tensor, tokens: Tensor,
    positions: Tensor, out: Tensor, log_probs: Tensor, temperature: float,
) -> None:  # fmt: skip
    """`plain_kernels.sample`, by two kernels; temperature 0 takes the likeliest token."""
    rows, vocabulary = logits.shape
    slot_count, count = slots.stride(0), triton.cdiv(vocabulary, CHUNK)
    inverse = 1.0 / temperature if temperature else 1.0
    parts = torch.empty(rows, count, 2, device=logits.device)
    common = (inverse, logits.stride(0), vocabulary, slot_count, count)
    mass_kernel[(rows, count)](logits, parts, slots, *common, C=CHUNK, num_warps=4)
    sample_kernel[(rows,)](
        logits, parts, slots, span, uniform, ends, tokens, positions, out, log_probs, *common,
        C=CHUNK, NP=power(count), E=ends.shape[0], GREEDY=temperature == 0.0, num_warps=8,
    )  # fmt: skip


FEW_ROWS = 16
"""Products of more rows are left to cuBLAS. On an H200 a step of SmolLM2-135M's shape takes .89 ms
with our products and .98 ms with cuBLAS's at 16 rows, but 1.18 and 1.07 ms at 64."""


@triton.jit
def linear_kernel(  # type: ignore[no-untyped-def]
    X, W, BIAS, GAIN, OUT, rows, N, K, eps,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NORM: tl.constexpr,
    PAIR: tl.constexpr, ADD: tl.constexpr, BIASED: tl.constexpr, EVEN: tl.constexpr,
    BS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """OUT (rows, N) = norm(X) Wᵀ + bias; W is (N, K).

    NORM: X / rms(X) · gain. PAIR: W is (2 N, K), gate above up, and OUT = silu(gate) · up. ADD: the
    product is added to what OUT holds. Everything is rounded where separate kernels, and the
    learner, round it.
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
    scale = tl.zeros((BM,), tl.float32)
    if NORM:
        j = tl.arange(0, BS)
        for s in range(0, K, BS):
            z = tl.load(X + tl.where(m < rows, m, 0)[:, None] * K + (s + j)[None, :],
                        mask=(s + j < K)[None, :], other=0.0).to(tl.float32)  # fmt: skip
            scale += tl.sum(z * z, 1)
        scale = tl.rsqrt(scale / K + eps)
    for s in range(0, K, BK):
        if EVEN:
            x = tl.load(x_at + s)
            w = tl.load(w_at + s)
        else:
            x = tl.load(x_at + s, mask=(s + k < K)[None, :], other=0.0)
            w = tl.load(w_at + s, mask=(s + k < K)[:, None], other=0.0)
        if NORM:
            gain = tl.load(GAIN + s + k, mask=s + k < K, other=0.0).to(tl.float32)
            x = (x.to(tl.float32) * scale[:, None] * gain[None, :]).to(w.dtype)
        acc = tl.dot(x, w, acc, input_precision="ieee")
        if PAIR:
            if EVEN:
                w2 = tl.load(w_at + N * K + s)
            else:
                w2 = tl.load(w_at + N * K + s, mask=(s + k < K)[:, None], other=0.0)
            up = tl.dot(x, w2, up, input_precision="ieee")
    if BIASED:
        acc += tl.load(BIAS + n, mask=real, other=0.0).to(tl.float32)[None, :]
    if PAIR:
        acc = acc.to(W.dtype.element_ty).to(tl.float32)
        acc = acc / (1.0 + tl.exp(-acc)) * up.to(W.dtype.element_ty).to(tl.float32)
    inside = (m < rows)[:, None] & real[None, :]
    out = OUT + m[:, None] * N + n[None, :]
    if ADD:
        acc = acc.to(W.dtype.element_ty).to(tl.float32)
        acc += tl.load(out, mask=inside, other=0.0).to(tl.float32)
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def norm_kernel(  # type: ignore[no-untyped-def]
    X, DELTA, GAIN, OUT, K, eps, KP: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr
):
    """A row of X / rms(X) · gain, after DELTA was added to X (ADD)."""
    at = tl.program_id(0) * K + tl.arange(0, KP)
    real = tl.arange(0, KP) < K
    gain = tl.load(GAIN + tl.arange(0, KP), mask=real, other=0.0).to(tl.float32)
    hand_over(PDL)
    x = tl.load(X + at, mask=real, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(DELTA + at, mask=real, other=0.0).to(tl.float32)
        rounded = x.to(X.dtype.element_ty)
        tl.store(X + at, rounded, mask=real)
        x = rounded.to(tl.float32)
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


@triton.jit
def quantise_kernel(  # type: ignore[no-untyped-def]
    X, OUT, SCALE, K, KP: tl.constexpr, EXPONENT: tl.constexpr, INVERSE: tl.constexpr,
    TOP: tl.constexpr, LEAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A row of X in e4m3, and the power of two that it is to be multiplied by."""
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, KP)
    hand_over(PDL)
    x = tl.load(X + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(x), 0), LEAST)
    exponent = largest.to(tl.int32, bitcast=True) & EXPONENT
    inverse = (INVERSE - exponent).to(tl.float32, bitcast=True)
    tl.store(OUT + row * K + k, (x * (TOP * inverse)).to(OUT.dtype.element_ty), mask=k < K)
    tl.store(SCALE + row, exponent.to(tl.float32, bitcast=True) * (1 / TOP))


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """`fp8.quantised` of rows (R, K) in bfloat16."""
    x, width, pdl = x.contiguous(), x.shape[1], dependent()
    values = torch.empty_like(x, dtype=E4M3)
    scale = torch.empty(len(x), 1, device=x.device)
    quantise_kernel[(len(x),)](
        x, values, scale, width, KP=power(width), EXPONENT=EXPONENT, INVERSE=INVERSE, TOP=TOP,
        LEAST=LEAST, PDL=pdl, launch_pdl=pdl, num_warps=16 if width > 4096 else 4,
    )  # fmt: skip
    return values, scale


def linear(x: Tensor, weight: Tensor | Fp8Weight, bias: Tensor | None = None) -> Tensor:
    """`plain_kernels.linear`."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    return scaled_product(*quantised(x), weight, bias, x.dtype)


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
    sizes = blocks(weight.element_size())
    pdl = dependent()
    programs = triton.cdiv(rows, sizes["BM"]) * triton.cdiv(outputs, sizes["BN"])
    linear_kernel[(programs,)](
        x, weight, x if bias is None else bias, x if gain is None else gain, out, rows, outputs,
        inner, eps, NORM=gain is not None, PAIR=pair, ADD=add, BIASED=bias is not None,
        EVEN=inner % sizes["BK"] == 0, BS=min(1024, power(inner)), PDL=pdl, launch_pdl=pdl,
        **sizes,
    )  # fmt: skip
    return out


def in_one(weight: Tensor | Fp8Weight, rows: int, adapter: Adapter | None) -> TypeGuard[Tensor]:
    """Whether our kernel takes a product of so many rows."""
    return rows <= FEW_ROWS and adapter is None and isinstance(weight, Tensor)


def norm(x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`plain_kernels.norm`."""
    out, pdl = torch.empty_like(x, dtype=dtype), dependent()
    norm_kernel[(len(x),)](
        x, x if delta is None else delta, gain, out, x.shape[1], eps, KP=power(x.shape[1]),
        ADD=delta is not None, PDL=pdl, launch_pdl=pdl, num_warps=4,
    )  # fmt: skip
    return out


def normed_linear(
    x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, weight: Tensor | Fp8Weight,
    bias: Tensor | None, adapter: Adapter | None = None,
) -> Tensor:  # fmt: skip
    """linear(norm(x += delta)), and what adapters add."""
    if delta is None and in_one(weight, len(x), adapter):
        out = torch.empty(len(x), len(weight), dtype=weight.dtype, device=x.device)
        return launch(x, weight, out, bias=bias, gain=gain, eps=eps)
    normed = norm(x, delta, gain, eps, weight.dtype)
    return add_adapter(linear(normed, weight, bias), normed, adapter)


def gated(
    x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, weight: Tensor | Fp8Weight,
    adapter: Adapter | None = None,
) -> Tensor:  # fmt: skip
    """silu(gate) · up of norm(x += delta)."""
    size = weight.shape[0] // 2
    out = torch.empty(len(x), size, dtype=weight.dtype, device=x.device)
    if delta is None and in_one(weight, len(x), adapter):
        return launch(x, weight, out, gain=gain, eps=eps, pair=True)
    normed, pdl = norm(x, delta, gain, eps, weight.dtype), dependent()
    both = add_adapter(linear(normed, weight), normed, adapter)
    gate_kernel[(len(x), triton.cdiv(size, 1024))](
        both, out, size, B=1024, PDL=pdl, launch_pdl=pdl, num_warps=4
    )
    return out


def add_linear(
    x: Tensor, weight: Tensor | Fp8Weight, into: Tensor, adapter: Adapter | None = None
) -> Tensor | None:
    """into += linear(x), or what the next norm has to add."""
    if in_one(weight, len(x), adapter):
        launch(x, weight, into, add=True)
        return None
    return add_adapter(linear(x, weight), x, adapter)


def add_adapter(out: Tensor, x: Tensor, adapter: Adapter | None) -> Tensor:
    """`plain_kernels.plus`, in place."""
    if adapter is None:
        return out
    return out.addmm_(F.linear(x, adapter[0]), adapter[1].t())
