"""Make the tiny starting checkpoints: supervised learning on noisy demonstrations of a task.

    python recipes/tiny-start/pretrain.py countdown
    python recipes/tiny-start/pretrain.py maze
    python recipes/tiny-start/pretrain.py guests

A share of the demonstrations is spoiled, so that the policy knows how to answer but is often wrong:
what training for the mean and training for best-of-k then do to it differs from the first steps on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import bestofk
from bestofk.models import tiny
from bestofk.rewards import verifier
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.tasks import task
from bestofk.tasks.construct import compact_text
from bestofk.types import Prompt

Pair = tuple[str, str]


@dataclass(frozen=True)
class Start:
    """What one starting checkpoint is made from."""

    task: str
    options: dict[str, Any]
    """Of the task."""
    problems: int
    steps: int
    batch: int
    noise: float
    """Share of demonstrations that are spoiled."""
    spoil: str
    max_new_tokens: int
    schedule: int = 0
    """Steps on which the rate falls, where training stops before its end."""


STARTS = {
    "countdown": Start(
        task="countdown",
        options={"style": "compact"},
        problems=100_000,
        steps=2000,
        batch=512,
        noise=0.35,
        spoil="another target",
        max_new_tokens=20,
    ),
    "maze": Start(
        task="maze",
        options={"style": "compact", "layout": "open", "sizes": (5, 6), "test_sizes": (5, 6)},
        problems=60_000,
        steps=2000,
        batch=256,
        noise=0.35,
        spoil="one move at random",
        max_new_tokens=20,
    ),
    "guests": Start(
        task="construct",
        options={"kind": "independent", "sizes": (9,), "style": "compact"},
        problems=30_000,
        steps=1000,
        batch=128,
        noise=0.2,
        spoil="quarrels are overlooked",
        max_new_tokens=16,
        schedule=1200,
    ),
}


def countdown(prompt: Prompt, spoiled: bool, rng: random.Random) -> Pair:
    """The numbers in any order; spoiled: some other target."""
    numbers = list(prompt.spec["numbers"])
    rng.shuffle(numbers)
    target = rng.randint(10, 100) if spoiled else prompt.spec["target"]
    return f"{' '.join(map(str, numbers))} = {target}:", str(prompt.reference)


def maze(prompt: Prompt, spoiled: bool, rng: random.Random) -> Pair:
    """A shortest walk; spoiled: one move at random."""
    walk = list(str(prompt.reference))
    if spoiled:
        walk[rng.randrange(len(walk))] = rng.choice("UDLR")
    return str(prompt.text), "".join(walk)


def guests(prompt: Prompt, spoiled: bool, rng: random.Random) -> Pair:
    """The guests under other numbers. One to six of them are invited in order, each with chance .6
    where he gets along with those before; spoiled: whether he does or not."""
    names = rng.sample(range(9), 9)
    edges = sorted(sorted((names[a], names[b])) for a, b in prompt.spec["edges"])
    pairs = {(a, b) for a, b in edges}
    count, chosen = rng.randint(1, 6), list[int]()
    for guest in range(9):
        if len(chosen) < count and rng.random() < 0.6:
            quarrels = any((other, guest) in pairs for other in chosen)
            if spoiled or not quarrels:
                chosen.append(guest)
    chosen = chosen or [rng.randrange(9)]
    return compact_text({"edges": edges}, 9), " ".join(str(guest + 1) for guest in chosen)


DEMONSTRATE: dict[str, Callable[[Prompt, bool, random.Random], Pair]] = {
    "countdown": countdown,
    "maze": maze,
    "guests": guests,
}


def demonstrations(name: str, start: Start) -> Iterator[Pair]:
    """Prompts and completions without end, from the training share of the task's problems."""
    # Another seed than training uses: other problems first. Test problems belong to no seed's.
    prompts = task(start.task, **start.options, seed=1, train_size=start.problems).split("train")
    rng = random.Random(0)
    for position in count():
        yield DEMONSTRATE[name](prompts.at(position), rng.random() < start.noise, rng)


