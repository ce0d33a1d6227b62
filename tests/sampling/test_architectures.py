"""Any causal LM of transformers: what is sampled has the log-probs of a plain forward pass.

Small random models made from transformers' own config classes. The learner computes the same
log-probs, in its training pass too: with dropout in the config and gradient checkpointing on.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from bestofk.learning import Learner
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.types import Group, Prompt
from policies import fixed, letters

SMALL: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "d_model", "n_embd", "lru_width", "attention_hidden_size"], 32),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim"], 48),
    **dict.fromkeys(
        ["num_hidden_layers", "num_layers", "n_layer", "n_layers", "decoder_layers"], 2
    ),
    **dict.fromkeys(["num_attention_heads", "n_head", "n_heads", "num_heads"], 4),
    **dict.fromkeys(["n_positions", "n_ctx", "max_position_embeddings", "max_seq_len"], 64),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts", "mamba_n_heads"], 4),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 16),
    **dict.fromkeys(["q_lora_rank", "kv_lora_rank", "mamba_d_head"], 16),
    **dict.fromkeys(["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "head_dim"], 8),
    **dict.fromkeys(["state_size", "mamba_d_state", "rotary_dim"], 8),
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim"], 8),
    **dict.fromkeys(["linear_num_key_heads", "linear_num_value_heads"], 2),
    **dict.fromkeys(["num_experts_per_tok", "num_key_value_heads", "decoder_attention_heads"], 2),
    **dict.fromkeys(["n_group", "topk_group", "first_k_dense_replace", "bos_token_id"], 1),
    **dict.fromkeys(["sliding_window", "attention_window_size", "local_attention"], 5),
    "vocab_size": 60,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_groups": 1},
    "bart": {"is_decoder": True, "is_encoder_decoder": False},
    "deepseek_v3": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 5},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "mamba2": {"num_heads": 8, "n_groups": 2, "chunk_size": 4},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
}
# fmt: off
WAYS = {
    "cache": [
        "bamba", "bloom", "codegen", "cohere2", "ctrl", "deepseek_v3", "falcon", "gemma",
        "gemma3_text", "glm4", "gpt2", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gpt_oss",
        "gptj", "granite", "jamba", "llama", "mamba2", "mistral", "mixtral", "modernbert-decoder",
        "mpt", "nemotron", "olmo2", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen3_moe",
        "qwen3_next", "smollm3", "stablelm", "starcoder2", "xglm",
    ],
    "cache of equal lengths": ["bart", "mamba"],
    "no cache": ["openai-gpt", "recurrent_gemma", "rwkv"],
}
# fmt: on
PARAMS = Sampling(samples_per_prompt=3, max_new_tokens=10)
PROMPTS = [Prompt(f"p{i}", "cdefghijkl"[: 3 + 4 * (i % 2)], "test") for i in range(3)]


def made(kind: str) -> PreTrainedModel:
    """A random model with dropout in its config and logits that differ."""
    known = CONFIG_MAPPING[kind]().to_dict() | dict.fromkeys(CONFIG_MAPPING[kind].attribute_map)
    wanted = {name: value for name, value in SMALL.items() if name in known}
    dropout = {name: 0.2 for name, value in known.items() if "drop" in name and value is not None}
    wanted |= {name: rate for name, rate in dropout.items() if isinstance(known[name], float)}
    config = CONFIG_MAPPING[kind](**{**wanted, **OWN.get(kind, {})})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() >= 2 and parameter.std() < 0.15:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
def plain_log_probs(model: PreTrainedModel, group: Group) -> list[np.ndarray]:
    rows = []
    for done in group.trajectories:
        ids = torch.tensor([[*group.prompt_tokens, *done.tokens]])
        logits = model(input_ids=ids, use_cache=False).logits[0, -len(done.tokens) - 1 : -1]
        rows.append(logits.log_softmax(-1).gather(-1, ids[0, -len(done.tokens) :, None])[:, 0])
    return [row.numpy() for row in rows]


@pytest.mark.filterwarnings("ignore:.*rows are padded from now on")
@pytest.mark.parametrize(("kind", "way"), [(kind, way) for way in WAYS for kind in WAYS[way]])
def test_sampler_and_learner_have_the_log_probs_of_a_plain_pass(kind: str, way: str) -> None:
    model = fixed(lambda: made(kind))
    sampler = ModelSampler(model, letters(60, end=1))
    slow = pytest.warns(UserWarning, match="a pass over the whole text")
    with slow if way == "no cache" else contextlib.nullcontext():
        groups = sampler.sample(PROMPTS, seed=0, sampling=PARAMS)
    assert sampler.way == way
    learner = Learner(model, gradient_checkpointing=model.supports_gradient_checkpointing)
    scores = learner.log_probs(groups)
    for group, scored in zip(groups, scores.tokens, strict=True):
        plain = plain_log_probs(model, group)
        for done, mine, row in zip(group.trajectories, scored, plain, strict=True):
            np.testing.assert_allclose(done.log_probs, row, atol=1e-4)
            np.testing.assert_allclose(mine, row, atol=1e-4)
    stats = learner.step(groups, np.arange(9.0).reshape(3, 3) - 4)
    assert stats["sampler_gap_max"] < 1e-4
    assert stats["grad_norm"] > 0


def test_a_model_that_is_not_causal_is_not_sampled() -> None:
    with pytest.raises(ValueError, match=r"BertLMHeadModel has log-probs .* not a causal"):
        ModelSampler(fixed(lambda: made("bert")), letters(60, end=1)).sample(
            PROMPTS, seed=0, sampling=PARAMS
        )
