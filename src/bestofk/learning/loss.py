"""The losses on the tokens of a micro-batch, and the way from arrays over groups to its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bestofk.learning import distributed
from bestofk.learning.layout import Batch, Row, to_device
from bestofk.learning.settings import LogProbs, Loss
from bestofk.types import Group


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
    clipped = ratio.clamp(1.0 - loss.clip[0], 1.0 + loss.clip[1])
    gain = torch.minimum(ratio * weight, clipped * weight)
    stats["clipped"] = (gain < ratio * weight).sum()
    stats["ratios"] = torch.tensor(float(len(ratio)), device=ratio.device)
    stats["ratio_max"] = ratio.detach().max()
    return (share * gain).sum()


def same_size(groups: Sequence[Group]) -> int:
    """The n of the groups."""
    sizes = sorted({len(group.trajectories) for group in groups})
    if len(sizes) != 1 or sizes[0] == 0:
        raise ValueError(
            f"groups of one call hold the same number of completions, at least one; got {sizes}; "
            "mark samples that do not count with live="
        )
    return sizes[0]


def same_temperature(groups: Sequence[Group], temperature: float) -> None:
    """Raise for groups drawn at another temperature: the learner would see another policy."""
    for group in groups:
        if group.temperature not in (None, temperature):
            raise ValueError(
                f"the group of prompt {group.prompt.id!r} was drawn at temperature "
                f"{group.temperature:g} and the learner's temperature is {temperature:g}: give "
                "Learner(temperature=) and Sampling(temperature=) one value above 0"
            )


@dataclass(frozen=True)
class StepRows:
    """What the loss of an optimiser step knows of the P × n rows of its groups."""

    weight: np.ndarray
    """(P, n): A, 0 where a row is not live."""
    share: np.ndarray
    """(P, n): each row's share of the mean."""
    entering: list[Row]
    """Rows that the loss looks at."""
    tokens: float
    mean_length: float
    """Of all live rows. Ranks average their gradients, so what one rank divides by is the mean over
    ranks."""
    old: LogProbs | None
    reference: LogProbs | None

    def of(self, batch: Batch, real: bool) -> Rows:
        """Those of a micro-batch; without weight where it only fills up."""
        device = batch.row_of.device

        def per_row(values: np.ndarray) -> torch.Tensor:
            picked = [values[row] * real for row in batch.rows]
            return to_device(np.array(picked, dtype=np.float32), device)

        def per_token(scores: LogProbs | None) -> torch.Tensor | None:
            if scores is None:
                return None
            return to_device(np.concatenate([scores.tokens[p][i] for p, i in batch.rows]), device)

        return Rows(
            weight=per_row(self.weight),
            share=per_row(self.share),
            length=to_device(np.array(batch.lengths, dtype=np.float32), device),
            row_of=batch.row_of,
            old=per_token(self.old),
            reference=per_token(self.reference),
        )


def step_rows(
    groups: Sequence[Group],
    weights: ArrayLike,
    live: ArrayLike | None,
    loss: Loss,
    old: LogProbs | None,
    reference: LogProbs | None,
) -> StepRows:
    """What `Learner.step` was given as arrays over the groups, or an error that says what lacks."""
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
        raise ValueError("kl needs reference=, made by learner.log_probs(groups, reference=True)")
    lengths = [[each.drawn for each in group.trajectories] for group in groups]
    for name, scores in (("old", old), ("reference", reference)):
        if scores is not None and lengths != [[len(row) for row in rows] for rows in scores.tokens]:
            raise ValueError(f"{name}= holds scores of other groups: its lengths differ from these")
    weight = np.where(alive, weight, 0.0)
    counts = {
        "prompts": float(alive.any(axis=-1).sum()),
        "rows": float(alive.sum()),
        "tokens": float(np.array(lengths)[alive].sum()),
    }
    mean = distributed.mean(distributed.gather(counts))
    samples = np.maximum(alive.sum(axis=-1, keepdims=True), 1)
    entering = alive if loss.kl or loss.entropy_bonus else alive & (weight != 0)
    tokens = max(mean["tokens"], 1e-9)
    return StepRows(
        weight=weight,
        share=np.where(alive, 1.0 / (max(mean["prompts"], 1e-9) * samples), 0.0),
        entering=[(int(p), int(i)) for p, i in np.argwhere(entering)],
        tokens=tokens,
        mean_length=tokens / max(mean["rows"], 1e-9),
        old=old,
        reference=reference,
    )
