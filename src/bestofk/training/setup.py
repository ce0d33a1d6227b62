"""The parts of a run, made from its config: task, verifier, model, learner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from bestofk import models, tasks
from bestofk.config import Config
from bestofk.learning import Learner
from bestofk.rare_settings import engine_options, model_options, run_options
from bestofk.sampling import Sampler
from bestofk.training.context import check_task_context
from bestofk.training.processes import Processes, check_shards
from bestofk.training.task_setup import Score, make_task
from bestofk.types import Verifier


@dataclass(frozen=True)
class RunParts:
    """What a run works with."""

    task: tasks.Task
    score: Score
    policy: models.Policy
    learner: Learner
    sampler: Sampler


def make_parts(config: Config, processes: Processes, verifier: Verifier | None = None) -> RunParts:
    """Load the task and the model. The task first: it is quick, and may not exist."""
    task, score = make_task(config, verifier)
    options = model_options(config)
    check_task_context(
        config,
        task,
        *models.describe_policy(
            config.model.path,
            trust_remote_code=options.trust_remote_code,
            revision=options.revision,
        ),
    )
    check_shards(options.fsdp, processes.device, torch.cuda.device_count())
    policy, reference = load_policy(config, processes.device)
    learner = Learner(
        policy.model,
        optimisation=config.optimizer,
        total_steps=config.run.steps * config.off_policy.inner_steps,
        stop_grad_norm=run_options(config).stop_grad_norm,
        max_new_tokens=config.sampling.max_new_tokens,
        temperature=config.sampling.temperature,
        tokens_per_micro_batch=options.tokens_per_micro_batch,
        precision=config.model.precision,
        gradient_checkpointing=options.gradient_checkpointing,
        reference=reference,
        accelerator=processes.accelerator if processes.size > 1 else None,
        sharded=options.fsdp,
    )
    policy = replace(policy, model=learner.policy)
    return RunParts(task, score, policy, learner, make_sampler(config, policy, processes.device))


def load_policy(config: Config, device: str) -> tuple[models.Policy, Any]:
    """The policy to train and, for KL without adapters, a frozen copy of it."""
    disable_progress_bar()
    options, rank = model_options(config), config.model.lora_rank
    lora = None
    if rank:
        lora = models.Lora(rank=rank, alpha=options.lora_alpha, targets=options.lora_targets)

    def load(lora: models.Lora | None) -> models.Policy:
        return models.load(
            config.model.path,
            device=device,
            lora=lora,
            trust_remote_code=options.trust_remote_code,
            revision=options.revision,
        )

    reference = load(None).model if config.loss.kl > 0 and lora is None else None
    return load(lora), reference


def make_sampler(config: Config, policy: models.Policy, device: str = "cpu") -> Sampler:
    """The engine that draws completions; `auto` is the group engine on CUDA, else transformers."""
    options = engine_options(config)
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[config.model.precision]
    if options.server:
        from bestofk.sampling.vllm_server import VLLMServer

        return VLLMServer(options.server, policy.model, policy.tokenizer, dtype=dtype)
    if config.sampling.engine == "vllm":
        from bestofk.sampling.vllm import VLLMEngine

        return VLLMEngine(policy.model, policy.tokenizer, dtype=dtype, options=options.vllm)
    if config.sampling.engine == "group" and not str(device).startswith("cuda"):
        raise ValueError(
            f"sampling.engine = 'group' needs a CUDA GPU and the device is {device}: use 'auto' or "
            "'transformers'"
        )
    rows, precision = options.max_rows, config.model.precision
    if config.sampling.engine == "transformers":
        from bestofk.sampling.decode import ModelSampler

        return ModelSampler(policy.model, policy.tokenizer, max_rows=rows, precision=precision)
    from bestofk.sampling.local import local_sampler

    return local_sampler(
        policy.model,
        policy.tokenizer,
        max_rows=rows,
        precision=precision,
        copied=model_options(config).fsdp,
    )
