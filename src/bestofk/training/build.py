"""The parts of a run, made from its config; and the few plain functions the loop is written in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from bestofk import models, runs, tasks
from bestofk.config import Config, from_dict, read, to_toml
from bestofk.learning import Learner, Loss, Optimisation
from bestofk.objectives import Objective
from bestofk.rewards import UnscoredGuard, verifier
from bestofk.sampling import Sampler, Sampling
from bestofk.training.checks import check_resumed
from bestofk.training.engine import make_sampler
from bestofk.training.environment import environment
from bestofk.training.learn import Settings
from bestofk.training.processes import Processes
from bestofk.training.rollouts import scorer
from bestofk.types import Group, Prompt, Verdict


@dataclass(frozen=True)
class State:
    """What a run must remember beside the learner's state."""

    step: int = 0
    """Steps done."""
    position: int = 0
    """Of the next prompt in the training stream."""
    validated: int = -1
    """The step of the last evaluation."""
    best: float | None = None
    last_prompt: str | None = None
    """Id of the prompt before `position`: tells when the data changed."""

    @property
    def is_validated(self) -> bool:
        return self.validated == self.step


@dataclass(frozen=True)
class Parts:
    """What the loop works with."""

    config: Config
    goal: Objective
    processes: Processes
    run: runs.Run
    policy: models.Policy
    learner: Learner
    sampler: Sampler
    task: tasks.Task
    judge: Callable[[Sequence[Group]], list[list[Verdict]]]
    settings: Settings

    def prompt_at(self, position: int) -> Prompt:
        """Of the training stream."""
        return self.task.split(self.config.task.split).at(position)

    def sample(self, prompts: Sequence[Prompt], n: int, *seed: int | str) -> list[Group]:
        """Groups of n, with draws fixed by the run's seed and these parts."""
        asked = self.config.sampling
        params = Sampling(
            n=n,
            max_new_tokens=asked.max_new_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            stop=asked.stop,
        )
        drawn = seed_of(self.config.run.seed, *seed)
        return list(self.sampler.sample(prompts, seed=drawn, params=params))


@dataclass
class Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent


def assemble(config: Config, goal: Objective, processes: Processes, run: runs.Run) -> Parts:
    """Load the model and the task. The task first: it is quick, and may refuse."""
    task = tasks.task(config.task.name, **config.task.options)
    name = config.task.verifier or task.verifier
    own = {} if config.task.verifier else task.verifier_options
    verify = verifier(name, **{**own, **config.task.verifier_options})
    task.split(config.task.split).at(0)
    if config.evaluation.every:
        task.split(config.evaluation.split)
    policy, reference = load_policy(config, processes.device)
    learner = Learner(
        policy.model,
        optimisation=optimisation(config),
        temperature=config.sampling.temperature,
        tokens_per_micro_batch=config.optimiser.tokens_per_micro_batch,
        precision=config.model.precision,
        gradient_checkpointing=config.model.gradient_checkpointing,
        reference=reference,
        accelerator=processes.accelerator if processes.size > 1 else None,
        sharded=config.run.fsdp,
    )
    policy = replace(policy, model=learner.policy)
    return Parts(
        config=config,
        goal=goal,
        processes=processes,
        run=run,
        policy=policy,
        learner=learner,
        sampler=make_sampler(config, policy),
        task=task,
        judge=scorer(verify, UnscoredGuard(config.task.unscored_share)),
        settings=settings(config),
    )


def load_policy(config: Config, device: str) -> tuple[models.Policy, Any]:
    """The policy to train and, for KL without adapters, a frozen copy of it."""
    disable_progress_bar()
    asked = config.model
    lora = None
    if asked.lora_rank:
        lora = models.Lora(rank=asked.lora_rank, alpha=asked.lora_alpha, targets=asked.lora_targets)

    def load(lora: models.Lora | None) -> models.Policy:
        return models.load(
            asked.path,
            device=device,
            lora=lora,
            trust_remote_code=asked.trust_remote_code,
            revision=asked.revision,
        )

    reference = load(None).model if config.loss.kl > 0 and lora is None else None
    return load(lora), reference


