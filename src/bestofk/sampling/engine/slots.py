"""Slots of the group engine and the sequences in them: the host's copy, in NumPy.

Kernels read the same fields on the device.
"""

from __future__ import annotations

import numpy as np

from bestofk.sampling.engine.operands import EMPTY, SlotField


class SlotTable:
    """Slots and the sequences in them. Those of one prompt are siblings."""

    def __init__(self, slots: int, rows_per_tile: int, places: int) -> None:
        """
        Args:
            places: for the keys of sequences, at least as many as slots.
        """
        self.fields = np.zeros((len(SlotField), slots), dtype=np.int32)
        """As on the device, which moves GENERATED and ENDED on; the host reads them back."""
        self.fields[SlotField.ENDED] = 1
        self.feed = np.zeros((2, slots), dtype=np.int64)
        """Token and position that each slot is fed next."""
        self.prompt = np.full(slots, EMPTY, dtype=np.int64)
        """The prompt of a slot's sequence; EMPTY where there is none."""
        self.rows_per_tile = rows_per_tile
        self.places = list(range(places))
        """Of keys, that no sequence has."""

    def admit(
        self,
        slots: np.ndarray,
        *,
        sequence: np.ndarray,
        prompt: np.ndarray,
        start: np.ndarray,
        length: np.ndarray,
        last_token: np.ndarray,
        place: np.ndarray,
        generated: np.ndarray | int = 0,
    ) -> None:
        """Begin sequences, or resume them: each is fed its last token; the others are in store."""
        fields = self.fields
        fields[SlotField.GENERATED, slots] = generated
        fields[SlotField.ENDED, slots] = 0
        fields[SlotField.PROMPT_START, slots] = start
        fields[SlotField.PROMPT_LENGTH, slots] = length
        fields[SlotField.SEQUENCE, slots] = sequence
        fields[SlotField.KV_SLOT, slots] = place
        self.feed[0, slots], self.feed[1, slots] = last_token, length + generated
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

    def end(self, slots: np.ndarray | int, length: np.ndarray | int) -> None:
        """End sequences after so many tokens."""
        self.fields[SlotField.ENDED, slots] = 1
        self.fields[SlotField.GENERATED, slots] = length

    def evict(self, slots: np.ndarray) -> None:
        """Take sequences out for good."""
        self.places += self.fields[SlotField.KV_SLOT, slots].tolist()
        self.park(slots)

    def park(self, slots: np.ndarray) -> None:
        """Take sequences out, whose keys stay where they are."""
        self.prompt[slots] = EMPTY
        self.fields[SlotField.ENDED, slots] = 1

    def compact(self, width: int) -> None:
        """Move all active sequences below `width`; their keys stay where they are."""
        active = self.active()
        moving = active[active >= width]
        targets = np.flatnonzero(self.fields[SlotField.ENDED, :width] == 1)[: len(moving)]
        self.fields[:, targets] = self.fields[:, moving]
        self.feed[:, targets] = self.feed[:, moving]
        self.prompt[targets] = self.prompt[moving]
        self.park(moving)

    def tiles(self) -> np.ndarray:
        """(slots, 2 + rows_per_tile): active siblings in tiles; see `plain_kernels.attend`."""
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
