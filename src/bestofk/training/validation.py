"""Evaluation inside training: pass@k and max@k with intervals, and diversity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bestofk.evaluation import Metric, Samples, curve, diversity, samples
from bestofk.rewards.extract import answer_of
from bestofk.types import Group, Verdict


def answers_of(groups: Sequence[Group]) -> list[list[str | None]]:
    """The answer part of every completion; None where there is none."""
    return [
        [answer_of(group.prompt, completion.text) or None for completion in group.completions]
        for group in groups
    ]


def table(
    groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]], name: str = "validation"
) -> Samples:
    """Judged groups as what evaluation works on."""
    return samples(
        [[verdict.reward for verdict in row] for row in verdicts],
        name=name,
        problems=[group.prompt.id for group in groups],
        answers=answers_of(groups),
        tokens=[[len(c.tokens) for c in group.completions] for group in groups],
        logprobs=[[sum(c.logprobs) for c in group.completions] for group in groups],
    )


def results(found: Samples, ks: Sequence[int], threshold: float, seed: int) -> dict[str, Any]:
    """Every figure with its 95 % interval over prompts.

    A prompt with fewer scored samples than the largest k is left out and counted. Entropy is the
    mean of -log π per sampled token: it costs nothing and is unbiased for the policy's.
    """
    cells: dict[str, Mapping[str, float]] = {}
    counted = 0
    if (found.live >= max(ks)).any():
        metrics: tuple[Metric, ...] = ("pass@k", "max@k")
        for metric in metrics:
            line = curve(
                found,
                metric,
                k_max=max(ks),
                threshold=threshold if metric == "pass@k" else None,
                bounds=(0.0, 1.0),
                small="drop",
                seed=seed,
            )
            counted = len(line.problems)
            for k in ks:
                at = line.at(k)
                cells[f"{metric[:-1]}{k}"] = {
                    "value": float(line.estimate[at]),
                    "low": float(line.interval.low[at]),
                    "high": float(line.interval.high[at]),
                }
    spread = diversity(found, threshold=threshold)
    return {
        "prompts": counted,
        "prompts_left_out": len(found.problems) - counted,
        "samples_per_prompt": int(found.sizes.max()),
        "unscored": found.unscored,
        "results": cells,
        "entropy": spread.entropy_per_token.value,
        "distinct": asdict(spread.distinct),
        "distinct_wrong": asdict(spread.distinct_wrong),
        "no_answer": spread.no_answer,
    }
