"""What a run writes down: lines of metrics, rows of samples, models with their card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bestofk import models, runs
from bestofk.config import Config
from bestofk.objectives import Objective, max_at_k
from bestofk.rewards.given_answers import given_answer
from bestofk.tasks import Task
from bestofk.training.batch import ProcessGroup, RolloutBatch
from bestofk.training.environment import environment
from bestofk.training.model_card import model_card
from bestofk.training.validation import pass_threshold
from bestofk.types import Verdict


def metrics_line(
    step: int,
    batch: RolloutBatch,
    stats: Mapping[str, Any],
    config: Config,
    objective: Objective,
    processes: ProcessGroup,
    *,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """The metrics of a step, over all processes."""
    tokens = [[len(c.tokens) for c in group.completions] for group in batch.groups]
    gathered = processes.gather((batch.rewards, batch.verdicts, tokens))
    rewards = np.concatenate([part[0] for part in gathered])
    verdicts = [row for part in gathered for row in part[1]]
    lengths = np.concatenate([np.array(part[2]) for part in gathered])
    terms = objective.at((step - 1) / config.run.steps)
    return {
        "kind": "train",
        "step": step,
        **reward_statistics(
            rewards,
            verdicts,
            k=min(objective.k, rewards.shape[1]),
            least=max(term.least for term in terms),
            threshold=config.evaluation.threshold,
        ),
        "objective": "+".join(term.text for term in terms),
        "length": float(lengths.mean()),
        "at_length_limit": float((lengths >= config.sampling.max_new_tokens).mean()),
        "sampled_tokens": int(lengths.sum()),
        "refilled": batch.refilled,
        **stats,
        "seconds": dict(seconds),
        "tokens_per_second": float(lengths.sum() / max(sum(seconds.values()), 1e-9)),
    }


def reward_statistics(
    rewards: np.ndarray,
    verdicts: Sequence[Sequence[Verdict]],
    *,
    k: int,
    least: int,
    threshold: float | None,
) -> dict[str, float]:
    """Mean reward, pass@1 and max@k of a batch's groups (P, n), and what could not be counted."""
    scored = ~np.isnan(rewards)
    counts = scored.sum(axis=1)
    statuses = Counter(verdict.status for row in verdicts for verdict in row)
    enough = counts >= k
    best = max_at_k(rewards[enough], k, live=scored[enough]).mean() if enough.any() else np.nan
    passing = pass_threshold(threshold, rewards)
    passed = np.where(scored, rewards >= (np.inf if passing is None else passing), np.nan)
    any_scored = scored.any()
    return {
        "reward": float(np.nanmean(rewards)) if any_scored else np.nan,
        "pass@1": float(np.nanmean(passed)) if any_scored and passing is not None else np.nan,
        f"max@{k}": float(best),
        "groups": int(rewards.shape[0]),
        "groups_dropped": int((counts < least).sum()),
        "unscored": int((~scored).sum()),
        **{f"status_{name}": count for name, count in sorted(statuses.items())},
    }


def sample_rows(
    step: int, batch: RolloutBatch, weights: np.ndarray | None = None, *, tokens: bool = False
) -> list[dict[str, Any]]:
    """A batch as JSON lines for the run's folder; with `tokens`, ids and log-probs too."""
    rows: list[dict[str, Any]] = []
    for p, (group, verdicts) in enumerate(zip(batch.groups, batch.verdicts)):
        for i, (completion, verdict) in enumerate(zip(group.completions, verdicts)):
            row: dict[str, Any] = {
                "step": step,
                "prompt_id": group.prompt.id,
                "sample": i,
                "prompt": group.prompt.text,
                "completion": completion.text,
                "answer": given_answer(group.prompt, completion.text, verdict),
                "reward": verdict.reward,
                "status": verdict.status,
                "tokens": len(completion.tokens),
                "logprob": float(sum(completion.logprobs)),
                "finish_reason": completion.finish_reason,
            }
            if weights is not None:
                row["weight"] = float(weights[p, i])
            if tokens:
                row["prompt_token_ids"] = group.prompt_tokens
                row["token_ids"], row["logprobs"] = completion.tokens, completion.logprobs
            rows.append(row)
    return rows


def title(
    config: Config, objective: Objective, *, weights: int, processes: int, device: str
) -> str:
    """The run in a line."""
    requested = config.sampling
    return (
        f"{objective.text} on {config.task.name}: {config.model.path}, {weights:,} trained "
        f"weights, {requested.prompts_per_step} prompts × {requested.samples_per_prompt} samples a "
        f"step, "
        f"{processes} process{'es' if processes > 1 else ''} on {device}, in {config.run.dir}"
    )


def model_writer(
    config: Config, objective: Objective, policy: models.Policy, task: Task, run: runs.Run
) -> Callable[[Path], None]:
    """A function that writes the model and its card into a folder."""

    def write(folder: Path) -> None:
        models.save(policy, folder)
        lines = list(runs.read_metrics(run.path))
        text = model_card(
            config,
            objective,
            steps=max((line["step"] for line in lines), default=0),
            evaluations=[line for line in lines if line["kind"] == "evaluation"],
            license=task.licence,
            data=f"{task.name} ({task.summary or config.task.name})",
            versions=environment()["versions"],
        )
        (folder / "README.md").write_text(text, encoding="utf-8")

    return write


def failure_writer(
    rows: Iterable[Sequence[Mapping[str, Any]]], error: Exception
) -> Callable[[Path], None]:
    """A function that writes the batch a step failed on, and why, into a folder."""

    def write(folder: Path) -> None:
        runs.write_jsonl(folder / "batch.jsonl", chain.from_iterable(rows))
        (folder / "error.txt").write_text(f"{type(error).__name__}: {error}\n", encoding="utf-8")

    return write