def optimisation(config: Config) -> Optimisation:
    asked = config.optimiser
    return Optimisation(
        lr=asked.learning_rate,
        betas=(asked.beta1, asked.beta2),
        eps=asked.epsilon,
        weight_decay=asked.weight_decay,
        warmup_steps=asked.warmup_steps,
        schedule=asked.schedule,
        total_steps=config.run.steps * config.inner_steps,
        max_grad_norm=asked.max_grad_norm,
        stop_grad_norm=asked.stop_grad_norm,
    )


def settings(config: Config) -> Settings:
    asked = config.loss
    loss = Loss(
        name=asked.name,
        clip_low=asked.clip_low,
        clip_high=asked.clip_high,
        ratio=asked.ratio,
        normaliser=asked.normaliser,
        max_new_tokens=config.sampling.max_new_tokens,
        kl=asked.kl,
        kl_estimator=asked.kl_estimator,
        entropy=asked.entropy_bonus,
    )
    off = config.off_policy
    return Settings(
        loss=loss,
        passes=off.passes,
        mini_batches=off.mini_batches,
        form=config.off_policy_form,
        correct_sampler=off.correct_sampler,
        watch_all=config.sampling.engine != "transformers",
    )


def seed_of(*parts: int | str) -> int:
    """A seed fixed by its parts."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:7])


def open_run(
    config: Config, processes: Processes, resume: bool, checkpoint: str | None
) -> tuple[runs.Run, runs.Checkpoint | None]:
    """The run's folder, new or found; the first process holds it, the others read."""
    options = {"samples_bytes": int(config.run.samples_megabytes * 1e6)}
    folder, found = Path(config.run.dir), None
    if resume:
        check_resumed(read(folder / "config.toml"), config)
    if not processes.main:
        processes.wait()  # until the first has put the folder in order
        run = runs.Run(folder, **options)
        return run, run.newest() if resume else None
    if resume:
        run = runs.Run.open(folder, **options)
        try:
            refuse_lost(run, config.run.checkpoint_every)
            found = run.restore(checkpoint)
        except Exception:
            run.close()
            raise
    else:
        run = runs.Run.create(folder, to_toml(config), environment(), **options)
    processes.wait()
    return run, found


def refuse_lost(run: runs.Run, every: int) -> None:
    """Refuse to start over, in silence, a run whose checkpoints somebody took away."""
    if run.checkpoints() or not (run.path / "metrics.jsonl").exists():
        return
    last = max((line["step"] for line in runs.read_metrics(run.path)), default=0)
    if last > every:
        raise FileNotFoundError(
            f"{run.path} has metrics up to step {last} and no checkpoint: put its checkpoints/ "
            "back, or start a run of its own"
        )


def restore(parts: Parts, found: runs.Checkpoint | None) -> State:
    """The learner as it was, and the state of the run; a fresh start where nothing was found."""
    if found is None:
        return State()
    check_resumed(from_dict(Config, found.state["config"]), parts.config)
    state = State(**found.state["state"])
    if state.position and parts.prompt_at(state.position - 1).id != state.last_prompt:
        raise ValueError(
            f"the data changed since the run was started: the prompt at position "
            f"{state.position - 1} was {state.last_prompt}, now it is "
            f"{parts.prompt_at(state.position - 1).id}; put the old data back, or start a run of "
            "its own"
        )
    trainer = found.trainer_state()
    torch.set_rng_state(trainer.pop("rng"))
    parts.learner.load_state_dict({"model": found.tensors(), **trainer})
    return state


def save(parts: Parts, state: State) -> None:
    """A checkpoint of this moment; all processes call it, the first writes."""
    trainer = parts.learner.state_dict()
    if parts.processes.main:
        weights = apart(trainer.pop("model"))
        trainer["rng"] = torch.get_rng_state()
        about = {
            "state": asdict(state),
            "config": asdict(parts.config),
            "processes": parts.processes.size,
            "objective": {"text": parts.goal.text, "progress": progress(parts, state)},
        }
        parts.run.save(state.step, tensors=weights, trainer=trainer, state=about)
        parts.run.prune(parts.config.run.keep_last)


def apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor in memory of its own, as safetensors wants it (tied weights share theirs)."""
    seen: set[int] = set()
    own: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        shared = tensor.untyped_storage().data_ptr() in seen
        own[name] = tensor.clone() if shared else tensor.contiguous()
        seen.add(own[name].untyped_storage().data_ptr())
    return own


def progress(parts: Parts, state: State) -> float:
    """The share of the run done: what schedules look at."""
    return state.step / parts.config.run.steps
