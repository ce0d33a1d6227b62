"""What is written into the run's folder while it goes on: metrics, samples, checkpoints, models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bestofk import metrics, runs
from bestofk.agreement.one_model import check_output
from bestofk.sampling.prompts import encode
from bestofk.storage import json_safe
from bestofk.training.batch import RolloutBatch
from bestofk.training.context import StepContext
from bestofk.training.record import (
    metrics_line,
    nothing_learnt,
    out_of_reach,
    sample_rows,
    write_failure,
    write_model,
)
from bestofk.training.resume import keep_plan, save_checkpoint

SILENT_STEPS = 3
"""Steps in a row without a signal after which the likely cause is said."""


@dataclass
class Recorder:
    """Writes a run down; all processes call its methods, the first one writes."""

    context: StepContext
    run: runs.Run
    saved: int = -1
    """The step of the last checkpoint."""
    largest: float = -math.inf
    """Reward of the steps this process has taken."""
    silent: int = 0
    """Steps in a row without a signal, or with one and the same reward for all."""
    callback: Callable[[Mapping[str, Any]], object] | None = None
    ended: bool = False
    """Whether the callback ended the run."""

    def step(self, batch: RolloutBatch, weights: np.ndarray, stats: Mapping[str, float]) -> None:
        """The metrics of the step just done, and the completions of all processes with weights."""
        context = self.context
        line = metrics_line(context, batch, stats)
        rows = context.processes.gather(sample_rows(context.state.step, batch, weights))
        if context.processes.main:
            keep_plan(context.parts.sampler, self.run.path)
            self.run.record(line)
            self.run.record_samples(context.state.step, chain.from_iterable(rows))
        context.display.step(line)
        self._tell(line)
        self._warn_of_silence(line, batch)

    def _warn_of_silence(self, line: Mapping[str, Any], batch: RolloutBatch) -> None:
        """Say the likely cause where nothing is learnt, and which thresholds nothing reaches."""
        context, constant = self.context, line[metrics.REWARD_MIN] == line[metrics.REWARD_MAX]
        self.silent = 0 if line[metrics.GROUPS_WITH_SIGNAL] and not constant else self.silent + 1
        self.largest = max(self.largest, line[metrics.REWARD_MAX])
        if not context.processes.main:
            return
        if self.silent == SILENT_STEPS:
            context.display.say(nothing_learnt(line, self.silent, batch))
        if context.steps_taken == SILENT_STEPS:
            for sentence in out_of_reach(context.settings, self.largest, context.steps_taken):
                context.display.say(sentence)

    def _tell(self, line: Mapping[str, Any]) -> None:
        """Show a line of metrics to the callback, which may end the run."""
        if self.callback is not None:
            ends_here = self.context.processes.main and self.callback(json_safe(line)) is True
            self.ended = self.context.processes.any(ends_here) or self.ended

    def evaluation(self, line: Mapping[str, Any], batch: RolloutBatch, name: str) -> None:
        """An evaluation: its figures, and the completions behind them."""
        if self.context.processes.main:
            self.run.record_evaluation(line["step"], sample_rows(line["step"], batch), name)
            self.run.record(line)

    def show_evaluations(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            self.context.display.evaluation(line)
            self._tell(line)

    def failure(self, step: int, batch: RolloutBatch, error: Exception) -> Path:
        """The batch of a step that failed; where it is."""
        rows = self.context.processes.gather(sample_rows(step, batch, tokens=True))
        if not self.context.processes.main:
            return self.run.path
        return self.run.save_failure(step, partial(write_failure, rows, error))

    def checkpoint(self, queue: Sequence[RolloutBatch]) -> None:
        """A checkpoint, unless this step has one or nothing was done yet."""
        context = self.context
        if 0 < context.state.step != self.saved:
            save_checkpoint(self.run, context, queue)
            self.saved = context.state.step

    def best_model(self, value: float, metric: str) -> None:
        """The model as the best so far."""
        self._model(partial(self.run.save_best, self.context.state.step, value, metric))

    def final_model(self) -> None:
        self._model(self.run.save_final)

    def _model(self, place: Any) -> None:
        """Let the run folder put the whole model in a place."""
        context, policy = self.context, self.context.parts.policy
        with context.learner.gathered():
            ids = encode(policy.tokenizer, context.prompt_at(0))
            check_output(policy.model, ids, context.state.step)
            if context.processes.main:
                place(partial(write_model, context, self.run.path))
