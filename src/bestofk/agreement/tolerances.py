"""The table of checks: which two computations are compared, when, how far apart they may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """Two ways to compute the same, and what rounding explains."""

    pair: str
    compared: str
    when: str
    otherwise: str
    """What happens where they differ by more."""
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


LOG_PROBS = "mean |log-prob difference| per sampled token"

SAMPLER = Check(
    pair="sampler and learner",
    compared=LOG_PROBS,
    when="on a probe when the sampler gets weights, and at every step",
    otherwise="the run stops and names the likely cause",
    fp32=1e-3,
    bf16=0.1,
)
DECODED = Check(
    pair="decoded token by token and plain",
    compared=LOG_PROBS,
    when="before a model is first decoded",
    otherwise="the next slower way to decode; after the last an error",
    fp32=SAMPLER.fp32,
    bf16=SAMPLER.bf16,
)
ENGINE = Check(
    pair="group engine and plain",
    compared=LOG_PROBS,
    when="one trajectory of the first 4 calls and of every 64th",
    otherwise="transformers samples instead, with a warning; an error once groups were handed out",
    fp32=SAMPLER.fp32,
    bf16=SAMPLER.bf16,
)
LAYERS = Check(
    pair="the engine's fused layers and the model's own",
    compared="‖difference of logits‖ / ‖logits‖",
    when="when the engine first takes the weights",
    otherwise="the model's own layers are used",
    fp32=1e-4,
    bf16=1e-4,
    noise=4.0,
)
LAYOUT = Check(
    pair="packed and padded",
    compared="mean |log-prob difference| per token",
    when="at the learner's first batch",
    otherwise="rows are padded from then on, with a warning; an error with layout 'packed'",
    fp32=2e-4,
    bf16=2e-4,
    noise=3.0,
)
HEAD = Check(
    pair="hidden states through the head and the whole model",
    compared="|difference of logits|, relative, at logits up to 100",
    when="when a learner is made",
    otherwise="logits are those of the whole model, held all at once",
    fp32=1e-4,
    bf16=2e-2,
)
CAUSAL = Check(
    pair="a text and the same with another last token",
    compared="largest |difference| of earlier logits / their standard deviation",
    when="when a model is loaded, and when a learner is made",
    otherwise="an error: the model is not a causal language model",
    fp32=1e-4,
    bf16=3e-2,
)
FINITE = Check(
    pair="weights and logits before a step and after it",
    compared="whether all are finite",
    when="after every step (weights), before sampling and saving (logits)",
    otherwise="the run stops with nothing of the step saved but its batch",
    fp32=0.0,
    bf16=0.0,
)
SAVED = Check(
    pair="weights as saved and as read",
    compared="size and SHA-256 of every file of a checkpoint",
    when="before a run is resumed",
    otherwise="an error that names the last good checkpoint",
    fp32=0.0,
    bf16=0.0,
)

CHECKS = (SAMPLER, DECODED, ENGINE, LAYERS, LAYOUT, HEAD, CAUSAL, FINITE, SAVED)
