"""The peers on one GPU: vLLM's sampling, and RL steps of TRL with vLLM inside.

    python benchmarks/gpu_peers.py vllm [135m] [15b]    tokens per second, log-probs on and off
    python benchmarks/gpu_peers.py trl [135m] [15b] [--micro ROWS]     seconds a step

Needs CUDA, vllm and trl. Shapes, prompts and lengths are those of gpu_sampling.py and gpu_step.py.
vLLM gets token ids, returns no text and shares prefixes, which helps it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, as TRL does it

import torch

from _gpu import needs_cuda, prompts, qwen_15b, seconds, smollm_135m, words

MODELS = {"135m": smollm_135m, "15b": qwen_15b}
SAMPLED = {"135m": ("32x16x64x128", "64x16x64x256", "16x64x512x128"), "15b": ("32x16x128x256",)}
STEPS = {"135m": ("32x16x64x128", 128), "15b": ("32x16x128x256", 32)}


def saved(name: str) -> str:
    """A folder with random weights of the shape and a tokenizer."""
    folder = tempfile.mkdtemp()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = MODELS[name]()
    model.to(torch.bfloat16).save_pretrained(folder)
    words(model.config.vocab_size, pad_token="t1", eos_token="t2").save_pretrained(folder)
    del model
    torch.cuda.empty_cache()
    return folder


def vllm(name: str, micro: int | None) -> None:
    """Whole `generate` calls: the best of three, after one other."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=saved(name), dtype="bfloat16", skip_tokenizer_init=True, max_num_seqs=512,
        max_model_len=1024, gpu_memory_utilization=0.8, enable_prefix_caching=True,
    )  # fmt: skip
    for shape in SAMPLED[name]:
        count, n, length, new = map(int, shape.split("x"))
        draw = torch.Generator().manual_seed(0)
        ids = torch.randint(3, 49_000, (count, length), generator=draw).tolist()
        asked: Any = [{"prompt_token_ids": row} for row in ids]
        for logprobs in (0, None):
            params = SamplingParams(
                n=n, max_tokens=new, min_tokens=new, ignore_eos=True, logprobs=logprobs,
                detokenize=False,
            )  # fmt: skip
            call = functools.partial(engine.generate, asked, params, use_tqdm=False)
            call()
            again = seconds(call)
            print(json.dumps({
                "vllm": name, "shape": shape, "logprobs": logprobs is not None, "seconds": again,
                "tokens_per_s": count * n * new / min(again),
            }), flush=True)  # fmt: skip


def trl(name: str, micro: int | None) -> None:
    """GRPOTrainer with vLLM in the same process: the mean of the steps after the first two."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            self.times.append(time.perf_counter())

    shape, usual = STEPS[name]
    micro = micro or usual
    count, n, length, new = map(int, shape.split("x"))
    clock = Clock()
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=micro,
        gradient_accumulation_steps=count * n // micro, num_generations=n,
        max_completion_length=new, max_steps=6, bf16=True, save_strategy="no", report_to=[],
        logging_steps=100, learning_rate=1e-6, gradient_checkpointing=False, use_vllm=True,
        vllm_mode="colocate", vllm_gpu_memory_utilization=0.3, vllm_max_model_length=512,
    )  # fmt: skip
    GRPOTrainer(
        model=saved(name),
        reward_funcs=lambda completions, **_: [len(text) % 7 / 7 for text in completions],
        args=settings,
        train_dataset=Dataset.from_list(
            [{"prompt": one.text} for one in prompts(count * 8, length, 49_000)]
        ),
        callbacks=[clock],
    ).train()
    taken = [after - before for before, after in zip(clock.times, clock.times[1:])][1:]
    print(json.dumps({
        "trl": name, "shape": shape, "micro_batch": micro, "seconds": taken,
        "step_s": sum(taken) / len(taken), "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("vllm", "trl"))
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--micro", type=int, help="rows of TRL's micro-batch")
    options = parser.parse_args()
    needs_cuda()
    for model_name in options.models:
        {"vllm": vllm, "trl": trl}[options.peer](model_name, options.micro)
