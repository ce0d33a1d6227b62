"""Small models of several families, with gains and biases that are not one and zero."""

from __future__ import annotations

from typing import Any

import torch


def family(name: str) -> Any:
    """Models whose layers are of the usual kind, and some whose layers only look like it."""
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.3,
    }  # fmt: skip
    changes: dict[str, dict[str, Any]] = {
        "Mistral": {"sliding_window": 6},
        "Granite": {"residual_multiplier": 0.5},
        "Gemma": {"head_dim": 8},
        "Qwen3": {"head_dim": 16},
        "SmolLM3": {"no_rope_layers": [1, 0]},
    }
    config = getattr(transformers, f"{name}Config")(**shape, **changes.get(name, {}))
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for module_name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # gains of one, and biases of zero, would hide a mistake
            torch.nn.init.normal_(parameter, 0.0 if "bias" in module_name else 1.0, 0.3)
    return model
