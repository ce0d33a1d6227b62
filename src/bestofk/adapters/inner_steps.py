"""Optimiser steps off policy, in any host: who needs them exact, what is logged, when they end."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bestofk.objectives import (
    Objective,
    ObjectiveWarning,
    effective_share,
    ratio_divergence,
    trust_region_mask,
)
from bestofk.objectives.options import finite_number


def check_version(host: str, installed: str, oldest: tuple[int, int]) -> None:
    """Raise a ValueError for a host older than the one that this adapter was written against."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed)[:2])
    if numbers < oldest:
        minimum = ".".join(map(str, oldest))
        raise ValueError(
            f"bestofk.adapters needs {host} {minimum} or newer, and this is {host} {installed}: "
            f"pip install '{host.lower()}>={minimum}'"
        )


def check_inputs(
    objective: Objective, host: str, absent: set[str], scorer: str | None, way_out: str
) -> None:
    """Raise where the objective looks at what the host does not give, or at unnamed scores."""
    for name in sorted(objective.needs & absent):
        raise ValueError(
            f"objective {objective} needs {name}, which {host} does not give: choose another"
        )
    if "scores" in objective.needs and scorer is None:
        raise ValueError(f"objective {objective} needs scores that choose a sample: {way_out}")


def check_floor(floor: Any, setting: str) -> float:
    """The effective share below which the inner steps on a batch end."""
    what = "a share of the samples, in [0, 1] (0 never ends the inner steps on a batch)"
    return finite_number(setting, floor, what, lambda share: 0 <= share <= 1)


def needs_sibling_ratios(objective: Objective) -> bool:
    """Whether fresh samples' advantages need the ratios of all siblings once the policy has moved.

    True for unbiased objectives of several samples. The mean needs each sample's own ratio only,
    and normalised objectives never had more than the clipped loss.
    """
    return any(
        term.entry.claim == "exact" and (term.k > 1 or term.entry.baseline is None)
        for term in objective.terms
    )


def advantages_of_step(
    objective: Objective,
    make: Callable[[Objective], Tensor],
    log_ratio: Tensor,
    live: Tensor,
    progress: float,
    samples: int,
) -> tuple[Tensor, dict[str, float]]:
    """The advantages of an optimiser step, and how far the policy has moved.

    Args:
        make: makes the advantages, of the shape of `log_ratio`, by an objective.
        log_ratio: log π_θ − log π_old of each completion.
        samples: completions per prompt.

    Returns:
        The advantages, and log_ratio_max (absolute, of live completions), effective_share (1 on
        policy) and, with a trust region, masked (share of live completions outside it).
    """
    advantages = make(replace(objective, trust_region=None))
    k = max(term.k for term in objective.at(progress))
    result = {
        "log_ratio_max": float(log_ratio[live].abs().max()) if live.any() else 0.0,
        "effective_share": effective_share(ratio_divergence(log_ratio[live]), k, max(samples, k)),
    }
    if objective.trust_region is not None:
        inside = trust_region_mask(advantages, log_ratio, *objective.trust_region)
        advantages = torch.where(inside, advantages, torch.zeros_like(advantages))
        result["masked"] = float((~inside[live]).double().mean()) if live.any() else 0.0
    return advantages, result


def warn_first_step(share: float, floor: float, setting: str) -> None:
    """Say that a batch is below the floor before anything was learnt from it.

    Its first step is taken all the same: the policy has not moved, so this is the noise of scoring
    the same completions twice (bf16 over many tokens), and later steps will end at once.
    """
    if share < floor:
        warnings.warn(
            f"the first optimiser step of a batch has an effective share of {share:.2g}, below "
            f"{setting}={floor:g}, before the policy has moved: its log-probs differ from the old "
            "ones by re-scoring alone (bf16 over long completions). The first step is taken, "
            "later steps on such a batch are not: score in float32, take one step per batch, or "
            f"lower {setting}",
            ObjectiveWarning,
            stacklevel=3,
        )
