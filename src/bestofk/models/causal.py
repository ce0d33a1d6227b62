"""What a policy must be: a causal language model whose weights were all in its files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from bestofk.agreement.one_model import unsound_weight
from bestofk.model_facts import NEEDED


def check_kind(config: PretrainedConfig, name: str, *, own_code: bool = False) -> None:
    """Raise for a config that describes an encoder or another model without a causal head.

    Args:
        own_code: The model's own Python code is run, so transformers need not know its class.
    """
    kind = f"{name} is a {config.model_type or type(config).__name__} model"
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{kind}, an encoder with a decoder: {NEEDED}")
    if type(config) not in AutoModelForCausalLM._model_mapping and not own_code:
        raise ValueError(f"{kind}, which transformers has no causal language model for: {NEEDED}")


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


def check_safetensors(folder: Path, name: str) -> None:
    """Raise for a folder whose weights are pickles alone, or whose safetensors are damaged.

    Of a Hub model that is not here yet nothing is known: its library reads it.
    """
    from safetensors import SafetensorError, safe_open

    if not folder.is_dir():
        return
    files = sorted(folder.glob("*.safetensors"))
    pickles = sorted(file.name for kind in ("*.bin", "*.pt", "*.pth") for file in folder.glob(kind))
    if not files and pickles:
        raise ValueError(
            f"{name} holds its weights as pickles alone ({pickles[0]}), which can run code when "
            "they are read: take a copy in safetensors, or convert it where you trust it "
            "(AutoModelForCausalLM.from_pretrained(...).save_pretrained(...))"
        )
    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}): copy or download it again") from None


def check_finite(model: PreTrainedModel, name: str) -> None:
    """Raise for weights that are NaN or infinite: nothing can be sampled from them."""
    if weight := unsound_weight(model):
        raise ValueError(
            f"the weight {weight} of {name} is NaN or infinite: the model is damaged, or its "
            "training diverged; take an earlier checkpoint"
        )


def check_vocabulary(tokenizer: Any, model: PreTrainedModel, name: str) -> None:
    """Raise for a tokenizer that gives ids which the model has no embedding for.

    Added tokens that only stand in its list (converters leave some) do no harm.
    """
    table: Any = model.get_input_embeddings()
    rows, template = len(table.weight), str(getattr(tokenizer, "chat_template", None))
    added = {
        token
        for token in tokenizer.get_added_vocab()
        if token not in (tokenizer.eos_token, tokenizer.pad_token) and token not in template
    }
    ids = [id for token, id in tokenizer.get_vocab().items() if token not in added]
    largest = max(ids, default=0)
    if largest >= rows:
        raise ValueError(
            f"the tokenizer of {name} has ids up to {largest}, and the model has embeddings for "
            f"{rows} tokens: take the tokenizer it was trained with, or add rows "
            f"(model.resize_token_embeddings({largest + 1})) and save it"
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
