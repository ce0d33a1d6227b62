"""The shape of a model, from its config alone: no weights are read."""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bestofk.model_facts import config_value
from bestofk.models.causal import check_kind, context_length
from bestofk.models.load import loading_options


def describe(
    name: str | os.PathLike[str], *, trust_remote_code: bool = False, revision: str | None = None
) -> dict[str, Any]:
    """Parameters, sizes, layers, heads, key-value heads, vocabulary, context, architecture.

    >>> describe("tiny-countdown")["parameters"]
    201664
    """
    place, options = loading_options(name, trust_remote_code, revision)
    config = AutoConfig.from_pretrained(place, **options)
    check_kind(config, os.fspath(name), own_code=trust_remote_code)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    return {
        "parameters": int(model.num_parameters()),
        "hidden": text.hidden_size,
        "inner": config_value(config, "intermediate_size") or 4 * text.hidden_size,
        "layers": text.num_hidden_layers,
        "heads": heads,
        "kv_heads": config_value(config, "num_key_value_heads") or heads,
        "head_dim": config_value(config, "head_dim") or (heads and text.hidden_size // heads),
        "vocabulary": text.vocab_size,
        "context": context_length(config),
        "architecture": type(model).__name__,
    }
