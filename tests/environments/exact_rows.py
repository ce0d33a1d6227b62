"""Trajectories against one plain forward pass over their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bestofk.agreement.log_prob_gaps import gap_to_plain
from bestofk.sampling import Sampling
from bestofk.sampling.draw import distribution
from bestofk.types import Group


def gap_of_own_tokens(policy: Any, groups: Sequence[Group], sampling: Sampling) -> float:
    """The largest difference of a log-prob; what the environment wrote has none."""
    largest = 0.0
    for group in groups:
        for each in group.trajectories:
            assert (each.log_probs[~each.own] == 0).all()
            rows = (group.prompt_tokens, each.tokens, each.log_probs)
            gaps = gap_to_plain(policy, *rows, partial(distribution, sampling=sampling))
            largest = max(largest, float(gaps.detach().numpy()[each.own].max()))
    return largest
