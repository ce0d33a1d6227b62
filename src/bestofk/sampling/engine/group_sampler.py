"""The group engine: the sampler for CUDA. Prompts computed once, steps as CUDA graphs.

A prompt's keys and values exist once for all of its completions. Decoding, the draw, log-probs and
the look for end tokens happen on the device; the host looks in every few tokens, takes finished
rows out and puts waiting ones in. Draws use the same numbers as `ModelSampler`: they depend on the
seed, the prompt's id, the sample and the position alone.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bestofk.common import card_bytes, processes_per_card
from bestofk.precision import PRECISIONS
from bestofk.sampling.decode import ModelSampler, end_tokens, texts_of, trajectory
from bestofk.sampling.draw import gap_to_plain
from bestofk.sampling.engine.device import GroupEngine
from bestofk.sampling.engine.memory import Field, MemoryPlan, Table, make_plan, room_for
from bestofk.sampling.engine.mirror import CannotRun, Mirror
from bestofk.sampling.prompts import encode, uniforms
from bestofk.sampling.sampler import Sampling
from bestofk.types import Group, Prompt

CHECKED, CHECK_EVERY = 4, 64
"""The first calls, and every so many, compare one completion that way: steps are compiled and
recorded, and what was recorded is used again."""


def _first_call_errors() -> tuple[type[Exception], ...]:
    """What is raised where a kernel cannot be built or run on this card."""
    plain = (RuntimeError, TypeError, ImportError)
    try:
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import TritonError
    except ImportError:
        return plain
    return (*plain, CompilationError, TritonError)


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
        fused: bool = True,
    ) -> None:
        """
        Args:
            model: sampled as it is at each call; the learner may train the same object in between.
            max_rows: completions decoded at once, at most.
            precision: "bf16" samples from weights cast to bfloat16, once per call.
            memory_gib: the memory beside the weights that sizes are planned from; by default all
                that the card has, divided by the number of processes of this run that share it.
            compiled: compile layers and record CUDA graphs. Without, every step is launched anew.
            copied: the model's tensors are other ones at each call (FSDP2's gathered copy).
            fused: run the common kind of layer (Llama, Qwen, ...) by fewer, larger kernels.
        """
        self.model, self.tokenizer, self.max_rows = model, tokenizer, max_rows
        self.precision = PRECISIONS[precision]
        self.memory_gib, self.compiled = memory_gib, compiled
        self.copied, self.fused = copied, fused
        self.ends = end_tokens(model, tokenizer)
        self.fallback = ModelSampler(model, tokenizer, max_rows=max_rows, precision=precision)
        self.kept: MemoryPlan | None = None
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

    @property
    def about(self) -> dict[str, Any]:
        """What the plan was made for; for a run's folder."""
        assert self.mirror is not None
        assert self.engine is not None
        each = self.mirror.token_bytes()
        plan = self.engine.plan
        return {
            "token_bytes": each,
            "weight_bytes": self.precision.dtype.itemsize,
            "bytes": each * (plan.own_tokens + plan.prefix_tokens) + 12 * plan.out_tokens,
            "processes_on_the_card": self._processes(),
            "layers": "fused" if self.mirror.fused_model else "the model's own",
        }

    def begin_with(self, stored: Mapping[str, Any]) -> None:
        """Take at least the sizes of a plan that was written down, from the first call on."""
        names = [each.name for each in fields(MemoryPlan)]
        if all(isinstance(stored.get(name), int) for name in names):
            self.kept = MemoryPlan(**{name: stored[name] for name in names})

    def sample(self, prompts: Sequence[Prompt], *, seed: int, sampling: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        groups = dict(self.stream(prompts, seed=seed, sampling=sampling))
        return [groups[p] for p in range(len(prompts))]

    def stream(
        self, prompts: Sequence[Prompt], *, seed: int, sampling: Sampling
    ) -> Iterator[tuple[int, Group]]:
        """(place, group) of every prompt, as groups are completed; otherwise like `sample`."""
        if not prompts:
            return
        if self.reason is None:
            done: set[int] = set()
            try:
                for p, group in self._stream(prompts, seed, sampling):
                    done.add(p)
                    yield p, group
                return
            except CannotRun as error:
                if done:
                    raise
                self._give_up(str(error))
            except _first_call_errors() as error:
                if done or self.calls > 1 or isinstance(error, torch.AcceleratorError):
                    raise  # the device is lost, or the engine has worked before
                message = str(error).strip().partition("\n")[0]
                self._give_up(f"its first call failed ({type(error).__name__}: {message})")
        yield from enumerate(self.fallback.sample(prompts, seed=seed, sampling=sampling))

    def _give_up(self, reason: str) -> None:
        self.reason, self.engine, self.mirror = reason, None, None
        warnings.warn(
            f"the group engine does not run {type(self.model).__name__}: {reason}; sampling with "
            "transformers instead, more slowly",
            stacklevel=4,
        )

    def _stream(
        self, prompts: Sequence[Prompt], seed: int, sampling: Sampling
    ) -> Iterator[tuple[int, Group]]:
        began = time.perf_counter()
        encoded = [encode(self.tokenizer, prompt) for prompt in prompts]
        draws = uniforms(prompts, seed, sampling.n, sampling.max_new_tokens)
        engine = self._prepared(encoded, sampling)
        self.calls += 1
        due = self.calls <= CHECKED or self.calls % CHECK_EVERY == 0
        self.stats = {"prepare_s": time.perf_counter() - began, "steps": 0, "slot_steps": 0}
        for turn in turns(encoded, sampling, engine.plan):
            rows = Turn(self, engine, [encoded[p] for p in turn], draws[turn], sampling)
            for at, done in rows.run():
                at = turn[at]
                group = Group(prompts[at], tuple(done), encoded[at], sampling.temperature)
                if due and sampling.temperature:
                    due = False
                    self._agree(engine, group, sampling)
                yield at, group
        total = time.perf_counter() - began
        self.stats |= {"total_s": total, "compile_s": engine.seconds["compile"]}

    @torch.no_grad()
    def _prepared(self, encoded: Sequence[tuple[int, ...]], sampling: Sampling) -> GroupEngine:
        """The engine with the policy's present weights, and memory for this call."""
        if self.mirror is None:
            self.mirror = Mirror(
                self.model, self.precision.dtype, copied=self.copied, fused=self.fused
            )
        else:
            self.mirror.refresh(self.model)
        token_bytes, total = self.mirror.token_bytes(), self._total(self.mirror)
        needed = make_plan(
            token_bytes=token_bytes,
            total_bytes=total,
            samples=sampling.n,
            new_tokens=sampling.max_new_tokens,
            lengths=[len(ids) for ids in encoded],
            max_rows=self.max_rows,
        )
        positions = needed.longest + sampling.max_new_tokens
        if self.engine is not None and not self.engine.holds(needed, positions):
            plan = self.engine.plan.joined(needed, room_for(token_bytes, total))
            if plan != self.engine.plan or positions > self.engine.positions:
                needed, self.engine = plan, None  # frees its memory first
        if self.engine is None:
            if self.kept is not None:
                needed = self.kept.joined(needed, room_for(token_bytes, total))
            self.engine = GroupEngine(
                self.mirror, needed, compiled=self.compiled, positions=positions
            )
        return self.engine

    def _total(self, mirror: Mirror) -> float:
        if self.memory_gib is not None:
            return self.memory_gib * 2**30
        device = next(self.model.parameters()).device
        cuda = device.type == "cuda"
        total = card_bytes(device) if cuda else 8.0 * 2**30 / self._processes()
        return total - mirror.held_bytes(self.model)

    def _processes(self) -> int:
        """Of this run on one card: they share its memory."""
        return processes_per_card(torch.cuda.device_count())

    @torch.no_grad()
    def _agree(self, engine: GroupEngine, group: Group, sampling: Sampling) -> None:
        """Compare a completion's log-probs with a plain forward pass over all of it.

        Raises:
            CannotRun: they differ by more than rounding.
        """
        done = max(group.trajectories, key=lambda one: len(one.tokens))
        with engine.mirror.as_before():
            drawn = group.prompt_tokens, done.tokens, done.log_probs
            gap = gap_to_plain(engine.mirror.model, *drawn, sampling)
        gap = gap[gap.isfinite()]  # a token at the edge of top-p may lie outside of it
        mean, most = (float(gap.mean()), float(gap.max())) if len(gap) else (0.0, 0.0)
        self.agreement = (mean, most)
        limit = self.precision.limit
        if not mean <= limit:
            raise CannotRun(
                f"its log-probs are {mean:.2g} per token away from those of a plain forward pass, "
                f"more than {limit:g}"
            )


LOOK = 12
"""Tokens between two looks of the host, where rows can end before their limit."""


def turns(
    encoded: Sequence[tuple[int, ...]], sampling: Sampling, plan: MemoryPlan
) -> Iterator[list[int]]:
    """Prompts cut into turns whose prompts and outputs have room."""
    turn: list[int] = []
    tokens = 0
    rows = max(1, plan.out_tokens // (sampling.n * sampling.max_new_tokens))
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
        sampling: Sampling,
    ) -> None:
        self.sampler, self.engine, self.prompts, self.sampling = sampler, engine, prompts, sampling
        self.span, count = sampling.max_new_tokens, len(prompts) * sampling.n
        self.lengths = np.zeros(count, dtype=np.int64)
        self.left = np.full(len(prompts), sampling.n)
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
                engine.push(table, self.width, self.sampling)
            steps = self._steps()
            engine.run(self.width, steps, self.sampling)
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
        if self.sampler.ends or self.sampling.stop:
            return int(min(LOOK, self.span - drawn.min()))
        return int(self.span - drawn.max())

    def _admit(self) -> bool:
        """Put waiting rows into free slots."""
        free = self.table.free(self.width)[: len(self.lengths) - self.begun]
        row = np.arange(self.begun, self.begun + len(free))
        prompt = row // self.sampling.n
        self.table.admit(
            free, row=row, prompt=prompt, start=self.starts[prompt], length=self.sizes[prompt],
            last=self.last[prompt],
        )  # fmt: skip
        self.begun += len(free)
        return bool(len(free))

    def _harvest(self) -> tuple[tuple[list[int], Any] | None, bool]:
        """Take finished rows out and put others in; prompts that are complete, being fetched."""
        table, n = self.table, self.sampling.n
        stopped = bool(self.sampling.stop) and self._stop()
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
        table, stop, any_ended = self.table, self.sampling.stop, False
        slots = np.flatnonzero(table.prompt >= 0)
        rows = table.fields[Field.ROW, slots]
        drawn = table.fields[Field.DRAWN, slots]
        tokens, _ = self.engine.fetch(rows.astype(np.int64), self.span)()
        reach = max(map(len, stop)) + 4
        begin = np.maximum(drawn - LOOK - reach, 0)
        tails = [own[b:d] for own, b, d in zip(tokens, begin, drawn)]
        for slot, own, d, text in zip(
            slots, tokens, drawn, texts_of(self.sampler.tokenizer, tails)
        ):
            if not any(word in text for word in stop):
                continue
            steps = range(max(0, d - LOOK), d)
            windows = [own[max(0, s + 1 - reach) : s + 1] for s in steps]
            for step, tail in zip(steps, texts_of(self.sampler.tokenizer, windows)):
                if any(word in tail for word in stop):
                    table.fields[Field.ENDED, slot] = 1
                    table.fields[Field.DRAWN, slot] = step + 1
                    any_ended = True
                    break
        return any_ended

    def _built(self, complete: list[int], fetched: Any) -> Iterator[tuple[int, list[Any]]]:
        n, stop, sampler = self.sampling.n, self.sampling.stop, self.sampler
        lengths = [self.lengths[p * n + i] for p in complete for i in range(n)]
        tokens, log_probs = fetched()
        drawn = [row[:length] for row, length in zip(tokens, lengths)]
        texts = texts_of(
            sampler.tokenizer, [row[:-1] if int(row[-1]) in sampler.ends else row for row in drawn]
        )
        done = [
            trajectory(row, of_row[: len(row)], sampler.tokenizer, sampler.ends, stop, text)
            for row, of_row, text in zip(drawn, log_probs, texts)
        ]
        for at, p in enumerate(complete):
            yield p, done[at * n : (at + 1) * n]
