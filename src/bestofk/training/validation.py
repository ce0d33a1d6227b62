"""Evaluation inside training: pass@k and max@k with intervals, and diversity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bestofk.evaluation.intervals import over_problems
from bestofk.objectives import max_at_k_curve
from bestofk.rewards.extract import answer_of
from bestofk.types import Group, Verdict

RESAMPLES = 4000


@dataclass(frozen=True)
class Row:
    """One completion of the validation set, as little of it as the figures need."""

    prompt_id: str
    answer: str | None
    reward: float
    log_prob: float
    tokens: int


def rows_of(groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> list[list[Row]]:
    """The completions of each group."""
    return [
        [
            Row(
                group.prompt.id,
                answer_of(group.prompt, completion.text),
                verdict.reward,
                float(sum(completion.logprobs)),
                len(completion.tokens),
            )
            for completion, verdict in zip(group.completions, judged)
        ]
        for group, judged in zip(groups, verdicts)
    ]


def results(
    groups: Sequence[Sequence[Row]], ks: Sequence[int], threshold: float, seed: int
) -> dict[str, Any]:
    """Every figure with its interval, over prompts, at 95 %.

    A prompt with fewer scored samples than the largest k is left out and counted. Entropy is the
    mean of -log π per sampled token, in nats: an unbiased estimate that costs nothing.
    """
    rewards = np.array([[row.reward for row in group] for group in groups])
    scored = ~np.isnan(rewards)
    kept = scored.sum(axis=1) >= max(ks)
    cells: dict[str, Mapping[str, float]] = {}
    if kept.any():
        passed = np.where(scored, rewards >= threshold, np.nan)[kept]
        for name, values in (("pass", passed), ("max", rewards[kept])):
            curve = max_at_k_curve(values, k_max=max(ks), live=scored[kept])
            columns = curve[:, [k - 1 for k in ks]]
            cells |= with_intervals([f"{name}@{k}" for k in ks], columns, seed)
    log_prob = sum(row.log_prob for group in groups for row in group)
    tokens = sum(row.tokens for group in groups for row in group)
    return {
        "prompts": int(kept.sum()),
        "prompts_left_out": int((~kept).sum()),
        "samples_per_prompt": int(rewards.shape[1]),
        "unscored": int((~scored).sum()),
        "results": cells,
        "entropy": -log_prob / tokens if tokens else float("nan"),
        "distinct_wrong": distinct_wrong(groups, threshold),
        "tokens": tokens,
    }


def with_intervals(names: Sequence[str], values: np.ndarray, seed: int) -> dict[str, Any]:
    """Means of the columns of values (prompts, names), in [0, 1], with 95 % intervals."""
    found = over_problems(
        values, (0.0, 1.0), confidence=0.95, resamples=RESAMPLES, rng=np.random.default_rng(seed)
    ).interval
    means = values.mean(axis=0)
    return {
        name: {"value": float(mean), "low": float(low), "high": float(high)}
        for name, mean, low, high in zip(names, means, found.low, found.high)
    }


def distinct_wrong(groups: Sequence[Sequence[Row]], threshold: float) -> float:
    """Share of distinct answers among a prompt's wrong completions that have one, over prompts.

    1: every wrong answer is new; near 0: the same mistake again and again. Prompts with fewer than
    two wrong answers say nothing.
    """
    shares = []
    for group in groups:
        wrong = [row.answer for row in group if row.reward < threshold and row.answer]
        if len(wrong) > 1:
            shares.append(len(set(wrong)) / len(wrong))
    return float(np.mean(shares)) if shares else float("nan")
