"""Training, top to bottom: rollouts, rewards, weights from whole groups, optimiser steps, evidence.

A step depends on the weights, its number and the position in the data alone: every seed is made
from those. So a checkpoint is the learner's state and a few numbers, and a run that was stopped, by
whatever, ends like one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bestofk.config import Config, leaves
from bestofk.learning import NonFinite
from bestofk.training import build, engine, finish
from bestofk.training.build import Clock, Parts, State, seed_of
from bestofk.training.checks import cautions, check, check_installed
from bestofk.training.learn import learn
from bestofk.training.processes import Processes, Stop, watching
from bestofk.training.rollouts import Batch, collect, signal_of
from bestofk.training.view import View, make_view
from bestofk.types import Group, Prompt, Verdict


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    path: Path
    step: int
    """Steps done."""
    signal: int | None = None
    """What asked it to leave before all was done."""


def train(config: Config, *, resume: bool = False, checkpoint: str | None = None) -> Outcome:
    """Train as the config says, in the folder it names; with `resume`, go on where it stopped."""
    goal = check(config)
    check_installed(config)
    processes = Processes(
        device=config.model.device,
        trackers=config.run.trackers,
        folder=config.run.dir,
    )
    processes.share(config.sampling.prompts_per_step, config.off_policy.mini_batches)
    run, found = build.open_run(config, processes, resume, checkpoint)
    view = make_view(processes, config.run.steps, goal.k)
    try:
        with Stop() as stop, watching(run.path, processes):
            parts = build.assemble(config, goal, processes, run)
            state = build.restore(parts, found)
            view.start(state.step, finish.title(parts), cautions(goal), dict(leaves(config)))
            with engine.closing(parts):
                state = steps(parts, state, stop, view, saved=state.step if found else -1)
            complete = finish.complete(config, state)
            if complete:
                finish.save(parts, run.save_final)
            processes.wait()
        processes.close()
    finally:
        view.close()
        run.close()
    return Outcome(run.path, state.step, None if complete else stop.signal)


def steps(parts: Parts, state: State, stop: Stop, view: View, *, saved: int) -> State:
    """Steps, evaluations and checkpoints until the last step, or until asked to leave."""
    config, processes = parts.config, parts.processes
    last, every = config.run.steps, config.run.checkpoint_every
    while not processes.any(stop.asked):
        clock = Clock()
        checked = engine.refresh(parts, clock)
        if finish.due(state.step, config.evaluation.every, last) and not state.is_validated:
            line = finish.evaluate(parts, state.step)
            state = finish.note(parts, state, line)
            view.evaluation(line)
        if finish.due(state.step, every, last) and 0 < state.step != saved:
            build.save(parts, state)
            saved = state.step
        if state.step >= last:
            return state
        batch = roll_out(parts, state, clock)
        if processes.any(stop.asked):
            break  # before the weights change: this step will be taken anew
        engine.rest(parts)
        with clock("learn"):
            weights, stats = improve(parts, state, batch)
        state = replace(
            state,
            step=state.step + 1,
            position=batch.position,
            last_prompt=parts.prompt_at(batch.position - 1).id,
        )
        line = finish.describe(parts, state, batch, {**stats, **checked}, clock)
        finish.record(parts, line, batch, weights)
        view.step(line)
    if 0 < state.step != saved:
        build.save(parts, state)
    return state


def roll_out(parts: Parts, state: State, clock: Clock) -> Batch:
    """Sample and judge this process's groups of the next step."""
    asked, step = parts.config.sampling, state.step + 1

    def sample(prompts: Sequence[Prompt], again: int) -> list[Group]:
        with clock("sample"):
            return parts.sample(prompts, asked.samples_per_prompt, "train", step, again)

    def judge(groups: Sequence[Group]) -> list[list[Verdict]]:
        with clock("score"):
            return parts.judge(groups)

    with engine.own_weights(parts):
        return collect(
            parts.prompt_at,
            state.position,
            asked.prompts_per_step,
            sample,
            judge,
            parts.processes,
            refill=asked.refill,
            has_signal=signal_of(
                parts.goal,
                progress=build.progress(parts, state),
                seed=seed_of(parts.config.run.seed, step),
            ),
        )


def improve(parts: Parts, state: State, batch: Batch) -> tuple[np.ndarray, dict[str, float]]:
    """The optimiser steps on one batch; a step that breaks leaves its batch behind."""
    try:
        return learn(
            parts.learner,
            parts.goal,
            batch,
            parts.processes,
            parts.settings,
            progress=build.progress(parts, state),
            seed=(parts.config.run.seed, state.step + 1),
        )
    except NonFinite as error:
        raise finish.keep_failure(parts, state, batch, error) from error
