"""What stands around the loop: the run's parts, its folder, its state, signals, display, timing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bestofk import runs
from bestofk.config import Config, leaves
from bestofk.learning import Learner, NonFinite
from bestofk.objectives import Objective
from bestofk.rare_settings import run_options
from bestofk.sampling import WeightHolder
from bestofk.training import engine_record, health, sampler_sync
from bestofk.training.batch import RolloutBatch
from bestofk.training.checks import best_metric, cautions, check, check_installed, check_memory
from bestofk.training.context import check_context
from bestofk.training.display import Display, is_quiet, make_display
from bestofk.training.processes import Processes, StopSignal, watching
from bestofk.training.record import failure_writer, metrics_line, model_writer, sample_rows, title
from bestofk.training.resume import RunState, open_folder, restore, save_checkpoint
from bestofk.training.reward_shaping import with_overlong_penalty
from bestofk.training.scoring_aside import ScoringAside
from bestofk.training.setup import RunParts, make_parts
from bestofk.training.statistics import sampler_gap
from bestofk.training.validation import evaluate
from bestofk.types import Group, Prompt, Verdict, Verifier


@dataclass(frozen=True)
class TrainingEnd:
    """How a run ended."""

    path: Path
    step: int
    """Steps done."""
    signal: int | None = None
    """The signal that ended it early."""


@dataclass
class Session:
    """A run in progress, as the loop sees it."""

    config: Config
    objective: Objective
    processes: Processes
    run: runs.Run
    parts: RunParts
    state: RunState
    stop: StopSignal
    display: Display
    saved: int = -1
    """The step of the last checkpoint."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each phase of the present step."""
    sampler_check: dict[str, float] = field(default_factory=dict)
    recorded: int = 0
    """Steps this process has taken."""
    probed: bool = False
    """Whether sampler and learner were compared since this process started."""

    @property
    def learner(self) -> Learner:
        return self.parts.learner

    @property
    def progress(self) -> float:
        """The share of the run done, which schedules depend on."""
        return self.state.step / self.config.run.steps

    @property
    def sampler_has_own_weights(self) -> bool:
        return isinstance(self.parts.sampler, WeightHolder)

    @cached_property
    def _stream(self) -> Any:
        return self.parts.task.split(run_options(self.config).split)

    def prompt_at(self, position: int) -> Prompt:
        """The prompt at a position of the training stream, which never ends."""
        return self._stream.at(position)

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to take; evaluates and saves in between.

        Ends after the last step, or when any process was asked to leave, with a checkpoint.
        """
        last = self.config.run.steps
        while not self.leaving():
            self.seconds = {}
            self._refresh_sampler()
            if self._evaluation_due():
                self._evaluate()
            if self._due(self.config.run.checkpoint_every):
                self._save()
            if self.state.step >= last:
                return
            yield self.state.step + 1
        self._save()

    def leaving(self) -> bool:
        """Whether any process was asked to leave; every process gets the same answer."""
        return self.processes.any(self.stop.is_set)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to a phase of the present step."""
        began = time.perf_counter()
        try:
            with health.memory_named(phase, self.learner.budget):
                yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    def sample(self, step: int, prompts: Sequence[Prompt], attempt: int) -> list[Group]:
        """A group of n completions for each prompt; the draws are fixed by seed, step, attempt."""
        check_context(prompts, self.parts.policy, self.config.sampling.max_new_tokens)
        seed = seed_of(self.config.run.seed, "train", step, attempt)
        sampler = self.parts.sampler
        with (
            self.timed("sample"),
            self._patient(step, "sampling"),
            sampler_sync.whole_policy(sampler, self.learner),
        ):
            if not prompts:  # inside: all processes gather the weights, also one without prompts
                return []
            if not hasattr(sampler, "stream"):
                return list(sampler.sample(prompts, seed=seed, params=self.config.sampling))
            result: dict[int, Group] = {}
            for at, group in sampler.stream(prompts, seed=seed, params=self.config.sampling):
                result[at] = group
                self._aside.submit(group)
            return [result[at] for at in range(len(prompts))]

    def _patient(self, step: int, what: str) -> contextlib.AbstractContextManager[None]:
        """In the first step of this process on a GPU: words while kernels compile."""
        first = self.recorded == 0 and self.learner.device.type == "cuda"
        shown = first and self.processes.main and not is_quiet()
        return engine_record.patient(self.display.say, f"step {step}: {what}", is_on=shown)

    @cached_property
    def _aside(self) -> ScoringAside:
        return ScoringAside(self.parts.score)

    def score(self, groups: Sequence[Group]) -> list[list[Verdict]]:
        """A verdict for each completion; groups that were sampled first may have theirs already."""
        with self.timed("score"):
            if hasattr(self.parts.sampler, "stream"):
                verdicts = self._aside.collect(groups)
            else:
                verdicts = self.parts.score(groups)
            options = run_options(self.config)
            return with_overlong_penalty(
                groups,
                verdicts,
                limit=self.config.sampling.max_new_tokens,
                buffer=options.overlong_tokens,
                penalty=options.overlong_penalty,
            )

    @contextlib.contextmanager
    def learning(self, step: int, batch: RolloutBatch) -> Iterator[None]:
        """Around the optimiser steps: a step that fails leaves its batch in the run's folder."""
        if isinstance(self.parts.sampler, WeightHolder):
            self.parts.sampler.sleep()  # frees its memory while the learner works
        try:
            with self.timed("learn"), self._patient(step, "learning"):
                yield
        except NonFinite as error:
            raise ValueError(
                f"step {step} was stopped before it changed the weights: {error}; its batch is in "
                f"{self._keep_failed(step, batch, error)}; the last checkpoint is intact; in a new "
                "run, lower optimizer.learning_rate or set objective_options.truncate"
            ) from error
        self._check_weights(step, batch)

    def _keep_failed(self, step: int, batch: RolloutBatch, error: Exception) -> Path:
        """Write the batch of a step that failed into the run's folder; all processes call it."""
        rows = self.processes.gather(sample_rows(step, batch, tokens=True))
        if not self.processes.main:
            return self.run.path
        return self.run.save_failure(step, failure_writer(rows, error))

    def _check_weights(self, step: int, batch: RolloutBatch) -> None:
        """Raise where a step has made a weight NaN or infinite, before anything is saved."""
        result = self.processes.gather(health.unsound_weight(self.learner.model))
        name = next((name for name in result if name is not None), None)
        if name is None:
            return
        error = ValueError(f"the weight {name} is not finite after step {step}")
        raise ValueError(
            f"{error}; nothing of this step is saved but its batch, in "
            f"{self._keep_failed(step, batch, error)}; the last checkpoint is intact; in a new "
            "run, lower optimizer.learning_rate"
        )

    def _check_gap(self, step: int, batch: RolloutBatch, gap: float) -> None:
        """Raise where the groups of a step were not drawn from the policy the learner scored."""
        if self.config.sampling.truncated:
            return  # their log-probs are of the truncated distribution; the first probe is not
        limit = health.gap_limit(self.config)
        try:
            health.check_gap(
                gap, limit, self.parts.sampler, self.learner, batch.groups[:1], self.processes
            )
        except ValueError as error:
            kept = self._keep_failed(step, batch, error)
            raise ValueError(
                f"step {step}: {error}. Its batch is in {kept}; the last checkpoint is intact"
            ) from None

    def record(
        self, step: int, batch: RolloutBatch, weights: np.ndarray, stats: dict[str, float]
    ) -> None:
        """Write down a step: its metrics, and the completions of all processes with weights."""
        self._check_gap(step, batch, stats["sampler_gap_mean"])
        self.state = replace(
            self.state,
            step=step,
            position=batch.position,
            last_prompt=self.prompt_at(batch.position - 1).id,
        )
        floors = engine_record.floor_shares(
            self.parts.sampler, self.learner, batch, self.seconds, int(stats["inner_steps"])
        )
        line = metrics_line(
            step,
            batch,
            {**stats, **self.sampler_check, **floors},
            self.config,
            self.objective,
            self.processes,
            seconds=self.seconds,
        )
        rows = self.processes.gather(sample_rows(step, batch, weights))
        self.recorded += 1
        if self.processes.main:
            engine_record.keep_plan(self.parts.sampler, self.run.path)
            self.run.record(line)
            self.run.record_samples(step, chain.from_iterable(rows))
        self.display.step(line)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do: the last step is taken and, where asked for, evaluated."""
        evaluated = self.state.is_validated or not self.config.evaluation.every
        return self.state.step >= self.config.run.steps and evaluated

    @property
    def end(self) -> TrainingEnd:
        signal = None if self.is_complete else self.stop.signal
        return TrainingEnd(self.run.path, self.state.step, signal)

    def _evaluation_due(self) -> bool:
        begun = self.state.step > 0 or run_options(self.config).evaluate_start
        return begun and self._due(self.config.evaluation.every) and not self.state.is_validated

    def _due(self, every: int) -> bool:
        """Whether something done every so many steps is due now; always at the end."""
        return every > 0 and (
            self.state.step % every == 0 or self.state.step == self.config.run.steps
        )

    def _refresh_sampler(self) -> None:
        """Give the sampler the present weights where it has its own, and check what it draws."""
        sampler, learner, processes = self.parts.sampler, self.learner, self.processes
        limit, params = health.gap_limit(self.config), self.config.sampling
        if isinstance(sampler, WeightHolder):
            prompt = self.prompt_at(learner.steps)
            probe = partial(
                sampler_sync.probe, sampler, learner, processes, prompt=prompt, params=params
            )
            with self.timed("update"):
                self.sampler_check = sampler_sync.refresh(sampler, learner, processes, probe, limit)
        elif not self.probed:
            prompt = self.prompt_at(self.state.position)
            with sampler_sync.whole_policy(sampler, learner):
                health.check_output(
                    self.parts.policy.model, self.parts.policy.tokenizer, prompt, self.state.step
                )
            groups = sampler_sync.probe_groups(sampler, learner, prompt, params)
            gap = sampler_gap(learner.score(groups), groups, processes)["sampler_gap_mean"]
            health.check_gap(gap, limit, sampler, learner, groups, processes)
        self.probed = True

    def _evaluate(self) -> None:
        """pass@k and max@k of the policy now; keeps the model if it is the best so far."""
        step, metric = self.state.step, best_metric(self.config, self.objective)
        with (
            health.memory_named("evaluate", self.learner.budget),
            sampler_sync.whole_policy(self.parts.sampler, self.learner),
        ):
            line, batch = evaluate(
                self.parts.sampler,
                self.parts.task,
                self.parts.score,
                self.config,
                self.processes,
                step=step,
                seed=seed_of(self.config.run.seed, "validation"),
            )
        value = line["results"].get(metric, {}).get("value")
        better = value is not None and (self.state.best is None or value > self.state.best)
        if self.processes.main:
            self.run.record_evaluation(step, sample_rows(step, batch))
            self.run.record(line)
        if better and run_options(self.config).keep_best and step:
            self._save_model(partial(self.run.save_best, step, value, metric))
        self.state = replace(self.state, validated=step, best=value if better else self.state.best)
        self.display.evaluation(line)

    def _save(self) -> None:
        """Write a checkpoint, unless this step has one or nothing was done yet."""
        if not 0 < self.state.step != self.saved:
            return
        save_checkpoint(
            self.run,
            self.state,
            self.config,
            self.learner,
            self.processes,
            objective=self.objective,
            progress=self.progress,
        )
        self.saved = self.state.step

    def _save_model(self, place: Any) -> None:
        """Let the run folder put the whole model in a place; all processes call it."""
        write = model_writer(
            self.config, self.objective, self.parts.policy, self.parts.task, self.run
        )
        model, tokenizer = self.parts.policy.model, self.parts.policy.tokenizer
        with self.learner.whole():
            health.check_output(model, tokenizer, self.prompt_at(0), self.state.step)
            if self.processes.main:
                place(write)


@contextlib.contextmanager
def open_session(
    config: Config, *, resume: bool, checkpoint: str | None, verifier: Verifier | None = None
) -> Iterator[Session]:
    """Set a run up, or put it back where it stopped; at the end save the final model."""
    objective = check(config)
    check_installed(config)
    processes = Processes(
        device=config.model.device,
        trackers=config.run.trackers,
        folder=config.run.dir,
    )
    check_memory(config, processes.size)
    processes.check_share(config.sampling.prompts_per_step, config.off_policy.mini_batches)
    run, result = open_folder(config, processes, resume=resume, checkpoint=checkpoint)
    display = make_display(processes, config.run.steps, objective.k)
    try:
        with StopSignal() as stop, watching(run.path, processes):
            parts = make_parts(config, processes, verifier)
            if resume:
                engine_record.take_plan(parts.sampler, run.path)
            stream = parts.task.split(run_options(config).split)
            state = restore(result, config, parts.learner, stream.at)
            session = Session(
                config, objective, processes, run, parts, state, stop, display,
                saved=state.step if result else -1,
            )  # fmt: skip
            trained = sum(p.numel() for p in parts.policy.model.parameters() if p.requires_grad)
            about = title(
                config, objective, weights=trained, processes=processes.size,
                device=processes.device,
            )  # fmt: skip
            display.start(state.step, about, cautions(config, objective), dict(leaves(config)))
            try:
                yield session
            finally:
                if isinstance(parts.sampler, WeightHolder):
                    parts.sampler.close()
            if session.is_complete:
                session._save_model(run.save_final)
            processes.wait()
        processes.close()
    finally:
        display.close()
        run.close()


def seed_of(*parts: int | str) -> int:
    """A seed fixed by its parts."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:7])
