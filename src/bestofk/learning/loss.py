"""The losses on the tokens of one micro-batch. Pure: tensors in, a sum and statistics out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bestofk.learning.settings import Loss


@dataclass(frozen=True)
class Rows:
    """What the loss needs to know of a micro-batch's R rows and N tokens."""

    weight: Tensor
    """(R,): A."""
    share: Tensor
    """(R,): 1 / (P n_p), the row's share of the mean."""
    length: Tensor
    """(R,): tokens, as floats."""
    row_of: Tensor
    """(N,): which row a token belongs to."""
    old: Tensor | None = None
    """(N,): log π_old."""
    reference: Tensor | None = None
    """(N,): log π_ref."""


def loss_of(
    loss: Loss,
    log_prob: Tensor,
    entropy: Tensor,
    rows: Rows,
    *,
    tokens: float,
    mean_length: float,
    max_new_tokens: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro-batch's part of the batch's loss, and sums for the statistics.

    Parts add up to the loss of `Loss` over all micro-batches.

    Args:
        log_prob, entropy: (N,), of the tokens under π_θ.
        tokens, mean_length: Of the whole batch, for the entropy bonus and DAPO's normaliser.
        max_new_tokens: The constant of Dr. GRPO's normaliser.
    """
    scale = _scale(loss, rows, mean_length, max_new_tokens)
    stats = {"token_entropy": entropy.detach().sum()}
    if loss.name == "exact":
        total = -(rows.weight * rows.share)[rows.row_of].mul(log_prob).sum()
    else:
        total = -_clipped(loss, log_prob, rows, scale, stats)
    if loss.kl:
        assert rows.reference is not None
        gap = log_prob - rows.reference
        kl = gap.square() / 2 if loss.kl_estimator == "k2" else torch.expm1(-gap) + gap
        total = total + loss.kl * (rows.share * scale)[rows.row_of].mul(kl).sum()
        stats["kl"] = kl.detach().sum()
    if loss.entropy_bonus:
        total = total - loss.entropy_bonus * entropy.sum() / tokens
    return total, stats


def _scale(loss: Loss, rows: Rows, mean_length: float, max_new_tokens: int | None) -> Tensor:
    """1/Z of each row."""
    if loss.name == "gspo" or loss.normaliser == "grpo":
        return 1.0 / rows.length
    if loss.normaliser == "dapo":
        return torch.full_like(rows.length, 1.0 / mean_length)
    if loss.normaliser == "dr-grpo":
        if max_new_tokens is None:
            raise ValueError("normaliser 'dr-grpo' divides by max_new_tokens: give it to Learner")
        return torch.full_like(rows.length, 1.0 / max_new_tokens)
    return torch.ones_like(rows.length)


def _clipped(
    loss: Loss, log_prob: Tensor, rows: Rows, scale: Tensor, stats: dict[str, Tensor]
) -> Tensor:
    assert rows.old is not None
    log_ratio, weight, share = log_prob - rows.old, rows.weight, rows.share * scale
    if loss.name == "gspo":
        sums = torch.zeros_like(rows.length).index_add(0, rows.row_of, log_ratio)
        log_ratio, share = sums / rows.length, rows.share
    else:
        weight, share = weight[rows.row_of], share[rows.row_of]
    ratio = log_ratio.exp()
    kept = ratio.clamp(1.0 - loss.clip[0], 1.0 + loss.clip[1])
    gain = torch.minimum(ratio * weight, kept * weight)
    stats["clipped"] = (gain < ratio * weight).sum()
    stats["ratios"] = torch.tensor(float(len(ratio)), device=ratio.device)
    stats["ratio_max"] = ratio.detach().max()
    return (share * gain).sum()
