"""What is measured while a batch is learned from: ratios, entropy, the sampler's log-probs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bestofk.learning import Scores
from bestofk.objectives import Objective, effective_share, ratio_divergence
from bestofk.training.batch import ProcessGroup
from bestofk.types import Group


def sampler_log_probs(groups: Sequence[Group]) -> np.ndarray:
    """Σ_t of the log-probs the sampler drew with, (P, n)."""
    return np.array([[sum(c.logprobs) for c in group.completions] for group in groups])


def sampler_gap(
    scores: Scores, groups: Sequence[Group], processes: ProcessGroup
) -> dict[str, float]:
    """How far the sampler's token log-probs are from the learner's, over all processes.

    Log-probs that are NaN are infinitely far; a sampler that reports none has no gap.
    """
    pairs = [
        np.abs(token_scores - np.array(completion.logprobs))
        for row, group in zip(scores.tokens, groups)
        for token_scores, completion in zip(row, group.completions)
        if len(completion.logprobs) == len(token_scores)
    ]
    gaps = np.concatenate(pairs) if pairs else np.zeros(0)
    largest = float(gaps.max()) if gaps.size else 0.0
    gathered = processes.gather((float(gaps.sum()), gaps.size, largest))
    total, count = sum(part[0] for part in gathered), sum(part[1] for part in gathered)
    mean = total / count if count else 0.0
    return {
        "sampler_gap_mean": float("inf") if np.isnan(mean) else mean,
        "sampler_gap_max": max(part[2] for part in gathered),
    }


def ratio_statistics(
    log_ratio: np.ndarray,
    live: np.ndarray,
    objective: Objective,
    processes: ProcessGroup,
    *,
    progress: float,
) -> dict[str, float]:
    """How far the policy has moved from the samples of a coming step, over all processes.

    Args:
        log_ratio, live: (P, n).

    Returns:
        log_ratio_std, log_ratio_max; truncated (the share above `truncate`); ess, the effective
        share of the samples exp(-2kD) with D = mean(ρ - 1 - log ρ). Nothing without live samples.
    """
    used = np.concatenate(processes.gather(log_ratio[live]))
    if not used.size:
        return {}
    k = max(term.k for term in objective.at(progress))
    limit = objective.truncate
    return {
        "log_ratio_std": float(used.std()),
        "log_ratio_max": float(used.max()),
        "truncated": 0.0 if limit is None else float((used > limit).mean()),
        "ess": effective_share(ratio_divergence(used), k),
    }


def share_of(chosen: np.ndarray, live: np.ndarray, processes: ProcessGroup) -> float:
    """The share of live samples that were chosen, over all processes."""
    counts = processes.gather((int((chosen & live).sum()), int(live.sum())))
    return sum(count[0] for count in counts) / max(sum(count[1] for count in counts), 1)


def merge_statistics(history: Sequence[dict[str, float]]) -> dict[str, float]:
    """Statistics of one batch's optimiser steps as one: totals, worst cases, means."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for stats in history for name in stats):
        values = [stats[name] for stats in history if name in stats]
        if name in ("tokens", "rows", "micro_batches"):
            merged[name] = sum(values)
        elif name.endswith("_max") or name == "grad_norm":
            merged[name] = max(values)
        elif name == "ess":
            merged[name] = min(values)
        elif name == "lr":
            merged[name] = values[-1]
        else:
            merged[name] = float(np.mean(values))
    return merged


def sampled_entropy(groups: Sequence[Group], processes: ProcessGroup) -> float:
    """Mean of -log π per sampled token over all processes: unbiased for the policy's entropy."""
    rows = [completion.logprobs for group in groups for completion in group.completions]
    gathered = processes.gather((-sum(map(sum, rows)), sum(map(len, rows))))
    count = sum(part[1] for part in gathered)
    return sum(part[0] for part in gathered) / count if count else float("nan")
