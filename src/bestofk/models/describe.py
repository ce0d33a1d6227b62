"""The shape of a model, from its config alone: no weights are read."""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from bestofk.models.load import find


def describe(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> dict[str, Any]:
    """Parameters, hidden size, layers, heads, key-value heads, vocabulary and architecture.

    >>> describe("tiny-countdown")["parameters"]
    201664
    """
    place, options = find(name)
    options["trust_remote_code"] = trust_remote_code
    config = AutoConfig.from_pretrained(place, **options)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    return {
        "parameters": int(model.num_parameters()),
        "hidden": text.hidden_size,
        "layers": text.num_hidden_layers,
        "heads": heads,
        "kv_heads": getattr(text, "num_key_value_heads", None) or heads,
        "vocabulary": text.vocab_size,
        "architecture": type(model).__name__,
    }
