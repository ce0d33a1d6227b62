"""`--dry-run`: the resolved config, what k the groups support, tokens, memory. Loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bestofk.config import Config, to_toml
from bestofk.objectives import Objective
from bestofk.training.checks import cautions, check

GIB = 2.0**30


def dry_run(config: Config) -> str:
    """What a run would do, in words and numbers.

    Raises:
        ValueError: whatever the run itself would refuse before loading anything.
    """
    goal = check(config)
    from bestofk import tasks

    task = tasks.task(config.task.name, **config.task.options)
    parts = [to_toml(config), *group_lines(config, goal), *token_lines(config)]
    parts.append(f"task: {task.name}, {task.summary or 'no summary'}; data licence: {task.licence}")
    parts += memory_lines(config)
    parts += [f"note: {line}" for line in cautions(goal)]
    return "\n".join(parts)


def group_lines(config: Config, goal: Objective) -> list[str]:
    """What k a group of n supports."""
    n = config.sampling.samples_per_prompt
    steps = config.inner_steps
    form = config.off_policy_form if steps > 1 else "on policy"
    return [
        f"objective: {goal.text}, k = {goal.k}, needs at least {goal.least_samples} samples per "
        f"prompt; {'unbiased' if goal.unbiased else 'not unbiased (normalised)'}",
        f"groups of n = {n} support max@k and pass@k for k up to {n - 1} with the canonical "
        f"baseline, up to {n} with :loo-1 or :none; evaluation for k up to "
        f"{config.evaluation.samples_per_prompt}",
        f"optimiser steps per batch: {steps} ({config.loss.name} loss, {form})",
    ]


def token_lines(config: Config) -> list[str]:
    asked, check_ = config.sampling, config.evaluation
    rollouts = asked.prompts_per_step * asked.samples_per_prompt
    total = rollouts * config.run.steps
    times = config.run.steps // check_.every + 1 if check_.every else 0
    validation = min(times, config.run.steps + 1) * check_.prompts * check_.samples_per_prompt
    longest = asked.max_new_tokens
    return [
        f"rollouts: {rollouts:,} completions a step, {total:,} in {config.run.steps} steps, of at "
        f"most {total * longest:,} new tokens",
        f"validation: {validation:,} completions of at most {validation * longest:,} new tokens",
    ]


def memory_lines(config: Config) -> list[str]:
    """Bytes per process; the model's shape is read from its config alone."""
    from bestofk.models import describe

    try:
        shape = describe(config.model.path)
    except (OSError, ValueError, ImportError) as error:
        return [f"memory: not known, since the model's config cannot be read ({error})"]
    need = memory(config, shape)
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in need.items())
    return [
        f"model: {config.model.path}, {shape['parameters']:,} weights",
        f"memory per process, about {sum(need.values()) / GIB:.2f} GiB: {listed}"
        + (
            " (weights and optimiser shared by the processes under FSDP)" if config.run.fsdp else ""
        ),
    ]


def memory(config: Config, shape: Mapping[str, Any]) -> dict[str, float]:
    """A rough upper estimate in bytes, by what it is for. Adam holds two float32 per weight."""
    weights = float(shape["parameters"])
    hidden, layers = float(shape["hidden"]), float(shape["layers"])
    low = 2.0 if config.model.precision == "bf16" else 4.0
    trained = weights
    if config.model.lora_rank:
        trained = min(weights, 2.0 * config.model.lora_rank * hidden * layers * 7)
    tokens = float(config.optimiser.tokens_per_micro_batch)
    saved = 2.0 if config.model.gradient_checkpointing else 34.0
    heads = shape.get("kv_heads") or shape["heads"]
    cache = 2.0 * layers * hidden * heads / shape["heads"] * low
    rows = min(
        config.sampling.batch_size,
        config.sampling.prompts_per_step * config.sampling.samples_per_prompt,
    )
    return {
        "weights": 4.0 * weights + (low * weights if low < 4 else 0.0),
        "gradients": 4.0 * trained,
        "optimiser": 8.0 * trained,
        "reference": 4.0 * weights if config.loss.kl > 0 and not config.model.lora_rank else 0.0,
        "activations": tokens * hidden * layers * saved * low / 2.0,
        "sampling cache": rows * cache * (config.sampling.max_new_tokens + 256),
    }
