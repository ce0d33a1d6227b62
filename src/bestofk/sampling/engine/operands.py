"""What `kernels` and `plain_kernels` take."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 64
"""Queries, rows × heads that share keys, in one tile of prefix attention."""

TILED = 4
"""Rows that tiles hold on average, at least, where prompts are read by tiles."""


PART = 256
"""Keys of a row's own tokens that one program reads, at least, where several read them."""


class SlotField(IntEnum):
    """Rows of the integer table of slots, (6, S)."""

    GENERATED = 0
    """Tokens sampled so far; the key of the token being fed goes to this position."""
    ENDED = 1
    """1 where the slot computes nothing: its sequence has ended, or there is none."""
    PROMPT_START = 2
    """Where the sequence's prompt begins in the store of prompts."""
    PROMPT_LENGTH = 3
    """Tokens of that prompt, without its last, which is the first token the sequence is fed."""
    SEQUENCE = 4
    """Which sequence of the output it writes."""
    KV_SLOT = 5
    """Where the sequence's own keys and values are: they stay when it moves to another slot."""


class Rotation(NamedTuple):
    """What a model with rotary positions does to queries and keys before they meet."""

    cos: Tensor
    sin: Tensor
    """(positions, d)."""
    query_gain: Tensor | None = None
    key_gain: Tensor | None = None
    """(d,), of an RMSNorm over each head."""
    eps: float = 0.0

    def rotated(self, x: Tensor, position: Tensor, gain: Tensor | None) -> Tensor:
        """Heads (..., heads, L, d) at these positions (..., L), in float32 inside."""
        z = x.float()
        if gain is not None:
            z = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + self.eps) * gain.float()
        first, second = z.chunk(2, -1)
        cos, sin = (table[position].float().unsqueeze(-3) for table in (self.cos, self.sin))
        return (z * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


Adapter = tuple[Tensor, Tensor]
"""(rank, inputs) and (outputs, rank): what a linear layer's LoRA adapters add is their product."""

EMPTY = -1
"""A slot without a sequence, a place in a tile without a slot."""
