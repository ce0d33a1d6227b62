"""What is computed micro-batch by micro-batch: log-probs, and the gradient of a step's loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bestofk.agreement.log_prob_gaps import NO_GAP, gap_of_rows
from bestofk.learning import distributed
from bestofk.learning.batching import Batching
from bestofk.learning.layout import Batch
from bestofk.learning.loss import Rows, StepRows, loss_of
from bestofk.learning.passes import Passes
from bestofk.learning.settings import LogProbs, Loss
from bestofk.types import Group

Scored = list[tuple[Batch, Tensor, Tensor]]
"""Micro-batches, with log-probs and entropies of their tokens."""
Statistics = list[tuple[dict[str, Tensor], bool]]
"""Sums over each micro-batch, and whether it is real."""


def score(groups: Sequence[Group], batching: Batching, passes: Passes, scorer: nn.Module) -> Scored:
    """All rows of the groups, by the policy's scorer or its reference's."""
    rows = [(p, i) for p, group in enumerate(groups) for i in range(len(group.trajectories))]
    scored = []
    for part, real in batching.cut(groups, rows):
        batch = batching.build(groups, part)
        with passes.autocast():
            log_prob, entropy = scorer(batch)
        if real:
            scored.append((batch, log_prob, entropy))
    return scored


def by_group(scored: Scored, groups: Sequence[Group]) -> LogProbs:
    """The same in the order of the groups."""
    tokens = [[_EMPTY] * len(group.trajectories) for group in groups]
    entropies = [[_EMPTY] * len(group.trajectories) for group in groups]
    for batch, log_prob, entropy in scored:
        pieces = log_prob.cpu().split(batch.lengths), entropy.cpu().split(batch.lengths)
        for (p, i), row, spread in zip(batch.rows, *pieces):
            tokens[p][i], entropies[p][i] = row.numpy(), spread.numpy()
    return LogProbs(tuple(map(tuple, tokens)), tuple(map(tuple, entropies)))


def accumulate_gradient(
    groups: Sequence[Group],
    inputs: StepRows,
    loss: Loss,
    batching: Batching,
    passes: Passes,
    max_new_tokens: int | None,
) -> Statistics:
    """Add the gradient of the loss to that of the weights; ranks meet at the last micro-batch."""
    parts = []
    cut = batching.cut(groups, inputs.entering)
    for at, (part, real) in enumerate(cut):
        batch = batching.build(groups, part)
        rows = inputs.of(batch, real, batching.device)
        with distributed.accumulate(passes.wrapped, at == len(cut) - 1):
            value, log_prob, stats = _loss(loss, batch, rows, inputs, passes, max_new_tokens)
            value = value * real  # a filler only keeps the ranks in step
            value.backward()
        stats |= {"loss": value.detach(), "tokens": torch.tensor(float(len(log_prob)))}
        trajectories = [groups[p].trajectories[i] for p, i in batch.rows]
        stats |= gap_of_rows(trajectories, log_prob.detach())
        parts.append((stats, real))
    return parts


def _loss(
    loss: Loss,
    batch: Batch,
    rows: Rows,
    inputs: StepRows,
    passes: Passes,
    max_new_tokens: int | None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A micro-batch's part of the loss, its log-probs, and sums for the statistics."""
    plain = loss.name == "exact" and not loss.kl and not loss.entropy_bonus
    with passes.autocast():
        if plain and passes.scorer.fused:
            # Every token's weight is known: the head's gradient comes with its forward pass.
            coefficient = (rows.weight * rows.share)[rows.row_of]
            total, log_prob, entropy = passes.wrapped(batch, coefficient)
            return -total, log_prob, {"token_entropy": entropy.sum()}
        log_prob, entropy = passes.wrapped(batch)
    part, stats = loss_of(
        loss, log_prob, entropy, rows, tokens=inputs.tokens, mean_length=inputs.mean_length,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    return part, log_prob, stats


def sums_over_ranks(parts: Statistics, rows: int) -> dict[str, float]:
    """The sums of a step. Read back here only: the GPU is never waited for before."""
    sums = {"loss": 0.0, "tokens": 0.0, "rows": float(rows), **NO_GAP}
    for stats, real in parts:
        for name, value in stats.items():
            join = max if name.endswith("_max") else float.__add__
            sums[name] = join(sums.get(name, 0.0), float(value) * real)
    return distributed.total(distributed.gather(sums))


_EMPTY = np.zeros(0, dtype=np.float32)
