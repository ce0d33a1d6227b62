"""Puzzles from reasoning-gym (Apache-2.0), by name. Which are allowed is the verifier's to say."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bestofk.common import unknown
from bestofk.tasks.definition import Split, Task, identity, one_of, share_of, wording
from bestofk.types import Prompt

STYLES = ("chat", "text")
_ASK = "\n\nThink first if you like, then give the answer alone between <answer> and </answer>."


def gym(
    *,
    dataset: str = "leg_counting",
    config: Mapping[str, Any] | None = None,
    style: str = "chat",
    seed: int = 0,
    train_size: int = 2000,
    validation_size: int = 200,
    test_size: int = 200,
) -> Task:
    """One task of reasoning-gym.

    Args:
        dataset: its name there.
        config: its settings (besides seed and size).
        style: "chat" or "text".
    """
    one_of("style", style, STYLES)
    try:
        import reasoning_gym
    except ImportError as error:
        raise ValueError("this needs reasoning-gym: pip install 'bestofk[gym]'") from error
    if dataset not in reasoning_gym.factory.DATASETS:
        raise unknown("reasoning-gym task", dataset, reasoning_gym.factory.DATASETS)
    settings = dict(config or {})
    sizes = {"train": train_size, "validation": validation_size, "test": test_size}

    def make(split: str) -> Split:
        source = _entries(reasoning_gym.create_dataset, dataset, settings, seed, split, style)
        return Split(source, sizes[split], seed=seed, shuffle=False)

    return Task(
        name="gym",
        verifier="gym",
        verifier_options={"dataset": dataset, "config": settings},
        make=make,
        splits=tuple(sizes),
        licence="generated (reasoning-gym, Apache-2.0)",
        summary=f"reasoning-gym's {dataset}",
    )


def _entries(
    create: Callable[..., Any],
    dataset: str,
    settings: Mapping[str, Any],
    seed: int,
    split: str,
    style: str,
    patience: int = 20_000,
) -> Iterator[Prompt]:
    """Distinct questions that belong to the split, from one endless source."""
    missed, seen = 0, set[str]()
    for part in itertools.count(seed * 1_000_003):
        for entry in create(dataset, seed=part, size=500, **settings):
            entry = json.loads(json.dumps(entry))
            key = f"gym {dataset} {entry['question']}"
            if key not in seen and _split_of(key) == split:
                missed = 0
                seen.add(key)
                yield Prompt(
                    id=identity(f"gym-{dataset}", key),
                    text=wording(style, entry["question"].strip() + _ASK, ""),
                    task="gym",
                    spec={"entry": entry},
                    reference=f"<answer>{entry['answer']}</answer>",
                )
                continue
            missed += 1
            if missed > patience:
                raise ValueError(
                    f"gym {dataset}: {patience} entries in a row gave no new one after "
                    f"{len(seen)}; ask for fewer prompts or widen its config"
                )


def _split_of(key: str) -> str:
    split = share_of(key)
    return "train" if split == "ood" else split
