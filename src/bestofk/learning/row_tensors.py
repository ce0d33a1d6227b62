"""From arrays over groups to tensors over the rows of a micro-batch, and the checks before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from bestofk.learning.layout import Batch
from bestofk.learning.loss import Rows
from bestofk.learning.settings import Loss, Scores
from bestofk.learning.transfer import there
from bestofk.types import Group


def same_size(groups: Sequence[Group]) -> int:
    """The n of the groups."""
    sizes = sorted({len(group.completions) for group in groups})
    if len(sizes) != 1 or sizes[0] == 0:
        raise ValueError(
            f"groups of one call hold the same number of completions, at least one; got {sizes}; "
            "mark samples that do not count with live="
        )
    return sizes[0]


def checked(
    groups: Sequence[Group],
    weights: ArrayLike,
    live: ArrayLike | None,
    loss: Loss,
    old: Scores | None,
    reference: Scores | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and live mask as (P, n) arrays, or an error that says what is missing."""
    shape = (len(groups), same_size(groups))
    weight = np.asarray(weights, dtype=np.float64)
    alive = np.ones(shape, dtype=bool) if live is None else np.asarray(live, dtype=bool)
    if weight.shape != shape or alive.shape != shape:
        raise ValueError(
            f"weights and live have the shape of the groups {shape}, got {weight.shape} and "
            f"{alive.shape}"
        )
    if not np.isfinite(weight[alive]).all():
        p, i = np.argwhere(alive & ~np.isfinite(weight))[0]
        raise ValueError(f"weight of group {p}, completion {i} is {weight[p, i]}; mark it not live")
    if loss.name != "exact" and old is None:
        raise ValueError(f"the {loss.name} loss needs old=, the scores under π_old")
    if loss.kl and reference is None:
        raise ValueError("kl needs reference=, made by learner.score(groups, reference=True)")
    for name, scores in (("old", old), ("reference", reference)):
        if scores is not None:
            _same_rows(name, scores, groups)
    return np.where(alive, weight, 0.0), alive


def _same_rows(name: str, scores: Scores, groups: Sequence[Group]) -> None:
    given = [[len(row) for row in group] for group in scores.tokens]
    if given != [[len(c.tokens) for c in group.completions] for group in groups]:
        raise ValueError(f"{name}= holds scores of other groups: its lengths differ from these")


def rows_of(
    batch: Batch,
    weight: np.ndarray,
    share: np.ndarray,
    old: Scores | None,
    reference: Scores | None,
    device: torch.device,
) -> Rows:
    """What the loss needs to know of a micro-batch."""

    def per_row(values: np.ndarray) -> torch.Tensor:
        return there(np.array([values[row] for row in batch.rows], dtype=np.float32), device)

    def per_token(scores: Scores | None) -> torch.Tensor | None:
        if scores is None:
            return None
        return there(np.concatenate([scores.tokens[p][i] for p, i in batch.rows]), device)

    return Rows(
        weight=per_row(weight),
        share=per_row(share),
        length=there(np.array(batch.lengths, dtype=np.float32), device),
        row_of=batch.row_of,
        old=per_token(old),
        reference=per_token(reference),
    )


NO_GAP = {"gap": 0.0, "gap_tokens": 0.0, "gap_max": 0.0}


def gap_to_sampler(
    batch: Batch, groups: Sequence[Group], log_prob: torch.Tensor
) -> dict[str, torch.Tensor]:
    """|log π_θ − what the sampler reported|, as sum, count and maximum over a micro-batch's tokens.

    Nothing where the sampler reported no log-probs.
    """
    reported = [groups[p].completions[i].logprobs for p, i in batch.rows]
    if [len(row) for row in reported] != list(batch.lengths) or not len(log_prob):
        return {}
    joined = np.concatenate([np.array(row, dtype=np.float32) for row in reported])
    drawn = there(joined, log_prob.device)
    gap = (log_prob - drawn).abs()
    count = torch.tensor(float(len(gap)))
    return {"gap": gap.sum(), "gap_tokens": count, "gap_max": gap.max()}