def best_of(model: Any, start: Start, ks: tuple[int, ...]) -> dict[str, float]:
    """max@k (pass@k where answers are right or wrong) on 256 validation problems, 64 samples each;
    and the same with each answer judged for the next problem, which shows how much it reads."""
    prompts = task(start.task, **start.options).split("validation")[:256]
    params = Sampling(samples_per_prompt=64, max_new_tokens=start.max_new_tokens)
    groups = ModelSampler(model, tiny.tokenizer()).sample(prompts, seed=0, sampling=params)
    table = {}
    for what, judged in (("", prompts), (" of another problem", prompts[1:] + prompts[:1])):
        rows = [(p, c.text) for p, group in zip(judged, groups) for c in group.trajectories]
        verdicts = verifier(start.task)([p for p, _ in rows], [text for _, text in rows])
        rewards = np.array([v.reward for v in verdicts]).reshape(len(groups), -1)
        for k in ks:
            table[f"max@{k}{what}"] = round(float(bestofk.max_at_k(rewards, k).mean()), 3)
    return table


def fit(
    model: LlamaForCausalLM,
    pairs: Iterator[tuple[str, str]],
    *,
    steps: int,
    batch: int,
    lr: float = 4e-3,
    warmup: int = 50,
) -> Iterator[float]:
    """Supervised learning of completions given prompts; yields the loss of every step.

    AdamW, the learning rate on a cosine down to a twentieth. Only completions are learned.
    """
    small, device = tiny.tokenizer(), model.device
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), fused=True)
    for step in range(steps):
        ids, labels = _batch(small, list(islice(pairs, batch)))
        hidden = model.model(input_ids=ids[:, :-1].to(device), use_cache=False).last_hidden_state
        targets = labels[:, 1:].to(device)
        learned = targets >= 0
        loss = cross_entropy(model.lm_head(hidden[learned]), targets[learned])
        falling = 0.05 + 0.475 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / warmup) * falling
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        yield loss.item()


def _batch(small: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """Ids and labels (−1 where nothing is learned), padded on the right."""
    prompts = small([prompt for prompt, _ in pairs])["input_ids"]
    answers = small([answer for _, answer in pairs])["input_ids"]
    rows = [[*prompt, *answer, small.eos_token_id] for prompt, answer in zip(prompts, answers)]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), small.pad_token_id)
    labels = torch.full((len(rows), width), -1)
    for at, (row, prompt) in enumerate(zip(rows, prompts)):
        ids[at, : len(row)] = torch.tensor(row)
        labels[at, len(prompt) : len(row)] = ids[at, len(prompt) : len(row)]
    return ids, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=STARTS)
    parser.add_argument("--out", type=Path, help="folder; by default the package's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, help="fewer, to try it out")
    asked = parser.parse_args()
    start = STARTS[asked.task]
    steps = asked.steps or start.steps
    home = Path(tiny.__file__).parent / "checkpoints" / f"tiny-{asked.task}"
    began = time.monotonic()
    model = tiny.untrained().to(asked.device)
    schedule = asked.steps or start.schedule or steps
    pairs = demonstrations(asked.task, start)
    losses = fit(model, pairs, steps=schedule, batch=start.batch)
    for step, loss in enumerate(islice(losses, steps), 1):
        if step % 100 == 0:
            print(f"step {step}/{steps}  loss {loss:.3f}", file=sys.stderr)
    minutes = (time.monotonic() - began) / 60
    card = {
        **asdict(start),
        "parameters": model.num_parameters(),
        "minutes": round(minutes, 1),
        "device": asked.device,
        "torch": torch.__version__,
        "validation": best_of(model.eval(), start, (1, 4, 16, 64)),
    }
    folder = asked.out or home
    model.float().cpu().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    (folder / "made.json").write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card["validation"]))


if __name__ == "__main__":
    main()
