"""Tiny policies: Llama models of at most 0.4 M parameters with a small tokenizer of their own.

They make a run on two CPU cores meaningful: a countdown problem is a dozen tokens, its answer too.
"""

from __future__ import annotations

from itertools import product

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END = "<pad>", "<end>"
DIGITS = "0123456789"
LIMIT = 400_000
"""Parameters of a tiny policy, at most."""


def vocabulary() -> dict[str, int]:
    """Padding, end, newline, printable ASCII, and all numbers of two digits (with leading zeros).

    Anything else in a text becomes "?", so every text can be encoded.
    """
    characters = ["\n", *map(chr, range(32, 127))]
    pairs = ["".join(pair) for pair in product(DIGITS, repeat=2)]
    return {token: i for i, token in enumerate([PAD, END, *characters, *pairs])}


def tokenizer() -> PreTrainedTokenizerFast:
    """Characters, except that digits are taken two at a time from the left.

    >>> small = tokenizer()
    >>> small.tokenize("23 7 = 101:")
    ['23', ' ', '7', ' ', '=', ' ', '10', '1', ':']
    >>> small.decode(small("(23-7)*2")["input_ids"])
    '(23-7)*2'
    """
    core = Tokenizer(models.WordLevel(vocabulary(), unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[0-9]{2}|[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def untrained(
    *,
    hidden: int = 64,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 1,
    inner: int = 192,
    seed: int = 0,
    length: int = 1024,
) -> LlamaForCausalLM:
    """A model with random weights.

    >>> untrained().num_parameters() <= LIMIT
    True
    """
    ids = vocabulary()
    config = LlamaConfig(
        vocab_size=len(ids),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids[END],
        pad_token_id=ids[PAD],
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
