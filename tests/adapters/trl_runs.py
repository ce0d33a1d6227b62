"""Real TRL runs of the tiny model, what was sampled in them, and two-process runs of the same.

    python tests/adapters/trl_runs.py FOLDER    two processes; FOLDER/{on,off,turns}-N.pt

A `Judge` is a reward function that remembers every row it was shown, so that a test can make the
groups again and learn from them with our own learner.
"""

import faulthandler
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig

from bestofk.adapters.trl import BestOfKTrainer
from bestofk.learning import Learner, Optimizer
from bestofk.models import load
from bestofk.types import Group, Prompt, Trajectory
from rendezvous import as_rank, meeting_place

PROMPTS = ["3 5 7=15\n", "2 4 6=12\n", "1 2 3=6\n", "8 8 1=17\n", "9 1=10\n", "4 4 2=10\n"]
LENGTH = 12
"""Tokens per completion at most."""


def digits(text):
    """A real-valued reward in [0, 1] with many ties: the share of digits."""
    return sum(letter.isdigit() for letter in text) / max(len(text), 1)


def has_three(text):
    """A 0/1 reward."""
    return float("3" in text)


class Judge:
    """A reward function that keeps (prompt, completion's tokens, reward) of every row."""

    def __init__(self, score=digits, unscored=()):
        self.score, self.unscored = score, unscored
        self.rows, self.calls, self.__name__ = [], [], "judge"

    def __call__(self, prompts, completions, completion_ids, **_):
        rewards = [self.score(text) for text in completions]
        seen = len(self.rows)
        rewards = [None if seen + i in self.unscored else r for i, r in enumerate(rewards)]
        self.rows += zip(prompts, map(tuple, completion_ids), rewards)
        self.calls.append(len(rewards))
        return rewards

    def rewards(self, n):
        """(P, n), NaN where unscored, in the order of the calls."""
        values = [math.nan if reward is None else reward for *_, reward in self.rows]
        return np.array(values, dtype=np.float32).reshape(-1, n)


def prompts(count=6):
    return Dataset.from_dict({"prompt": PROMPTS[:count]})


def config(folder, **options):
    """Two groups of 8 per update, in two micro-batches; plain SGD on the gradient as it is."""
    given: dict[str, Any] = {
        "num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
        "max_completion_length": LENGTH, "max_steps": 1, "max_grad_norm": 0.0,
        "learning_rate": 1.0, "optim": "sgd", "lr_scheduler_type": "constant", "seed": 5,
        "bf16": False, "use_cpu": True, "gradient_checkpointing": False, "report_to": [],
        "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True,
    } | options  # fmt: skip
    return GRPOConfig(output_dir=str(folder), **given)


def trainer(folder, judge, objective="max@4", *, cls=BestOfKTrainer, named=None, **options):
    policy = load("tiny-countdown")
    named = {"train_dataset": prompts()} | (named or {})
    if objective is not None:
        named["objective"] = objective
    return cls(
        policy.model, judge, config(folder, **options), processing_class=policy.tokenizer, **named
    )


def with_environment():
    """A rollout_func, and its env_mask, which marks every second token as the environment's."""
    drawn = torch.Generator().manual_seed(3)
    masks = [[(t + 1) % 2 for t in range(4 + row % 3)] for row in range(16)]

    def roll_out(asked, run):
        ids = [torch.randint(5, 60, (len(mask),), generator=drawn).tolist() for mask in masks]
        return {
            "prompt_ids": [run.processing_class(text)["input_ids"] for text in asked],
            "completion_ids": ids,
            "logprobs": [[0.0] * len(each) for each in ids],
            "env_mask": masks,
        }

    return roll_out, masks


class Inner(TrainerCallback):
    """Keeps the advantages of every optimiser step, in the order of its rows."""

    run: Any = None

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, **_):
        every = args.gradient_accumulation_steps
        at = (self.run._step - every) % args.steps_per_generation
        used = self.run._buffered_inputs[at : at + every]
        self.seen.append([float(each) for batch in used for each in batch["advantages"]])


def inner_run(folder, judge, objective="max@4", *, named=None, **options):
    """A run of several optimiser steps per batch, by SGD, and what recorded them."""
    inner = Inner()
    given = {"loss_type": "luspo", "learning_rate": 0.0005} | options
    named = {"train_dataset": prompts()} | (named or {}) | {"callbacks": [inner]}
    run = inner.run = trainer(folder, judge, objective, named=named, **given)
    return run, inner


