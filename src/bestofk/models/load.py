"""From a name to a model and its tokenizer, and back to a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

SHIPPED = {
    "tiny-countdown": "tiny/countdown",
    "tiny-maze": "tiny/maze",
}
"""Starting checkpoints in the package: name → folder beside this file."""


@dataclass(frozen=True)
class Policy:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """As it was asked for; used in model cards."""


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters through peft."""

    rank: int = 0
    """0 trains the whole model."""
    alpha: float = 0.0
    """Scale of the adapters; 0 takes 2 × rank."""
    dropout: float = 0.0
    """Must stay 0 for exact log-ratios: dropout makes π_θ random."""
    targets: tuple[str, ...] = ()
    """Modules by name; none takes all linear layers but the head."""


def load(
    name: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    device: str = "cpu",
    lora: Lora | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Policy:
    """The policy of that name.

    Args:
        name: a shipped one ("tiny-countdown"), "smollm2" (after `bestofk model smollm2`), a folder,
            a .gguf file, or a Hugging Face id.
        dtype: of the weights; "float32" for training (bf16 is the learner's autocast).
        trust_remote_code: run Python code that comes with the model. Off unless asked.
    """
    raise NotImplementedError


def save(policy: Policy, folder: str | os.PathLike[str]) -> Path:
    """Write model (safetensors; adapters merged) and tokenizer so that `from_pretrained`, vLLM and
    `load` read them. Atomic: the folder appears whole or not at all."""
    raise NotImplementedError
