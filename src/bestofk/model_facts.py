"""What a causal language model is made of, below adapters and packing."""

from __future__ import annotations

from typing import Any


def base_model(model: Any) -> Any:
    """The model below its LoRA adapters (peft), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def unpacked(parameter: Any) -> Any:
    """A weight as numbers: one that bitsandbytes holds in 4 bits is written out."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)


def config_value(config: Any, name: str) -> Any:
    """A setting of a model's text config; None where it has none, or another for each layer."""
    try:
        return getattr(config.get_text_config(), name, None)
    except Exception:  # transformers' error for a setting that differs between layers
        return None


NEEDED = (
    "training and sampling need a causal language model (a decoder with a head over the "
    "vocabulary), such as a Llama, Qwen or GPT-2 checkpoint"
)
