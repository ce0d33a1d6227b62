"""What a policy must be: a causal language model whose weights were all in its files."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig


def check_kind(config: PretrainedConfig, name: str, *, own_code: bool = False) -> None:
    """Raise for a config that describes an encoder or another model without a causal head.

    Args:
        own_code: The model's own Python code is run, so transformers need not know its class.
    """
    kind = f"{name} is a {config.model_type or type(config).__name__} model"
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{kind}, an encoder with a decoder: {NEEDED}")
    known = type(config) in AutoModelForCausalLM._model_mapping
    if not known and not own_code:
        raise ValueError(f"{kind}, which transformers has no causal language model for: {NEEDED}")


NEEDED = (
    "training and sampling need a causal language model (a decoder with a head over the "
    "vocabulary), such as a Llama, Qwen or GPT-2 checkpoint"
)


def check_complete(missing: Collection[str], name: str) -> None:
    """Raise where the files hold only a part of the weights; the rest would be random numbers."""
    if not missing:
        return
    names = sorted(missing)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    raise ValueError(
        f"the files of {name} do not hold {shown}, which would start as random numbers: it was "
        f"saved without its language-model head, or for another class; {NEEDED}"
    )


@torch.no_grad()
def check_causal(model: Any, name: str) -> None:
    """Raise for a model in which a token changes the logits of tokens before it, as in an encoder.

    Two texts that differ in the last token alone are compared, without its own logits.
    """
    ids = torch.arange(1, 9, device=model.device) % model.config.get_text_config().vocab_size
    other = ids.clone()
    other[-1] = 0
    logits = model(input_ids=torch.stack([ids, other])).logits[:, :-1].float()
    moved = float((logits[0] - logits[1]).abs().max())
    rounding = 1e-4 if model.dtype == torch.float32 else 3e-2
    if moved > rounding * max(float(logits.std()), 1e-6):
        raise ValueError(
            f"{name} ({type(model).__name__}) is not causal: changing the last token of a text "
            f"moved the logits of earlier tokens by {moved:.2g}, as in an encoder; {NEEDED}"
        )


def context_length(config: PretrainedConfig) -> int | None:
    """The largest number of tokens a model has positions for; None where it has no such limit.

    A rope that is stretched at run time (yarn and others) counts with its factor.
    """
    text = config.get_text_config()
    length = getattr(text, "max_position_embeddings", None)
    if not isinstance(length, int) or length <= 0:
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    if original and factor:
        length = max(length, int(original * factor))
    return length
