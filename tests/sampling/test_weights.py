"""Weights as other engines read them: those of the saved model, adapters folded in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import MixtralConfig, MixtralForCausalLM

from bestofk.models.load import Lora, with_adapters
from bestofk.sampling.weights import named_weights
from policies import MODELS, fixed, llama


def mixtral() -> Any:
    """Experts are fused when transformers loads them, and apart on disk."""
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=3,
            num_experts_per_tok=2,
            max_position_embeddings=128,
        )
    )


@pytest.mark.parametrize("make", [*MODELS.values(), mixtral], ids=[*MODELS, "mixtral"])
def test_names_and_values_are_those_on_disk(make: Callable[[], Any], tmp_path: Path) -> None:
    model = fixed(make)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    given = list(named_weights(model))
    assert len(given) == len(saved)
    named = dict(given)
    assert named.keys() == saved.keys()
    assert all(torch.equal(named[name], saved[name]) for name in saved)


def test_adapters_are_folded_in_and_the_model_is_not_touched() -> None:
    model = with_adapters(fixed(llama), Lora(rank=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    given = dict(named_weights(model))
    assert all(torch.equal(before[name], now) for name, now in model.named_parameters())
    merged = dict(model.merge_and_unload().named_parameters())
    assert given.keys() == merged.keys()
    moved = [name for name in merged if not torch.equal(merged[name], dict(llama_weights())[name])]
    assert len(moved) == 3 * 7  # every linear layer of three blocks
    for name, weight in merged.items():
        torch.testing.assert_close(given[name], weight.detach(), rtol=1e-6, atol=1e-6)


def llama_weights() -> list[tuple[str, torch.Tensor]]:
    return list(fixed(llama).named_parameters())


def test_layers_come_one_after_the_other() -> None:
    """An engine that rebuilds a layer when it has all of it holds one at a time."""
    names = [name for name, _ in named_weights(fixed(llama))]
    layers = [name.split(".")[2] for name in names if ".layers." in name]
    assert layers == sorted(layers)
    assert set(layers) == {"0", "1", "2"}
