"""The settings of a run, decided once: for the command, Python, a resumed run, a dry run.

A recipe, flags and Python state a `Config`. `resolve` fills in what depends on the task, the data
or the model, and checks the rules; everything below gets sections or plain values. What was filled
in stands in the run's config.toml, so a resumed run has it from there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from bestofk import tasks
from bestofk.agreement.tolerances import SAMPLER
from bestofk.config import (
    Config,
    EvaluationSection,
    ModelSection,
    OffPolicySection,
    RunSection,
    SamplingSection,
    TaskSection,
    merged,
    read,
)
from bestofk.devices import share_left_on
from bestofk.evaluation import Metric
from bestofk.learning.settings import Loss, Optimizer, usual_rate
from bestofk.objectives import Objective
from bestofk.precision import PRECISIONS
from bestofk.sections import Section
from bestofk.tasks import data_rows
from bestofk.training.checks import (
    best_metric,
    cautions,
    check,
    check_installed,
    check_resumed,
    metrics_of,
)
from bestofk.training.processes import check_device, check_fp8

HELD_OUT = 64
"""Rows held out for evaluation, or 5 % where that is more: by hash, so about as many. None where
fewer than twice as many rows are there. A test split as large is cut where that is at most 10 %."""

Decisions = Mapping[str, tuple[Any, str]]
"""Settings that nobody stated: by name, the value and why."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is known of a model before its weights are loaded."""

    shape: Mapping[str, Any]
    """By `models.describe`; of a model that is elsewhere, what its name says."""
    tokenizer: Any = None
    unread: str = ""
    """Why the rest is not known, where it is not."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Every setting of a run, nothing left to decide."""

    recipe: Config
    """All of them, as the run's folder records them."""
    objective: Objective
    facts: ModelFacts
    reasons: Mapping[str, str]
    """Why a setting that nobody stated has its value."""
    notes: tuple[str, ...]
    """What a user should read once, before the run."""
    resume: bool
    checkpoint: str | None
    """The checkpoint to resume from; None is the newest."""
    metrics: tuple[Metric, ...]
    """To evaluate beside pass@k and max@k."""
    best_by: str
    """The metric that picks the best checkpoint."""
    largest_gap: float
    """Between the log-probs of sampler and learner, in a run that goes on: `SAMPLER`."""
    model: ModelSection
    task: TaskSection
    sampling: SamplingSection
    loss: Loss
    off_policy: OffPolicySection
    optimizer: Optimizer
    evaluation: EvaluationSection
    run: RunSection


def resolve(
    user_config: Config,
    *,
    rows: int | None = None,
    resume: bool = False,
    checkpoint: str | None = None,
    dry: bool = False,
) -> RunSettings:
    """Decide what is not stated, and check that the run can work.

    Args:
        rows: number of training rows, where they are not in their file yet.
        resume: continue the run in `run.dir`, whose own settings are stated.
        dry: only look; model, data and libraries may be elsewhere.

    Raises:
        ValueError, OSError: the rule that is broken, the value, and the way out.
    """
    if resume:
        check_resumed(read(Path(user_config.run.dir) / "config.toml"), user_config)
    config, reasons = user_config, dict[str, str]()

    def decide(decisions: Decisions) -> None:
        nonlocal config
        if not resume:
            config = merged(config, {name: value for name, (value, _) in decisions.items()})
            reasons.update({name: why for name, (_, why) in decisions.items()})

    decide(by_task(config))
    objective = check(config)
    metrics = metrics_of(config.evaluation, objective)
    best_by = best_metric(config.evaluation, objective)
    if not dry:
        check_installed(config)
    facts = look_at_model(config.model, dry=dry)
    if not dry:
        check_device(config.model.device)
        if config.model.advanced.lora_fp8:
            check_fp8(config.model.device)
    decide(by_model(config, facts))
    decide(by_data(config, rows, dry=dry))
    decide(by_machine(config))
    by_rounding = SAMPLER.limit(reduced=PRECISIONS[config.model.precision].reduced)
    sections: dict[str, Any] = {name: each for name, each in config if isinstance(each, Section)}
    return RunSettings(
        recipe=config,
        objective=objective,
        facts=facts,
        reasons=reasons,
        notes=tuple(cautions(config, objective, facts.shape.get("parameters"))),
        resume=resume,
        checkpoint=checkpoint,
        metrics=tuple(metrics),
        best_by=best_by,
        largest_gap=config.sampling.advanced.agreement or by_rounding,
        **sections,
    )


def resumed(path: str | PathLike[str], changes: Mapping[str, Any]) -> RunSettings:
    """The settings of a run that is continued from its folder, or from one of its checkpoints."""
    folder, checkpoint = Path(path), None
    if folder.parent.name == "checkpoints" and (folder / "state.json").exists():
        folder, checkpoint = folder.parents[1], folder.name
    if not (folder / "config.toml").is_file():
        raise FileNotFoundError(
            f"{folder} is not a run: it has no config.toml; resume takes the folder that run.dir "
            "named, or one of its checkpoints"
        )
    config = merged(read(folder / "config.toml"), {**changes, "run.dir": str(folder)})
    return resolve(config, resume=True, checkpoint=checkpoint)


