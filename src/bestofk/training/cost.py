"""`--dry-run`: the resolved config, what k the groups support, tokens, memory. Loads nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bestofk.config import Config, leaves, to_toml
from bestofk.objectives import Objective
from bestofk.rare_settings import engine_options, model_options
from bestofk.training.checks import cautions, check, check_memory, claim_of_run

GIB = 2.0**30


def dry_run(config: Config, *, everything: bool = False) -> str:
    """What a run would do: the settings that differ from the defaults (or all), and numbers.

    Raises:
        ValueError: whatever the run itself would raise before loading anything.
    """
    objective = check(config)
    return "\n".join(
        [
            to_toml(config) if everything else differing(config),
            *group_lines(config, objective),
            *token_lines(config),
            task_line(config),
            *memory_lines(config),
            *(f"note: {line}" for line in (*cautions(config, objective), *_too_large(config))),
        ]
    )


def _too_large(config: Config) -> list[str]:
    """What is an error where a run starts and a note here: it may be meant for another machine."""
    try:
        check_memory(config)
    except ValueError as error:
        return [str(error)]
    return []


def differing(config: Config) -> str:
    """The settings that differ from their defaults, one a line."""
    defaults = dict(leaves(Config()))
    lines = [
        f"{name} = {value!r}  (default {defaults[name]!r})"
        if name in defaults
        else f"{name} = {value!r}"
        for name, value in leaves(config)
        if name not in defaults or value != defaults[name]
    ]
    return "\n".join(["settings that differ from the defaults:", *(lines or ["none"]), ""])


def task_line(config: Config) -> str:
    """The task in a line, and its verifier; data that cannot be read are not an error."""
    from bestofk import tasks
    from bestofk.training.task_setup import make_verifier

    try:
        task = tasks.task(config.task.name, **config.task.options)
    except OSError as error:
        return f"task: {config.task.name}; its data cannot be read from here ({error})"
    make_verifier(config, task)
    judged = config.task.verifier or task.verifier
    summary = task.summary.replace(f", judged by {task.verifier}", "") or "no summary"
    return (
        f"task: {task.name}, {summary}; data licence: {task.licence}; "
        f"judged by the verifier {judged}"
    )


def group_lines(config: Config, objective: Objective) -> list[str]:
    """What k a group of n supports."""
    n = config.sampling.samples_per_prompt
    steps = config.off_policy.inner_steps
    form = objective.off_policy if steps > 1 else "on policy"
    claim, why = claim_of_run(config, objective)
    return [
        f"objective: {objective.text}, k = {objective.k}, needs at least "
        f"{objective.least_samples} samples per prompt; expected update: "
        f"{claim} ({why})",
        f"groups of n = {n} support max@k and pass@k for k up to {n - 1} with the canonical "
        f"baseline, up to {n} with :loo-1 or :none; evaluation for k up to "
        f"{config.evaluation.samples_per_prompt}",
        f"optimiser steps per batch: {steps} ({config.loss.name} loss, {form})",
    ]


def token_lines(config: Config) -> list[str]:
    requested, check_ = config.sampling, config.evaluation
    rollouts = requested.prompts_per_step * requested.samples_per_prompt
    total = rollouts * config.run.steps
    times = config.run.steps // check_.every + 1 if check_.every else 0
    validation = min(times, config.run.steps + 1) * check_.prompts * check_.samples_per_prompt
    longest = requested.max_new_tokens
    return [
        f"rollouts: {rollouts:,} completions a step, {total:,} in {config.run.steps} steps, of at "
        f"most {total * longest:,} new tokens",
        f"validation: {validation:,} completions of at most {validation * longest:,} new tokens",
    ]


def memory_lines(config: Config) -> list[str]:
    """Bytes by purpose; the model's shape is read from its config alone, or guessed by its name."""
    lines, options = [], model_options(config)
    try:
        from bestofk.models import describe

        shape = describe(config.model.path)
    except (OSError, ValueError, ImportError) as error:
        first = str(error).partition("\n")[0]
        lines.append(f"model: {config.model.path}; its config cannot be read from here ({first})")
        named = re.search(r"(\d+(?:\.\d+)?)([bm])\b", config.model.path.lower())
        if not named:
            return [*lines, "memory: not known without it"]
        shape = {"parameters": int(float(named[1]) * {"b": 1e9, "m": 1e6}[named[2]])}
    context, new = shape.get("context"), config.sampling.max_new_tokens
    if context and new >= context:
        raise ValueError(
            f"sampling.max_new_tokens = {new}, and {config.model.path} has positions for {context} "
            "tokens, prompt and completion together: lower it"
        )
    need = memory(config, shape)
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in need.items())
    split = (
        "; FSDP2 shares weights, gradients, optimiser and reference out over the processes, and "
        f"each holds all weights once ({4.0 * shape['parameters'] / GIB:.2f} GiB) while it samples"
    )
    return [
        *lines,
        f"model: {config.model.path}, about {shape['parameters']:,} weights",
        f"memory, about {sum(need.values()) / GIB:.2f} GiB: {listed}"
        + (split if options.fsdp else " (in each process)")
        + ("" if "hidden" in shape else "; activations and sampling not counted"),
    ]


def memory(config: Config, shape: Mapping[str, Any]) -> dict[str, float]:
    """A rough upper estimate in bytes, by what it is for. Adam holds two float32 per weight."""
    weights, options = float(shape["parameters"]), model_options(config)
    hidden, layers = float(shape.get("hidden", 0)), float(shape.get("layers", 0))
    low = 2.0 if config.model.precision == "bf16" else 4.0
    trained = weights
    if config.model.lora_rank and hidden:
        trained = min(weights, 2.0 * config.model.lora_rank * hidden * layers * 7)
    tokens = float(options.tokens_per_micro_batch or 16_384)
    saved = 2.0 if options.gradient_checkpointing else 34.0
    heads = shape.get("heads") or 1
    cache = 2.0 * layers * hidden * (shape.get("kv_heads") or heads) / heads * low
    rows = min(
        engine_options(config).max_rows,
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
