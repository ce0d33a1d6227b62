"""How far log-probs of the same tokens are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bestofk import metrics
from bestofk.types import Group, Trajectory

if TYPE_CHECKING:
    from torch import Tensor


def gap_to_plain(
    model: Any,
    prompt: Sequence[int],
    tokens: np.ndarray,
    log_probs: np.ndarray,
    distribution: Callable[[Tensor], Tensor],
) -> Tensor:
    """|log-prob difference| of each sampled token to one plain forward pass over the text.

    Args:
        distribution: logits (T, V) → the log-probs that tokens are drawn with.
    """
    import torch

    ids = torch.tensor([[*prompt, *tokens.tolist()]], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    plain = distribution(logits).gather(-1, ids[0, len(prompt) :, None])[:, 0]
    return (plain.cpu() - torch.tensor(log_probs)).abs()


NO_GAP = {"gap": 0.0, "gap_tokens": 0.0, "gap_max": 0.0}


def gap_of_rows(trajectories: Sequence[Trajectory], log_probs: Tensor) -> dict[str, Tensor]:
    """|log π_θ − what the sampler reported|, as sum, count and maximum over the tokens of rows.

    Nothing where the sampler reported no log-probs.
    """
    import torch

    rows = [each.own_log_probs for each in trajectories]
    if not len(log_probs) or sum(map(len, rows)) != len(log_probs):
        return {}
    reported = torch.from_numpy(np.concatenate(rows))
    if log_probs.is_cuda:
        reported = reported.pin_memory()  # the copy does not wait for the GPU
    gap = (log_probs - reported.to(log_probs.device, non_blocking=True)).abs()
    count = torch.tensor(float(len(gap)))
    return {"gap": gap.sum(), "gap_tokens": count, "gap_max": gap.max()}


def sampler_gap(
    log_probs: Sequence[Sequence[np.ndarray]],
    groups: Sequence[Group],
    gather: Callable[[Any], list[Any]],
) -> dict[str, float]:
    """How far the sampler's token log-probs are from the learner's, over all processes.

    Log-probs that are NaN are infinitely far; a sampler that reports none has no gap.

    Args:
        log_probs: the learner's, of every token the policy drew: log_probs[p][i] is (T,).
        gather: the values of all processes, on every process.
    """
    gaps = [np.zeros(0)] + [
        np.abs(np.subtract(row, trajectory.own_log_probs, dtype=np.float64))
        for rows, group in zip(log_probs, groups)
        for row, trajectory in zip(rows, group.trajectories)
        if len(trajectory.own_log_probs) == len(row)
    ]
    own = np.concatenate(gaps)
    parts = gather((float(own.sum()), own.size, float(own.max(initial=0.0))))
    total, count, largest = zip(*parts)
    mean = sum(total) / max(sum(count), 1)
    return {
        metrics.GAP_MEAN: float("inf") if np.isnan(mean) else mean,
        metrics.GAP_MAX: max(largest),
    }
