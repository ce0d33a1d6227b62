"""A supervised start: maximum likelihood on a task's own solutions, before reinforcement learning.

    python recipes/supervised-start/train.py gsm8k --model smollm2 --out runs/gsm8k-start
    python recipes/supervised-start/train.py mbpp --model smollm2 --out runs/mbpp-start --epochs 3

Where a model solves almost nothing, almost no group has signal. A pass over the training split's
solutions teaches the form of an answer; the result is the start that later runs are compared with.
Each solution is a group of one sample with weight 1, so the loss is -log π(solution).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from bestofk import models, tasks
from bestofk.learning import Learner, Optimizer
from bestofk.sampling.prompts import encode
from bestofk.types import Group, Prompt, Trajectory


def solved(prompts: Sequence[Prompt], tokenizer) -> list[Group]:
    """A group for every prompt whose solution is known: the solution and the end token."""
    groups = []
    for prompt in prompts:
        if prompt.reference is None:
            continue
        ids = tokenizer(prompt.reference, add_special_tokens=False)["input_ids"]
        done = Trajectory([*ids, tokenizer.eos_token_id], text=prompt.reference)
        groups.append(Group(prompt, (done,), encode(tokenizer, prompt)))
    return groups


def batches(groups: list[Group], size: int, epochs: int, seed: int) -> Iterator[list[Group]]:
    """Whole batches, shuffled anew in every epoch."""
    order = random.Random(seed)
    for _ in range(epochs):
        order.shuffle(groups)
        for first in range(0, len(groups) - size + 1, size):
            yield groups[first : first + size]


def main() -> list[float]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", help="`bestofk tasks` lists them; it must know solutions")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="solutions per optimiser step")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--limit", type=int, help="the first problems only")
    parser.add_argument("--style", default="chat")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    policy = models.load(args.model, device=args.device)
    split = tasks.task(args.task, style=args.style).split("train")
    count = min(len(split), args.limit or len(split))
    groups = solved([split[i] for i in range(count)], policy.tokenizer)
    if len(groups) < args.batch:
        raise SystemExit(
            f"{args.task} knows {len(groups)} solutions of {count} training problems, a batch has "
            f"{args.batch}: take another task, or --batch {max(1, len(groups))}"
        )
    steps = args.epochs * (len(groups) // args.batch)
    learner = Learner(
        policy.model,
        optimizer=Optimizer(
            learning_rate=args.learning_rate, warmup_steps=steps // 20, schedule="linear"
        ),
        total_steps=steps,
        precision="bf16" if args.device.startswith("cuda") else "fp32",
        tokens_per_micro_batch=None,
    )
    losses = []
    for step, batch in enumerate(batches(groups, args.batch, args.epochs, args.seed)):
        stats = learner.step(batch, np.ones((args.batch, 1)))
        tokens = np.mean([len(group.trajectories[0].tokens) for group in batch])
        losses.append(float(stats["loss"] / tokens))
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step + 1}/{steps}  loss per token {losses[-1]:.3f}", flush=True)
    print(f"{models.save(policy, args.out)}: {len(groups):,} solutions, {args.epochs} epochs")
    return losses


if __name__ == "__main__":
    main()
