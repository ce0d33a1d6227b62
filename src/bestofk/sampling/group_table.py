"""Which row is in which slot: the host's side of the group engine's table. Plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bestofk.sampling.group_fields import Field

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
        """(slots, 2 + rows_per_tile): active siblings in tiles; see `group_ops.attend`."""
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
