"""From a judged batch to optimiser steps: on policy, or several steps with the siblings' ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bestofk.learning import Learner, Loss, Scores
from bestofk.objectives import Objective
from bestofk.objectives.off_policy import effective_sample_size
from bestofk.training.rollouts import Batch, Crowd, generators, slots_of, weigh, with_signal
from bestofk.types import Group

TRUST_SAMPLER = float(np.log(2.0))
"""Largest log of the learner-to-sampler correction of the clipped loss, unless truncate says."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a batch is learned from."""

    loss: Loss
    passes: int = 1
    mini_batches: int = 1
    form: str = "exact"
    correct_sampler: bool = False
    watch_all: bool = False
    """Measure the sampler against the learner on every group: it computes on its own."""

    def looks_back(self, goal: Objective) -> bool:
        """Whether the log-probs before the first step enter a weight or the loss.

        On policy with the exact loss they do not: all ratios are 1.
        """
        return (
            self.passes * self.mini_batches > 1
            or self.loss.name == "clipped"
            or self.correct_sampler
            or "entropy" in goal.needs
        )


def learn(
    learner: Learner,
    goal: Objective,
    batch: Batch,
    crowd: Crowd,
    settings: Settings,
    *,
    progress: float,
    seed: Sequence[int],
) -> tuple[np.ndarray, dict[str, float]]:
    """Go through a batch; return the first weights of every group (P, n), and statistics.

    The objective gets the current log-ratios of all siblings before each optimiser step. They are
    measured against the learner's own log-probs before the first one, or, with `correct_sampler`,
    against the sampler's: then what the two differ by is corrected with the rest.
    """
    rewards = batch.rewards
    least = max(term.least for term in goal.at(progress))
    live = batch.live(least)
    every = settings.looks_back(goal) or settings.watch_all
    old = learner.score(batch.groups) if every else None
    drawn = sampler_log_prob(batch.groups)
    reference = learner.score(batch.groups, reference=True) if settings.loss.kl > 0 else None
    inputs = needed(goal, old, live, crowd, progress=progress)
    draws = generators(goal, slots_of(crowd, len(rewards) * crowd.size), *seed)
    ratios = settings.loss.name == "exact" and settings.form != "none"

    weights = np.zeros_like(rewards)
    history: list[dict[str, float]] = []
    for number, (rows, again) in enumerate(schedule(len(batch.groups), settings)):
        part = batch.take(rows)
        stats: dict[str, float] = {}
        given = {
            name: value[rows] if name == "entropy" else value for name, value in inputs.items()
        }
        if ratios and (number or settings.correct_sampler):
            assert old is not None
            now = learner.sequence_log_probs(part.groups) if number else old.log_prob[rows]
            given["log_ratio"] = now - (drawn if settings.correct_sampler else old.log_prob)[rows]
            moved = ratio_stats(given["log_ratio"], live[rows], goal, progress)
            stats |= combine(crowd.gather(moved))
        rng = draws and [draws[p] for p in rows]
        made = weigh(goal, rewards[rows], live=live[rows], rng=rng, **given)
        if settings.correct_sampler and not ratios:
            assert old is not None
            limit = TRUST_SAMPLER if goal.truncate is None else goal.truncate
            made = made * np.exp(np.minimum(old.log_prob[rows] - drawn[rows], limit))
        stats |= learner.step(
            part.groups,
            made,
            loss=settings.loss,
            old=None if old is None else pick(old, rows),
            reference=None if reference is None else pick(reference, rows),
            live=live[rows],
        )
        if not again:
            weights[rows] = made
        history.append(stats)
    signal = np.concatenate(crowd.gather(with_signal(weights)))
    joined = combine(history)
    if old is not None:
        joined |= sampler_gap(old, batch.groups, crowd)
    elif "sampler_gap_mean" not in joined:  # nothing entered the step: look at a group of each
        joined |= sampler_gap(learner.score(batch.groups[:1]), batch.groups[:1], crowd)
    return weights, {
        **joined,
        "entropy": entropy_of(batch.groups, crowd),
        "groups_with_signal": int(signal.sum()),
        "groups_no_signal": int((~signal).sum()),
    }


