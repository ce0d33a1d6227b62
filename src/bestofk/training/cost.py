"""`--dry-run`: the resolved config, what k the groups support, tokens, memory. Loads no weights."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from bestofk.config import Config, leaves, to_toml
from bestofk.devices import card_bytes
from bestofk.learning.settings import usual_rate
from bestofk.objectives import Objective
from bestofk.sampling.prompts import encode
from bestofk.training.checks import (
    cautions,
    check,
    claim_of_run,
)
from bestofk.training.footprint import GIB, PROMPT, footprint

ASSUMED = 80 * GIB
"""Of a GPU that a config asks for on a machine without one."""


def dry_run(config: Config, *, everything: bool = False) -> str:
    """What a run would do: the settings that differ from the defaults (or all), and numbers.

    Raises:
        ValueError: whatever the run itself would raise before loading anything.
    """
    objective, (shape, unread) = check(config), shape_of(config)
    weights = shape.get("parameters")
    notes = cautions(config, objective, weights=weights)
    return "\n".join(
        [
            to_toml(config) if everything else differing(config),
            *group_lines(config, objective),
            *token_lines(config),
            task_line(config),
            *unread,
            *rate_line(config, weights),
            *memory_lines(config, shape),
            *server_line(config),
            *(f"note: {line}" for line in notes),
        ]
    )


def differing(config: Config) -> str:
    """The settings that differ from their defaults, one a line."""
    defaults = dict(leaves(Config()))
    lines = [
        f"{name} = {value!r}" + (f"  (default {default!r})" if default is not None else "")
        for name, value in leaves(config)
        if value != (default := defaults.get(name))
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
    sampling, check_ = config.sampling, config.evaluation
    rollouts = sampling.prompts_per_step * sampling.samples_per_prompt
    total = rollouts * config.run.steps
    times = config.run.steps // check_.every + 1 if check_.every else 0
    validation = min(times, config.run.steps + 1) * check_.prompts * check_.samples_per_prompt
    longest = sampling.max_new_tokens
    return [
        f"rollouts: {rollouts:,} completions a step, {total:,} in {config.run.steps} steps, of at "
        f"most {total * longest:,} new tokens",
        f"validation: {validation:,} completions of at most {validation * longest:,} new tokens",
    ]


def shape_of(config: Config) -> tuple[dict[str, Any], list[str]]:
    """The model's shape, from its config alone or guessed by its name; and a line if it is not."""
    path, options = config.model.path, config.model.advanced
    try:
        from bestofk.models import describe

        own_code, revision = options.trust_remote_code, options.revision
        return describe(path, trust_remote_code=own_code, revision=revision), []
    except (OSError, ValueError, ImportError) as error:
        first = str(error).partition("\n")[0]
        named = re.search(r"(\d+(?:\.\d+)?)([bm])\b", path.lower())
        shape = (
            {"parameters": int(float(named[1]) * {"b": 1e9, "m": 1e6}[named[2]])} if named else {}
        )
        return shape, [f"model: {path}; its config cannot be read from here ({first})"]


def rate_line(config: Config, weights: int | None) -> list[str]:
    """The learning rate, where the recipe leaves it to the model's size."""
    if config.optimizer.learning_rate is not None or not weights:
        return []
    rate = usual_rate(weights, adapters=bool(config.model.lora_rank))
    return [f"learning rate: {rate:g}, by the model's size; optimizer.learning_rate sets another"]


def memory_lines(config: Config, shape: Mapping[str, Any]) -> list[str]:
    """Bytes by purpose."""
    if not shape:
        return ["memory: not known without it"]
    options = config.model.advanced
    context, new = shape.get("context"), config.sampling.max_new_tokens
    if context and new >= context:
        raise ValueError(
            f"sampling.max_new_tokens = {new}, and {config.model.path} has positions for {context} "
            "tokens, prompt and completion together: lower it"
        )
    card, where = device_of(config.model.device)
    prompt = prompt_tokens(config) if "hidden" in shape else None
    need = footprint(config, shape, card=card, prompt=prompt or PROMPT)
    total, have = (
        sum(need.values()),
        card or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in need.items() if size)
    split = (
        "; FSDP2 shares weights, gradients, optimiser and reference out over the processes, and "
        f"each holds all weights once ({4.0 * shape['parameters'] / GIB:.2f} GiB) while it samples"
    )
    assumed = f"; prompts of {prompt or PROMPT} tokens{'' if prompt else ' assumed'}"
    lines = [
        f"model: {config.model.path}, about {shape['parameters']:,} weights",
        f"memory {where}, about {total / GIB:.2f} GiB: {listed}"
        + (split if options.fsdp else " (in each process)")
        + (assumed if "hidden" in shape else "; activations and sampling not counted"),
    ]
    if total > have and not options.fsdp:
        lines.append(
            f"note: about {total / GIB:.1f} GiB is more than the {have / GIB:.1f} GiB there are: "
            + _less(config, shape, card, prompt or PROMPT)
        )
    return lines


def _less(config: Config, shape: Mapping[str, Any], card: float | None, prompt: int) -> str:
    """What to do where a run needs too much memory."""
    model, ways = config.model, []
    if "hidden" in shape and not model.advanced.gradient_checkpointing:
        lean = model.changed(advanced=model.advanced.changed(gradient_checkpointing=True))
        other = config.changed(model=lean)
        need = sum(footprint(other, shape, card=card, prompt=prompt).values())
        ways.append(f"with model.advanced.gradient_checkpointing = true it is {need / GIB:.1f}")
    if not model.lora_rank:
        ways.append("train adapters (model.lora_rank = 16)")
    return ", or ".join([*ways, "take a smaller model"])


def device_of(name: str) -> tuple[float | None, str]:
    """Bytes of the GPU that a run of this config takes, None on CPU; and the device in words."""
    try:
        import torch
    except ImportError:  # the run is meant for another machine
        return None, "on CPU"
    here = torch.cuda.is_available()
    if not name.startswith("cuda") and not (name == "auto" and here):
        return None, "on CPU"
    if not here:
        return ASSUMED, f"on a GPU of {ASSUMED / GIB:.0f} GiB (there is none here)"
    card = card_bytes(torch.device(name if name != "auto" else "cuda"))
    return card, f"on this GPU with {card / GIB:.1f} GiB"


def prompt_tokens(config: Config) -> int | None:
    """Mean length of the first prompts, where the task makes its own; None where they would have
    to be fetched, or the tokenizer is not at hand."""
    from bestofk import tasks
    from bestofk.models import describe_policy

    try:
        task = tasks.task(config.task.name, **config.task.options)
        if task.licence != "generated":
            return None
        _, tokenizer = describe_policy(config.model.path)
        lengths = [len(encode(tokenizer, each)) for each in task.split(config.task.split)[:32]]
    except (OSError, ValueError):
        return None
    return round(sum(lengths) / len(lengths))


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
