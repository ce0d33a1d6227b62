"""How much memory the group engine takes, and which row is in which slot of it: the host's side.

Sizes are decided from the call, the model and the card alone, so that a run repeats. The table of
slots is plain NumPy; kernels and their plain twins read the same fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SHARE = 0.35
"""Of the memory that the weights leave, for keys and values; the learner keeps the rest."""
OWN = 0.75
"""Of that, at most, for completions; prompts have what is left."""


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of the engine's tensors. They depend on the call, the model and the card's total
    memory, never on what happens to be free."""

    slots: int
    """Rows decoded at once."""
    own_tokens: int
    """Places for keys of completions: slots × new tokens, at least."""
    prefix_tokens: int
    """Places for keys of prompts."""
    out_tokens: int
    """Tokens of all rows of one turn."""
    longest: int
    """Tokens of the longest prompt it was made for."""
    group_tokens: int
    """New tokens of one group: a turn has at least one group."""

    def holds(self, needed: MemoryPlan) -> bool:
        """Whether calls that `needed` was made for run as well in this one."""
        return (
            self.slots >= needed.slots
            and self.own_tokens >= needed.own_tokens
            and self.prefix_tokens >= max(needed.longest, needed.prefix_tokens // 2)
            and self.out_tokens >= needed.group_tokens
        )

    def joined(self, other: MemoryPlan, room: int) -> MemoryPlan:
        """Sizes for the calls of both, within `room` tokens, so that calls of two kinds in turns
        (training and evaluation) do not make the engine anew each time."""
        longest = max(self.longest, other.longest)
        own = min(room - longest, max(self.own_tokens, other.own_tokens))
        prefix = min(room - own, max(self.prefix_tokens, other.prefix_tokens))
        return MemoryPlan(
            slots=max(self.slots, other.slots),
            own_tokens=own,
            prefix_tokens=max(longest, prefix),
            out_tokens=max(self.out_tokens, other.out_tokens),
            longest=longest,
            group_tokens=max(self.group_tokens, other.group_tokens),
        )


def make_plan(
    *,
    token_bytes: int,
    total_bytes: float,
    samples: int,
    new_tokens: int,
    lengths: Sequence[int],
    max_rows: int,
) -> MemoryPlan:
    """Sizes for calls like this one.

    Args:
        token_bytes: of one token's keys and values in all layers.
        total_bytes: the card's memory without the weights, used or not.
        samples: completions of each prompt.
        lengths: of the call's prompts, in tokens.

    Raises:
        ValueError: not even one row fits.

    >>> make_plan(token_bytes=1000, total_bytes=1e6, samples=16, new_tokens=10, lengths=[5] * 4,
    ...           max_rows=2048)
    MemoryPlan(slots=16, own_tokens=260, prefix_tokens=90, out_tokens=2080, longest=5,
    group_tokens=160)
    """
    room = room_for(token_bytes, total_bytes)
    rows, longest = samples * len(lengths), max(lengths)
    if room < longest + new_tokens:
        raise ValueError(
            f"a prompt of {longest} tokens with {new_tokens} new ones needs "
            f"{(longest + new_tokens) * token_bytes / 2**30:.1f} GiB for its keys and values, and "
            f"{SHARE:.0%} of the GPU's memory beside the weights is "
            f"{SHARE * total_bytes / 2**30:.1f} GiB: take fewer new tokens"
        )
    most = max(new_tokens, min(int(OWN * room), room - longest))
    slots = rounded(min(rows, max_rows))
    if slots * new_tokens > most:
        slots = max(1, most // new_tokens)
        slots -= slots % 16 if slots > 16 else 0
    own = min(most, slots * new_tokens + slots * new_tokens * 5 // 8)
    prefix = max(longest, min(room - own, max(2 * sum(lengths), 16_384)))
    return MemoryPlan(
        slots=slots,
        own_tokens=own,
        prefix_tokens=prefix,
        out_tokens=max(rows, 8 * slots) * new_tokens + slots * new_tokens * 5,
        longest=longest,
        group_tokens=samples * new_tokens,
    )


def room_for(token_bytes: int, total_bytes: float) -> int:
    """Tokens whose keys and values the engine may hold."""
    return int(SHARE * total_bytes / token_bytes)


def rounded(rows: int) -> int:
    """A number of rows for which a graph is kept: 16, 32, 64, then multiples of 64."""
    for few in (16, 32, 64):
        if rows <= few:
            return few
    return -(-rows // 64) * 64


TILE = 64
"""Queries, rows × heads that share keys, in one tile of prefix attention."""

TILED = 4
"""Rows that tiles hold on average, at least, where prompts are read by tiles."""


PART = 256
"""Keys of a row's own tokens that one program reads, at least, where several read them."""


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


Adapter = tuple[Tensor, Tensor]
"""(rank, inputs) and (outputs, rank): what a linear layer's LoRA adapters add is their product."""

EMPTY = -1


class Table:
    """Slots and the rows in them. A row is a completion; rows of one prompt are siblings."""

    def __init__(self, slots: int, rows_per_tile: int) -> None:
        self.fields = np.zeros((len(Field), slots), dtype=np.int32)
        """As on the device; it moves DRAWN and ENDED on, and the host reads them back."""
        self.fields[Field.ENDED] = 1
        self.fields[Field.HOME] = np.arange(slots)
        self.feed = np.zeros((2, slots), dtype=np.int64)
        """Token and position that each slot is fed next."""
        self.prompt = np.full(slots, EMPTY, dtype=np.int64)
        """The prompt a slot's row belongs to; EMPTY where there is no row."""
        self.rows_per_tile = rows_per_tile

    def admit(
        self,
        slots: np.ndarray,
        *,
        row: np.ndarray,
        prompt: np.ndarray,
        start: np.ndarray,
        length: np.ndarray,
        last: np.ndarray,
    ) -> None:
        """Begin rows: each is fed the last token of its prompt, whose other tokens are in store."""
        self.fields[Field.DRAWN, slots] = self.fields[Field.ENDED, slots] = 0
        self.fields[Field.START, slots], self.fields[Field.LENGTH, slots] = start, length
        self.fields[Field.ROW, slots] = row
        self.feed[0, slots], self.feed[1, slots] = last, length
        self.prompt[slots] = prompt

    def finished(self) -> np.ndarray:
        """Slots whose row has ended."""
        return np.flatnonzero((self.prompt != EMPTY) & (self.fields[Field.ENDED] == 1))

    def active(self) -> np.ndarray:
        """Slots with a row that goes on."""
        return np.flatnonzero((self.prompt != EMPTY) & (self.fields[Field.ENDED] == 0))

    def free(self, width: int) -> np.ndarray:
        """Slots below `width` without a row."""
        return np.flatnonzero(self.prompt[:width] == EMPTY)

    def leave(self, slots: Sequence[int] | np.ndarray) -> None:
        """Take rows out."""
        self.prompt[slots] = EMPTY
        self.fields[Field.ENDED, slots] = 1

    def compact(self, width: int) -> None:
        """Move all active rows below `width`; their keys stay where they are."""
        active = self.active()
        moving = active[active >= width]
        places = np.flatnonzero(self.fields[Field.ENDED, :width] == 1)[: len(moving)]
        left = self.fields[Field.HOME, places]
        self.fields[:, places] = self.fields[:, moving]
        self.fields[Field.HOME, moving] = left
        self.feed[:, places] = self.feed[:, moving]
        self.prompt[places] = self.prompt[moving]
        self.leave(moving)

    def tiles(self) -> np.ndarray:
        """(slots, 2 + rows_per_tile): active siblings in tiles; see `layers.attend`."""
        count, per = self.fields.shape[1], self.rows_per_tile
        tiles = np.full((count, 2 + per), EMPTY, dtype=np.int32)
        active = self.active()
        if not active.size:
            return tiles
        order = active[np.argsort(self.prompt[active], kind="stable")]
        prompt = self.prompt[order]
        first = np.r_[True, prompt[1:] != prompt[:-1]]
        begin = np.flatnonzero(first)
        rank = np.arange(len(order)) - begin[np.cumsum(first) - 1]
        tile = np.cumsum(first | (rank % per == 0)) - 1
        tiles[tile, 0] = self.fields[Field.START, order]
        tiles[tile, 1] = self.fields[Field.LENGTH, order]
        tiles[tile, 2 + rank % per] = order
        return tiles