def weights_of(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def groups_of(rows, n):
    """The groups that TRL sampled, for our own learner."""
    tokenizer: Any = load("tiny-countdown").tokenizer
    made = []
    for at in range(0, len(rows), n):
        part = rows[at : at + n]
        assert len({prompt for prompt, *_ in part}) == 1, "a group is one prompt"
        prompt = Prompt(str(at), part[0][0], "trl")
        completions = tuple(Trajectory(ids, text=tokenizer.decode(ids)) for _, ids, _ in part)
        made.append(Group(prompt, completions, tuple(tokenizer(part[0][0])["input_ids"])))
    return made


def our_update(groups, weights, live=None):
    """What one SGD step of our own learner adds to the tiny model's weights."""
    policy = load("tiny-countdown")
    before = weights_of(policy.model)
    learner = Learner(policy.model, optimizer=Optimizer(learning_rate=1.0, max_grad_norm=0.0))
    learner.update.optimizer = torch.optim.SGD(policy.model.parameters(), lr=1.0)
    learner.step(groups, weights, live=live)
    return {name: value - before[name] for name, value in weights_of(policy.model).items()}


def in_the_loss(run):
    """(tokens, advantage) of every row of the last batch, as TRL's loss got them: shuffled."""
    return [
        (tuple(ids[mask.bool()].tolist()), float(advantage))
        for batch in run._buffered_inputs
        for ids, mask, advantage in zip(
            batch["completion_ids"], batch["completion_mask"], batch["advantages"]
        )
    ]


def assert_moved(before, after, ours, scale):
    """TRL's SGD step, times a constant, is ours up to the rounding of float32 weights."""
    largest = max(float(value.abs().max()) for value in ours.values())
    assert largest > 1e-3
    for name, value in after.items():
        moved = (value - before[name]) * scale
        torch.testing.assert_close(moved, ours[name], rtol=1e-3, atol=1e-4 * largest)


def logged(run, kind="loss"):
    return [line for line in run.state.log_history if kind in line]


def one_rank(folder, rank):
    """Three groups of 8 over two processes of 12 rows: the middle group lies on both."""
    judge = Judge(unscored=(2,) if rank else (9,))
    run = trainer(
        folder, judge, per_device_train_batch_size=6, max_steps=1, num_generations_eval=6,
        per_device_eval_batch_size=6, named={"eval_dataset": prompts(4)},
    )  # fmt: skip
    before = weights_of(run.model)
    run.train()
    after = weights_of(run.model)
    trained, judge.rows = judge.rows, []
    seen, noted = in_the_loss(run), list(run._logs["advantages"])
    found = run.evaluate()
    torch.save(
        {"rows": trained, "seen": seen, "logged": noted,
         "update": {name: after[name] - before[name] for name in after},
         "log": run.state.log_history[0], "evaluated": judge.rows, "eval": found},
        Path(folder) / f"on-{rank}.pt",
    )  # fmt: skip


def one_rank_off_policy(folder, rank):
    """Two groups on each process, one per optimiser step; two passes."""
    judge = Judge(unscored=(2,) if rank else ())
    run, inner = inner_run(
        folder, judge, gradient_accumulation_steps=1, steps_per_generation=2, num_iterations=2,
        max_steps=4,
    )  # fmt: skip
    run.train()
    torch.save(
        {"rows": judge.rows, "seen": inner.seen, "model": weights_of(run.model)},
        Path(folder) / f"off-{rank}.pt",
    )


class Turns:
    """Ends after as many messages as the row says; rewards long ones."""

    def reset(self, turns, **row):
        self.turns, self.heard = turns, list[str]()

    def __call__(self, text):
        self.heard.append(text)
        return "\n3 5 7=15\n" if len(self.heard) < self.turns else None

    def get_reward(self):
        return len("".join(self.heard)) / 100


def one_rank_of_turns(folder, rank):
    """The rows of the first process end after one turn, and some of the second after three."""
    data = prompts(3).add_column("turns", [1, 1, 3])
    options = {"per_device_train_batch_size": 6, "max_completion_length": 80}
    named = {"train_dataset": data, "environment_factory": Turns}
    run = trainer(folder, [], named=named, shuffle_dataset=False, **options)
    run.train()
    rows = []
    for batch in run._buffered_inputs:
        for at, mask in enumerate(batch["completion_mask"].bool()):
            shown = batch["prompt_ids"][at][batch["prompt_mask"][at].bool()]
            own = batch["tool_mask"][at][mask]
            rows.append((run._tokenizer.decode(shown), own.tolist()))
    torch.save(
        {"rows": rows, "logged": list(run._logs["advantages"]), "log": run.state.log_history[0]},
        Path(folder) / f"turns-{rank}.pt",
    )


def two_ranks(folder, one_rank):
    children = []
    _store, place = meeting_place()
    for rank in range(2):
        child = os.fork()
        if child:
            children.append(child)
            continue
        faulthandler.dump_traceback_later(100, exit=True)  # a hang ends, and says where
        as_rank(rank, 2, place)
        try:
            one_rank(folder, rank)
        except BaseException as error:
            os.write(2, f"rank {rank}: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


RUNS = (one_rank, one_rank_off_policy, one_rank_of_turns)

if __name__ == "__main__":
    torch.set_num_threads(1)
    ends = [two_ranks(sys.argv[1], each) for each in RUNS]
    print(json.dumps({"ends": ends}))
