"""What the group engine's host side, kernels and plain twins all know: tables and rotations."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 64
"""Queries, rows × heads that share keys, in one tile of prefix attention."""

TILED = 4
"""Rows that tiles hold on average, at least, where prompts are read by tiles."""


class Field(IntEnum):
    """Rows of the integer table of slots, (6, S)."""

    DRAWN = 0
    """Tokens drawn so far; the key of the token being fed goes to this place."""
    ENDED = 1
    """1 where the slot computes nothing: its row has ended, or there is none."""
    START = 2
    """Where the row's prompt begins in the store of prefixes."""
    LENGTH = 3
    """Tokens of that prompt, without its last, which is the first token the row is fed."""
    ROW = 4
    """Which row of the output it writes."""
    HOME = 5
    """Where the row's own keys and values are: it keeps it when it moves to another slot."""


class Rotation(NamedTuple):
    """What a model with rotary positions does to queries and keys before they meet."""

    cos: Tensor
    sin: Tensor
    """(positions, d)."""
    query_gain: Tensor | None = None
    key_gain: Tensor | None = None
    """(d,), of an RMSNorm over each head."""
    eps: float = 0.0

    def turned(self, x: Tensor, place: Tensor, gain: Tensor | None) -> Tensor:
        """Heads (..., heads, L, d) at these places (..., L), in float32 inside."""
        z = x.float()
        if gain is not None:
            z = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + self.eps) * gain.float()
        first, second = z.chunk(2, -1)
        cos, sin = (table[place].float().unsqueeze(-3) for table in (self.cos, self.sin))
        return (z * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)
