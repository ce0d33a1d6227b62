"""The shapes of learning: the loss, the settings of the optimiser, the scores of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bestofk.common import unknown

LOSSES = ("exact", "clipped")
RATIOS = ("token", "sequence")
NORMALISERS = ("none", "grpo", "dapo", "dr-grpo")
KL_ESTIMATORS = ("k2", "k3")
SCHEDULES = ("constant", "linear", "cosine")


class NonFinite(FloatingPointError):
    """The loss or its gradient is NaN or infinite. Raised before the weights are touched."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How the weights A (P, n) become a loss. Two named losses, never mixed.

    exact:    −(1/P) Σ_p (1/n_p) Σ_i A_pi Σ_t log π_θ(y_pit)

    with A from the objective *with* `log_ratio` (or on policy, where all ratios are 1). The ratio
    is in A and nowhere else; there is no length normalisation; the gradient is unbiased when the
    weights are. P counts every prompt with a live sample, those without signal too.

    clipped:  −(1/P) Σ_p (1/n_p) Σ_i (1/Z_pi) Σ_t min(ρ A, clip(ρ, 1−clip_low, 1+clip_high) A)

    with A *without* `log_ratio` and ρ_pit = π_θ/π_old of the token. `ratio="sequence"` is GSPO: one
    ρ_pi = exp of the mean token log-ratio, and Z has no meaning (the mean is in the ratio).
    """

    name: str = "exact"
    """"exact" or "clipped"."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    """DAPO's clip-higher is 0.28."""
    ratio: str = "token"
    """"token", or "sequence" (GSPO). Clipped loss only."""
    normaliser: str = "none"
    """Z of the clipped loss. "none": 1. "grpo": the completion's length (biased: favours short
    right and long wrong answers). "dapo": the batch's mean length (biased: weighs by the lengths
    of the batch). "dr-grpo": the constant `max_new_tokens` (unbiased up to that scale)."""
    max_new_tokens: int | None = None
    """The constant of "dr-grpo"."""
    kl: float = 0.0
    """Coefficient of the KL divergence to the reference, summed over tokens; 0 is off."""
    kl_estimator: str = "k2"
    """Per token, with d = log π_θ − log π_ref. "k2": d²/2, whose gradient is that of KL(π_θ‖π_ref)
    on policy. "k3": e^(−d) + d − 1, GRPO's, whose gradient is that of KL(π_ref‖π_θ)."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus, the mean over tokens; 0 is off."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("loss", self.name, LOSSES),
            ("ratio", self.ratio, RATIOS),
            ("normaliser", self.normaliser, NORMALISERS),
            ("kl_estimator", self.kl_estimator, KL_ESTIMATORS),
        ):
            known_or_raise(what, value, known)
        if self.name == "exact" and (self.normaliser != "none" or self.ratio != "token"):
            raise ValueError(
                "the exact loss has no ratio and no length normaliser (theirs are in its weights), "
                f"got ratio={self.ratio!r}, normaliser={self.normaliser!r}; take loss 'clipped'"
            )
        if self.ratio == "sequence" and self.normaliser != "none":
            raise ValueError(
                "a sequence ratio is a mean over tokens already: normaliser must be 'none', "
                f"got {self.normaliser!r}"
            )
        if self.normaliser == "dr-grpo" and not self.max_new_tokens:
            raise ValueError("normaliser 'dr-grpo' divides by max_new_tokens: give it")
        if not 0.0 <= self.clip_low <= 1.0 or self.clip_high < 0.0:
            raise ValueError(
                "clip_low lies in [0, 1] and clip_high is 0 or more, "
                f"got {self.clip_low} and {self.clip_high}"
            )
        if self.kl < 0.0:
            raise ValueError(f"kl is 0 (off) or more, got {self.kl}")


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """AdamW, its learning rate over the steps, and gradient clipping."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Of matrices only; vectors (norms, biases) are never decayed."""
    warmup_steps: int = 0
    """The learning rate grows linearly over so many steps."""
    schedule: str = "constant"
    """After the warm-up: "constant", or "linear" or "cosine" down to 0 at `total_steps`."""
    total_steps: int | None = None
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm; 0 is off."""
    stop_grad_norm: float = float("inf")
    """A larger norm (before scaling) stops the step before the weights are touched."""

    def __post_init__(self) -> None:
        known_or_raise("schedule", self.schedule, SCHEDULES)
        if self.lr < 0.0 or self.warmup_steps < 0 or self.max_grad_norm < 0.0:
            raise ValueError(
                "lr, warmup_steps and max_grad_norm are 0 or more, got "
                f"{self.lr}, {self.warmup_steps}, {self.max_grad_norm}"
            )
        if self.schedule != "constant" and not self.total_steps:
            raise ValueError(f"schedule {self.schedule!r} ends at total_steps: give it")

    def lr_at(self, step: int) -> float:
        """The learning rate of optimiser step number `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant" or self.total_steps is None:
            return self.lr
        after = max(self.total_steps - self.warmup_steps, 1)
        rest = max(0.0, 1.0 - (step - self.warmup_steps) / after)
        if self.schedule == "linear":
            return self.lr * rest
        return float(self.lr * (1.0 - np.cos(np.pi * rest)) / 2.0)


@dataclass(frozen=True)
class Scores:
    """What a policy gives to the completions of some groups, at the learner's temperature."""

    tokens: tuple[tuple[np.ndarray, ...], ...]
    """Log-probability of every token: tokens[p][i] is float32, as long as the completion."""
    entropies: tuple[tuple[np.ndarray, ...], ...]
    """Entropy of the policy where each token was drawn, of the same shapes."""

    @property
    def log_prob(self) -> np.ndarray:
        """Σ_t log π(y_t), (P, n) in float64."""
        return np.array([[row.sum(dtype=np.float64) for row in group] for group in self.tokens])

    @property
    def entropy(self) -> np.ndarray:
        """Mean entropy over the tokens of each completion, (P, n); 0 for an empty one."""
        return np.array(
            [
                [row.mean(dtype=np.float64) if len(row) else 0.0 for row in group]
                for group in self.entropies
            ]
        )


def known_or_raise(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise unknown(what, value, known)
