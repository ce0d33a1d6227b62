"""One turn of the group engine: the rows of some prompts, from the first token to the last."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bestofk.sampling.decode import completion, texts_of
from bestofk.sampling.group_engine import GroupEngine
from bestofk.sampling.group_fields import Field
from bestofk.sampling.group_plan import MemoryPlan
from bestofk.sampling.group_table import Table
from bestofk.sampling.sampler import Sampling

LOOK = 12
"""Tokens between two looks of the host, where rows can end before their limit."""
EARLY = 64
"""From so many tokens without a look on, seven eighths become lists while the rest is drawn."""


def turns(
    encoded: Sequence[tuple[int, ...]], params: Sampling, plan: MemoryPlan
) -> Iterator[list[int]]:
    """Prompts cut into turns whose prompts and outputs have room."""
    turn: list[int] = []
    tokens = 0
    rows = max(1, plan.out_tokens // (params.n * params.max_new_tokens))
    for p, ids in enumerate(encoded):
        if turn and (tokens + len(ids) - 1 > plan.prefix_tokens or len(turn) >= rows):
            yield turn
            turn, tokens = [], 0
        turn.append(p)
        tokens += len(ids) - 1
    yield turn


class Turn:
    """The rows of some prompts, from the first token to the last."""

    def __init__(
        self,
        sampler: Any,
        engine: GroupEngine,
        prompts: Sequence[tuple[int, ...]],
        draws: np.ndarray,
        params: Sampling,
    ) -> None:
        self.sampler, self.engine, self.prompts, self.params = sampler, engine, prompts, params
        self.span, count = params.max_new_tokens, len(prompts) * params.n
        self.lengths = np.zeros(count, dtype=np.int64)
        self.early: dict[int, tuple[list[int], list[float]]] = {}
        """First tokens and log-probs, by row, that are on the host already."""
        self.left = np.full(len(prompts), params.n)
        self.begun = 0
        """Rows that are or were in a slot; the others wait."""
        self.sizes = np.array([len(ids) - 1 for ids in prompts])
        self.last = np.array([ids[-1] for ids in prompts])
        slots = max(1, min(engine.plan.slots, engine.plan.own_tokens // self.span))
        self.table = Table(engine.plan.slots, engine.rows_per_tile)
        self.widths = engine.widths(slots)
        self.width = self._narrowest(count)
        engine.begin(sorted(sampler.ends), self.span, draws, self.sizes)

    def _narrowest(self, rows: int) -> int:
        return min((w for w in self.widths if w >= rows), default=self.widths[0])

    def run(self) -> Iterator[tuple[int, list[Any]]]:
        """(place, completions) of each prompt, as they are completed."""
        engine, table, stats = self.engine, self.table, self.sampler.stats
        began = time.perf_counter()
        self.starts = np.array(engine.prefill([ids[:-1] for ids in self.prompts]))
        stats["prefill_s"] = stats.get("prefill_s", 0.0) + time.perf_counter() - began
        changed = self._admit()
        assert changed
        ready: tuple[list[int], Any] | None = None
        while table.active().size:
            if changed:
                engine.push(table, self.width, self.params)
            steps = self._steps()
            self._draw(steps)
            stats["steps"] += steps
            stats["slot_steps"] += steps * self.width
            if ready:
                yield from self._built(*ready)
            engine.pull(table)
            ready, changed = self._harvest()
        if ready:
            yield from self._built(*ready)

    def _steps(self) -> int:
        """Tokens until the host should look: some may end, or all until the first does."""
        drawn = self.table.fields[Field.DRAWN, self.table.active()]
        if self.sampler.ends or self.params.stop:
            return int(min(LOOK, self.span - drawn.min()))
        return int(self.span - drawn.max())

    def _draw(self, steps: int) -> None:
        """So many tokens for every active row; returns before the last ones are drawn."""
        engine, table = self.engine, self.table
        last = steps // 8 if steps >= EARLY else 0
        engine.run(self.width, steps - last, self.params)
        if not last:
            return
        slots = table.active()
        known = table.fields[Field.DRAWN, slots] + steps - last
        rows = table.fields[Field.ROW, slots].astype(np.int64)
        fetched = engine.fetch(rows, self.span)
        engine.run(self.width, last, self.params)
        tokens, values = (each[:, : known.max()].tolist() for each in fetched())
        for row, ids, logs, length in zip(rows.tolist(), tokens, values, known.tolist()):
            self.early[row] = (ids[:length], logs[:length])

    def _admit(self) -> bool:
        """Put waiting rows into free slots."""
        free = self.table.free(self.width)[: len(self.lengths) - self.begun]
        row = np.arange(self.begun, self.begun + len(free))
        prompt = row // self.params.n
        self.table.admit(
            free, row=row, prompt=prompt, start=self.starts[prompt], length=self.sizes[prompt],
            last=self.last[prompt],
        )  # fmt: skip
        self.begun += len(free)
        return bool(len(free))

    def _harvest(self) -> tuple[tuple[list[int], Any] | None, bool]:
        """Take finished rows out and put others in; prompts that are complete, being fetched."""
        table, n = self.table, self.params.n
        stopped = bool(self.params.stop) and self._stop()
        over = table.finished()
        if not over.size:
            return None, False
        self.engine.pull_feed(table)
        rows = table.fields[Field.ROW, over]
        self.lengths[rows] = table.fields[Field.DRAWN, over]
        np.subtract.at(self.left, rows // n, 1)
        complete = np.unique(rows[self.left[rows // n] == 0] // n)
        table.leave(over)
        changed = self._admit() or self._shrink() or stopped
        if not complete.size:
            return None, changed
        wanted = (complete[:, None] * n + np.arange(n)).ravel()
        return (complete.tolist(), self.engine.fetch(wanted, self.span)), changed

    def _shrink(self) -> bool:
        """Fewer slots, when enough of them are empty and nothing waits."""
        active = self.table.active().size
        narrow = self._narrowest(active)
        if not active or narrow >= self.width:
            return False
        self.table.compact(narrow)
        self.width = narrow
        return True

    def _stop(self) -> bool:
        """End rows whose text has come to hold a stop string, at the token where it did."""
        table, stop, any_ended = self.table, self.params.stop, False
        slots = np.flatnonzero(table.prompt >= 0)
        rows = table.fields[Field.ROW, slots]
        drawn = table.fields[Field.DRAWN, slots]
        tokens, _ = self.engine.fetch(rows.astype(np.int64), self.span)()
        reach = max(map(len, stop)) + 4
        begin = np.maximum(drawn - LOOK - reach, 0)
        tails = [own[b:d].tolist() for own, b, d in zip(tokens, begin, drawn)]
        for slot, own, d, text in zip(
            slots, tokens, drawn, texts_of(self.sampler.tokenizer, tails)
        ):
            if not any(word in text for word in stop):
                continue
            steps = range(max(0, d - LOOK), d)
            windows = [own[max(0, s + 1 - reach) : s + 1].tolist() for s in steps]
            for step, tail in zip(steps, texts_of(self.sampler.tokenizer, windows)):
                if any(word in tail for word in stop):
                    table.fields[Field.ENDED, slot] = 1
                    table.fields[Field.DRAWN, slot] = step + 1
                    any_ended = True
                    break
        return any_ended

    def _built(self, complete: list[int], fetched: Any) -> Iterator[tuple[int, list[Any]]]:
        n, sampler = self.params.n, self.sampler
        rows = [p * n + i for p in complete for i in range(n)]
        lengths = self.lengths[rows].tolist()
        early = [self.early.pop(row, ([], [])) for row in rows]
        known = min(len(ids) for ids, _ in early)
        tokens, values = (each[:, known:].tolist() for each in fetched())
        ids = [a[:known] + b[: size - known] for (a, _), b, size in zip(early, tokens, lengths)]
        logs = [a[:known] + b[: size - known] for (_, a), b, size in zip(early, values, lengths)]
        shown = [row[:-1] if row[-1] in sampler.ends else row for row in ids]
        texts = texts_of(sampler.tokenizer, shown)
        done = [
            completion(row, logp, sampler.tokenizer, sampler.ends, self.params.stop, text)
            for row, logp, text in zip(ids, logs, texts)
        ]
        for at, p in enumerate(complete):
            yield p, done[at * n : (at + 1) * n]
