"""The shapes of learning: the loss, the settings of the optimizer, the scores of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from bestofk.sections import Fraction, FromList, NaturalNumber, NonNegative, Positive, Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class NonFinite(FloatingPointError):
    """The loss or its gradient is NaN or infinite. Raised before the weights are touched."""


class Loss(Section):
    """How the weights A (P, n) become a loss. Named losses, never mixed.

    exact:    −(1/P) Σ_p (1/n_p) Σ_i A_pi Σ_t log π_θ(y_pit)

    with A from the objective *with* `log_ratio` (or on policy, where all ratios are 1). The ratio
    is in A and nowhere else; there is no length normalisation; the gradient is unbiased when the
    weights are. P counts every prompt with a live sample, those without signal too.

    clipped:  −(1/P) Σ_p (1/n_p) Σ_i (1/Z_pi) Σ_t min(ρ A, clip(ρ, 1−low, 1+high) A)

    with A *without* `log_ratio` and ρ_pit = π_θ/π_old of the token.

    gspo: the clipped loss with one ratio a completion, ρ_pi = exp of the mean token log-ratio; Z
    has no meaning there (the mean is in the ratio).
    """

    name: Literal["exact", "clipped", "gspo"] = "exact"
    """`exact`: weights made from all siblings' ratios. `clipped`: on-policy weights and PPO's token
    ratio. `gspo`: the same with one ratio a completion."""
    normaliser: Literal["none", "grpo", "dapo", "dr-grpo"] = "none"
    """Length normalisation Z of the clipped loss. `grpo` divides by the completion's length
    (biased: favours short right and long wrong answers). `dapo` divides by the batch's mean length
    (biased: weighs by the lengths of the batch). `dr-grpo` divides by the constant max_new_tokens
    (unbiased up to that scale)."""
    clip: Annotated[tuple[Fraction, NonNegative], FromList] = (0.2, 0.2)
    """Ratios are clipped to [1 - low, 1 + high]. DAPO's clip-higher is 0.2 0.28."""
    kl: NonNegative = 0.0
    """Coefficient of the KL divergence to the starting model, summed over tokens; 0 is off. Above 0
    keeps a second copy of the model."""
    kl_estimator: Literal["k2", "k3"] = "k2"
    """Per token, with d = log π_θ − log π_ref. `k2`: d²/2, whose gradient is that of KL(π_θ‖π_ref)
    on policy. `k3`: e^(−d) + d − 1, GRPO's, whose gradient is that of KL(π_ref‖π_θ)."""
    entropy_bonus: NonNegative = 0.0
    """Coefficient of the mean token entropy; 0 is off."""

    @model_validator(mode="after")
    def _clipped_alone_is_normalised(self) -> Self:
        if self.name != "clipped" and self.normaliser != "none":
            raise ValueError(
                f"the {self.name} loss does not accept a length normaliser, got normaliser = "
                f"{self.normaliser!r}: use the clipped loss, or normaliser = 'none'"
            )
        return self


def usual_rate(weights: int, *, adapters: bool = False) -> float:
    """A learning rate that did well on models with about so many weights.

    Several were tried on tiny policies, at 135 million weights and at 0.5 billion, all of them
    trained, with warm-up and a falling rate (research/); 1.5 billion were trained with the rate of
    0.5, larger models not at all. Adapters take about ten times as much (Schulman et al. 2025, LoRA
    Without Regret).

    >>> [usual_rate(weights) for weights in (200_000, 135_000_000, 7_000_000_000)]
    [0.0001, 1e-05, 2e-06]
    """
    rate = 1e-4 if weights < 30_000_000 else 1e-5 if weights < 300_000_000 else 2e-6
    return 10.0 * rate if adapters else rate


class Optimizer(Section):
    """AdamW, its learning rate over the steps, and gradient clipping."""

    learning_rate: Positive | None = None
    """By default by the model's weights: 1e-4 below 30 million, 1e-5 below 300 million, else 2e-6;
    ten times that for LoRA. Small steps keep more of the diversity."""
    warmup_steps: NaturalNumber = 0
    """The learning rate grows linearly over this many optimiser steps."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: constant, or linear or cosine, which reach 0 after the last step."""
    weight_decay: NonNegative = 0.0
    """Applied to matrices only; vectors (norms, biases) are never decayed."""
    max_grad_norm: NonNegative = 1.0
    """The gradient is scaled down to this norm; 0 is off."""
    adam: Annotated[tuple[Decay, Decay, Positive], FromList] = (0.9, 0.999, 1e-8)
    """β1, β2 and ε of AdamW."""

    def learning_rate_at(self, step: int, total_steps: int | None = None) -> float:
        """The learning rate of optimiser step number `step`, counted from 0.

        Args:
            total_steps: Where the linear and cosine schedules end.
        """
        if self.learning_rate is None:
            raise ValueError("without a learning rate there is none at a step: set learning_rate")
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return self.learning_rate
        if total_steps is None:
            raise ValueError(f"schedule {self.schedule!r} ends at total_steps: give it")
        after = max(total_steps - self.warmup_steps, 1)
        rest = max(0.0, 1.0 - (step - self.warmup_steps) / after)
        if self.schedule == "linear":
            return self.learning_rate * rest
        return float(self.learning_rate * (1.0 - np.cos(np.pi * rest)) / 2.0)


@dataclass(frozen=True)
class LogProbs:
    """What a policy gives to the trajectories of some groups, at the learner's temperature."""

    tokens: tuple[tuple[np.ndarray, ...], ...]
    """Log-probability of every token that the policy drew: tokens[p][i] is float32."""
    entropies: tuple[tuple[np.ndarray, ...], ...]
    """Entropy of the policy where each token was drawn, of the same shapes."""

    @property
    def log_prob(self) -> np.ndarray:
        """Σ_t log π(y_t), (P, n) in float64."""
        return np.array([[row.sum(dtype=np.float64) for row in group] for group in self.tokens])

    def take(self, rows: Sequence[int]) -> LogProbs:
        """Those of some of the groups."""
        return LogProbs(*(tuple(each[i] for i in rows) for each in (self.tokens, self.entropies)))

    @property
    def entropy(self) -> np.ndarray:
        """Mean entropy over the tokens of each completion, (P, n); 0 for an empty one."""
        return np.array(
            [
                [row.mean(dtype=np.float64) if len(row) else 0.0 for row in group]
                for group in self.entropies
            ]
        )
