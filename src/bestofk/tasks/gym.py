"""Puzzles from reasoning-gym (Apache-2.0), by name. Which are allowed is the verifier's to say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bestofk.tasks.base import Split, Task, identity, one_of, share_of, unknown, wording
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

    def entries(split: str, patience: int = 20_000) -> Iterator[Prompt]:
        """Distinct questions that belong to the split, from one endless source."""
        chunk, missed, seen, start = 500, 0, set[str](), 0
        while True:
            made = reasoning_gym.create_dataset(
                dataset, seed=seed * 1_000_003 + start, size=chunk, **settings
            )
            for i in range(chunk):
                entry = json.loads(json.dumps(made[i]))
                key = f"gym {dataset} {entry['question']}"
                if key in seen or _split_of(key) != split:
                    missed += 1
                    if missed > patience:
                        raise ValueError(
                            f"gym {dataset}: {patience} entries in a row gave no new one after "
                            f"{len(seen)}; ask for fewer prompts or widen its config"
                        )
                    continue
                missed = 0
                seen.add(key)
                yield Prompt(
                    id=identity(f"gym-{dataset}", key),
                    text=wording(style, entry["question"].strip() + _ASK, ""),
                    task="gym",
                    spec={"entry": entry},
                    reference=f"<answer>{entry['answer']}</answer>",
                )
            start += 1

    return Task(
        name="gym",
        verifier="gym",
        verifier_options={"dataset": dataset, "config": settings},
        make=lambda split: Split(entries(split), sizes[split], seed=seed, shuffle=False),
        splits=tuple(sizes),
        licence="generated (reasoning-gym, Apache-2.0)",
        summary=f"reasoning-gym's {dataset}",
    )


def _split_of(key: str) -> str:
    split = share_of(key)
    return "train" if split == "ood" else split
