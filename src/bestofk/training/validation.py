"""Evaluation inside training: pass@k and max@k with intervals, and diversity."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bestofk import metrics
from bestofk.evaluation import Metric, curve, diversity
from bestofk.evaluation.results import OF_PASSES
from bestofk.evaluation.verdict_words import metric_at
from bestofk.procedures import PROCEDURES
from bestofk.samples import Samples, samples
from bestofk.sampling import Sampling
from bestofk.training.batch import RolloutBatch, scores_of, unscored_without_score
from bestofk.training.processes import Processes
from bestofk.training.resolve import RunSettings
from bestofk.training.task_setup import EvaluationSet
from bestofk.types import Group, Prompt, Verdict


def evaluate(
    draw: Callable[[Sequence[Prompt], int, Sampling], list[Group]],
    chosen: EvaluationSet,
    settings: RunSettings,
    processes: Processes,
    *,
    step: int,
    seed: int,
) -> tuple[dict[str, Any], RolloutBatch]:
    """pass@k, max@k and further metrics of the policy as it is, over all processes; and the groups
    behind them.

    The draws are fixed by the seed alone: two steps, or two runs with one seed, differ by their
    weights and not by their luck.
    """
    began, section, objective = time.perf_counter(), settings.evaluation, settings.objective
    split = chosen.task.split(chosen.split)
    prompts = split[: section.prompts][processes.rank :: processes.size]
    sampling = settings.sampling.changed(samples_per_prompt=section.samples_per_prompt)
    groups = draw(prompts, seed, sampling)
    pairs = list(zip(groups, chosen.judge(groups)))
    judged = [pair for part in processes.gather(pairs) for pair in part]
    judged.sort(key=lambda pair: pair[0].prompt.id)
    rows = [verdicts for _, verdicts in judged]
    if "scores" in objective.needs and not np.isnan(scores_of(rows)).all():
        rows = unscored_without_score(rows, objective)
    batch = RolloutBatch(tuple(group for group, _ in judged), tuple(map(tuple, rows)))
    table = evaluation_samples(batch.groups, batch.verdicts)
    result = evaluation_results(
        table,
        section.ks,
        section.threshold,
        settings.run.seed,
        settings.metrics,
        {**objective.options, **({} if section.price is None else {"price": section.price})},
    )
    seconds = {"validate": time.perf_counter() - began}
    line = {"kind": "evaluation", "step": step, "split": chosen.split, **result}
    if chosen.name:
        line |= {"kind": "evaluation_set", "set": chosen.name}
    return {**line, metrics.SECONDS: seconds}, batch


def evaluation_samples(groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]) -> Samples:
    """Judged groups as what evaluation works on. Where no completion has an answer (programs, say)
    nothing is said about answers, and nothing about scores where nobody gave any."""
    answers = [[verdict.answer for verdict in row] for row in verdicts]
    scores = scores_of(verdicts)
    return samples(
        [[verdict.reward for verdict in row] for row in verdicts],
        name="validation",
        problems=[group.prompt.id for group in groups],
        answers=answers if any(map(any, answers)) else None,
        tokens=[[each.drawn for each in group.trajectories] for group in groups],
        logprobs=[[each.log_prob for each in group.trajectories] for group in groups],
        scores=None if np.isnan(scores).all() else scores,
    )


def pass_threshold(threshold: float | None, rewards: np.ndarray) -> float | None:
    """The reward that passes: as stated, else 1, else (where a reward exceeds 1) not known.

    >>> pass_threshold(None, np.array([-1.0, 1.0])), pass_threshold(None, np.array([0.0, 7.0]))
    (1.0, None)
    """
    if threshold is not None:
        return threshold
    scored = rewards[~np.isnan(rewards)]
    return None if scored.size and scored.max() > 1.0 else 1.0


def evaluation_results(
    table: Samples,
    ks: Sequence[int],
    threshold: float | None,
    seed: int,
    further: Sequence[Metric] = (),
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Every figure with its 95 % interval over prompts.

    Metrics that look at answers or scores are left out where there are none.

    Args:
        further: metrics beside pass@k, max@k and, where there are scores, select@k.
        options: of the objective: the price of retries, and the reward that ends them.

    A prompt with fewer scored samples than the largest k is left out and counted. Entropy is the
    mean of -log π per sampled token: it costs nothing and is unbiased for the policy's.
    """
    cells: dict[str, Mapping[str, float]] = {}
    counted = 0
    passing = pass_threshold(threshold, table.rewards)
    if (table.live >= max(ks)).any():
        shown: list[Metric] = ["max@k"] if passing is None else ["pass@k", "max@k"]
        lacking = set()
        if table.scores is None or np.isnan(table.scores[~np.isnan(table.rewards)]).any():
            lacking.add("scores")
        if table.answers is None:
            lacking.add("answers")
        candidates: list[Metric] = ["select@k", *further]
        for metric in dict.fromkeys(candidates):
            needs = PROCEDURES[metric].needs if metric in PROCEDURES else ()
            lacks_passes = metric.startswith(OF_PASSES) and passing is None
            if metric not in shown and not lacks_passes and not lacking.intersection(needs):
                shown.append(metric)
        retry = {"price": 0.0, "stop": 1.0 if passing is None else passing, **(options or {})}
        for metric in shown:
            is_retry = metric.startswith("retry")
            judged = passing if metric.startswith(OF_PASSES) else None
            line = curve(
                table,
                metric,
                k_max=max(ks),
                threshold=retry["stop"] if is_retry else judged,
                price=retry["price"] if is_retry else 0.0,
                small="drop",
                seed=seed,
            )
            counted = len(line.problems)
            for k in ks:
                at = line.place(k)
                cells[metric_at(metric, k)] = {
                    "value": float(line.estimate[at]),
                    "low": float(line.interval.low[at]),
                    "high": float(line.interval.high[at]),
                }
    spread = diversity(table, threshold=1.0 if passing is None else passing)
    return {
        "prompts": counted,
        metrics.PROMPTS_LEFT_OUT: len(table.problems) - counted,
        "samples_per_prompt": int(table.sizes.max()),
        metrics.UNSCORED: table.unscored,
        metrics.RESULTS: cells,
        metrics.ENTROPY: spread.entropy_per_token.value,
        "distinct": asdict(spread.distinct),
        "distinct_wrong": asdict(spread.distinct_wrong),
        "no_answer": spread.no_answer,
    }
