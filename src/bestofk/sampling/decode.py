"""The default sampler: any Hugging Face causal LM, CPU or GPU, the prompt prefilled once."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bestofk.sampling.base import Sampling
from bestofk.types import Group, Prompt


class ModelSampler:
    """Samples a model in this process: a `bestofk.sampling.Sampler`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_rows: int = 2048,
        precision: str = "fp32",
    ) -> None:
        """
        Args:
            model: sampled as it is at each call; the learner may train the same object in between.
            max_rows: completions decoded at once; more prompts are taken in turns.
            precision: "bf16" decodes under autocast.
        """
        raise NotImplementedError

    def sample(self, prompts: Sequence[Prompt], *, seed: int, params: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        raise NotImplementedError
