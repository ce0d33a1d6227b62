"""Where a run stands, and how it gets back there: its folder, its checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bestofk import runs
from bestofk.config import Config, from_dict, read_own_config, to_toml
from bestofk.learning import Learner
from bestofk.objectives import Objective
from bestofk.rare_settings import run_options
from bestofk.training.checks import check_resumed
from bestofk.training.environment import environment
from bestofk.training.processes import Processes
from bestofk.types import Prompt


@dataclass(frozen=True)
class RunState:
    """What a run must remember beside the learner's state."""

    step: int = 0
    """Steps done."""
    position: int = 0
    """Position of the next prompt in the training stream."""
    validated: int = -1
    """The step of the last evaluation."""
    best: float | None = None
    """The best value so far of the metric that picks the best checkpoint."""
    last_prompt: str | None = None
    """Id of the prompt before `position`: tells when the data changed."""

    @property
    def is_validated(self) -> bool:
        return self.validated == self.step


def open_folder(
    config: Config, processes: Processes, *, resume: bool, checkpoint: str | None
) -> tuple[runs.Run, runs.Checkpoint | None]:
    """The run's folder, new or found; the first process holds it, the others read."""
    options = {"samples_bytes": int(run_options(config).samples_megabytes * 1e6)}
    folder, result = Path(config.run.dir), None
    if resume:
        check_resumed(read_own_config(folder), config)
    if not processes.main:
        processes.wait()  # until the first has put the folder in order
        run = runs.Run(folder, **options)
        return run, run.newest() if resume else None
    if resume:
        run = runs.Run.open(folder, **options)
        try:
            check_checkpoints_are_there(run, config.run.checkpoint_every)
            result = run.restore(checkpoint)
        except Exception:
            run.close()
            raise
    else:
        run = runs.Run.create(folder, to_toml(config), environment(), **options)
    processes.wait()
    return run, result


def check_checkpoints_are_there(run: runs.Run, every: int) -> None:
    """Raise where a run would start over in silence because its checkpoints were removed."""
    if run.checkpoints() or not (run.path / "metrics.jsonl").exists():
        return
    last = max((line["step"] for line in runs.read_metrics(run.path)), default=0)
    if last > every:
        raise FileNotFoundError(
            f"{run.path} has metrics up to step {last} and no checkpoint: put its checkpoints/ "
            "back, or start a new run in another folder"
        )


def restore(
    checkpoint: runs.Checkpoint | None,
    config: Config,
    learner: Learner,
    prompt_at: Callable[[int], Prompt],
) -> RunState:
    """Load a checkpoint into the learner; return where the run stood, or a fresh state."""
    if checkpoint is None:
        return RunState()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        check_resumed(from_dict(Config, checkpoint.state["config"]), config)
    state = RunState(**checkpoint.state["state"])
    if state.position and prompt_at(state.position - 1).id != state.last_prompt:
        raise ValueError(
            f"the data changed since the run was started: the prompt at position "
            f"{state.position - 1} was {state.last_prompt}, now it is "
            f"{prompt_at(state.position - 1).id}; put the old data back, or start a new run"
        )
    trainer = checkpoint.trainer_state()
    torch.set_rng_state(trainer.pop("rng"))
    learner.load_state_dict({"model": checkpoint.tensors(), **trainer})
    return state


def save_checkpoint(
    run: runs.Run,
    state: RunState,
    config: Config,
    learner: Learner,
    processes: Processes,
    *,
    objective: Objective,
    progress: float,
) -> None:
    """Write a checkpoint of this moment; all processes call it, the first one writes."""
    trainer = learner.state_dict()
    if not processes.main:
        return
    weights = own_memory(trainer.pop("model"))
    trainer["rng"] = torch.get_rng_state()
    about = {
        "state": asdict(state),
        "config": asdict(config),
        "processes": processes.size,
        "objective": {"text": objective.text, "progress": progress},
    }
    run.save(state.step, tensors=weights, trainer=trainer, state=about)
    run.prune(run_options(config).keep_last)


def own_memory(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor in memory of its own, as safetensors needs it (tied weights share theirs)."""
    seen: set[int] = set()
    own: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        shared = tensor.untyped_storage().data_ptr() in seen
        own[name] = tensor.clone() if shared else tensor.contiguous()
        seen.add(own[name].untyped_storage().data_ptr())
    return own
