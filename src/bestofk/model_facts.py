"""What a causal language model is made of, below adapters and packing, and whether it is one."""

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


def check_causal(model: Any, name: str = "the model") -> None:
    """Raise for a model in which a token changes the logits of tokens before it, as in an encoder.

    Two texts that differ in the last token alone are compared, without its own logits.
    """
    import torch

    kind = f"{name} ({type(model).__name__})"
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder with a decoder: {NEEDED}")
    if model.device.type == "meta":
        return
    ids = torch.arange(1, 9, device=model.device) % model.config.get_text_config().vocab_size
    other = ids.clone()
    other[-1] = 0
    with torch.no_grad():
        both = model(input_ids=torch.stack([ids, other]), use_cache=False).logits[:, :-1].float()
    moved = float((both[0] - both[1]).abs().max())
    rounding = 1e-4 if model.dtype == torch.float32 else 3e-2
    if not moved <= rounding * max(float(both.std()), 1e-6):
        raise ValueError(
            f"{kind} is not causal: changing the last token of a text moved the logits of earlier "
            f"tokens by {moved:.2g}, as in an encoder; {NEEDED}"
        )
