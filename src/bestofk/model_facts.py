"""What a causal language model is made of, below adapters and packing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def base_model(model: Any) -> Any:
    """The model below its LoRA adapters (peft), or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def unpacked(parameter: Any, scale: Any = None) -> Any:
    """A weight as numbers: one that bitsandbytes holds in 4 bits is written out, one in FP8 is
    multiplied by its scale, exactly."""
    if scale is not None:
        return parameter.detach().bfloat16() * scale.bfloat16()
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)


def merged(base: Any, *, adapters: bool = True) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of every weight as if there were no adapters: theirs are added in, or, without
    `adapters`, left out."""
    adapted = adapted_modules(base)
    scales = {id(m.weight): m.row_scale for m in base.modules() if hasattr(m, "row_scale")}
    for name, parameter in base.named_parameters():
        owner = next((each for each in adapted if name.startswith(f"{each}.")), None)
        if owner is None:
            yield name, unpacked(parameter, scales.get(id(parameter)))
            continue
        inner = name.removeprefix(f"{owner}.base_layer.")
        if inner == name:
            continue  # of the adapter itself
        weight = unpacked(parameter, scales.get(id(parameter)))
        dtype = weight.dtype
        if adapters and inner == "weight":
            for adapter in adapted[owner].active_adapters:
                weight = weight.float() + adapted[owner].get_delta_weight(adapter).float()
        yield f"{owner}.{inner}", weight.to(dtype)


def adapted_modules(base: Any) -> dict[str, Any]:
    """Modules that peft wrapped with adapters, by name."""
    return {
        name: module
        for name, module in base.named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
    }


def decoder_layers(base: Any) -> list[Any]:
    """A model's layers; which modules they are it says itself, by class."""
    names = set(getattr(base, "_no_split_modules", None) or ())
    return [module for module in base.modules() if type(module).__name__ in names]


def attention_sizes(config: Any) -> tuple[int, int, int]:
    """Heads, those that keys and values have, and the size of each."""
    heads = config_value(config, "num_attention_heads") or 1
    size = config_value(config, "head_dim") or (config_value(config, "hidden_size") or 0) // heads
    return heads, config_value(config, "num_key_value_heads") or heads, size


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
