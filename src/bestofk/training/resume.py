"""Where a run stands, and how it gets back there: its folder, its checkpoints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter

from bestofk import runs
from bestofk.config import Config, in_folder, to_toml
from bestofk.learning import Learner
from bestofk.storage import write_atomically
from bestofk.training.batch import ProcessGroup, RolloutBatch, slots_of
from bestofk.training.checks import check_resumed
from bestofk.training.context import RunState, StepContext
from bestofk.training.processes import Processes
from bestofk.training.record import environment
from bestofk.training.resolve import RunSettings
from bestofk.types import Prompt


def open_folder(
    settings: RunSettings, processes: Processes
) -> tuple[runs.Run, runs.Checkpoint | None]:
    """The run's folder, new or found; the first process holds it, the others read."""
    options = {"samples_bytes": int(settings.run.advanced.samples_megabytes * 1e6)}
    folder, result = Path(settings.run.dir), None
    if not processes.main:
        processes.wait()  # until the first has put the folder in order
        run = runs.Run(folder, **options)
        return run, run.checkpoints.newest() if settings.resume else None
    if settings.resume:
        run = runs.Run.open(folder, **options)
        try:
            check_checkpoints_are_there(run, settings.run.checkpoint_every)
            result = run.restore(settings.checkpoint)
        except Exception:
            run.close()
            raise
    else:
        run = runs.Run.create(folder, to_toml(settings.recipe), environment(), **options)
    processes.wait()
    return run, result


def check_checkpoints_are_there(run: runs.Run, every: int) -> None:
    """Raise where a run would start over in silence because its checkpoints were removed."""
    if run.checkpoints.paths() or not (run.path / "metrics.jsonl").exists():
        return
    last = max((line["step"] for line in runs.read_metrics(run.path)), default=0)
    if last > every:
        raise FileNotFoundError(
            f"{run.path} has metrics up to step {last} and no checkpoint: put its checkpoints/ "
            "back, or start a new run in another folder"
        )


def restore(
    checkpoint: runs.Checkpoint | None,
    settings: RunSettings,
    learner: Learner,
    prompt_at: Callable[[int], Prompt],
    processes: Processes,
) -> tuple[RunState, list[RolloutBatch]]:
    """Load a checkpoint into the learner; return where the run stood, and its queue of batches."""
    if checkpoint is None:
        return RunState(), []
    old = in_folder(Config(**checkpoint.state["config"]), Path(settings.run.dir))
    check_resumed(old, settings.recipe)
    state = RunState(**checkpoint.state["state"])
    run = settings.run
    if state.step > run.steps:
        raise ValueError(
            f"{run.dir} has done {state.step} steps, more than run.steps = {run.steps}: raise it, "
            f"or resume from an earlier checkpoint (--resume {run.dir}/checkpoints/step-…)"
        )
    when = {name: getattr(settings.evaluation, name) for name in ("every", "at_start")}
    if old.evaluation.changed(**when) != settings.evaluation:
        state = replace(state, best=None)  # the figures so far are of another evaluation
    if state.position and prompt_at(state.position - 1).id != state.last_prompt:
        raise ValueError(
            f"the data changed since the run was started: the prompt at position "
            f"{state.position - 1} was {state.last_prompt}, now it is "
            f"{prompt_at(state.position - 1).id}; put the old data back, or start a new run"
        )
    trainer = checkpoint.trainer_state()
    torch.set_rng_state(trainer.pop("rng"))
    queue = unpacked(trainer.pop("queue"), processes)
    learner.load_state_dict({"model": checkpoint.tensors(), **trainer})
    return state, queue


def save_checkpoint(run: runs.Run, context: StepContext, queue: Sequence[RolloutBatch]) -> None:
    """Write a checkpoint of this moment; all processes call it, the first one writes."""
    settings, processes = context.settings, context.processes
    trainer = context.learner.state_dict()
    trainer["queue"] = processes.gather(QUEUE.dump_json(list(queue)).decode())
    if not processes.main:
        return
    weights = {name: each.contiguous() for name, each in trainer.pop("model").items()}
    trainer["rng"] = torch.get_rng_state()
    about = {
        "state": asdict(context.state),
        "config": settings.recipe.model_dump(),
        "processes": processes.size,
        "objective": {"text": settings.objective.text, "progress": context.progress},
    }
    run.save(context.state.step, tensors=weights, trainer=trainer, state=about)
    run.checkpoints.prune(settings.run.advanced.keep_last)


STORED = {"trajectories": "completions", "log_probs": "logprobs"}
"""Names of fields in checkpoints."""
QUEUE = TypeAdapter(
    list[RolloutBatch],
    config=ConfigDict(
        ser_json_inf_nan="constants",
        serialize_by_alias=True,
        alias_generator=lambda name: STORED.get(name, name),
    ),
)
"""Batches as JSON, in which every number comes back as it was."""


def unpacked(parts: Sequence[str], processes: ProcessGroup) -> list[RolloutBatch]:
    """This process's slots of the queue that all processes of the saved run had.

    Args:
        parts: JSON, one text per process that was.
    """
    queue = []
    for batches in zip(*map(QUEUE.validate_json, parts), strict=True):
        groups = [group for batch in batches for group in batch.groups]
        verdicts = [row for batch in batches for row in batch.verdicts]
        mine = slots_of(processes, len(groups))
        own = {
            "groups": tuple(groups[i] for i in mine),
            "verdicts": tuple(verdicts[i] for i in mine),
        }
        queue.append(replace(batches[0], **own))
    return queue


PLAN = "engine.json"
"""In the run's folder: the sizes of the engine's memory, which a resumed run takes again."""


def keep_plan(sampler: Any, folder: Path) -> None:
    """Write the sampler's plan, where it has one, unless the run's folder holds it already."""
    plan = getattr(sampler, "plan", None)
    if plan is None:
        return
    text = json.dumps({**asdict(plan), **sampler.resident.about}, indent=1) + "\n"
    path = Path(folder) / PLAN
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)


def take_plan(sampler: Any, folder: Path) -> None:
    """Let the sampler begin with the plan that stands in the run's folder.

    How many rows are decoded together decides how products are rounded: with the same plan a
    resumed run draws what the uninterrupted one draws.
    """
    path = Path(folder) / PLAN
    if not hasattr(sampler, "resident") or not path.is_file():
        return
    with contextlib.suppress(ValueError):  # a damaged file: the plan is made anew
        stored = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(stored, dict):
            sampler.resident.begin_with(stored)
