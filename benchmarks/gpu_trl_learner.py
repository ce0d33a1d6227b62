"""TRL's learner on the rows of gpu_learner.py, on one GPU: seconds a step and peak memory.

    python benchmarks/gpu_trl_learner.py [shape]       needs CUDA and trl

GRPOTrainer's own loss, backward pass and optimiser over given rows; nothing is sampled. Micro-batch
and gradient checkpointing are tried; the fastest that runs is the peer.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import torch

from _gpu import made, needs_cuda, seconds, smollm_135m, words
from gpu_learner import random_groups


def trainer_for(micro: int, n: int, checkpointing: bool) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model = made(smollm_135m)
    tokenizer = words(model.config.vocab_size, pad_token="t1", eos_token="t2")
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=micro, num_generations=n,
        bf16=True, gradient_checkpointing=checkpointing, report_to=[], learning_rate=1e-6,
        logging_steps=10**6, save_strategy="no", optim="adamw_torch_fused", max_steps=10,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "t3 t4"}] * 64),
        processing_class=tokenizer,
    )
    trainer.create_optimizer()
    trainer.model_wrapped, trainer.optimizer = trainer.accelerator.prepare(
        trainer.model, trainer.optimizer
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model_wrapped.train()
    return trainer


def measured(shape: str, micro: int, checkpointing: bool) -> dict[str, Any]:
    count, n, length, new = map(int, shape.split("x"))
    trainer = trainer_for(micro, n, checkpointing)
    groups = random_groups(shape, trainer.model.config.vocab_size)
    prompts = torch.tensor([g.prompt_tokens for g in groups for _ in range(n)], device="cuda")
    done = torch.tensor([c.tokens.tolist() for g in groups for c in g.trajectories], device="cuda")
    weights = torch.randn(len(prompts), generator=torch.Generator().manual_seed(1)).cuda()
    tokens = torch.tensor(done.numel(), device="cuda")

    def step() -> None:
        for first in range(0, len(prompts), micro):
            rows = slice(first, first + micro)
            inputs = {
                "prompt_ids": prompts[rows], "prompt_mask": torch.ones_like(prompts[rows]),
                "completion_ids": done[rows], "completion_mask": torch.ones_like(done[rows]),
                "advantages": weights[rows], "num_items_in_batch": tokens,
            }  # fmt: skip
            loss = trainer._compute_loss(trainer.model_wrapped, inputs)
            trainer.accelerator.backward(loss)
        trainer.accelerator.clip_grad_norm_(trainer.model_wrapped.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    step()
    step()
    torch.cuda.reset_peak_memory_stats()
    again = seconds(step, 3)
    return {
        "shape": shape, "micro_batch": micro, "gradient_checkpointing": checkpointing,
        "seconds": again, "row_tokens_per_s": count * n * (length + new) / min(again),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }  # fmt: skip


def main(asked: list[str]) -> None:
    for shape in asked or ["20x32x512x128"]:
        for micro, checkpointing in ((32, False), (64, False), (128, False), (128, True)):
            try:
                print(json.dumps(measured(shape, micro, checkpointing)), flush=True)
            except torch.OutOfMemoryError:
                print(f"{shape}: micro-batches of {micro} rows do not fit", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    needs_cuda()
    main(sys.argv[1:])
