"""What `kernels` compute, in PyTorch: their references, and what runs without CUDA."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bestofk.fp8 import Fp8Weight, product
from bestofk.sampling.draw import draw
from bestofk.sampling.engine.operands import Adapter, Rotation, SlotField
from bestofk.sampling.sampler import Sampling


@torch.autocast("cpu", enabled=False)  # float32 below means float32
def attend(
    query: Tensor, key: Tensor, value: Tensor, prompt_keys: Tensor, prompt_values: Tensor,
    own_keys: Tensor, own_values: Tensor, slots: Tensor, tiles: Tensor, span: Tensor,
    arrived: Tensor, scale: float, window: int, cap: float, split: bool, parted: bool,
    rotation: Rotation | None = None,
) -> Tensor:  # fmt: skip
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
        rotation: what is done to queries and keys first.

    Returns:
        (R, 1, heads, d); zeros where the slot has ended.
    """
    if rotation is not None:
        fields = slots[[SlotField.PROMPT_LENGTH, SlotField.GENERATED], : len(query)]
        position = fields.sum(0)[:, None].long()
        position = position.clamp(max=len(rotation.cos) - 1)  # of slots that have ended
        query = rotation.rotated(query, position, rotation.query_gain)
        key = rotation.rotated(key, position, rotation.key_gain)
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


def sample(
    logits: Tensor, slots: Tensor, span: Tensor, uniform: Tensor, ends: Tensor, tokens: Tensor,
    positions: Tensor, out: Tensor, log_probs: Tensor, temperature: float,
) -> None:  # fmt: skip
    """Sample the next token of every slot that has not ended, and move the slot on.

    Args:
        logits: (R, V), tokens that cannot be drawn at -inf.
        uniform, out, log_probs: flat, (sequences, T): the numbers to draw with, and where to write.
            A number −1 − id forces the token id: it ends nothing, and its log-prob is 0.
        ends: token ids that end a sequence, -1 for none.
        tokens, positions: (S,), what the next step feeds, and at which position.
        temperature: 0 takes the likeliest token.
    """
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


def norm(x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x / rms(x) · gain in `dtype`, after delta was added to x."""
    if delta is not None:
        x += delta
    z = x if x.dtype == torch.float64 else x.float()
    normed = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + eps) * gain.to(z.dtype)
    return normed.to(dtype)


def linear(x: Tensor, weight: Tensor | Fp8Weight, bias: Tensor | None = None) -> Tensor:
    """x times the weight, transposed."""
    return F.linear(x, weight, bias) if isinstance(weight, Tensor) else product(x, weight, bias)


def normed_linear(
    x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, weight: Tensor | Fp8Weight,
    bias: Tensor | None, adapter: Adapter | None = None,
) -> Tensor:  # fmt: skip
    """linear(norm(x += delta)), and what adapters add."""
    normed = norm(x, delta, gain, eps, weight.dtype)
    return plus(linear(normed, weight, bias), normed, adapter)


def gated(
    x: Tensor, delta: Tensor | None, gain: Tensor, eps: float, weight: Tensor | Fp8Weight,
    adapter: Adapter | None = None,
) -> Tensor:  # fmt: skip
    """silu(gate) · up of norm(x += delta)."""
    gate, up = normed_linear(x, delta, gain, eps, weight, None, adapter).chunk(2, -1)
    return F.silu(gate) * up


def add_linear(
    x: Tensor, weight: Tensor | Fp8Weight, into: Tensor, adapter: Adapter | None = None
) -> Tensor | None:
    """What is to be added to `into`, which some kernels do at once."""
    return plus(linear(x, weight), x, adapter)


def plus(out: Tensor, x: Tensor, adapter: Adapter | None) -> Tensor:
    """A product and what adapters add to it."""
    return out if adapter is None else out + F.linear(F.linear(x, adapter[0]), adapter[1])
