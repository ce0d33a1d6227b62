"""What a run shows for itself: metrics, the best and final model, the batch it broke on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bestofk import models, runs
from bestofk.config import Config
from bestofk.training.build import Clock, Parts, State
from bestofk.training.card import card
from bestofk.training.engine import own_weights
from bestofk.training.environment import environment
from bestofk.training.rollouts import Batch, sample_rows, summary
from bestofk.training.validation import results, table


def due(step: int, every: int, steps: int) -> bool:
    """Whether something that happens every so often happens after this step; always at the end."""
    return bool(every) and (step % every == 0 or step == steps)


def complete(config: Config, state: State) -> bool:
    """Whether nothing is left to do: the last step is taken and, where asked for, evaluated."""
    return state.step >= config.run.steps and (state.is_validated or not config.evaluation.every)


def title(parts: Parts) -> str:
    """The run in a line."""
    asked, world = parts.config.sampling, parts.processes
    weights = sum(p.numel() for p in parts.policy.model.parameters() if p.requires_grad)
    return (
        f"{parts.goal.text} on {parts.config.task.name}: {parts.config.model.path}, {weights:,} "
        f"trained weights, {asked.prompts_per_step} prompts × {asked.samples_per_prompt} samples a "
        f"step, {world.size} process{'es' if world.size > 1 else ''} on {world.device}, in "
        f"{parts.config.run.dir}"
    )


def evaluate(parts: Parts, step: int) -> dict[str, Any]:
    """pass@k and max@k of the policy as it is, on the validation prompts, over all processes.

    The draws are fixed by the run's seed alone: two steps, or two runs with one seed, differ by
    their weights and not by their luck.
    """
    asked, world, began = parts.config.evaluation, parts.processes, time.perf_counter()
    split = parts.task.split(asked.split)
    prompts = [split[i] for i in range(world.rank, min(asked.prompts, len(split)), world.size)]
    with own_weights(parts):
        groups = parts.sample(prompts, asked.samples_per_prompt, "validation") if prompts else []
    verdicts = parts.judge(groups)
    judged = [pair for part in world.gather(list(zip(groups, verdicts))) for pair in part]
    judged.sort(key=lambda pair: pair[0].prompt.id)
    whole = Batch(tuple(pair[0] for pair in judged), tuple(tuple(pair[1]) for pair in judged), 0)
    found = results(
        table(whole.groups, whole.verdicts), asked.ks, asked.threshold, parts.config.run.seed
    )
    if world.main:
        parts.run.record_evaluation(step, sample_rows(step, whole))
    seconds = {"validate": time.perf_counter() - began}
    return {"kind": "evaluation", "step": step, "split": asked.split, **found, "seconds": seconds}


def note(parts: Parts, state: State, line: Mapping[str, Any]) -> State:
    """Write an evaluation down; keep the model if it is the best so far by the metric named."""
    metric = parts.config.evaluation.metric
    value = line["results"].get(metric, {}).get("value")
    better = value is not None and (state.best is None or value > state.best)
    if parts.processes.main:
        parts.run.record(line)
    if better and parts.config.run.keep_best and state.step:
        save(parts, partial(parts.run.save_best, state.step, value, metric))
    return replace(state, validated=state.step, best=value if better else state.best)


def describe(
    parts: Parts, state: State, batch: Batch, stats: Mapping[str, float], clock: Clock
) -> dict[str, Any]:
    """The metrics line of a step, over all processes."""
    tokens = [[len(c.tokens) for c in group.completions] for group in batch.groups]
    gathered = parts.processes.gather((batch.rewards, batch.verdicts, tokens))
    rewards = np.concatenate([part[0] for part in gathered])
    verdicts = [row for part in gathered for row in part[1]]
    lengths = np.concatenate([np.array(part[2]) for part in gathered])
    longest = parts.config.sampling.max_new_tokens
    seconds = dict(clock.seconds)
    terms = parts.goal.at((state.step - 1) / parts.config.run.steps)
    return {
        "kind": "train",
        "step": state.step,
        **summary(
            rewards,
            verdicts,
            min(parts.goal.k, rewards.shape[1]),
            max(term.least for term in terms),
            parts.config.evaluation.threshold,
        ),
        "objective": "+".join(term.text for term in terms),
        "length": float(lengths.mean()),
        "at_length_limit": float((lengths >= longest).mean()),
        "sampled_tokens": int(lengths.sum()),
        "refilled": batch.refilled,
        **stats,
        "seconds": seconds,
        "tokens_per_second": float(lengths.sum() / max(sum(seconds.values()), 1e-9)),
    }


def record(parts: Parts, line: Mapping[str, Any], batch: Batch, weights: np.ndarray) -> None:
    """A step's metrics, and the completions of all processes with their weights."""
    rows = parts.processes.gather(sample_rows(line["step"], batch, weights))
    if parts.processes.main:
        parts.run.record(line)
        parts.run.record_samples(line["step"], chain.from_iterable(rows))


def save(parts: Parts, place: Callable[[Callable[[Path], None]], object]) -> None:
    """Let the run put the model, whole, into a place of its folder; all processes call it."""
    with parts.learner.whole():
        if parts.processes.main:
            place(lambda folder: write(parts, folder))


def write(parts: Parts, folder: Path) -> None:
    """The model with its card."""
    models.save(parts.policy, folder)
    evaluations = [
        line for line in runs.read_metrics(parts.run.path) if line["kind"] == "evaluation"
    ]
    steps = max((line["step"] for line in runs.read_metrics(parts.run.path)), default=0)
    text = card(
        parts.config,
        parts.goal,
        steps=steps,
        evaluations=evaluations,
        licence=parts.task.licence,
        data=f"{parts.task.name} ({parts.task.summary or 'split ' + parts.config.task.split})",
        versions=environment()["versions"],
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def keep_failure(parts: Parts, state: State, batch: Batch, error: Exception) -> ValueError:
    """The batch a step broke on, in the run's folder; and what to tell the user."""
    step = state.step + 1
    rows = parts.processes.gather(sample_rows(step, batch, tokens=True))

    def fill(folder: Path) -> None:
        runs.write_jsonl(folder / "batch.jsonl", chain.from_iterable(rows))
        (folder / "error.txt").write_text(f"{type(error).__name__}: {error}\n", encoding="utf-8")

    kept = parts.run.save_failure(step, fill) if parts.processes.main else parts.run.path
    return ValueError(
        f"step {step} was stopped before it changed the weights: {error}; its batch is in {kept}; "
        "the last checkpoint is intact; in a run of its own, lower optimiser.learning_rate or set "
        "off_policy.truncate"
    )
