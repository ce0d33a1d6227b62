"""Make the tiny starting checkpoints: supervised learning on noisy demonstrations of a task.

    python recipes/tiny-start/pretrain.py countdown
    python recipes/tiny-start/pretrain.py maze

A share of the demonstrations is spoiled, so that the policy knows how to answer but is often wrong:
what training for the mean and training for best-of-k then do to it differs from the first steps on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bestofk
from bestofk.models import tiny
from bestofk.rewards import verifier
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.tasks import task
from bestofk.types import Prompt

Pair = tuple[str, str]


@dataclass(frozen=True)
class Start:
    """What one starting checkpoint is made from."""

    options: dict[str, Any]
    """Of the task."""
    problems: int
    steps: int
    batch: int
    noise: float
    """Share of demonstrations that are spoiled."""
    spoil: str
    max_new_tokens: int


STARTS = {
    "countdown": Start(
        options={"style": "compact"},
        problems=100_000,
        steps=2000,
        batch=512,
        noise=0.35,
        spoil="another target",
        max_new_tokens=20,
    ),
    "maze": Start(
        options={"style": "compact", "layout": "open", "sizes": (5, 6), "test_sizes": (5, 6)},
        problems=60_000,
        steps=2000,
        batch=256,
        noise=0.35,
        spoil="one move at random",
        max_new_tokens=20,
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


DEMONSTRATE: dict[str, Callable[[Prompt, bool, random.Random], Pair]] = {
    "countdown": countdown,
    "maze": maze,
}


def demonstrations(name: str, start: Start) -> Iterator[Pair]:
    """Prompts and completions without end, from the training share of the task's problems."""
    # Another seed than training uses: other problems first. Test problems belong to no seed's.
    prompts = task(name, **start.options, seed=1, train_size=start.problems).split("train")
    rng = random.Random(0)
    for prompt in prompts.stream():
        yield DEMONSTRATE[name](prompt, rng.random() < start.noise, rng)


def pass_at(model: Any, name: str, start: Start, ks: tuple[int, ...]) -> dict[str, float]:
    """pass@k on 256 validation problems, 64 samples each."""
    split = task(name, **start.options).split("validation")
    prompts = [split[i] for i in range(256)]
    params = Sampling(samples_per_prompt=64, max_new_tokens=start.max_new_tokens)
    groups = ModelSampler(model, tiny.tokenizer()).sample(prompts, seed=0, params=params)
    rows = [(group.prompt, done.text) for group in groups for done in group.completions]
    verdicts = verifier(name)([p for p, _ in rows], [text for _, text in rows])
    correct = np.array([v.reward for v in verdicts]).reshape(len(groups), params.n)
    return {f"pass@{k}": round(float(bestofk.pass_at_k(correct, k).mean()), 3) for k in ks}


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
    losses = tiny.fit(model, demonstrations(asked.task, start), steps=steps, batch=start.batch)
    for step, loss in enumerate(losses, 1):
        if step % 100 == 0:
            print(f"step {step}/{steps}  loss {loss:.3f}", file=sys.stderr)
    minutes = (time.monotonic() - began) / 60
    card = {
        "task": asked.task,
        **asdict(start),
        "parameters": model.num_parameters(),
        "minutes": round(minutes, 1),
        "device": asked.device,
        "torch": torch.__version__,
        "validation": pass_at(model.eval(), asked.task, start, (1, 4, 16, 64)),
    }
    folder = asked.out or home
    tiny.ship(model, folder)
    (folder / "made.json").write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card["validation"]))


if __name__ == "__main__":
    main()
