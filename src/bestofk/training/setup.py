"""The parts of a run, made from its settings: model, learner, sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from bestofk import models, tasks
from bestofk.config import ModelSection, SamplingSection
from bestofk.environments.author_class import EnvironmentClasses
from bestofk.environments.rollout import TurnSampler
from bestofk.learning import Learner
from bestofk.models.causal import context_length
from bestofk.precision import PRECISIONS
from bestofk.sampling import Sampler
from bestofk.training.processes import Processes, check_shards
from bestofk.training.resolve import RunSettings
from bestofk.training.task_setup import EvaluationSet


@dataclass(frozen=True)
class RunParts:
    """What a run works with."""

    sets: tuple[EvaluationSet, ...]
    """That the policy is evaluated on; the first is of the task itself."""
    policy: models.Policy
    learner: Learner
    sampler: Sampler
    environment: TurnSampler | None = None
    """Draws trajectories of several turns with the sampler, where the run has an environment."""

    @property
    def task(self) -> tasks.Task:
        return self.sets[0].task


def make_parts(
    settings: RunSettings,
    processes: Processes,
    sets: tuple[EvaluationSet, ...],
    environment: EnvironmentClasses | None = None,
) -> RunParts:
    """Load the model, and make what learns and samples with it."""
    model, options = settings.model, settings.model.advanced
    check_shards(options.fsdp, processes.device, torch.cuda.device_count())
    policy, reference = load_policy(
        model, processes.device, seed=settings.run.seed, with_reference=settings.loss.kl > 0
    )
    learner = Learner(
        policy.model,
        optimizer=settings.optimizer,
        total_steps=settings.run.steps * settings.off_policy.inner_steps,
        stop_grad_norm=settings.run.advanced.stop_grad_norm,
        max_new_tokens=settings.sampling.max_new_tokens,
        temperature=settings.sampling.temperature,
        tokens_per_micro_batch=options.tokens_per_micro_batch,
        precision=model.precision,
        gradient_checkpointing=options.gradient_checkpointing,
        reference=reference,
        sharded=options.fsdp,
    )
    policy = replace(policy, model=learner.policy)
    sampler = make_sampler(settings.sampling, model, policy, processes.device)
    if environment is None:
        return RunParts(sets, policy, learner, sampler)
    contexts = (context_length(policy.model.config), getattr(sampler, "context", None))
    turns = TurnSampler(
        sampler,
        environment,
        settings.task.limits,
        model=model.path,
        context=min((length for length in contexts if length), default=None),
    )
    for split, task in ((settings.task.split, sets[0].task), *((s.split, s.task) for s in sets)):
        prompts = task.split(split)  # rows of data may differ, those of a generator do not
        turns.check(prompts[:] if task.name == "dataset" else prompts[:64])
    return RunParts(sets, policy, learner, sampler, turns)


def load_policy(
    section: ModelSection, device: str, *, seed: int = 0, with_reference: bool = False
) -> tuple[models.Policy, Any]:
    """The policy to train and, for KL without adapters, a frozen copy of it.

    Trained weights are float32; those below LoRA adapters do not change and are in the run's
    precision. FSDP2 wants one dtype in a layer, so there they are float32 too.
    """
    options, rank = section.advanced, section.lora_rank
    lora, numbers = None, PRECISIONS[section.precision]
    if rank:
        lora = models.Lora(
            rank=rank,
            alpha=options.lora_alpha,
            targets=options.lora_targets,
            nf4=options.lora_nf4,
            fp8=options.lora_fp8,
            seed=seed,
        )

    def load(lora: models.Lora | None) -> models.Policy:
        return models.load(
            section.path,
            dtype=numbers.weights if lora and not options.fsdp else "float32",
            device=device,
            lora=lora,
            trust_remote_code=options.trust_remote_code,
            revision=options.revision,
            chat_template=options.chat_template,
        )

    reference = load(None).model if with_reference and lora is None else None
    return load(lora), reference


def make_sampler(
    sampling: SamplingSection, model: ModelSection, policy: models.Policy, device: str
) -> Sampler:
    """The engine that draws completions; `auto` is the group engine on CUDA, else transformers."""
    if sampling.server:
        from bestofk.sampling.vllm_server import VLLMServer, start_line

        dtype = PRECISIONS[model.precision].weights
        start = start_line(model.path, sampling.server, dtype)
        return VLLMServer(sampling.server, policy.model, policy.tokenizer, dtype=dtype, start=start)
    if sampling.engine == "group" and not str(device).startswith("cuda"):
        raise ValueError(
            f"sampling.engine = 'group' needs a CUDA GPU and the device is {device}: use 'auto' or "
            "'transformers'"
        )
    rows, precision = sampling.advanced.max_rows, model.precision
    if sampling.engine == "transformers":
        from bestofk.sampling.decode import ModelSampler

        return ModelSampler(policy.model, policy.tokenizer, max_rows=rows, precision=precision)
    from bestofk.sampling.local import local_sampler

    return local_sampler(
        policy.model,
        policy.tokenizer,
        max_rows=rows,
        precision=precision,
        copied=model.advanced.fsdp,
    )
