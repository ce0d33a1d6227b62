"""What the GPU benchmarks share: model shapes, a tokenizer without files, prompts, a stopwatch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from bestofk.models.load import Lora, with_adapters
from bestofk.types import Prompt


def smollm_135m(**changes: Any) -> Any:
    """SmolLM2-135M's shape with random weights: 30 layers, 576, 9/3 heads, vocabulary 49,152."""
    shape: dict[str, Any] = {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes}))


def qwen_15b(**changes: Any) -> Any:
    """A shape of 1.5 billion weights: 28 layers, 1536, 12/2 heads of 128, vocabulary 151,936."""
    shape: dict[str, Any] = {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151_936,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return Qwen2ForCausalLM(Qwen2Config(**{**shape, **changes}))


def qwen_3b(**changes: Any) -> Any:
    """Qwen2.5-3B's shape: 36 layers, 2048, 16/2 heads of 128, vocabulary 151,936."""
    shape = {"hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36,
             "num_attention_heads": 16}  # fmt: skip
    return qwen_15b(**{**shape, **changes})


def qwen_7b(**changes: Any) -> Any:
    """Qwen2.5-7B's shape: 28 layers, 3584, 28/4 heads of 128, vocabulary 152,064."""
    shape = {
        "hidden_size": 3584, "intermediate_size": 18_944, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": False,
    }  # fmt: skip
    return qwen_15b(**{**shape, **changes})


def needs_cuda() -> None:
    """Leave, with a word, where there is no GPU."""
    if not torch.cuda.is_available():
        print("no CUDA device on this machine: nothing measured")
        sys.exit(0)


def made(make: Callable[..., Any], *, lora_rank: int = 0, **changes: Any) -> Any:
    """On the GPU in float32, always the same weights; with adapters, the base in bfloat16."""
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if lora_rank else usual)
    try:
        with torch.device("cuda"):
            model = make(**changes).eval()
    finally:
        torch.set_default_dtype(usual)
    return with_adapters(model, Lora(rank=lora_rank)) if lora_rank else model


def words(vocabulary: int, **special: Any) -> Any:
    """A tokenizer of the words t0, t1, ..."""
    core = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocabulary)}, unk_token="t0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, clean_up_tokenization_spaces=False, **special
    )


def prompts(count: int, length: int, vocabulary: int, seed: int = 0) -> list[Prompt]:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (count, length), generator=draw).tolist()
    return [Prompt(f"p{at}", " ".join(f"t{i}" for i in row), "bench") for at, row in enumerate(ids)]


def seconds(work: Callable[[], Any], repeats: int = 3) -> list[float]:
    """Wall-clock times of a call that has been made before."""
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return found


def kernels(work: Callable[[], Any], top: int = 16) -> list[tuple[str, float, int]]:
    """(kernel, milliseconds, calls) of a call, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    rows = [
        (event.key, event.self_device_time_total / 1e3, event.count)
        for event in profiler.key_averages()
    ]
    rows.append(("all kernels", sum(row[1] for row in rows), sum(row[2] for row in rows)))
    return sorted(rows, key=lambda row: -row[1])[: top + 1]
