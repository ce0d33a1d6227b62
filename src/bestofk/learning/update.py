"""The update of the weights: AdamW by a schedule, with a clipped gradient; its statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bestofk import metrics
from bestofk.learning import distributed
from bestofk.learning.settings import NonFinite, Optimizer, usual_rate


class Update:
    """Changes the trained weights of a model by their gradient."""

    steps: int = 0
    """Optimiser steps taken."""

    def __init__(
        self,
        model: Any,
        settings: Optimizer,
        total_steps: int | None,
        stop_grad_norm: float,
    ) -> None:
        self.model, self.total_steps, self.stop_grad_norm = model, total_steps, stop_grad_norm
        self.settings = settings
        if settings.learning_rate is None:
            weights = sum(each.numel() for each in model.parameters())
            rate = usual_rate(weights, adapters=hasattr(model, "disable_adapter"))
            self.settings = settings.changed(learning_rate=rate)
        self.settings.learning_rate_at(self.settings.warmup_steps, total_steps)
        self.optimizer: torch.optim.Optimizer = adamw(model, self.settings)

    def forget(self) -> None:
        """Drop the gradient."""
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Clip the gradient, check it, move the weights.

        Args:
            sums: of the whole step, over all ranks: its loss and its tokens.

        Returns:
            The step's learning rate and the gradient's norm before clipping.

        Raises:
            NonFinite: the weights are as before.
        """
        rate = self.settings.learning_rate_at(self.steps, self.total_steps)
        longest, limit = self.settings.max_grad_norm or math.inf, self.stop_grad_norm
        length = nn.utils.clip_grad_norm_(self.model.parameters(), longest)
        norm = float(distributed.unsharded(length))  # 0 where nothing has a gradient
        if not math.isfinite(sums["loss"]) or not math.isfinite(norm) or norm > limit:
            self.forget()
            raise NonFinite(
                f"step {self.steps}: loss {sums['loss']}, gradient norm {norm} (limit {limit:g}); "
                "the weights are as before. A lower learning rate or a truncated log-ratio is the "
                "usual cure"
            )
        if not sums["tokens"]:
            # Nothing entered on any rank. One process has no gradient then, several have zeros,
            # on which momentum would go on: none it is.
            self.forget()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.forget()
        self.steps += 1
        return {metrics.LEARNING_RATE: rate, metrics.GRAD_NORM: norm}


def adamw(model: nn.Module, settings: Optimizer) -> torch.optim.AdamW:
    """Matrices decay, vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("the model has no parameter that requires a gradient: nothing to train")
    return torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=0.0,  # of the schedule, at every step
        betas=settings.adam[:2],
        eps=settings.adam[2],
        fused=True,
    )


def statistics(sums: Mapping[str, float]) -> dict[str, float]:
    """Means of a step, from its sums over micro-batches and ranks."""
    tokens = max(sums["tokens"], 1.0)
    stats = {
        metrics.LOSS: sums["loss"],
        metrics.TOKEN_ENTROPY: sums.get("token_entropy", 0.0) / tokens,
        metrics.TOKENS: sums["tokens"],
        metrics.ROWS: sums["rows"],
    }
    if sums["gap_tokens"]:
        stats[metrics.GAP_MEAN] = sums["gap"] / sums["gap_tokens"]
        stats[metrics.GAP_MAX] = sums["gap_max"]
    if "ratios" in sums:
        stats[metrics.CLIP_FRACTION] = sums["clipped"] / max(sums["ratios"], 1.0)
        stats[metrics.RATIO_MAX] = sums["ratio_max"]
    if "kl" in sums:
        stats[metrics.KL] = sums["kl"] / tokens
    return stats
