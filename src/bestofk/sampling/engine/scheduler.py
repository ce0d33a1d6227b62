"""Which sequences are decoded, and in which slots: the host's side of the group engine.

A sequence is one completion; those of one prompt are siblings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bestofk.sampling.decode import texts_of, tokens_of_stop, trajectories
from bestofk.sampling.engine.group_engine import GroupEngine
from bestofk.sampling.engine.operands import EMPTY
from bestofk.sampling.engine.slots import SlotTable
from bestofk.sampling.sampler import Sampling
from bestofk.types import Trajectory

POLL_EVERY = 12
"""Tokens between two looks of the host, where sequences can end before their limit."""
Fetched = Callable[[], tuple[np.ndarray, np.ndarray]]
"""Waits for tokens and log-probs of sequences on their way to the host."""


class Scheduler:
    """Decodes n sequences of each prompt: admits those that wait, evicts those that have ended."""

    def __init__(
        self,
        engine: GroupEngine,
        prompts: Sequence[tuple[int, ...]],
        uniform: np.ndarray,
        sampling: Sampling,
        *,
        tokenizer: Any,
        ends: frozenset[int],
    ) -> None:
        """
        Args:
            uniform: (P, n, max_new_tokens), the numbers to draw with.
            ends: tokens that end a sequence.
        """
        self.engine, self.prompts, self.sampling = engine, prompts, sampling
        self.uniform = uniform
        self.tokenizer, self.ends = tokenizer, ends
        self.stats = {"prefill_s": 0.0, "steps": 0, "slot_steps": 0}
        self.limit, count = sampling.max_new_tokens, len(prompts) * sampling.n
        self.lengths = np.zeros(count, dtype=np.int64)
        """Tokens of the sequences that have ended or wait for a slot."""
        self.turn_starts = np.zeros(count, dtype=np.int64)
        """Tokens before the turn that is being drawn."""
        self.unfinished = np.full(len(prompts), sampling.n)
        """Sequences of each prompt that have not ended."""
        self.resumed: list[int] = []
        """Sequences that were in a slot and wait for another."""
        self.admitted = 0
        """Sequences that are or were in a slot; the others wait for their first."""
        self.prefix_lengths = np.array([len(ids) - 1 for ids in prompts])
        self.last_tokens = np.repeat([ids[-1] for ids in prompts], sampling.n)
        places = max(1, engine.plan.own_tokens // self.limit)
        self.places = np.full(count, EMPTY)
        """Where each sequence has its keys."""
        slots = min(engine.plan.slots, places)
        self.slots = SlotTable(engine.plan.slots, engine.state.rows_per_tile, places)
        self.widths = engine.steps.widths(slots)
        self.width = self._narrowest(count)
        engine.state.begin(sorted(ends), self.limit, uniform, self.prefix_lengths)

    def _narrowest(self, sequences: int) -> int:
        return min((w for w in self.widths if w >= sequences), default=self.widths[0])

    def run(self) -> Iterator[tuple[int, list[Trajectory]]]:
        """(index, trajectories) of each prompt, as they are completed."""
        engine, slots = self.engine, self.slots
        changed = self._begin()
        completed: tuple[list[int], Fetched] | None = None
        while slots.active().size:
            if changed:
                engine.upload(slots, self.width, self.sampling)
            self._decode(self._steps())
            if completed:
                yield from self._trajectories(*completed)
            engine.state.download(slots)
            completed, changed = self._evict()
        if completed:
            yield from self._trajectories(*completed)

    def _begin(self) -> bool:
        """Compute the prompts and fill the slots."""
        began = time.perf_counter()
        self.starts = np.array(self.engine.prefill.run([ids[:-1] for ids in self.prompts]))
        self.stats["prefill_s"] = time.perf_counter() - began
        return self._admit()

    def _decode(self, steps: int) -> None:
        self.engine.steps.run(self.width, steps, self.sampling)
        self.stats["steps"] += steps
        self.stats["slot_steps"] += steps * self.width

    def _steps(self) -> int:
        """Tokens until the host should look: some may end, or all until the first does."""
        generated = self.slots.generated(self.slots.active())
        if self.ends or self.sampling.stop:
            return int(min(POLL_EVERY, self.limit - generated.min()))
        return int(self.limit - generated.max())

    def _admit(self) -> bool:
        """Put waiting sequences into free slots, those first that have most to decode and to wait
        for: the new ones."""
        slots, free = self.slots, self.slots.free(self.width)
        room = min(len(free), len(slots.places))
        new = range(self.admitted, min(self.admitted + room, len(self.lengths)))
        left = len(free) - len(new)
        resumed, self.resumed = self.resumed[:left], self.resumed[left:]
        self.places[new] = [slots.places.pop() for _ in new]
        self.admitted += len(new)
        sequence = np.array([*new, *resumed], dtype=np.int64)
        prompt = sequence // self.sampling.n
        slots.admit(
            free[: len(sequence)], sequence=sequence, prompt=prompt, start=self.starts[prompt],
            length=self.prefix_lengths[prompt], last_token=self.last_tokens[sequence],
            place=self.places[sequence], generated=self.lengths[sequence],
        )  # fmt: skip
        return bool(len(sequence))

    def _evict(self) -> tuple[tuple[list[int], Fetched] | None, bool]:
        """Replace sequences that have ended; the prompts that are complete, being fetched, and
        whether slots have changed."""
        slots, n = self.slots, self.sampling.n
        stopped = bool(self.sampling.stop) and self._end_at_stop_strings()
        ended = slots.ended()
        if not ended.size:
            return None, False
        self.engine.state.download_feed(slots)
        sequences = slots.sequence(ended)
        self.lengths[sequences] = slots.generated(ended)
        np.subtract.at(self.unfinished, sequences // n, 1)
        complete = np.unique(sequences[self.unfinished[sequences // n] == 0] // n)
        slots.evict(ended)
        changed = self._admit() or self._compact() or stopped
        if not complete.size:
            return None, changed
        siblings = (complete[:, None] * n + np.arange(n)).ravel()
        return (complete.tolist(), self.engine.state.fetch(siblings, self.limit)), changed

    def _compact(self) -> bool:
        """Fewer slots, when the sequences that have not ended need no more."""
        unfinished = int(self.unfinished.sum())
        narrow = self._narrowest(unfinished)
        if not unfinished or narrow >= self.width:
            return False
        self.slots.compact(narrow)
        self.width = narrow
        return True

    def _end_at_stop_strings(self) -> bool:
        """End sequences whose text has come to hold a stop string, at the token where it did."""
        slots, stop, any_ended = self.slots, self.sampling.stop, False
        occupied = slots.occupied()
        generated = slots.generated(occupied)
        tokens, _ = self.engine.state.fetch(slots.sequence(occupied).astype(np.int64), self.limit)()
        overlap = tokens_of_stop(stop)
        starts = self.turn_starts[slots.sequence(occupied)]
        begin = np.maximum(generated - POLL_EVERY - overlap, starts)
        tails = [ids[b:length] for ids, b, length in zip(tokens, begin, generated)]
        for slot, ids, start, length, text in zip(
            occupied, tokens, starts, generated, texts_of(self.tokenizer, tails)
        ):
            if not any(word in text for word in stop):
                continue
            steps = range(max(start, length - POLL_EVERY), length)
            windows = [ids[max(start, s + 1 - overlap) : s + 1] for s in steps]
            for step, tail in zip(steps, texts_of(self.tokenizer, windows)):
                if any(word in tail for word in stop):
                    slots.end(slot, step + 1)
                    any_ended = True
                    break
        return any_ended

    def _trajectories(
        self, complete: list[int], fetched: Fetched
    ) -> Iterator[tuple[int, list[Trajectory]]]:
        n = self.sampling.n
        lengths = [self.lengths[p * n + i] for p in complete for i in range(n)]
        tokens, log_probs = fetched()
        rows = [
            (ids[:length], values[:length])
            for ids, values, length in zip(tokens, log_probs, lengths)
        ]
        members = trajectories(rows, self.tokenizer, self.ends, self.sampling.stop)
        for i, p in enumerate(complete):
            yield p, members[i * n : (i + 1) * n]
