"""The learner: a model and its optimiser. Scores groups without gradient, takes steps on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from transformers import PreTrainedModel

from bestofk.learning.base import Loss, Optimisation, Scores
from bestofk.types import Group

LAYOUTS = ("auto", "packed", "padded", "single")
PRECISIONS = ("fp32", "bf16")


class Learner:
    """Owns a model and its optimiser; turns groups and weights into optimiser steps.

    All groups of a call have the same number n of completions. Weights are plain numbers in the
    mean convention, made by an objective beforehand, so that splitting a group over micro-batches
    changes nothing but rounding.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimisation: Optimisation | None = None,
        temperature: float = 1.0,
        tokens_per_micro_batch: int = 16_384,
        layout: str = "auto",
        precision: str = "fp32",
        gradient_checkpointing: bool = False,
        reference: PreTrainedModel | None = None,
        accelerator: Any = None,
    ) -> None:
        """
        Args:
            model: any causal LM; parameters with `requires_grad` are trained. Its floats should be
                float32: with precision "bf16" they are the master weights under autocast.
            temperature: of the sampler; log-probs are of softmax(logits / temperature).
            tokens_per_micro_batch: an upper bound on the tokens of one forward pass; a completion
                longer than it goes alone.
            layout: "packed" computes the prompt once per group and pads nothing outside attention;
                "padded" repeats the prompt and pads each row; "single" is one row at a time.
                "auto" is packed where the model's attention can be replaced, else padded.
            reference: the frozen policy for `Loss.kl`. With a peft model it may be left out: the
                reference is then the model with its adapters off.
            accelerator: an `accelerate.Accelerator`, for several processes: it prepares the model
                and optimiser (DDP, FSDP2), gradients are reduced over ranks, and P, tokens and
                statistics are of all ranks together.
        """
        raise NotImplementedError

    model: PreTrainedModel
    """The model as given (not the wrapper for many processes)."""
    steps: int
    """Optimiser steps taken."""

    def score(self, groups: Sequence[Group], *, reference: bool = False) -> Scores:
        """Token log-probs and entropies of every completion, without gradient.

        With `reference`, those of the reference policy (for `step(reference=)`).
        """
        raise NotImplementedError

    def sequence_log_probs(self, groups: Sequence[Group]) -> np.ndarray:
        """Σ_t log π_θ(y_t) of every completion, (P, n) in float64, without gradient."""
        return self.score(groups).log_prob

    def step(
        self,
        groups: Sequence[Group],
        weights: ArrayLike,
        *,
        loss: Loss | None = None,
        old: Scores | None = None,
        reference: Scores | None = None,
        live: ArrayLike | None = None,
    ) -> dict[str, float]:
        """One optimiser step on these groups.

        Args:
            weights: (P, n), the objective's, in the mean convention.
            loss: exact unless said.
            old: scores under π_old (`score(groups)` before the first inner step); the clipped loss
                needs them, the exact loss does not.
            reference: scores under the reference policy (`score(groups, reference=True)`), for KL.
            live: (P, n), False for samples that could not be scored: n_p counts the live ones of
                group p, and a group without any is not counted in P. All live by default.

        Returns:
            loss, lr, grad_norm (before clipping), entropy (mean over tokens of rows that entered),
            tokens (completion tokens that entered), rows, micro_batches; with the clipped loss also
            clip_fraction and ratio_max; with KL also kl (mean over tokens).

        Raises:
            NonFinite: before anything is changed, when loss or gradient is NaN or infinite.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: trained weights, optimiser, steps. Safe to load with
        `torch.load(weights_only=True)`. With an accelerator, call it on every rank."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


_ = torch
