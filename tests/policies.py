"""Small policies and groups for tests of sampling and learning."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from bestofk.learning.attention import flash_groups, flash_groups_backward
from bestofk.types import Group, Prompt, Trajectory


class TableConfig(PreTrainedConfig):
    model_type = "table"

    def __init__(self, vocab_size: int = 4, **kwargs: Any) -> None:
        self.vocab_size = vocab_size
        self.num_hidden_layers = 1
        super().__init__(**kwargs)


class Table(PreTrainedModel):
    """A policy whose logits are its parameters: those after token a are table[a]."""

    config_class = TableConfig

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.zeros(config.vocab_size, config.vocab_size))
        self.post_init()

    def forward(
        self, input_ids: Tensor, past_key_values: Any = None, **kwargs: Any
    ) -> CausalLMOutputWithPast:
        logits: Any = self.table[input_ids]
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)


def table(logits: Any, end: int | None = None) -> Table:
    values = torch.as_tensor(np.asarray(logits), dtype=torch.float32)
    model = Table(TableConfig(vocab_size=len(values), eos_token_id=end))
    model.table.data.copy_(values)
    return model


def letters(count: int, end: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer of the first letters of the alphabet; number `end` ends a completion."""
    names = [chr(ord("a") + i) for i in range(count)]
    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=None if end is None else names[end], pad_token=names[0]
    )


_SHAPE: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}


def llama(**changes: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**{**_SHAPE, "tie_word_embeddings": True, **changes}))


def qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_SHAPE))


def gemma2() -> PreTrainedModel:
    """Windows and capped logits: attention cannot be replaced, the head is not last."""
    shape: dict[str, Any] = {**_SHAPE, "sliding_window": 5, "attn_implementation": "eager"}
    return Gemma2ForCausalLM(Gemma2Config(**shape))


def gpt2() -> PreTrainedModel:
    shape: dict[str, Any] = {
        "vocab_size": 60,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "bos_token_id": None,
        "eos_token_id": 1,
        "initializer_range": 0.3,
    }
    return GPT2LMHeadModel(GPT2Config(**shape))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "gpt2": gpt2,
}


def fixed(make: Callable[[], Any], seed: int = 0, device: str = "cpu") -> Any:
    """The same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval().to(device)


def group(prompt: Sequence[int], answers: Sequence[Sequence[int]], name: str = "p") -> Group:
    done = tuple(Trajectory(np.array(answer)) for answer in answers)
    return Group(Prompt(name, "", "test"), done, tuple(prompt))


def with_turns(groups: Sequence[Group], seed: int = 0) -> list[Group]:
    """The same texts, of which the policy drew some tokens only, in every possible order."""
    rng = np.random.default_rng(seed)

    def turned(drawn: Trajectory) -> Trajectory:
        own = rng.random(len(drawn.tokens)) < 0.6
        own[rng.integers(len(own))] = True
        return replace(drawn, own=own)

    return [replace(one, trajectories=tuple(map(turned, one.trajectories))) for one in groups]


def random_groups(
    prompts: int, n: int, *, vocabulary: int = 60, longest: int = 12, seed: int = 0
) -> list[Group]:
    """Prompts and completions of all lengths, one token included."""
    rng = np.random.default_rng(seed)

    def tokens(length: int) -> list[int]:
        return rng.integers(2, vocabulary, length).tolist()

    return [
        group(
            tokens(int(rng.integers(1, 14))),
            [tokens(int(rng.integers(1, longest))) for _ in range(n)],
            f"p{p}",
        )
        for p in range(prompts)
    ]


def answers(vocabulary: int, end: int, longest: int) -> Iterator[tuple[int, ...]]:
    """Every completion: tokens up to and with the first `end`, or cut at `longest`."""
    for length in range(1, longest + 1):
        for tokens in itertools.product(range(vocabulary), repeat=length):
            ended = tokens[-1] == end or length == longest
            if ended and end not in tokens[:-1]:
                yield tokens


# FlashAttention's two passes run on CUDA alone: here the same is computed by one mask, on CPU.


def _scores_of(
    query: Tensor, key: Tensor, parts: Tensor, queries: Tensor, keys: Tensor, scale: float
) -> Tensor:
    """The scores over the whole sequence (heads, T, T), -inf where a token does not see another."""
    place = torch.arange(len(query))
    part = torch.searchsorted(parts.long(), place, right=True) - 1
    run = torch.searchsorted(queries.long(), place, right=True) - 1
    without_keys = keys.diff() == 0
    is_prompt, group = without_keys[run], without_keys.cumsum(0)[run]
    own = (part[:, None] == part) & (place[:, None] >= place)
    to_prompt = (group[:, None] == group) & is_prompt & ~is_prompt[:, None]
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
    return scores.masked_fill(~(own | to_prompt), -torch.inf)


@flash_groups.register_kernel("cpu")
def _(query, key, value, parts, queries, keys, prompt_at, first, a, b, c, scale):
    share = query.shape[1] // key.shape[1]
    k, v = (each.repeat_interleave(share, 1) for each in (key, value))
    scores = _scores_of(query, k, parts, queries, keys, scale)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.float())
    return out.to(query.dtype).contiguous(), scores.logsumexp(-1)


@flash_groups_backward.register_kernel("cpu")
def _(grad, query, key, value, out, total, parts, queries, keys, prompt_at, first, a, b, c, scale):
    share = query.shape[1] // key.shape[1]
    k, v = (each.repeat_interleave(share, 1).float() for each in (key, value))
    chances = _scores_of(query, k, parts, queries, keys, scale).softmax(-1)
    grad = grad.float()
    by_chance = torch.einsum("qhd,khd->hqk", grad, v)
    by_score = chances * (by_chance - (chances * by_chance).sum(-1, keepdim=True)) * scale
    dq = torch.einsum("hqk,khd->qhd", by_score, k)
    dk = torch.einsum("hqk,qhd->khd", by_score, query.float())
    dv = torch.einsum("hqk,qhd->khd", chances, grad)
    shape = (len(key), key.shape[1], share, -1)
    summed = (each.reshape(shape).sum(2) for each in (dk, dv))
    return tuple(each.to(query.dtype).contiguous() for each in (dq, *summed))
