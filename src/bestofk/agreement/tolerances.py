"""The table of checks: which two computations are compared, when, how far apart they may be.

Weights are finite when a model is loaded and after every step, and its logits before it is saved or
first sampled (`one_model`). Else an error. Saved weights are compared with nothing: adapters that
cannot be folded into them exactly (those of tied weights) are an error when they are made.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """What rounding explains between two ways to compute the same."""

    fp32: float
    bf16: float
    noise: float = 0.0
    """In bf16, the way that is checked may also be this many times as far from the same in float32
    as the way that is trusted."""

    def limit(self, *, reduced: bool, rounding: float = 0.0) -> float:
        """The largest difference that passes.

        Args:
            reduced: whether products are computed in bf16.
            rounding: how far the trusted way is from float32.
        """
        return (self.bf16 if reduced else self.fp32) + self.noise * rounding


SAMPLER = Check(fp32=1e-3, bf16=0.1)
"""Sampler and learner: mean |log-prob difference| per sampled token, on a probe when the sampler
gets weights, and at every step. Else the run stops and names the likely cause."""
DECODED = SAMPLER
"""Decoded token by token and plain: the same, before a model is first decoded. Else the next slower
way to decode is taken; after the last, an error."""
ENGINE = SAMPLER
"""Group engine and plain: the same of one trajectory of the first 4 calls and of every 64th. Else
transformers samples instead, with a warning; an error once groups were handed out."""
LAYERS = Check(fp32=1e-4, bf16=1e-4, noise=4.0)
"""The engine's fused layers and the model's own: ‖difference of logits‖ / ‖logits‖, when the engine
first takes the weights. Else the model's own layers are used."""
LAYOUT = Check(fp32=2e-4, bf16=2e-4, noise=3.0)
"""Packed and padded: mean |log-prob difference| per token, at the learner's first batch. Else rows
are padded from then on, with a warning; an error with layout "packed"."""
HEAD = Check(fp32=1e-4, bf16=2e-2)
"""Hidden states through the head and the whole model: |difference of logits|, relative, at logits
up to 100, when a learner is made. Else logits are those of the whole model, held all at once."""
CAUSAL = Check(fp32=1e-4, bf16=3e-2)
"""A text and the same with another last token: largest |difference| of earlier logits / their
standard deviation, when a model is loaded and when a learner is made. Else an error: the model is
not a causal language model."""
