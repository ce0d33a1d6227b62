"""What a decoding step of the group engine computes beside the model: attention, and the draw.

Each is an operator that torch.compile takes as a whole. On CUDA it is a Triton kernel
(`group_kernels`), elsewhere a plain function that says what the kernel computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bestofk.sampling.draw import draw
from bestofk.sampling.group_fields import Field
from bestofk.sampling.sampler import Sampling


@torch.library.custom_op(
    "bestofk::group_attend", mutates_args=("own_keys", "own_values"), device_types=None
)
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    slots: Tensor,
    tiles: Tensor,
    span: Tensor,
    scale: float,
    window: int,
    cap: float,
    split: bool,
) -> Tensor:
    """Attention of one new token per row to its prompt, its own earlier tokens and itself.

    Args:
        query: (R, heads, 1, d); row r is in slot r.
        key, value: (R, shared heads, 1, d), stored in `own_*` at the row's next place.
        prefix_keys, prefix_values: (C, shared heads, d), the prompts one after another.
        own_keys, own_values: flat, (S, shared heads, T, d) with T in `span`.
        slots: (6, S), see `Field`.
        tiles: (S / TILED, 2 + rows): start and length of a prompt, then slots of its rows or -1.
        window: keys a token sees, itself included; 0 is all.
        cap: of the scores (cap · tanh(x / cap)); 0 is none.
        split: read each prompt once per tile, not once per row.

    Returns:
        (R, 1, heads, d); zeros where the slot has ended.
    """
    given = (query, key, value, prefix_keys, prefix_values, own_keys, own_values, slots)
    if query.is_cuda:
        from bestofk.sampling import group_kernels

        return group_kernels.attend(*given, tiles, span, scale, window, cap, split)
    return attend_plain(*given, span, scale, window, cap)


@attend.register_fake
def _(  # type: ignore[no-untyped-def]
    query, key, value, prefix_keys, prefix_values, own_keys, own_values, slots, tiles, span,
    scale, window, cap, split,
) -> Tensor:  # fmt: skip
    rows, heads, _, size = query.shape
    return query.new_empty(rows, 1, heads, size)


def attend_plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    own_keys: Tensor,
    own_values: Tensor,
    slots: Tensor,
    span: Tensor,
    scale: float,
    window: int,
    cap: float,
) -> Tensor:
    """`attend`, row by row."""
    rows, heads, _, size = query.shape
    shared, limit = key.shape[1], int(span)
    row = shared * limit * size
    keys, values = (
        store[: store.numel() // row * row].view(-1, shared, limit, size)
        for store in (own_keys, own_values)
    )
    out = torch.zeros(rows, 1, heads, size, dtype=query.dtype, device=query.device)
    table = slots.tolist()
    for r in range(rows):
        if table[Field.ENDED][r]:
            continue
        t, start, length = (table[f][r] for f in (Field.DRAWN, Field.START, Field.LENGTH))
        home = table[Field.HOME][r]
        keys[home, :, t], values[home, :, t] = key[r, :, 0], value[r, :, 0]
        prompt = slice(start, start + length)
        k = torch.cat([prefix_keys[prompt].transpose(0, 1), keys[home, :, : t + 1]], dim=1)
        v = torch.cat([prefix_values[prompt].transpose(0, 1), values[home, :, : t + 1]], dim=1)
        requested = query[r, :, 0].view(shared, heads // shared, size).float()
        scores = requested @ k.float().transpose(1, 2) * scale
        if cap:
            scores = cap * torch.tanh(scores / cap)
        if window:
            scores[:, :, : max(0, k.shape[1] - window)] = -torch.inf
        out[r, 0] = (scores.softmax(-1) @ v.float()).reshape(heads, size).to(query.dtype)
    return out


def pick(
    logits: Tensor,
    slots: Tensor,
    span: Tensor,
    uniform: Tensor,
    ends: Tensor,
    tokens: Tensor,
    places: Tensor,
    out: Tensor,
    log_probs: Tensor,
    temperature: float,
) -> None:
    """Draw the next token of every slot that has not ended, and move the slot on.

    Args:
        logits: (R, V), tokens that cannot be drawn at -inf.
        uniform, out, log_probs: flat, (rows, T): the numbers to draw with, and where to write.
        ends: token ids that end a row, -1 for none.
        tokens, places: (S,), what the next step feeds, and at which position.
        temperature: 0 takes the likeliest token.
    """
    given = (logits, slots, span, uniform, ends, tokens, places, out, log_probs)
    if logits.is_cuda:
        from bestofk.sampling import group_kernels

        group_kernels.pick(*given, temperature)
    else:
        pick_plain(*given, temperature)


def pick_plain(
    logits: Tensor,
    slots: Tensor,
    span: Tensor,
    uniform: Tensor,
    ends: Tensor,
    tokens: Tensor,
    places: Tensor,
    out: Tensor,
    log_probs: Tensor,
    temperature: float,
) -> None:
    """`pick`, by the present sampler's own draw."""
    live = (slots[Field.ENDED, : len(logits)] == 0).nonzero()[:, 0]
    drawn = slots[Field.DRAWN, live]
    here = slots[Field.ROW, live].long() * span + drawn
    picked, logp = draw(
        logits[live].float(), uniform[here].double(), Sampling(temperature=temperature)
    )
    out[here], log_probs[here] = picked.to(out.dtype), logp
    over = torch.isin(picked, ends.long()) | (drawn + 1 >= span)
    slots[Field.DRAWN, live] = drawn + 1
    slots[Field.ENDED, live] = over.to(slots.dtype)
    tokens[live] = picked
    places[live] = (slots[Field.LENGTH, live] + drawn + (~over).to(drawn.dtype)).long()
