"""The parts of a run, made from its config: task, verifier, model, learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers.utils.logging import disable_progress_bar

from bestofk import models, tasks
from bestofk.config import Config
from bestofk.learning import Learner
from bestofk.rare_settings import engine_options, model_options, run_options
from bestofk.rewards import BatchVerifier, UnscoredGuard, score, verifier
from bestofk.rewards.user_functions import BatchFunctionVerifier, FunctionVerifier
from bestofk.sampling import Sampler
from bestofk.training.context import check_task_context
from bestofk.training.processes import Processes
from bestofk.types import Group, Verdict, Verifier

Score = Callable[[Sequence[Group]], list[list[Verdict]]]
"""Judges whole groups as one batch."""


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


def make_task(config: Config, own: Verifier | None = None) -> tuple[tasks.Task, Score]:
    """The task and the function that judges its groups: `own`, or what the config names."""
    options = run_options(config)
    task = make_prompts(config)
    judge: Verifier = make_verifier(config, task) if own is None else own
    guard = UnscoredGuard(options.unscored_share)
    first = task.split(options.split).at(0)
    if isinstance(judge, FunctionVerifier | BatchFunctionVerifier):
        judge.check_prompt(first)
    if config.evaluation.every:
        task.split(config.evaluation.split)

    def score_groups(groups: Sequence[Group]) -> list[list[Verdict]]:
        if not groups:
            return []
        verdicts = score(groups, judge)
        guard.check(verdict for row in verdicts for verdict in row)
        return verdicts

    return task, score_groups


def make_prompts(config: Config) -> tasks.Task:
    """The task, with the training prompts that the run's options keep."""
    stated, options = dict(config.task.options), run_options(config)
    if config.task.name == "dataset" and config.task.verifier and ":" in config.task.verifier:
        stated.setdefault("verifier", config.task.verifier)  # its rows keep every field then
    task = tasks.task(config.task.name, **stated)
    if options.pass_rates is None:
        return task
    from bestofk.training.prompt_filter import with_pass_rates

    low, high = options.pass_rate_range
    threshold = 1.0 if config.evaluation.threshold is None else config.evaluation.threshold
    return with_pass_rates(
        task,
        options.split,
        options.pass_rates,
        low=low,
        high=high,
        threshold=threshold,
        seed=config.run.seed,
    )


def make_verifier(config: Config, task: tasks.Task) -> BatchVerifier:
    """The verifier that the config names, or the task's own."""
    name = config.task.verifier or task.verifier
    own = {} if config.task.verifier else task.verifier_options
    return verifier(name, **{**own, **config.task.verifier_options})


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
    cuda = str(device).startswith("cuda")
    if config.sampling.engine == "group" and not cuda:
        raise ValueError(
            f"sampling.engine = 'group' needs a CUDA GPU and the device is {device}: use 'auto' or "
            "'transformers'"
        )
    if cuda and config.sampling.engine in ("auto", "group"):
        from bestofk.sampling.group import GroupSampler

        return GroupSampler(
            policy.model,
            policy.tokenizer,
            max_rows=options.max_rows,
            precision=config.model.precision,
            copied=model_options(config).fsdp,
        )
    from bestofk.sampling.decode import ModelSampler

    return ModelSampler(
        policy.model,
        policy.tokenizer,
        max_rows=options.max_rows,
        precision=config.model.precision,
    )
