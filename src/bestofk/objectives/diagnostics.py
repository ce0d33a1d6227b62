"""How much a batch can teach: groups without signal, η, and the k it supports."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import Array, as_float64, as_numpy, positive_integer
from .grouping import DroppedGroups, lay_out
from .named import Objective, advantages, objective
from .passk_training import analytical


@dataclass(frozen=True)
class Signal:
    """What a batch of groups offers an objective."""

    objective: str
    groups: int
    dropped: int
    """Groups with too few live samples for the objective."""
    silent: int
    """Groups that are large enough and whose weights are all zero: they teach nothing."""
    unscored: int
    """Samples that are not live."""
    largest_k: int
    """The largest k for which every group with a live sample has more than k of them."""

    @property
    def silent_share(self) -> float:
        """Share of the usable groups that carry no signal (0 when there is none)."""
        used = self.groups - self.dropped
        return self.silent / used if used else 0.0

    def __str__(self) -> str:
        return (
            f"{self.objective}: {self.silent} of {self.groups - self.dropped} groups without "
            f"signal ({self.silent_share:.0%}), {self.dropped} dropped, {self.unscored} samples "
            f"unscored; supports k up to {self.largest_k}"
        )


def signal(
    rewards: Any,
    objective_: str | Objective,
    /,
    *,
    live: Any = None,
    groups: Any = None,
    **inputs: Any,
) -> Signal:
    """Count the groups that carry no signal under the objective, as it would weigh them.

    Args:
        rewards, live, groups: as in `advantages`.
        inputs: whatever else the objective needs (entropy, progress, rng).

    >>> print(signal([[0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]], "max@2"))
    max@2: 2 of 3 groups without signal (67%), 0 dropped, 0 samples unscored; supports k up to 3
    """
    goal = objective(objective_) if isinstance(objective_, str) else objective_
    values, _ = as_float64(rewards, "rewards")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedGroups)
        weights = as_numpy(advantages(values, goal, live=live, groups=groups, **inputs)).reshape(-1)
        least = max(term.least for term in goal.at(inputs.get("progress")))
        usable = lay_out(values, live=live, groups=groups, minimum=least)
        present = lay_out(values, live=live, groups=groups)
    silent = 0
    for bucket in usable.buckets:
        inside = weights.reshape(-1, bucket.n) if bucket.rows is None else weights[bucket.rows]
        silent += int(np.sum(~np.any(inside != 0, axis=-1)))
    smallest = min((bucket.n for bucket in present.buckets), default=1)
    return Signal(
        goal.text, usable.groups, usable.dropped, silent, usable.dead, max(smallest - 1, 0)
    )


def learning_signal(n: int, k: int) -> Array:
    """η(c) = N_pos |A_pos| + N_neg |A_neg| of Pass@k Training, for c = 0..n correct samples.

    The summed size of a group's weights: peaks near accuracy 1/k and its maximum falls with k, so
    larger k looks at harder prompts and wants a larger learning rate.

    >>> int(learning_signal(32, 8).argmax())
    4

    References:
        Pass@k Training (arXiv:2508.10751).
    """
    n, k = positive_integer(n, "n"), positive_integer(k, "k")
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} samples per prompt, got {n}")
    correct = np.tril(np.ones((n + 1, n)), -1)  # row c has c ones
    return np.abs(analytical(correct, k)).sum(axis=-1)