def by_task(config: Config) -> Decisions:
    """As many new tokens as answers may need; tiny policies have room for the default alone."""
    task, tiny = config.task.name, config.model.path.startswith("tiny-")
    if "max_new_tokens" in config.sampling.model_fields_set or tiny or task not in tasks.TASKS:
        return {}
    need = tasks.TASKS[task][2]
    return {"sampling.max_new_tokens": (need, f"answers to {task} may need as many")}


def by_model(config: Config, facts: ModelFacts) -> Decisions:
    """The learning rate by the model's size, the style of prompts by its chat template."""
    decisions: dict[str, tuple[Any, str]] = {}
    weights = facts.shape.get("parameters")
    if config.optimizer.learning_rate is None and weights:
        rate = usual_rate(weights, adapters=bool(config.model.lora_rank))
        decisions["optimizer.learning_rate"] = rate, "by the model's size"
    style = style_for(config.model.path, config.task.name, lambda: facts.tokenizer)
    if style and "style" not in config.task.options:
        decisions["task.options.style"] = style, "the style that the model reads"
    return decisions


def style_for(model: str, task: str, tokenizer: Callable[[], Any]) -> str | None:
    """The style of a task's prompts for a model; None where the task has none, or it is not known.

    Args:
        tokenizer: gives the model's, None where it cannot be read.
    """
    if ":" in task or "style" not in inspect.signature(tasks.factory(task)).parameters:
        return None
    if model == f"tiny-{task}":
        return "compact"  # all that it has ever read
    reader = tokenizer()
    if reader is None:
        return None
    return "chat" if getattr(reader, "chat_template", None) else "text"


def by_data(config: Config, rows: int | None, *, dry: bool) -> Decisions:
    """Of own rows: how many are held out, and prompts of a step where there are few."""
    options, task = config.task.options, config.task.name
    if task != "dataset" or "train" not in options:
        return {}
    if rows is None:
        try:
            rows = len(data_rows.read(options["train"]))
        except OSError:
            if not dry:
                raise
            return {}
    decisions: dict[str, tuple[Any, str]] = {}
    if "prompts_per_step" not in config.sampling.model_fields_set:
        parts = config.off_policy.mini_batches
        default = config.sampling.prompts_per_step
        size = max(parts, min(default, rows) // parts * parts)
        if size != default:
            decisions["sampling.prompts_per_step"] = size, f"the data have {rows} rows"
    if "validation" not in options and "validation_share" not in options:
        decisions |= held_out(rows, config.evaluation)
    names = {f"task.options.{name}" for name in options}
    return {name: decision for name, decision in decisions.items() if name not in names}


def by_machine(config: Config) -> Decisions:
    """The part of the GPU's memory that other processes leave."""
    if config.model.advanced.memory_share is not None:
        return {}
    share = share_left_on(config.model.device)
    why = "other processes hold the rest of the GPU's memory"
    return {} if share is None else {"model.advanced.memory_share": (share, why)}


def held_out(rows: int, evaluation: EvaluationSection) -> Decisions:
    """Shares of the training rows for validation and test, enough to show something."""
    if rows >= 2 * HELD_OUT:
        cut = max(0.05, HELD_OUT / rows)
        why = f"{cut:.1%} of {rows:,} rows"
        tested = cut if cut <= 0.1 else 0.0
        return {
            "task.options.validation_share": (cut, why),
            "task.options.test_share": (tested, why if tested else f"{rows:,} rows are few"),
        }
    if "split" in evaluation.model_fields_set:
        return {}
    why = f"of {rows} rows none is held out: evaluations use the training prompts"
    none = {f"task.options.{split}_share": (0.0, why) for split in ("validation", "test")}
    return {**none, "evaluation.split": ("train", why)}


def look_at_model(section: ModelSection, *, dry: bool) -> ModelFacts:
    """The model's shape and tokenizer; no weights are read."""
    path, options = section.path, section.advanced
    how: Any = {"trust_remote_code": options.trust_remote_code, "revision": options.revision}
    shape = None
    try:
        from bestofk import models

        shape = models.describe(path, **how)
        tokenizer = models.load_tokenizer(path, chat_template=options.chat_template, **how)
    except ModuleNotFoundError as error:
        if not dry:
            raise ValueError(f"training needs {error.name}: pip install 'bestofk[train]'") from None
        return unread(path, error)
    except (OSError, ValueError) as error:
        if not dry:
            raise
        return ModelFacts(shape=shape) if shape else unread(path, error)
    return ModelFacts(shape=shape, tokenizer=tokenizer)


def unread(path: str, error: Exception) -> ModelFacts:
    """What the name of a model says, where its config cannot be read."""
    named = re.search(r"(\d+(?:\.\d+)?)([bm])\b", path.lower())
    first = str(error).partition("\n")[0]
    weights = int(float(named[1]) * {"b": 1e9, "m": 1e6}[named[2]]) if named else 0
    return ModelFacts(
        shape={"parameters": weights} if weights else {},
        unread=f"model: {path}; its config cannot be read from here ({first})",
    )
