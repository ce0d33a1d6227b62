"""The group engine: the sampler for CUDA. Prompts computed once, steps as CUDA graphs.

A prompt's keys and values exist once for all of its completions. Decoding, the draw, log-probs and
the look for end tokens happen on the device; the host looks in every few tokens, takes finished
rows out and puts waiting ones in. Draws use the same numbers as `ModelSampler`: they depend on the
seed, the prompt's id, the sample and the position alone.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bestofk.sampling.decode import ModelSampler, completion, end_tokens, texts_of
from bestofk.sampling.draw import distribution
from bestofk.sampling.group_engine import GroupEngine
from bestofk.sampling.group_mirror import CannotRun, Mirror
from bestofk.sampling.group_ops import Field
from bestofk.sampling.group_plan import MemoryPlan, make_plan, room_for
from bestofk.sampling.group_table import Table
from bestofk.sampling.prompts import encode, uniforms
from bestofk.sampling.sampler import Sampling
from bestofk.types import Group, Prompt

LOOK = 12
"""Tokens between two looks of the host, where rows can end before their limit."""
AGREE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest mean |log-prob difference| of a completion to a plain forward pass over it."""
CHECKED, CHECK_EVERY = 4, 64
"""The first calls, and every so many, compare one completion that way: steps are compiled and
recorded, and what was recorded is used again."""


def can_run(model: PreTrainedModel) -> str | None:
    """Why the group engine does not run this model, or None if it does.

    Runs two tokens through a copy of its modules that shares its weights.
    """
    try:
        Mirror(model, next(model.parameters()).dtype)
    except CannotRun as reason:
        return str(reason)
    return None


