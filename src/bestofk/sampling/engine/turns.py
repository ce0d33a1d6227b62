"""Sequences of several turns: what ends a turn goes to its environment, whose reply is forced.

While its environment works, a sequence has no slot, but its keys stay. Its reply then follows by
the same steps: tokens are forced instead of drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from bestofk.sampling.engine.scheduler import POLL_EVERY, Fetched, Scheduler
from bestofk.types import Trajectory

SOON = 4
"""Tokens until the host looks again where slots are free for replies, or where turns are young:
short ones end often, and a slot whose turn has ended is idle until then."""
PATIENCE = 0.02
"""Seconds that the first reply waits for others, where nothing can be decoded meanwhile."""


class Turn(NamedTuple):
    """What the policy drew until its turn ended."""

    sequence: int
    tokens: np.ndarray
    log_probs: np.ndarray


Ask: TypeAlias = Callable[[Sequence[Turn], SimpleQueue[tuple[int, Any]]], None]
"""Lets environments begin to answer turns; the queue gets each sequence with its answer."""
Reply: TypeAlias = tuple[list[int], int] | None
"""The tokens that follow a turn, and how many the next may have; None where it was the last."""
Told: TypeAlias = Callable[[Sequence[tuple[int, Any]]], Sequence[Reply]]
"""Makes replies of answers, with their sequences."""


class TurnScheduler(Scheduler):
    """Decodes sequences whose turns are answered; gives nothing back itself, `ask` gets all."""

    def __init__(
        self,
        *args: Any,
        room: np.ndarray,
        first: np.ndarray,
        ask: Ask,
        told: Told,
        first_sequence: int,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            room: tokens that sequences of each prompt may have, at most max_new_tokens.
            first: tokens that the first turn of each may have.
            first_sequence: what `ask` and `told` call the first sequence.
        """
        super().__init__(*args, **kwargs)
        self.numbers = self.uniform.reshape(len(self.lengths), self.limit)
        self.room = np.repeat(room, self.sampling.n)
        self.turn_ends = np.repeat(first, self.sampling.n)
        """Tokens that sequences have at most when their present turn ends."""
        self.ask, self.told, self.first_sequence = ask, told, first_sequence
        self.asked, self.answers = 0, SimpleQueue[tuple[int, Any]]()
        """Sequences whose environment works, and answers that have come."""
        self.drawn = np.zeros(len(self.lengths), dtype=np.int64)
        """Tokens that the policy drew in the turns before."""

    def converse(self) -> None:
        """All turns of all sequences."""
        slots, state = self.slots, self.engine.state
        changed = self._begin()
        ended: tuple[np.ndarray, Fetched] | None = None
        while self.unfinished.any():
            running = bool(slots.active().size)
            if running:
                if changed:
                    self.engine.upload(slots, self.width, self.sampling)
                self._decode(self._steps())
            if ended:
                self._ask(*ended)
            self._force(self._replies(wait_for_one=not running))
            ended, changed = None, changed and not running
            if running:
                state.download(slots)
                state.download_feed(slots)
                ended, changed = self._park()
            changed = self._admit() or self._compact() or changed

    def longest(self) -> tuple[int, Trajectory]:
        """The place of a prompt, and the longest of all sequences."""
        sequence = int(self.lengths.argmax())
        ((tokens,), (log_probs,)) = self.engine.state.fetch(np.array([sequence]), self.limit)()
        own = self.engine.state.drawn(sequence, self.limit)
        length = self.lengths[sequence]
        done = Trajectory(tokens[:length], own[:length], log_probs[:length])
        return sequence // self.sampling.n, done

    def _steps(self) -> int:
        active = self.slots.active()
        sequences = self.slots.sequence(active)
        generated, room = self.slots.generated(active), self.room[sequences]
        steps = int((self.turn_ends[sequences] - generated).max())
        bounded = room < self.limit  # by the model's positions: not one token more
        if bounded.any():
            steps = min(steps, int((room - generated)[bounded].min()))
        age = (generated - self.turn_starts[sequences]).clip(0).mean()
        is_free = self.asked and active.size < self.width
        often = SOON if is_free else min(max(SOON, math.isqrt(int(age) // 3)), POLL_EVERY)
        return min(steps, often)

    def _park(self) -> tuple[tuple[np.ndarray, Fetched] | None, bool]:
        """Take sequences out of their slots whose turn has ended: these, with their output being
        fetched, and whether the host has ended some."""
        slots = self.slots
        any_ended = bool(self.sampling.stop) and self._end_at_stop_strings()
        occupied = slots.occupied()
        most = self.turn_ends[slots.sequence(occupied)]
        over = slots.generated(occupied) >= most
        slots.end(occupied[over], most[over])
        any_ended |= bool(over.any())
        ended = slots.ended()
        if not ended.size:
            return None, any_ended
        sequences = slots.sequence(ended).astype(np.int64)
        self.lengths[sequences] = slots.generated(ended)
        slots.park(ended)
        return (sequences, self.engine.state.fetch(sequences, self.limit)), any_ended

    def _ask(self, sequences: np.ndarray, fetched: Fetched) -> None:
        tokens, log_probs = fetched()
        starts, lengths = self.turn_starts[sequences], self.lengths[sequences]
        turns = [
            Turn(self.first_sequence + each, ids[start:length].copy(), values[start:length].copy())
            for each, ids, values, start, length in zip(
                sequences.tolist(), tokens, log_probs, starts, lengths
            )
        ]
        self.drawn[sequences] += lengths - starts
        self.last_tokens[sequences] = tokens[np.arange(len(sequences)), lengths - 1]
        self.asked += len(turns)
        self.ask(turns, self.answers)

    def _replies(self, *, wait_for_one: bool) -> dict[int, tuple[list[int], int]]:
        """What environments have answered since; sequences that are over leave."""
        answers = [self.answers.get()] if wait_for_one and self.asked else []
        until = time.monotonic() + (PATIENCE if answers else 0.0)
        while len(answers) < self.asked:
            try:
                answers.append(self.answers.get(timeout=max(0.0, until - time.monotonic())))
            except Empty:
                break
        self.asked -= len(answers)
        replies = {}
        done = [at - self.first_sequence for at, _ in answers]
        for sequence, reply in zip(done, self.told(answers) if answers else (), strict=True):
            if reply is None:
                self.unfinished[sequence // self.sampling.n] -= 1
                self.slots.places.append(int(self.places[sequence]))
            else:
                replies[sequence] = reply
        return replies

    def _force(self, replies: dict[int, tuple[list[int], int]]) -> None:
        """Let sequences go on with these tokens, and then with draws of their own."""
        if not replies:
            return
        places, numbers = [], []
        for sequence, (reply, most) in replies.items():
            length = int(self.lengths[sequence])
            after, drawn = length + len(reply), int(self.drawn[sequence])
            places.append(sequence * self.limit + np.arange(length, self.limit))
            own = self.numbers[sequence, drawn : drawn + self.limit - after]
            numbers += [-1.0 - np.array(reply, dtype=np.float64), own]
            self.turn_starts[sequence], self.turn_ends[sequence] = after, after + most
        self.engine.state.draw_with(np.concatenate(places), np.concatenate(numbers))
        self.resumed += list(replies)
