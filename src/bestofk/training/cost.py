"""`--dry-run`: the settings, what k the groups support, tokens, memory. Loads no weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from bestofk.config import Config, EvaluationSection, ModelSection, leaves, to_toml
from bestofk.devices import card_bytes
from bestofk.environments.author_class import load_environment
from bestofk.precision import PRECISIONS
from bestofk.rewards import verifier
from bestofk.sampling.prompts import encode
from bestofk.tasks import Task
from bestofk.training.checks import claim_of_run, repeated_prompts
from bestofk.training.footprint import GIB, PROMPT, footprint
from bestofk.training.resolve import RunSettings
from bestofk.training.task_setup import judge_of, make_prompts, make_verifier

MACHINE = float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
LOADS = "reward-model:"
"""How judges begin whose weights would be loaded."""
ASSUMED = 80 * GIB
"""Of a GPU that a run asks for on a machine without one."""


def dry_run(settings: RunSettings, *, everything: bool = False) -> str:
    """What a run would do: the settings that differ from the defaults (or all), and numbers.

    Raises:
        ValueError: whatever the run itself would raise before loading anything.
    """
    task, about, prompts = open_data(settings)
    repeated = repeated_prompts(settings.sampling, prompts) if prompts else []
    return "\n".join(
        [
            to_toml(settings.recipe) if everything else differing(settings),
            *group_lines(settings),
            *token_lines(settings),
            about,
            *filter(None, [settings.facts.unread]),
            *memory_lines(settings, prompt_tokens(settings, task)),
            *server_line(settings),
            *(f"note: {line}" for line in [*settings.notes, *repeated]),
        ]
    )


def differing(settings: RunSettings) -> str:
    """The settings that differ from their defaults, one a line; why, where nobody stated them."""
    defaults, reasons = dict(leaves(Config())), settings.reasons
    lines = []
    for name, value in leaves(settings.recipe):
        if value != (default := defaults.get(name)):
            why = reasons.get(name) or (default is not None and f"default {default!r}")
            lines.append(f"{name} = {value!r}" + (f"  ({why})" if why else ""))
    return "\n".join(["settings that differ from the defaults:", *(lines or ["none"]), ""])


def open_data(settings: RunSettings) -> tuple[Task | None, str, int]:
    """The task, a line about it and its verifier, and the number of its training prompts; data that
    cannot be read from here are not an error."""
    section, evaluation = settings.task, settings.evaluation
    environment = load_environment(section.environment) if section.environment else None
    pays = environment is not None and judge_of(environment, section, None) is not None
    try:
        task = make_prompts(section, threshold=evaluation.threshold, seed=settings.run.seed)
        splits = dict.fromkeys([section.split, *([evaluation.split] if evaluation.every else [])])
        sizes = {split: len(task.split(split)) for split in splits}
    except OSError as error:
        return None, f"task: {section.name}; its data cannot be read from here ({error})", 0
    if environment is not None:
        first = task.split(section.split)[0]
        environment.reset_arguments(environment.make(first), first, 0)
    paid_by = None if pays else section.verifier or task.verifier
    for name, make in (
        (section.scorer, partial(verifier, section.scorer or "", **section.scorer_options)),
        (section.held_out, partial(verifier, section.held_out or "", **section.held_out_options)),
        (paid_by, partial(make_verifier, section, task)),
    ):
        if name and not name.startswith(LOADS):
            make().check_prompts(task.split(section.split)[:64])
    judge = f"the verifier {section.verifier or task.verifier}"
    summary = task.summary.replace(f", judged by {task.verifier}", "") or "no summary"
    held = ", ".join(f"{size:,} in {split}" for split, size in sizes.items())
    line = (
        f"task: {task.name}, {summary}; prompts: {held}; data licence: {task.licence}; "
        f"judged by {f'get_reward of {section.environment}' if pays else judge}"
    )
    return task, line, sizes[section.split]


def group_lines(settings: RunSettings) -> list[str]:
    """What k a group of n supports."""
    objective, n = settings.objective, settings.sampling.samples_per_prompt
    steps = settings.off_policy.inner_steps
    form = objective.off_policy if steps > 1 else "on policy"
    claim, why = claim_of_run(objective, settings.loss, settings.off_policy)
    return [
        f"objective: {objective.text}, k = {objective.k}, needs at least "
        f"{objective.least_samples} samples per prompt; expected update: "
        f"{claim} ({why})",
        f"groups of n = {n} support max@k and pass@k for k up to {n - 1} with the canonical "
        f"baseline, up to {n} with :loo-1 or :none; evaluation for k up to "
        f"{settings.evaluation.samples_per_prompt}",
        f"optimiser steps per batch: {steps} ({settings.loss.name} loss, {form})",
    ]


def token_lines(settings: RunSettings) -> list[str]:
    sampling, steps = settings.sampling, settings.run.steps
    rollouts = sampling.prompts_per_step * sampling.samples_per_prompt
    longest, validation = sampling.max_new_tokens, evaluated(settings.evaluation, steps)
    return [
        f"rollouts: {rollouts:,} completions a step, {rollouts * steps:,} in {steps} steps, of at "
        f"most {rollouts * steps * longest:,} new tokens",
        f"validation: {validation:,} completions of at most {validation * longest:,} new tokens",
    ]


def evaluated(section: EvaluationSection, steps: int) -> int:
    """Completions of all evaluations of a run."""
    times = min(steps // section.every, steps) + 1 if section.every else 0
    return times * section.prompts * section.samples_per_prompt


def memory_lines(settings: RunSettings, prompt: int | None) -> list[str]:
    """Bytes by purpose."""
    model, shape = settings.model, settings.facts.shape
    if not shape:
        return ["memory: not known without it"]
    context, new = shape.get("context"), settings.sampling.max_new_tokens
    if context and new >= context:
        raise ValueError(
            f"sampling.max_new_tokens = {new}, and {model.path} has positions for {context} "
            "tokens, prompt and completion together: lower it"
        )
    card, where = card_of(model.device, model.advanced.memory_share or 1.0)
    count = partial(
        footprint,
        sampling=settings.sampling,
        described=shape,
        mini_batches=settings.off_policy.mini_batches,
        with_reference=settings.loss.kl > 0,
        several_turns=settings.task.environment is not None,
        card=card,
        prompt=prompt or PROMPT,
    )
    need = count(model)
    total, have = sum(need.values()), card or MACHINE
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in need.items() if size)
    split = (
        "; FSDP2 shares weights, gradients, optimiser and reference out over the processes, and "
        f"each holds all weights once ({4.0 * shape['parameters'] / GIB:.2f} GiB) while it samples"
    )
    assumed = f"; prompts of {prompt or PROMPT} tokens{'' if prompt else ' assumed'}"
    lines = [
        f"model: {model.path}, about {shape['parameters']:,} weights",
        f"memory {where}, about {total / GIB:.2f} GiB: {listed}"
        + (split if model.advanced.fsdp else " (in each process)")
        + (assumed if "hidden" in shape else "; activations and sampling not counted"),
    ]
    if total > have and not model.advanced.fsdp:
        lines.append(
            f"note: about {total / GIB:.1f} GiB is more than the {have / GIB:.1f} GiB there are: "
            + _less(model, count, has_sizes="hidden" in shape)
        )
    return lines


def _less(
    model: ModelSection, count: Callable[[ModelSection], Mapping[str, float]], *, has_sizes: bool
) -> str:
    """What to do where a run needs too much memory."""
    ways = []
    if has_sizes and not model.advanced.gradient_checkpointing:
        lean = model.changed(advanced=model.advanced.changed(gradient_checkpointing=True))
        need = sum(count(lean).values())
        ways.append(f"with model.advanced.gradient_checkpointing = true it is {need / GIB:.1f}")
    if not model.lora_rank:
        ways.append("train adapters (model.lora_rank = 16)")
    return ", or ".join([*ways, "take a smaller model"])


def card_of(name: str, share: float = 1.0) -> tuple[float | None, str]:
    """Bytes of the GPU that a run may take there, None on CPU; and the device in words."""
    try:
        import torch
    except ImportError:  # the run is meant for another machine
        return None, "on CPU"
    here = torch.cuda.is_available()
    if not name.startswith("cuda") and not (name == "auto" and here):
        return None, "on CPU"
    if not here:
        card = ASSUMED * share
        return card, f"on a GPU of {card / GIB:.0f} GiB (there is none here)"
    card = card_bytes(name if name != "auto" else "cuda") * share
    return card, f"on this GPU with {card / GIB:.1f} GiB"


def prompt_tokens(settings: RunSettings, task: Task | None) -> int | None:
    """Mean length of the first prompts; None where they or the tokenizer are not at hand."""
    if task is None or settings.facts.tokenizer is None:
        return None
    first = task.split(settings.task.split)[:32]
    try:
        lengths = [len(encode(settings.facts.tokenizer, prompt)) for prompt in first]
    except ValueError:  # a tokenizer of another kind, in a folder that is not complete
        return None
    return round(sum(lengths) / len(lengths))


def server_line(settings: RunSettings) -> list[str]:
    """The command that starts the vLLM server of this run, where it samples from one."""
    if not settings.sampling.server:
        return []
    try:
        from bestofk.sampling.vllm_server import start_line
    except ImportError:  # torch is not here: the run is meant for another machine
        return []
    dtype = PRECISIONS[settings.model.precision].weights
    return ["server: " + start_line(settings.model.path, settings.sampling.server, dtype)]