class GroupSampler:
    """Samples a model in this process: a `bestofk.sampling.Sampler`, made for CUDA.

    A model it cannot run is sampled by `ModelSampler`; `reason` then says why, and a warning did.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_rows: int = 2048,
        precision: str = "fp32",
        memory_gib: float | None = None,
        compiled: bool = True,
        copied: bool = False,
    ) -> None:
        """
        Args:
            model: sampled as it is at each call; the learner may train the same object in between.
            max_rows: completions decoded at once, at most.
            precision: "bf16" samples from weights cast to bfloat16, once per call.
            memory_gib: the card's memory that sizes are planned from; by default all it has.
            compiled: compile layers and record CUDA graphs. Without, every step is launched anew.
            copied: the model's tensors are other ones at each call (FSDP2's gathered copy).
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is at least 1, got {max_rows}")
        self.model, self.tokenizer, self.max_rows = model, tokenizer, max_rows
        self.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        self.memory_gib, self.compiled, self.copied = memory_gib, compiled, copied
        self.ends = end_tokens(model, tokenizer)
        self.present = ModelSampler(model, tokenizer, max_rows=max_rows, precision=precision)
        self.mirror: Mirror | None = None
        self.engine: GroupEngine | None = None
        self.reason: str | None = None
        self.agreement: tuple[float, float] | None = None
        """Mean and largest |log-prob difference| to a plain forward pass, when last compared."""
        self.calls = 0
        self.stats: dict[str, float] = {}
        """Of the last call: seconds by part, tokens, steps, share of slots that were at work."""

    @property
    def plan(self) -> MemoryPlan | None:
        """Sizes of what the engine holds, once it has been used."""
        return self.engine.plan if self.engine else None

    def sample(self, prompts: Sequence[Prompt], *, seed: int, params: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        groups = dict(self.stream(prompts, seed=seed, params=params))
        return [groups[p] for p in range(len(prompts))]

    def stream(
        self, prompts: Sequence[Prompt], *, seed: int, params: Sampling
    ) -> Iterator[tuple[int, Group]]:
        """(place, group) of every prompt, as groups are completed; otherwise like `sample`."""
        if not prompts:
            return
        if self.reason is None:
            done: set[int] = set()
            try:
                for p, group in self._stream(prompts, seed, params):
                    done.add(p)
                    yield p, group
                return
            except CannotRun as error:
                if done:
                    raise
                self._give_up(str(error))
        yield from enumerate(self.present.sample(prompts, seed=seed, params=params))

    def _give_up(self, reason: str) -> None:
        self.reason, self.engine, self.mirror = reason, None, None
        warnings.warn(
            f"the group engine does not run {type(self.model).__name__}: {reason}; sampling with "
            "transformers instead, more slowly",
            stacklevel=4,
        )

    def _stream(
        self, prompts: Sequence[Prompt], seed: int, params: Sampling
    ) -> Iterator[tuple[int, Group]]:
        began = time.perf_counter()
        encoded = [encode(self.tokenizer, prompt) for prompt in prompts]
        draws = uniforms(prompts, seed, params.n, params.max_new_tokens)
        engine = self._prepared(encoded, params)
        self.calls += 1
        due = self.calls <= CHECKED or self.calls % CHECK_EVERY == 0
        self.stats = {"prepare_s": time.perf_counter() - began, "steps": 0, "slot_steps": 0}
        for turn in _turns(encoded, params, engine.plan):
            rows = _Turn(self, engine, [encoded[p] for p in turn], draws[turn], params)
            for at, done in rows.run():
                group = Group(prompts[turn[at]], tuple(done), encoded[turn[at]])
                if due and params.temperature:
                    due = False
                    self._agree(engine, group, params)
                yield turn[at], group
        total = time.perf_counter() - began
        self.stats |= {"total_s": total, "compile_s": engine.seconds["compile"]}

    @torch.no_grad()
    def _prepared(self, encoded: Sequence[tuple[int, ...]], params: Sampling) -> GroupEngine:
        """The engine with the policy's present weights, and memory for this call."""
        if self.mirror is None:
            self.mirror = Mirror(self.model, self.dtype, copied=self.copied)
        else:
            self.mirror.refresh(self.model)
        token_bytes, total = self.mirror.token_bytes(), self._total()
        needed = make_plan(
            token_bytes=token_bytes,
            total_bytes=total,
            samples=params.n,
            new_tokens=params.max_new_tokens,
            lengths=[len(ids) for ids in encoded],
            max_rows=self.max_rows,
        )
        present = self.plan
        if self.engine is None or present is None:
            self.engine = GroupEngine(self.mirror, needed, compiled=self.compiled)
        elif not present.holds(needed):
            plan = present.joined(needed, room_for(token_bytes, total))
            if plan != present:
                self.engine = None  # frees its memory first
                self.engine = GroupEngine(self.mirror, plan, compiled=self.compiled)
        return self.engine

    def _total(self) -> float:
        if self.memory_gib is not None:
            return self.memory_gib * 2**30
        device = next(self.model.parameters()).device
        if device.type == "cuda":
            return float(torch.cuda.get_device_properties(device).total_memory)
        return 8.0 * 2**30

    @torch.no_grad()
    def _agree(self, engine: GroupEngine, group: Group, params: Sampling) -> None:
        """Compare a completion's log-probs with a plain forward pass over all of it.

        Raises:
            CannotRun: they differ by more than rounding.
        """
        done = max(group.completions, key=lambda one: len(one.tokens))
        device = engine.device
        ids = torch.tensor([[*group.prompt_tokens, *done.tokens]], device=device)
        start = len(group.prompt_tokens)
        with engine.mirror.as_before():
            logits = engine.mirror.model(input_ids=ids, use_cache=False).logits[0, start - 1 : -1]
        expected = distribution(logits, params).gather(-1, ids[0, start:, None])[:, 0].cpu()
        gap = (expected - torch.tensor(done.logprobs)).abs()
        gap = gap[gap.isfinite()]  # a token at the edge of top-p may lie outside of it
        mean, most = (float(gap.mean()), float(gap.max())) if len(gap) else (0.0, 0.0)
        self.agreement = (mean, most)
        if not mean <= AGREE[self.dtype]:
            raise CannotRun(
                f"its log-probs are {mean:.2g} per token away from those of a plain forward pass, "
                f"more than {AGREE[self.dtype]:g}"
            )


def _turns(
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


class _Turn:
    """The rows of some prompts, from the first token to the last."""

    def __init__(
        self,
        sampler: GroupSampler,
        engine: GroupEngine,
        prompts: Sequence[tuple[int, ...]],
        draws: np.ndarray,
        params: Sampling,
    ) -> None:
        self.sampler, self.engine, self.prompts, self.params = sampler, engine, prompts, params
        self.span, count = params.max_new_tokens, len(prompts) * params.n
        self.lengths = np.zeros(count, dtype=np.int64)
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
        ready: tuple[list[int], Any] | None = None
        while table.active().size:
            engine.push(table, self.width, self.params, rows_changed=changed)
            steps = self._steps()
            engine.run(self.width, steps, self.params)
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
        if self.params.stop:
            self._stop()
        over = table.finished()
        if not over.size:
            return None, False
        rows = table.fields[Field.ROW, over]
        self.lengths[rows] = table.fields[Field.DRAWN, over]
        np.subtract.at(self.left, rows // n, 1)
        complete = np.unique(rows[self.left[rows // n] == 0] // n)
        table.leave(over)
        changed = self._admit() or self._shrink()
        if not complete.size:
            return None, changed
        wanted = (complete[:, None] * n + np.arange(n)).ravel()
        return (complete.tolist(), self.engine.fetch(wanted, self.span)), changed

    def _shrink(self) -> bool:
        """Fewer slots, when half of them are empty and nothing waits."""
        active = self.table.active().size
        narrow = self._narrowest(active)
        if not active or narrow >= self.width:
            return False
        self.engine.move(*self.table.compact(narrow), self.span)
        self.width = narrow
        return True

    def _stop(self) -> None:
        """End rows whose text has come to hold a stop string, at the token where it did."""
        table, stop = self.table, self.params.stop
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
                    break

    def _built(self, complete: list[int], fetched: Any) -> Iterator[tuple[int, list[Any]]]:
        n, sampler = self.params.n, self.sampler
        tokens, values = fetched()
        rows = [p * n + i for p in complete for i in range(n)]
        lengths = self.lengths[rows].tolist()
        ids = [row[:length] for row, length in zip(tokens.tolist(), lengths)]
        logs = [row[:length] for row, length in zip(values.tolist(), lengths)]
        shown = [row[:-1] if row[-1] in sampler.ends else row for row in ids]
        texts = texts_of(sampler.tokenizer, shown)
        done = [
            completion(row, logp, sampler.tokenizer, sampler.ends, self.params.stop, text)
            for row, logp, text in zip(ids, logs, texts)
        ]
        for at, p in enumerate(complete):
            yield p, done[at * n : (at + 1) * n]
