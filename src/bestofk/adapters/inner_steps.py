"""Optimiser steps off policy, in any host: who needs them exact, their weights, what is logged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from bestofk.objectives import Objective, effective_share, ratio_divergence, trust_region_mask


def needs_sibling_ratios(objective: Objective) -> bool:
    """Whether weights of fresh samples need the ratios of all siblings once the policy has moved.

    True for unbiased objectives of several samples. The mean needs each sample's own ratio only,
    and normalised objectives never had more than the clipped loss.
    """
    return any(
        term.entry.claim == "exact" and (term.k > 1 or term.entry.baseline is None)
        for term in objective.terms
    )


def weigh_and_measure(
    objective: Objective,
    weigh: Callable[[Objective], Tensor],
    log_ratio: Tensor,
    live: Tensor,
    progress: float,
) -> tuple[Tensor, dict[str, float]]:
    """The weights of an optimiser step, and how far the policy has moved.

    Args:
        objective: what is trained for.
        weigh: makes the weights, of the shape of `log_ratio`, by an objective.
        log_ratio: log π_θ − log π_old of each completion.
        live: whether a completion counts.
        progress: share of the run done.

    Returns:
        The weights, and log_ratio_max (absolute, of live completions), effective_share (1 on
        policy) and, with a trust region, masked (share of live completions outside it).
    """
    weights = weigh(replace(objective, trust_region=None))
    k = max(term.k for term in objective.at(progress))
    result = {
        "log_ratio_max": float(log_ratio[live].abs().max()) if live.any() else 0.0,
        "effective_share": effective_share(ratio_divergence(log_ratio[live]), k),
    }
    if objective.trust_region is not None:
        kept = trust_region_mask(weights, log_ratio, *objective.trust_region)
        weights = torch.where(kept, weights, torch.zeros_like(weights))
        result["masked"] = float((~kept[live]).double().mean()) if live.any() else 0.0
    return weights, result
