"""TRL's rows as groups: rewards per group, weights per row, what is logged of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bestofk.objectives import Objective, max_at_k, pass_at_k


def combined(columns: Tensor, weights: Tensor, n: int) -> Tensor:
    """(P, n): the weighted sum of the reward functions' columns (P·n, F); NaN where unscored.

    A function that judges no sample of a prompt is not meant for that prompt, and left out. One
    that judges some siblings and not others failed on those: they are unscored, never worth 0.
    """
    judged = columns[:, weights != 0].reshape(-1, n, int((weights != 0).sum()))
    missing = judged.isnan()
    failed = missing & ~missing.all(dim=1, keepdim=True)
    total = (judged * weights[weights != 0]).nansum(dim=-1)
    return total.masked_fill(failed.any(dim=-1) | missing.all(dim=-1), torch.nan)


def sizes(n: int, k: int) -> list[int]:
    """The k of the logged metrics: powers of two up to n, and the objective's own."""
    return sorted({2**i for i in range(n.bit_length())} | ({k} if k <= n else set()))


def replace_last(log: deque[float], values: Iterable[float]) -> None:
    """TRL just appended its advantages to the log: replace them by ours."""
    values = list(values)
    for _ in range(min(len(values), len(log))):
        log.pop()
    log.extend(values)


def in_loss(output: dict[str, Any]) -> Tensor:
    """(rows, tokens): 1 for the tokens that enter TRL's loss."""
    mask = output["completion_mask"]
    return mask * output["tool_mask"] if "tool_mask" in output else mask


def shared(
    objective: Objective, rewards: Tensor, live: Tensor, **inputs: Any
) -> tuple[Tensor, Tensor]:
    """Weights (P, n) whose mean over all rows is the mean over prompts; and which prompts count.

    TRL's loss divides by all rows. A row that is not live leaves its share to its siblings, and a
    group that is too small to the other groups.
    """
    least = max(term.least for term in objective.at(inputs.get("progress")))
    counts = live.sum(dim=1, keepdim=True)
    whole = counts >= least
    share = rewards.numel() / (whole.sum() * counts).clamp(min=1)
    return objective(rewards, live=live, **inputs) * share.to(rewards.dtype), whole


def score_rows(trainer: Any, rows: dict[str, Any], **named: Any) -> tuple[Any, ...]:
    """TRL's per-token log-probs of the completions (and entropies) under the current weights."""
    names = ("prompt_ids", "completion_ids", "prompt_mask", "completion_mask")
    prompt, completion, before, after = (rows[name] for name in names)
    result: tuple[Any, ...] = trainer._get_per_token_logps_and_entropies(
        trainer.model, torch.cat([prompt, completion], 1), torch.cat([before, after], 1),
        completion.shape[1], trainer.args.per_device_train_batch_size, **named,
    )  # fmt: skip
    return result


def record(metrics: Any, rewards: Tensor, weights: Tensor, k: int, passing: float) -> None:
    """Unbiased max@k and pass@k, one value per group: TRL logs the mean of what it finds."""
    counts = (~rewards.isnan()).sum(dim=1)
    for size in sizes(rewards.shape[-1], k):
        enough = rewards[counts >= size]
        if len(enough):
            passed = pass_at_k(enough, size, threshold=passing)
            metrics[f"max@{size}"].extend(max_at_k(enough, size).tolist())
            metrics[f"pass@{size}"].extend(passed.tolist())
    metrics["unscored"].extend(rewards.isnan().float().mean(dim=1).tolist())
    metrics["no_signal"].extend((weights.abs().amax(dim=1) <= 1e-12).float().tolist())


def progress_of(state: Any) -> float:
    """Share of the run done, for schedules."""
    return min(float(state.global_step / max(state.max_steps, 1)), 1.0)
