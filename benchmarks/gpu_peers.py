"""The peers on one GPU: vLLM's sampling, and RL steps of TRL with vLLM inside.

    python benchmarks/gpu_peers.py vllm [135m] [15b] [long] [--repeats N]      tokens per second
    python benchmarks/gpu_peers.py trl [135m] [15b] [3b] [7b] [--micro ROWS] [--checkpointing]
                                       [--steps N]                             seconds a step

Needs CUDA, vllm and trl. Shapes, prompts and lengths are those of gpu_sampling.py and gpu_step.py.
vLLM gets token ids, returns no text and shares prefixes, which helps it. It runs with log-probs and
without, on the long answers with them. TRL trains LoRA adapters of rank 16 through peft at 3b and
7b, and merges them into the base before each rollout, weight by weight into vLLM. Each model runs
in a process of its own.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # which not every machine has
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, as TRL does it

import torch

from _gpu import (
    ENDS,
    SPREAD,
    check_mean,
    ending,
    free_memory,
    made,
    needs_cuda,
    peaks,
    prompts,
    qwen_3b,
    qwen_7b,
    qwen_15b,
    reported,
    seconds,
    smollm_135m,
    wait,
    words,
)

MODELS = {"135m": smollm_135m, "15b": qwen_15b, "3b": qwen_3b, "7b": qwen_7b}
SAMPLED = {"135m": ("32x16x64x128", "64x16x64x256", "16x64x512x128"), "15b": ("32x16x128x256",)}
STEPS = {
    "135m": ("32x16x64x128", 128), "15b": ("32x16x128x256", 32), "3b": ("32x16x128x256", 32),
    "7b": ("32x16x128x256", 16),
}  # fmt: skip
LORA = ("3b", "7b")


def saved(name: str) -> str:
    """A folder with random weights of the shape in bfloat16 and a tokenizer; gone at the end."""
    if name in SPREAD:
        model = ending(*SPREAD[name][:2]).to(torch.bfloat16)
    else:
        model = made(MODELS[name], dtype=torch.bfloat16)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    memory = "/dev/shm"
    room = os.path.isdir(memory) and shutil.disk_usage(memory).free > 1.5 * size
    folder = tempfile.mkdtemp(dir=memory if room else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model.save_pretrained(folder)
    words(model.config.vocab_size, pad_token="t1", eos_token="t2").save_pretrained(folder)
    del model
    free_memory()  # vLLM counts what is free on the card
    return folder


def vllm(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds until the engine is there; its figures, by shape, are lines of their own."""
    from vllm import LLM

    began = time.perf_counter()
    folder = saved(name)
    kept = time.perf_counter() - began
    engine = LLM(
        model=folder, dtype="bfloat16", skip_tokenizer_init=True, max_num_seqs=512,
        max_model_len=8192 if name in SPREAD else 1024, gpu_memory_utilization=0.8,
        enable_prefix_caching=True,
    )  # fmt: skip
    started = time.perf_counter() - began
    for shape in SPREAD[name][2] if name in SPREAD else SAMPLED[name]:
        for logprobs in (0,) if name in SPREAD else (0, None):
            work = functools.partial(generated, engine, name, shape, logprobs, options.repeats)
            reported("vllm", f"{name} {shape}", work)
    return {"save_s": kept, "start_s": started}


def generated(
    engine: Any, name: str, shape: str, logprobs: int | None, repeats: int | None
) -> dict[str, Any]:
    """Whole `generate` calls after one other: the best of three, of two where lengths vary."""
    from vllm import SamplingParams

    count, n, length, new = map(int, shape.split("x"))
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 49_000, (count, length), generator=draw).tolist()
    asked: Any = [{"prompt_token_ids": row} for row in ids]
    varied = name in SPREAD
    ends = {"stop_token_ids": list(range(SPREAD[name][2][shape]))} if varied else {}
    drawn: list[int] = []

    def call(limit: int = new) -> None:
        params = SamplingParams(
            n=n, max_tokens=limit, min_tokens=0 if varied else limit, ignore_eos=True,
            logprobs=logprobs, detokenize=False, **ends,
        )  # fmt: skip
        rows = engine.generate(asked, params, use_tqdm=False)
        drawn.append(sum(len(one.token_ids) for row in rows for one in row.outputs))

    call(64 if varied else new)
    taken = seconds(call, repeats or (2 if varied else 3))
    if varied:
        mean = SPREAD[name][1] * ENDS // len(ends["stop_token_ids"])
        check_mean(sum(drawn[1:]) / len(taken) / (count * n), mean)
    return {
        "shape": shape, "logprobs": logprobs is not None, "seconds": taken,
        "mean_tokens": sum(drawn[1:]) / len(taken) / (count * n),
        "tokens_per_s": max(tokens / each for tokens, each in zip(drawn[1:], taken)), **peaks(),
    }  # fmt: skip


