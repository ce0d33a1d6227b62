"""How much a batch can teach: groups without signal, η, and the k it supports."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bestofk.common import unknown

from .arrays import Array, as_float64, as_numpy, positive_integer
from .grouping import DroppedGroups, lay_out
from .named import Objective, advantages, objective
from .passk_training import analytical, combination, exceeding


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
    chosen = objective(objective_) if isinstance(objective_, str) else objective_
    values, _ = as_float64(rewards, "rewards")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedGroups)
        weights = as_numpy(advantages(values, chosen, live=live, groups=groups, **inputs)).reshape(
            -1
        )
        least = max(term.least for term in chosen.at(inputs.get("progress")))
        usable = lay_out(values, live=live, groups=groups, minimum=least)
        present = lay_out(values, live=live, groups=groups)
    silent = 0
    for bucket in usable.buckets:
        inside = weights.reshape(-1, bucket.n) if bucket.rows is None else weights[bucket.rows]
        silent += int(np.sum(~np.any(inside != 0, axis=-1)))
    smallest = min((bucket.n for bucket in present.buckets), default=1)
    return Signal(
        chosen.text, usable.groups, usable.dropped, silent, usable.dead, max(smallest - 1, 0)
    )


def signal_to_noise(
    rewards: Any, objectives: Sequence[str | Objective], /, **inputs: Any
) -> dict[str, float]:
    """How reproducible a batch's weights are under each objective: which k the batch supports.

        noise  = mean over samples i of (n-2)/(n-1) Σ_{j≠i} (A_i^{(-j)} - their mean)²
        signal = mean over samples of A_i² - noise, at least 0

    A_i^{(-j)} is the weight of sample i when its sibling j is left out. The noise is the jackknife
    estimate of Var(A_i | y_i): how much the weight of the same completion would change if its
    siblings were drawn again. The ratio falls as k approaches n, because fewer subsets are left to
    average over.

    Claim: by the inequality of Efron and Stein the noise is not underestimated on average, so the
    ratio is cautious. It says nothing about the spread of ∇log π.

    Args:
        rewards: real numbers, (..., n), all live, finite.
        objectives: strings or Objectives; each must accept n - 1 samples.
        inputs: whatever else they need (progress, threshold through an Objective).

    Returns:
        Objective → signal / noise; infinite without noise, NaN where no weight differs from 0.

    Raises:
        ValueError: an objective that needs n samples or more; rewards that are not finite.

    >>> found = signal_to_noise([[0, 0, 0, 0, 1, 1]], ["max@1", "max@2", "max@4"])
    >>> {name: round(ratio, 2) for name, ratio in found.items()}
    {'max@1': 5.0, 'max@2': 2.12, 'max@4': 0.0}
    """
    values, _ = as_float64(rewards, "rewards")
    host = as_numpy(values)
    if host.ndim == 0 or not np.isfinite(host).all():
        raise ValueError("signal_to_noise takes whole groups, (..., n): every reward finite")
    n = host.shape[-1]
    flat = host.reshape(-1, n)
    result = {}
    for each in objectives:
        chosen = objective(each) if isinstance(each, str) else each
        if n - 1 < chosen.least_samples:
            raise ValueError(
                f"signal_to_noise leaves out one sample at a time, so {chosen} needs "
                f"{chosen.least_samples + 1} samples per prompt, got {n}"
            )
        weights = chosen(flat, **inputs)
        left_out = np.full((n, *flat.shape), np.nan)
        for j in range(n):
            kept = np.delete(np.arange(n), j)
            left_out[j][:, kept] = chosen(flat[:, kept], **inputs)
        spread = np.nanvar(left_out, axis=0) * (n - 1)  # over the n - 1 siblings
        noise = float(np.mean(spread)) * (n - 2) / (n - 1)
        power = float(np.mean(weights**2))
        signal_power = max(power - noise, 0.0)
        result[chosen.text] = np.nan if power == 0 else signal_power / noise if noise else np.inf
    return result


def learning_signal(n: int, k: int, design: str = "") -> Array:
    """η(c) = N_pos |A_pos| + N_neg |A_neg| of Pass@k Training, for c = 0..n correct samples.

    The summed size of a group's weights: peaks near accuracy 1/k and its maximum falls with k, so
    larger k looks at harder prompts and needs a larger learning rate.

    Args:
        n: samples per prompt.
        k: of the objective, k ≤ n.
        design: "" (analytical), "exceeding" or "combination", which need nothing but rewards;
            "adaptive" is one of the two curves of k = 1 and k, "drop-easy" is 0 above its
            threshold.

    Returns:
        η for c = 0, …, n: (n + 1,).

    >>> int(learning_signal(32, 8).argmax())
    4

    References:
        Pass@k Training (arXiv:2508.10751).
    """
    n, k = positive_integer(n, "n"), positive_integer(k, "k")
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} samples per prompt, got {n}")
    designs = {"": analytical, "exceeding": exceeding, "combination": combination}
    if design not in designs:
        raise unknown("design", design, list(designs))
    correct = np.tril(np.ones((n + 1, n)), -1)  # row c has c ones
    return np.abs(designs[design](correct, k)).sum(axis=-1)