def schedule(groups: int, settings: Settings) -> Iterator[tuple[list[int], bool]]:
    """Rows of each optimiser step, and whether they were seen before. Groups stay whole.

    Slot s belongs to mini-batch s mod M, so that each process gives the same share to every one.
    """
    for again in range(settings.passes):
        for number in range(settings.mini_batches):
            yield list(range(number, groups, settings.mini_batches)), again > 0


def needed(
    goal: Objective, old: Scores | None, live: np.ndarray, crowd: Crowd, *, progress: float
) -> dict[str, Any]:
    """What this objective asks for beside rewards, over the whole batch of all processes."""
    inputs: dict[str, Any] = {"progress": progress}
    if "entropy" in goal.needs:
        assert old is not None
        entropy = old.entropy
        counts = np.maximum(live.sum(axis=1), 1)
        inputs["entropy"] = np.where(live, entropy, 0.0).sum(axis=1) / counts
        counted = np.concatenate(crowd.gather(inputs["entropy"][live.any(axis=1)]))
        inputs["entropy_threshold"] = float(np.median(counted)) if counted.size else 0.0
    return inputs


def pick(scores: Scores, rows: Sequence[int]) -> Scores:
    return Scores(tuple(scores.tokens[i] for i in rows), tuple(scores.entropies[i] for i in rows))


def sampler_log_prob(groups: Sequence[Group]) -> np.ndarray:
    """Σ_t of the log-probs the sampler drew with, (P, n)."""
    return np.array([[sum(c.logprobs) for c in group.completions] for group in groups])


def sampler_gap(old: Scores, groups: Sequence[Group], crowd: Crowd) -> dict[str, float]:
    """How far the sampler's token log-probs are from the learner's, before any step."""
    pairs = [
        np.abs(scores - np.array(completion.logprobs))
        for row, group in zip(old.tokens, groups)
        for scores, completion in zip(row, group.completions)
        if len(completion.logprobs) == len(scores)
    ]
    gaps = np.concatenate(pairs) if pairs else np.zeros(0)
    facts = crowd.gather((float(gaps.sum()), gaps.size, float(gaps.max()) if gaps.size else 0.0))
    total, count = sum(fact[0] for fact in facts), sum(fact[1] for fact in facts)
    return {
        "sampler_gap_mean": total / count if count else float("nan"),
        "sampler_gap_max": max(fact[2] for fact in facts),
    }


def ratio_stats(
    log_ratio: np.ndarray, live: np.ndarray, goal: Objective, progress: float
) -> dict[str, float]:
    """How far the policy has moved: spread of the ratios, what is truncated, what still counts."""
    used = log_ratio[live]
    if not used.size:
        return {}
    k = max(term.k for term in goal.at(progress))
    whole = log_ratio[live.all(axis=1)]
    cut = whole if goal.truncate is None else np.minimum(whole, goal.truncate)
    return {
        "log_ratio_std": float(used.std()),
        "log_ratio_max": float(used.max()),
        "truncated": 0.0 if goal.truncate is None else float((used > goal.truncate).mean()),
        **({"ess": float(np.mean(effective_sample_size(cut, k)))} if len(whole) else {}),
    }


def combine(history: Sequence[dict[str, float]]) -> dict[str, float]:
    """Statistics of one batch's optimiser steps as one: totals, worst cases, means."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for stats in history for name in stats):
        values = [stats[name] for stats in history if name in stats]
        if name in ("tokens", "rows", "micro_batches"):
            merged[name] = sum(values)
        elif name.endswith("_max") or name == "grad_norm":
            merged[name] = max(values)
        elif name == "lr":
            merged[name] = values[-1]
        else:
            merged[name] = float(np.mean(values))
    return merged


def entropy_of(groups: Sequence[Group], crowd: Crowd) -> float:
    """Mean of -log π per sampled token over all processes: unbiased for the policy's entropy."""
    rows = [completion.logprobs for group in groups for completion in group.completions]
    facts = crowd.gather((-sum(map(sum, rows)), sum(map(len, rows))))
    count = sum(fact[1] for fact in facts)
    return sum(fact[0] for fact in facts) / count if count else float("nan")
