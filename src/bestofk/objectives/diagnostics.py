"""How much a batch can teach: groups without signal, the k it supports; off policy, how many of its
samples still count."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bestofk.procedures.arrays import (
    Array,
    as_float64,
    as_numpy,
    constant,
    live_mask,
    positive_integer,
)
from bestofk.procedures.binomials import log_binomial
from bestofk.procedures.grouping import DroppedGroups, gather, lay_out

from .objective import Objective, advantages, objective


@dataclass(frozen=True, repr=False)
class Signal:
    """What a batch of groups offers an objective."""

    objective: str
    groups: int
    dropped: int
    """Groups with too few live samples for the objective."""
    silent: int
    """Groups that are large enough and whose advantages are all zero: they teach nothing."""
    unscored: int
    """Samples that are not live."""
    largest_k: int
    """The largest k for which every group with a live sample has more than k of them."""

    @property
    def silent_share(self) -> float:
        """Share of the usable groups that carry no signal (0 when there is none)."""
        used = self.groups - self.dropped
        return self.silent / used if used else 0.0

    def __repr__(self) -> str:
        used = self.groups - self.dropped
        lost = f"; {self.unscored} samples unscored" if self.unscored else ""
        return f"{used - self.silent} of {used} groups carry signal; k ≤ {self.largest_k}{lost}"


def signal(
    rewards: Any,
    objective_: str | Objective,
    /,
    *,
    live: Any = None,
    groups: Any = None,
    **inputs: Any,
) -> Signal:
    """How many groups of a batch teach the objective something, and the largest k they support.

    Args:
        rewards, live, groups: as in `advantages`.
        inputs: whatever else the objective needs (entropy, progress, rng).

    >>> signal([[0, 0, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]], "max@2")
    1 of 3 groups carry signal; k ≤ 3
    """
    chosen = objective(objective_) if isinstance(objective_, str) else objective_
    values, _ = as_float64(rewards, "rewards")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedGroups)
        weights = as_numpy(advantages(values, chosen, live=live, groups=groups, **inputs))
        least = max(term.least for term in chosen.at(inputs.get("progress")))
        usable = lay_out(values, live=live, groups=groups, minimum=least)
        present = lay_out(values, live=live, groups=groups)
    silent = 0
    for bucket in usable.buckets:
        silent += int(np.sum(~has_signal(gather(weights, bucket))))
    smallest = min((bucket.n for bucket in present.buckets), default=1)
    return Signal(
        chosen.text, usable.groups, usable.dropped, silent, usable.dead, max(smallest - 1, 0)
    )


def has_signal(advantages: Array) -> Array:
    """Groups (..., n) → (...,): whether any advantage differs from 0.

    No threshold: a group without signal has exact zeros under every objective with a baseline, and
    rewards may be on any scale.
    """
    return (advantages != 0).any(-1)


def ratio_divergence(log_ratio: Any, live: Any = None) -> float:
    """D: how far π_θ has moved from π_old on these samples, in nats.

        D = mean over live completions of (ρ - 1 - ℓ) ≥ 0

    Claim: E_old[D] = KL(π_old ‖ π_θ), since E_old[ρ] = 1; every term is at least 0, so a common
    shift of all ratios is seen too. About σ²/2 for a small spread σ of ℓ.

    Args:
        log_ratio: log π_θ - log π_old of each whole completion, (...,).
        live: True where a completion counts, the shape of log_ratio; all by default.

    Returns:
        A float; infinite where a ratio overflows, 0 without live completions.

    Raises:
        ValueError: a live log-ratio that is NaN.

    >>> ratio_divergence([0.0, 0.0])
    0.0
    """
    logs, _ = as_float64(log_ratio, "log_ratio")
    xp = array_namespace(logs)
    used = None if live is None else live_mask(live, logs.shape, "log_ratio")
    logs = xp.reshape(logs, (-1,))
    if used is not None:
        logs = logs[constant(used.reshape(-1), logs)]
    if bool(xp.any(xp.isnan(logs))):
        raise ValueError(
            "log_ratio must be a number for every live completion, got nan: pass live= to leave "
            "out completions that were not scored"
        )
    if not logs.shape[0]:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        distance = float(xp.mean(xp.expm1(logs) - logs))
    return math.inf if math.isnan(distance) else distance  # ρ = ∞ is infinitely far


def effective_share(divergence: float, k: int, n: int) -> float:
    """ESS_{n,k}: the share of the samples that still count when the policies are D apart.

        ESS_{n,k} = 1 / (e^{2D} E[e^{2DC}]),    C = |S ∩ T|

    S and T are independent random (k-1)-subsets of the n - 1 siblings of a sample, so C is
    hypergeometric: P(C = c) = C(k-1, c) C(n-k, k-1-c) / C(n-1, k-1). For lognormal ratios of spread
    σ, σ² = 2D, the second moment of the weight ρ_i Σ_S Π_{j∈S} ρ_j / C(n-1, k-1) is 1/ESS: two
    subsets share C siblings, and each shared one counts e^{σ²}. Averaging over many subsets helps;
    without it, at n = k, the share is e^{-2kD}.

    Claim: exact for lognormal ratios of mean 1, an approximation for others. A trainer ends its
    inner steps below a floor; the stop depends on the data, so no unbiasedness is claimed for it.
    D does not see answers that were never drawn.

    Args:
        divergence: D of `ratio_divergence`, at least 0.
        k: how many samples the objective looks at.
        n: samples per prompt, at least k.

    Raises:
        ValueError: D < 0 or NaN; k < 1; n < k.

    >>> effective_share(0.0, 8, 32)
    1.0
    >>> round(effective_share(0.036, 8, 8), 2), round(effective_share(0.036, 8, 32), 2)
    (0.56, 0.83)
    """
    if not divergence >= 0:
        raise ValueError(f"divergence is a mean of ρ - 1 - log ρ, at least 0, got {divergence}")
    k, n = positive_integer(k, "k"), positive_integer(n, "n")
    if n < k:
        raise ValueError(f"subsets of {k} need at least {k} samples per prompt, got {n}")
    if divergence == math.inf:
        return 0.0
    every = log_binomial(n - 1, k - 1)
    shared = np.arange(max(0, 2 * k - 1 - n), k)
    terms = [
        2 * divergence * int(c)
        + log_binomial(k - 1, int(c))
        + log_binomial(n - k, k - 1 - int(c))
        - every
        for c in shared
    ]
    return math.exp(-2 * divergence - float(np.logaddexp.reduce(terms)))
