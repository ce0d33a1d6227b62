"""The group engine: the sampler for CUDA. Prompts computed once, steps as CUDA graphs.

A prompt's keys and values exist once for all of its completions. Decoding, draws, log-probs and
the search for end tokens happen on the device; every few tokens the host evicts the sequences that
have ended and admits waiting ones (`scheduler`). Draws use the same numbers as `ModelSampler`: they
depend on the seed, the prompt's id, the sample and the position alone.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bestofk.agreement.log_prob_gaps import gap_to_plain
from bestofk.agreement.tolerances import ENGINE
from bestofk.precision import PRECISIONS
from bestofk.sampling.decode import ModelSampler, end_tokens
from bestofk.sampling.draw import distribution
from bestofk.sampling.engine.attention_interface import CannotRun
from bestofk.sampling.engine.group_engine import GroupEngine, ResidentEngine
from bestofk.sampling.engine.memory import MemoryPlan
from bestofk.sampling.engine.scheduler import Scheduler
from bestofk.sampling.engine.state import ENDS
from bestofk.sampling.engine.turns import Ask, Told, TurnScheduler
from bestofk.sampling.prompts import encode, uniforms
from bestofk.sampling.sampler import Sampling
from bestofk.types import Group, Prompt, Trajectory

S = TypeVar("S", bound=Scheduler)


def _first_call_errors() -> tuple[type[Exception], ...]:
    """What is raised where the engine does not run a model, or this card a kernel."""
    plain = (CannotRun, RuntimeError, TypeError, ImportError)
    try:
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import TritonError
    except ImportError:
        return plain
    return (*plain, CompilationError, TritonError)


class PlainCheck:
    """Compares the log-probs of a trajectory with a plain forward pass over all of it.

    In the first calls, and in every so many: steps are compiled and recorded, and what was recorded
    is used again.
    """

    FIRST, EVERY = 4, 64

    def __init__(self, *, reduced: bool) -> None:
        self.limit = ENGINE.limit(reduced=reduced)
        self.calls = 0
        self.is_due = False
        """Whether a trajectory of this call is still to be compared."""
        self.agreement: tuple[float, float] | None = None
        """Mean and largest |log-prob difference|, when last compared."""

    def begin_call(self, sampling: Sampling) -> None:
        self.calls += 1
        due = self.calls <= self.FIRST or self.calls % self.EVERY == 0
        self.is_due = due and bool(sampling.temperature)

    @torch.no_grad()
    def compare(
        self, engine: GroupEngine, prompt: tuple[int, ...], sample: Trajectory, sampling: Sampling
    ) -> None:
        """
        Raises:
            CannotRun: they differ by more than rounding.
        """
        self.is_due = False
        with engine.model.plain_attention():
            tokens = prompt, sample.tokens, sample.log_probs
            drawn_with = partial(distribution, sampling=sampling)
            gap = gap_to_plain(engine.model.model, *tokens, drawn_with)[torch.tensor(sample.own)]
        gap = gap[gap.isfinite()]  # a token at the edge of top-p may lie outside of it
        mean, largest = (float(gap.mean()), float(gap.max())) if len(gap) else (0.0, 0.0)
        self.agreement = (mean, largest)
        if not mean <= self.limit:
            raise CannotRun(
                f"its log-probs are {mean:.2g} per token away from those of a plain forward pass, "
                f"more than {self.limit:g}"
            )


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
            memory_gib: the memory beside the weights that sizes are planned from; by default all
                that the card has, divided by the number of processes of this run that share it.
            compiled: compile layers and record CUDA graphs. Without, every step is launched anew.
            copied: the model's tensors are other ones at each call (FSDP2's gathered copy).
        """
        self.model, self.tokenizer = model, tokenizer
        self.precision = PRECISIONS[precision]
        self.resident = ResidentEngine(
            model, self.precision, max_rows=max_rows, memory_gib=memory_gib, compiled=compiled,
            copied=copied,
        )  # fmt: skip
        self.ends = end_tokens(model, tokenizer)
        self.fallback = ModelSampler(model, tokenizer, max_rows=max_rows, precision=precision)
        self.reason: str | None = None
        self.check = PlainCheck(reduced=self.precision.reduced)
        self.stats: dict[str, float] = {}
        """Of the last call: seconds by part, tokens, steps, share of slots that were at work."""

    @property
    def engine(self) -> GroupEngine | None:
        """What decodes, once it has been used."""
        return self.resident.engine

    @property
    def plan(self) -> MemoryPlan | None:
        """Sizes of what the engine holds, once it has been used."""
        return self.engine.plan if self.engine else None

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
            completed: set[int] = set()
            try:
                for p, group in self._stream(prompts, seed, sampling):
                    completed.add(p)
                    yield p, group
                return
            except _first_call_errors() as error:
                if completed:
                    raise
                self._give_up(error)
        yield from enumerate(self.fallback.sample(prompts, seed=seed, sampling=sampling))

    def converse(
        self,
        texts: Sequence[tuple[int, ...]],
        draws: np.ndarray,
        sampling: Sampling,
        *,
        room: Sequence[int],
        first: Sequence[int],
        ask: Ask,
        told: Told,
    ) -> bool:
        """Draw n trajectories of each text, whose turns `ask` answers beside the decoding; `told`
        makes tokens of the answers.

        A sequence of a turn is p · n + i. Its log-probs and draws are those of its own tokens: a
        reply takes no number of `draws`.

        Args:
            texts: token ids.
            draws: (texts, n, max_new_tokens) in [0, 1); fixes every token.
            room: tokens that the trajectories of each text may have, replies included.
            first: tokens that the first turns of each text may have.

        Returns:
            Whether the engine runs the model. If not, turns may have been asked in vain: begin
            again with `continue_from`.
        """

        def options(batch: list[int]) -> dict[str, Any]:
            limits = {"room": np.array(room)[batch], "first": np.array(first)[batch]}
            first_sequence = batch[0] * sampling.n  # places of a batch follow each other
            return {**limits, "ask": ask, "told": told, "first_sequence": first_sequence}

        if self.reason is None:
            try:
                self._converse(texts, draws, sampling, options)
                return True
            except _first_call_errors() as error:
                self._give_up(error)
        return False

    def continue_from(
        self, texts: Sequence[tuple[int, ...]], draws: np.ndarray, sampling: Sampling
    ) -> Iterator[tuple[int, list[tuple[np.ndarray, np.ndarray]]]]:
        """`ModelSampler.continue_from`, without the engine."""
        return self.fallback.continue_from(texts, draws, sampling)

    def _give_up(self, error: Exception) -> None:
        """Sample with transformers from now on, unless the device is lost or the engine has worked
        before."""
        reason = str(error)
        if not isinstance(error, CannotRun):
            if self.check.calls > 1 or isinstance(error, torch.AcceleratorError):
                raise error
            message = reason.strip().partition("\n")[0]
            reason = f"its first call failed ({type(error).__name__}: {message})"
        self.reason = reason
        self.resident.drop()
        warnings.warn(
            f"the group engine does not run {type(self.model).__name__}: {reason}; sampling with "
            "transformers instead, more slowly",
            stacklevel=4,
        )

    def _stream(
        self, prompts: Sequence[Prompt], seed: int, sampling: Sampling
    ) -> Iterator[tuple[int, Group]]:
        encoded = [encode(self.tokenizer, prompt) for prompt in prompts]
        draws = uniforms(prompts, seed, sampling.n, sampling.max_new_tokens)
        for batch, scheduler in self._schedulers(Scheduler, encoded, draws, sampling):
            for i, trajectories in scheduler.run():
                p = batch[i]
                group = Group(prompts[p], tuple(trajectories), encoded[p], sampling.temperature)
                if self.check.is_due:
                    longest = max(trajectories, key=lambda one: len(one.tokens))
                    self.check.compare(scheduler.engine, encoded[p], longest, sampling)
                yield p, group

    def _converse(
        self,
        texts: Sequence[tuple[int, ...]],
        draws: np.ndarray,
        sampling: Sampling,
        turns: Callable[[list[int]], dict[str, Any]],
    ) -> None:
        for batch, scheduler in self._schedulers(TurnScheduler, texts, draws, sampling, turns):
            scheduler.converse()
            if self.check.is_due:
                i, longest = scheduler.longest()
                self.check.compare(scheduler.engine, texts[batch[i]], longest, sampling)

    def _schedulers(
        self,
        kind: type[S],
        encoded: Sequence[tuple[int, ...]],
        draws: np.ndarray,
        sampling: Sampling,
        options: Callable[[list[int]], dict[str, Any]] = lambda batch: {},
    ) -> Iterator[tuple[list[int], S]]:
        """Places of the prompts that have room together, and what decodes them: to be run at once.

        Args:
            options: of the schedulers, by batch.
        """
        if len(self.ends) > ENDS:
            raise CannotRun(
                f"the engine looks for at most {ENDS} end tokens, it has {len(self.ends)}"
            )
        began = time.perf_counter()
        engine = self.resident.prepare(encoded, sampling, several_turns=kind is TurnScheduler)
        self.check.begin_call(sampling)
        self.stats = {"prepare_s": time.perf_counter() - began}
        totals: Counter[str] = Counter()
        for batch in batches(encoded, sampling, engine.plan):
            scheduler = kind(
                engine, [encoded[p] for p in batch], draws[batch], sampling,
                tokenizer=self.tokenizer, ends=self.ends, **options(batch),
            )  # fmt: skip
            yield batch, scheduler
            totals.update(scheduler.stats)
        total = time.perf_counter() - began
        self.stats |= {**totals, "total_s": total, "compile_s": engine.steps.compile_s}


def batches(
    encoded: Sequence[tuple[int, ...]], sampling: Sampling, plan: MemoryPlan
) -> Iterator[list[int]]:
    """Places of prompts whose prompts and outputs have room together."""
    batch: list[int] = []
    tokens = 0
    prompts = max(1, plan.out_tokens // (sampling.n * sampling.max_new_tokens))
    for p, ids in enumerate(encoded):
        if batch and (tokens + len(ids) - 1 > plan.prefix_tokens or len(batch) >= prompts):
            yield batch
            batch, tokens = [], 0
        batch.append(p)
        tokens += len(ids) - 1
    yield batch
