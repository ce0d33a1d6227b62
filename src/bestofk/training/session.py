"""A run from the first step to the last: when it evaluates, saves, stops on an error, ends."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bestofk import metrics
from bestofk.agreement.one_model import unsound_weight
from bestofk.config import leaves, to_toml
from bestofk.devices import limit_memory
from bestofk.environments.author_class import EnvironmentClasses, load_environment
from bestofk.learning import NonFinite
from bestofk.rewards import BatchVerifier
from bestofk.runs import refuse_begun
from bestofk.sampling import ServerLost, WeightHolder
from bestofk.storage import write_atomically
from bestofk.training.batch import RolloutBatch
from bestofk.training.checks import few_problems, repeated_prompts
from bestofk.training.context import StepContext, memory_named
from bestofk.training.display import Display
from bestofk.training.keeping import Recorder
from bestofk.training.processes import Processes, StopSignal, watching
from bestofk.training.record import title
from bestofk.training.resolve import RunSettings
from bestofk.training.resume import open_folder, restore, take_plan
from bestofk.training.rollouts import Rollouts, finished
from bestofk.training.setup import make_parts
from bestofk.training.task_setup import make_sets
from bestofk.training.validation import evaluate
from bestofk.types import Verifier


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

    context: StepContext
    rollouts: Rollouts
    recorder: Recorder
    stop: StopSignal

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to take; evaluates and saves in between.

        Ends after the last step, or when any process was asked to leave, with a checkpoint.
        """
        run, evaluation = self.context.settings.run, self.context.settings.evaluation
        while not self.leaving():
            self.context.seconds = {}
            self.rollouts.recover()
            self.rollouts.refresh()
            is_due = self._due(evaluation.every) and not self.context.state.is_validated
            if is_due and (self.context.state.step or evaluation.at_start):
                self._evaluate()
            if self._due(run.checkpoint_every):
                self.save()
            if self.context.state.step >= run.steps or self.recorder.ended:
                return
            yield self.context.state.step + 1
        self.rollouts.drop_lost()
        self.save()

    def leaving(self) -> bool:
        """Whether any process was asked to leave; every process gets the same answer."""
        return self.context.processes.any(self.stop.is_set)

    @contextlib.contextmanager
    def learning(self, step: int, batch: RolloutBatch) -> Iterator[None]:
        """Around the optimiser steps: a step that fails leaves its batch in the run's folder."""
        try:
            with self.context.timed("learn"), self.context.while_compiling(step, "learning"):
                yield
        except NonFinite as error:
            raise ValueError(
                f"step {step} was stopped before it changed the weights: {error}; its batch is in "
                f"{self.recorder.failure(step, batch, error)}; the last checkpoint is intact; in "
                "a new run, lower optimizer.learning_rate or set objective_options.truncate"
            ) from error
        if name := self.context.of_any(unsound_weight(self.context.learner.model) or ""):
            unsound = ValueError(f"the weight {name} is not finite after step {step}")
            raise ValueError(
                f"{unsound}; nothing of this step is saved but its batch, in "
                f"{self.recorder.failure(step, batch, unsound)}; the last checkpoint is intact; in "
                "a new run, lower optimizer.learning_rate"
            )

    def _check_gap(self, step: int, batch: RolloutBatch, gap: float) -> None:
        """Raise where the groups of a step were not drawn from the policy the learner scored."""
        if self.context.settings.sampling.truncated:
            return  # their log-probs are of the truncated distribution; the first probe is not
        try:
            self.rollouts.agreement.check(gap, batch.groups[:1])
        except ValueError as error:
            folder = self.recorder.failure(step, batch, error)
            raise ValueError(
                f"step {step}: {error}. Its batch is in {folder}; the last checkpoint is intact"
            ) from None

    def record(
        self, step: int, batch: RolloutBatch, weights: np.ndarray, stats: dict[str, float]
    ) -> None:
        """Count a step as done and write it down."""
        self._check_gap(step, batch, stats[metrics.GAP_MEAN])
        context, rollouts = self.context, self.rollouts
        rollouts.queue.popleft()
        rollouts.times_lost = 0
        context.state = replace(
            context.state,
            step=step,
            position=batch.position,
            last_prompt=context.prompt_at(batch.position - 1).id,
        )
        context.steps_taken += 1
        self.recorder.step(batch, weights, {**stats, **rollouts.sampler_check})

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do: the last step is taken and, where asked for, evaluated."""
        state, settings = self.context.state, self.context.settings
        evaluated = state.is_validated or not settings.evaluation.every
        return (state.step >= settings.run.steps or self.recorder.ended) and evaluated

    @property
    def end(self) -> TrainingEnd:
        signal = None if self.is_complete else self.stop.signal
        return TrainingEnd(self.recorder.run.path, self.context.state.step, signal)

    def _due(self, every: int) -> bool:
        """Whether something done every so many steps is due now; always at the end."""
        step, last = self.context.state.step, self.context.settings.run.steps
        return every > 0 and (step % every == 0 or step == last or self.recorder.ended)

    def _evaluate(self) -> None:
        """pass@k and max@k of the policy now; keeps the model if it is the best so far."""
        context, settings = self.context, self.context.settings
        step, metric = context.state.step, settings.best_by
        lines = []
        for each in context.parts.sets:
            with (
                memory_named("evaluate", context.learner),
                self.rollouts.agreement.whole_policy(),
            ):
                line, batch = evaluate(
                    self.rollouts.draw,
                    each,
                    settings,
                    context.processes,
                    step=step,
                    seed=context.seed("validation"),
                )
            lines.append(line)
            self.recorder.evaluation(line, batch, each.name)
        value, best = lines[0][metrics.RESULTS].get(metric, {}).get("value"), context.state.best
        if value is not None and (best is None or value > best):
            best = value
            if settings.run.advanced.keep_best and step:
                self.recorder.best_model(value, metric)
        context.state = replace(context.state, validated=step, best=best)
        self.recorder.show_evaluations(lines)

    def save(self) -> None:
        """A checkpoint of the step done, with the batches that are drawn."""
        self.recorder.checkpoint([each.result() for each in self.rollouts.queue])


@contextlib.contextmanager
def open_session(
    settings: RunSettings,
    *,
    verifier: Verifier | None = None,
    environment: EnvironmentClasses | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> Iterator[Session]:
    """Set a run up, or put it back where it stopped; at the end save the final model."""
    run_section, evaluation = settings.run, settings.evaluation
    if not settings.resume:
        refuse_begun(run_section.dir)
    processes = Processes(device=settings.model.device)
    share = settings.model.advanced.memory_share
    if share is not None and processes.device.startswith("cuda"):
        limit_memory(processes.device, share)
    processes.check_share(settings.sampling.prompts_per_step, settings.off_policy.mini_batches)
    with contextlib.ExitStack() as ends:
        if environment is None and settings.task.environment:
            environment = load_environment(settings.task.environment)
        # data may be faulty: no folder before they are read
        sets = make_sets(settings, processes, verifier, environment)
        for each in sets:
            if each.verifier is not verifier and isinstance(each.verifier, BatchVerifier):
                ends.callback(each.verifier.close)
        run, stored = open_folder(settings, processes)
        ends.callback(run.close)
        stop = ends.enter_context(StopSignal())
        ends.enter_context(watching(run.path, processes))
        parts = make_parts(settings, processes, sets, environment)
        if settings.resume:
            take_plan(parts.sampler, run.path)
        stream = parts.task.split(settings.task.split)
        state, queue = restore(stored, settings, parts.learner, stream.at, processes)
        if settings.resume and processes.main:  # what has changed, for the next resume to read
            write_atomically(run.path / "config.toml", to_toml(settings.recipe))
        display = Display(processes, run_section.steps, settings.objective.k, evaluation.every)
        context = StepContext(settings, processes, parts, display, state)
        rollouts = Rollouts(context, deque(map(finished, queue)))
        recorder = Recorder(context, run, state.step if stored else -1, callback=callback)
        session = Session(context, rollouts, recorder, stop)
        notes = [*settings.notes, *repeated_prompts(settings.sampling, len(stream))]
        if evaluation.every and settings.task.name == "dataset":
            count = min(evaluation.prompts, len(parts.task.split(evaluation.split)))
            notes += few_problems(count, settings.objective.k)
        about = title(settings, parts, processes)
        display.start(about, notes, dict(leaves(settings.recipe)))
        try:
            yield session
        except ServerLost as error:
            session.save()
            raise ServerLost(
                f"{error}\n{max(recorder.saved, 0)} steps are saved; resume with: bestofk train "
                f"--resume {run.path}"
            ) from None
        finally:
            if isinstance(parts.sampler, WeightHolder):
                parts.sampler.close()
        if session.is_complete:
            session.recorder.final_model()
        processes.wait()
    # The watch over the other processes ends with a last word between them: the group outlives it.
    display.close()
    processes.close()
