"""Slots of the group engine and the sequences in them: the host's copy, in NumPy.

Kernels and their plain twins read the same fields on the device.
"""

from __future__ import annotations

import numpy as np

from bestofk.sampling.engine.operands import EMPTY, SlotField


class SlotTable:
    """Slots and the sequences in them. Those of one prompt are siblings."""

    def __init__(self, slots: int, rows_per_tile: int) -> None:
        self.fields = np.zeros((len(SlotField), slots), dtype=np.int32)
        """As on the device, which moves GENERATED and ENDED on; the host reads them back."""
        self.fields[SlotField.ENDED] = 1
        self.fields[SlotField.KV_SLOT] = np.arange(slots)
        self.feed = np.zeros((2, slots), dtype=np.int64)
        """Token and position that each slot is fed next."""
        self.prompt = np.full(slots, EMPTY, dtype=np.int64)
        """The prompt of a slot's sequence; EMPTY where there is none."""
        self.rows_per_tile = rows_per_tile

    def admit(
        self,
        slots: np.ndarray,
        *,
        sequence: np.ndarray,
        prompt: np.ndarray,
        start: np.ndarray,
        length: np.ndarray,
        last_token: np.ndarray,
    ) -> None:
        """Begin sequences: each is fed its prompt's last token; the others are in store."""
        fields = self.fields
        fields[SlotField.GENERATED, slots] = fields[SlotField.ENDED, slots] = 0
        fields[SlotField.PROMPT_START, slots] = start
        fields[SlotField.PROMPT_LENGTH, slots] = length
        fields[SlotField.SEQUENCE, slots] = sequence
        self.feed[0, slots], self.feed[1, slots] = last_token, length
        self.prompt[slots] = prompt

    def sequence(self, slots: np.ndarray) -> np.ndarray:
        """Which sequences are in these slots."""
        return self.fields[SlotField.SEQUENCE, slots]

    def generated(self, slots: np.ndarray) -> np.ndarray:
        """Tokens that these slots have sampled."""
        return self.fields[SlotField.GENERATED, slots]

    def occupied(self) -> np.ndarray:
        """Slots with a sequence."""
        return np.flatnonzero(self.prompt != EMPTY)

    def ended(self) -> np.ndarray:
        """Slots whose sequence has ended."""
        return np.flatnonzero((self.prompt != EMPTY) & (self.fields[SlotField.ENDED] == 1))

    def active(self) -> np.ndarray:
        """Slots whose sequence goes on."""
        return np.flatnonzero((self.prompt != EMPTY) & (self.fields[SlotField.ENDED] == 0))

    def free(self, width: int) -> np.ndarray:
        """Slots below `width` without a sequence."""
        return np.flatnonzero(self.prompt[:width] == EMPTY)

    def end(self, slot: int, length: int) -> None:
        """End a sequence after so many tokens."""
        self.fields[[SlotField.ENDED, SlotField.GENERATED], slot] = 1, length

    def evict(self, slots: np.ndarray) -> None:
        """Take sequences out."""
        self.prompt[slots] = EMPTY
        self.fields[SlotField.ENDED, slots] = 1

    def compact(self, width: int) -> None:
        """Move all active sequences below `width`; their keys stay where they are."""
        active = self.active()
        moving = active[active >= width]
        targets = np.flatnonzero(self.fields[SlotField.ENDED, :width] == 1)[: len(moving)]
        replaced = self.fields[SlotField.KV_SLOT, targets]
        self.fields[:, targets] = self.fields[:, moving]
        self.fields[SlotField.KV_SLOT, moving] = replaced
        self.feed[:, targets] = self.feed[:, moving]
        self.prompt[targets] = self.prompt[moving]
        self.evict(moving)

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
        tiles[tile, 0] = self.fields[SlotField.PROMPT_START, order]
        tiles[tile, 1] = self.fields[SlotField.PROMPT_LENGTH, order]
        tiles[tile, 2 + rank % per] = order
        return tiles