def grpo_settings(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of GRPOConfig."""
    shape, usual = STEPS[name]
    micro = options.micro or usual
    count, n, _, new = map(int, shape.split("x"))
    return {
        "output_dir": tempfile.mkdtemp(), "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": count * n // micro, "num_generations": n,
        "max_completion_length": new, "bf16": True,
        "max_steps": options.steps or (4 if name in LORA else 6),
        "save_strategy": "no", "report_to": [], "logging_steps": 100, "learning_rate": 1e-6,
        "gradient_checkpointing": options.checkpointing, "use_vllm": True,
        "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3,
        "vllm_max_model_length": 512,
        **({"model_init_kwargs": {"dtype": "bfloat16"}} if name in LORA else {}),
    }  # fmt: skip


def trl(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """GRPOTrainer with vLLM in the same process: the mean of the steps after the first two."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []
            self.held: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            wait()
            self.times.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait()
            self.times.append(time.perf_counter())
            self.held.append(peaks()["device_gib"])
            step = {"trl": name, "step": len(self.held), "step_s": self.times[-1] - self.times[-2]}
            print(json.dumps(step), flush=True)

    shape, _ = STEPS[name]
    count, _, length, _ = map(int, shape.split("x"))
    began = time.perf_counter()
    folder = saved(name)
    kept = time.perf_counter() - began
    clock, settings, adapters = Clock(), grpo_settings(name, options), None
    if name in LORA:
        from peft import LoraConfig

        adapters = LoraConfig(
            r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear",
            task_type="CAUSAL_LM",
        )  # fmt: skip
    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=lambda completions, **_: [len(text) % 7 / 7 for text in completions],
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_list(
            [{"prompt": one.text} for one in prompts(count * 8, length, 49_000)]
        ),
        callbacks=[clock],
        peft_config=adapters,
    )
    started = time.perf_counter() - began
    trainer.train()
    taken = [after - before for before, after in zip(clock.times, clock.times[1:])]
    later = taken[2:] or taken[-1:]
    return {
        "shape": shape, "micro_batch": settings["per_device_train_batch_size"],
        "gradient_checkpointing": options.checkpointing, "lora": name in LORA, "seconds": taken,
        "step_s": sum(later) / len(later), "save_s": kept, "start_s": started,
        **peaks(), "device_gib": max(clock.held),
    }  # fmt: skip


def main(asked: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("vllm", "trl"))
    parser.add_argument("models", nargs="*")
    parser.add_argument("--micro", type=int, help="rows of TRL's micro-batch")
    parser.add_argument("--checkpointing", action="store_true", help="TRL's, against memory")
    parser.add_argument("--steps", type=int, help="of TRL; the first two are left out")
    parser.add_argument("--repeats", type=int, help="timed calls of vLLM; the best counts")
    options = parser.parse_args(asked)
    needs_cuda()
    known = {"vllm": [*SAMPLED, "long"], "trl": list(STEPS)}[options.peer]
    models = options.models or known
    if unknown := set(models) - set(known):
        parser.error(f"{options.peer} has {', '.join(known)}, not {', '.join(sorted(unknown))}")
    if len(models) == 1:
        work = functools.partial({"vllm": vllm, "trl": trl}[options.peer], models[0], options)
        reported(options.peer, models[0], work)
        return
    flags = [word for word in asked[1:] if word not in options.models]
    for name in models:  # an engine keeps its memory as long as its process lives
        subprocess.run([sys.executable, __file__, options.peer, name, *flags])


if __name__ == "__main__":
    main(sys.argv[1:])
