"""What a procedure is: one way to get a result out of k samples of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .arrays import Array


@dataclass(frozen=True)
class Fixed:
    """A function with some of its arguments; equal where both are, also when pickled."""

    function: Callable[..., Array]
    arguments: Mapping[str, Any]

    def __call__(self, *inputs: Any, **named: Any) -> Array:
        return self.function(*inputs, **self.arguments, **named)


def by_baseline(
    function: Callable[..., Array], *baselines: str, **arguments: Any
) -> dict[str, Callable[..., Array]]:
    """One function's weights with each of its baselines."""
    return {each: Fixed(function, {**arguments, "baseline": each}) for each in baselines}


@dataclass(frozen=True)
class Procedure:
    """What is done with k samples, as an unbiased value and as weights of its gradient.

    With f the reward that the procedure gets out of k samples, U_k(B) is the mean of f over the
    k-subsets of a group B, q_i over those with sample i and U_k(B∖i) over those without it. Then

        A_i = k (q_i - b_i),    b_i any function of the other samples,

    is unbiased for ∇E[f] in the mean convention, for every f that is symmetric in its k samples.

    All arrays are float64, one group of n live samples a row, (g, n). `needs` names the inputs
    beside rewards, each of their shape and passed by name: "scores", which sort (-inf loses to
    every other) or weigh votes, "answers", whole numbers that are equal for equal answers; -1 does
    not vote, and "tokens", what a draw costs. "noise" has draws for each score, (g, n, draws).
    "samples" is whichever of scores and answers was passed, answers as they are.
    """

    name: str
    """As in objectives and metrics: "max" of max@8 and max@k."""
    meaning: str
    """What the value is, in words."""
    curve: Callable[..., Array]
    """(rewards, k_max, **needs) → U_k of each group for k = 1..k_max, (g, k_max)."""
    weights: Mapping[str, Callable[..., Array]]
    """Baseline → (rewards, k, **needs) → advantages (g, n) on policy.

    canonical: b_i = U_k(B∖i), k < n. loo-1: b_i = U_{k-1}(B∖i), k ≤ n. none: b_i = 0."""
    off_policy: Callable[..., Array] | None = None
    """(rewards, k=, log_ratio=, baseline=, self_normalise=, check=, **needs) → advantages."""
    weighs_sizes: bool = False
    """`off_policy` also takes log_alpha=, (g, n), for samples of several policies: its sets are not
    all those of size k, as `importance.pooled` takes them to be."""
    needs: tuple[str, ...] = field(default=())
    rule: str = ""
    """What stands behind k: "ties-wrong" of maj@8:ties-wrong."""

    @property
    def metric(self) -> str:
        """As a metric: "maj@k:ties-wrong"."""
        return f"{self.name}@k:{self.rule}".removesuffix(":")
