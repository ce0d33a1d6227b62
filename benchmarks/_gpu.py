"""What the GPU benchmarks share: model shapes, a tokenizer without files, prompts, a stopwatch."""

from __future__ import annotations

import gc
import json
import math
import sys
import time
import traceback
import warnings
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

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Figures are taken on CUDA; on CPU the same code runs on tiny shapes, as a check of itself."""
warnings.filterwarnings("error", message="the group engine does not run")  # transformers is slow


def smollm_135m(**changes: Any) -> Any:
    """SmolLM2-135M's shape with random weights: 30 layers, 576, 9/3 heads, vocabulary 49,152."""
    shape: dict[str, Any] = {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49_152,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes}))


def qwen_05b(**changes: Any) -> Any:
    """Qwen2.5-0.5B's shape: 24 layers, 896, 14/2 heads of 64, vocabulary 151,936."""
    shape = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
             "num_attention_heads": 14}  # fmt: skip
    return qwen_15b(**{**shape, **changes})


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


def made(
    make: Callable[..., Any],
    *,
    lora_rank: int = 0,
    fp8: bool = False,
    dtype: torch.dtype | None = None,
    **changes: Any,
) -> Any:
    """On the GPU, always the same weights: in float32, or in bfloat16 or FP8 below adapters."""
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype or (torch.bfloat16 if lora_rank else usual))
    try:
        with torch.device(DEVICE):
            model = make(**changes).eval()
    finally:
        torch.set_default_dtype(usual)
    return with_adapters(model, Lora(rank=lora_rank, fp8=fp8)) if lora_rank else model


ENDS = 8
"""End tokens, ids 0 to 7; the engine looks for no more."""
SPREAD: dict[str, tuple[Callable[..., Any], int, dict[str, int]]] = {
    "long": (smollm_135m, 512, {"32x16x128x2048": 8, "32x16x128x4096": 4}),
    "short": (qwen_05b, 140, {"16x32x250x512": 8, "64x32x250x512": 8}),
}
"""Exponential lengths: the model, the mean length with all end tokens, and how many of them each
shape looks for. Half of the end tokens double the mean, so one model serves several shapes."""


@torch.no_grad()
def ending(make: Callable[..., Any], mean: int, **changes: Any) -> Any:
    """A model that draws one of the first ENDS tokens with probability 1/mean, after any text.

    Every embedding has a 1 in its first place and tiny weights elsewhere, so after the last norm
    the first place is nearly constant. The head's rows of the end tokens read it alone. All other
    tokens are nearly uniform.
    """
    model = made(make, tie_word_embeddings=False, initializer_range=0.002, **changes)
    head = model.get_output_embeddings().weight
    model.get_input_embeddings().weight[:, 0] = 1.0
    head[:ENDS] = 0.0
    ids = torch.randint(ENDS, len(head), (4, 128), device=DEVICE)
    states = model.get_decoder()(ids, use_cache=False).last_hidden_state.flatten(0, 1)
    others = (states @ head[ENDS:].T).logsumexp(-1)
    head[:ENDS, 0] = ((others - math.log(ENDS * (mean - 1))) / states[:, 0]).mean()
    found = (states @ head.T).softmax(-1)[:, :ENDS].sum(-1).mean().item() * mean
    assert abs(found - 1) < 0.05, f"end tokens have {found:.3f} of the probability asked for"
    return model


def check_mean(tokens: float, expected: float) -> None:
    """Lengths are as planned, up to chance and the limit."""
    assert abs(tokens / expected - 1) < 0.2, f"{tokens:.0f} tokens a row, not {expected:.0f}"


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
        wait()
        began = time.perf_counter()
        work()
        wait()
        found.append(time.perf_counter() - began)
    return found


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def peaks() -> dict[str, float]:
    """PyTorch's peaks since the last reset, and what the whole card holds now, in GiB."""
    if DEVICE != "cuda":
        return {"peak_gib": 0.0, "peak_reserved_gib": 0.0, "device_gib": 0.0}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "peak_reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "device_gib": (total - free) / 2**30,
    }


def reported(
    benchmark: str, case: str, work: Callable[[], dict[str, Any]], **facts: Any
) -> dict[str, Any]:
    """What `work` found, or its error, as a line of JSON; then its kernels. Frees memory.

    Args:
        facts: for the line, whatever is found.
    """
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        found = work()
    except Exception as error:  # the other cases are still worth having
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"[:500]
        found = {"error": text} | ({"fits": False} if "out of memory" in text else {})
    line = {"benchmark": benchmark, "case": case, **facts, **found}
    print(json.dumps({k: v for k, v in line.items() if k != "kernels"}), flush=True)
    for kernel, ms, calls in found.get("kernels", []):
        print(f"    {ms:9.2f} ms {calls:7d}x {kernel[:90]}", flush=True)
    free_memory()
    return found


def free_memory() -> None:
    """Of objects that nobody refers to, back to the card."""
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


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
