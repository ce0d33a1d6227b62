"""`--dry-run`: the resolved config, what k the groups support, tokens, memory. Loads nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bestofk.config import Config, leaves, to_toml
from bestofk.objectives import Objective
from bestofk.training.checks import cautions, check, check_memory, claim_of_run

GIB = 2.0**30
PROMPT = 256
"""Tokens of a prompt, taken on average."""
CHUNK = 2**24
"""Logits that the learner holds at once, in about five float32 tensors."""


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
            *server_line(config),
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
    make_verifier(config.task, task)
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
    lines, options = [], config.model.advanced
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


def server_line(config: Config) -> list[str]:
    """The command that starts the vLLM server of this run, where it samples from one."""
    if not config.sampling.server:
        return []
    try:
        from bestofk.sampling.vllm_server import start_line
    except ImportError:  # torch is not here: the run is meant for another machine
        return []
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[config.model.precision]
    return ["server: " + start_line(config.model.path, config.sampling.server, dtype)]


def memory(config: Config, shape: Mapping[str, Any]) -> dict[str, float]:
    """The largest need in bytes, by what it is for, when every completion has its full length.

    Learning and sampling take turns, so that the larger of the two counts. A layer keeps about 46
    bytes per token and hidden unit and 16 per unit of its feed-forward block for the backward pass
    (43 and 10 in bf16, counted by PyTorch's saved tensors; half as much again with adapters, as
    measured); with checkpointing 4 per hidden unit, and one layer all. AdamW holds two float32 per
    trained weight.
    """
    weights, options, requested = float(shape["parameters"]), config.model.advanced, config.sampling
    hidden, layers = float(shape.get("hidden", 0)), float(shape.get("layers", 0))
    inner, rank = float(shape.get("inner", 0)), config.model.lora_rank
    reduced = config.model.precision == "bf16"
    trained = 2.0 * rank * layers * (5 * hidden + 3 * inner) if rank and hidden else weights
    rows = requested.prompts_per_step * requested.samples_per_prompt
    all_tokens = rows * requested.max_new_tokens + PROMPT * requested.prompts_per_step
    tokens = float(min(options.tokens_per_micro_batch or 16_384, all_tokens))
    layer = (43.0 * hidden + 10.0 * inner) if reduced else (46.0 * hidden + 16.0 * inner)
    layer *= 1.5 if rank else 1.0
    kept = 4.0 * hidden * layers + layer if options.gradient_checkpointing else layer * layers
    heads = shape.get("heads") or 1
    low = 2.0 if reduced else 4.0
    token = 2.0 * layers * hidden * (shape.get("kv_heads") or heads) / heads * low
    drawn = min(requested.advanced.max_rows, rows) * (requested.max_new_tokens + PROMPT)
    logits = 5 * 4.0 * CHUNK if hidden else 0.0
    learning = {"gradients": 4.0 * trained, "activations": tokens * kept + logits}
    sampling = {"copy to sample from": low * weights if reduced else 0.0, "cache": drawn * token}
    return {
        "Python and libraries": 0.4 * GIB,
        "weights": (2.0 if rank and reduced and not options.fsdp else 4.0) * weights
        + (4.0 * trained if rank else 0.0),
        "optimiser": 8.0 * trained,
        "reference": 4.0 * weights if config.loss.kl > 0 and not rank else 0.0,
        **max(learning, sampling, key=lambda part: sum(part.values())),
    }
