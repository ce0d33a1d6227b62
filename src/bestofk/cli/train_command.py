"""`bestofk train`: a model, a task and an objective in; a better model and the evidence out.

bestofk train recipes/countdown-tiny/run.toml --objective max@16 --run.dir runs/a
bestofk train --resume runs/a
bestofk train recipe.toml --dry-run
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bestofk.common import did_you_mean
from bestofk.config import (
    OPTION_FIELDS,
    Config,
    literal,
    merged,
    read,
    read_own_config,
    replaced,
    value_at,
)
from bestofk.moved_keys import KEYS, with_moved_keys

ABOUT = """Train a model for what k of its samples are worth.

`bestofk train RECIPE.toml --section.key value ...` takes a recipe and what differs from it.

`bestofk train --resume RUN` continues a run, bit for bit.

`bestofk train RECIPE.toml --dry-run` shows the resolved config, tokens and memory.

`accelerate launch --num_processes 8 -m bestofk train RECIPE.toml` uses several GPUs.

Entries of mappings are dotted as well: `--task.options.numbers 3`."""


@dataclass(frozen=True)
class TrainArguments:
    """The command line, apart from the config's own flags."""

    recipe: str | None = None
    resume: str | None = None
    dry_run: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    earlier: dict[str, Any] = field(default_factory=dict)
    """Flags of earlier versions, by section and key."""
    rest: tuple[str, ...] = ()


def main(argv: list[str]) -> int:
    words = split(argv)
    if words.resume is not None:
        return resumed(words)
    start = Config() if words.recipe is None else read(words.recipe)
    config = override(start, words)
    if words.recipe is None and not words.dry_run and not argv:
        raise ValueError(
            "a recipe is needed, such as recipes/countdown-tiny/run.toml; or --resume RUN; "
            "bestofk train --help says more"
        )
    if words.dry_run:
        from bestofk.training.cost import dry_run

        print(dry_run(config))
        return 0
    return go(config)


def split(argv: Sequence[str]) -> TrainArguments:
    """Take out the recipe, --resume, --dry-run and dotted options; the rest is the config's."""
    words, rest, options = list(argv), list[str](), dict[str, Any]()
    earlier: dict[str, Any] = {}
    recipe = resume = None
    dry_run = False
    while words:
        word = words.pop(0)
        name, joined, value = word.removeprefix("--").partition("=")
        field_of = next((f for f in OPTION_FIELDS if _plain(name).startswith(f"{f}.")), None)
        if word == "--dry-run":
            dry_run = True
        elif word.startswith("--") and _plain(name) in KEYS:
            has_value = words and not words[0].startswith("--")
            value = value if joined else words.pop(0) if has_value else "true"
            section, _, key = _plain(name).partition(".")
            earlier.setdefault(section, {})[key] = literal(value)
        elif word.startswith("--") and (name == "resume" or field_of):
            if not joined:
                if not words:
                    raise ValueError(f"{word} needs a value")
                value = words.pop(0)
            if field_of:
                key = _plain(name).removeprefix(f"{field_of}.")
                if not key or "." in key:
                    raise ValueError(
                        f"{word} names no entry of {field_of}: write --{field_of}.NAME value"
                    )
                options[_plain(name)] = literal(value)
            else:
                resume = value
        elif hint := _own_flag(word):
            raise ValueError(f"unknown flag {word}; {hint}")
        elif recipe is None and (word.endswith(".toml") or not (rest or word.startswith("-"))):
            recipe = word
        else:
            rest.append(word)
    return TrainArguments(recipe, resume, dry_run, options, earlier, tuple(rest))


def _own_flag(word: str) -> str:
    """A suggestion where the word is nearly --dry-run or --resume; tyro suggests the config's."""
    if not word.startswith("-") or "." in word:
        return ""
    return did_you_mean(word.replace("_", "-"), ("--dry-run", "--resume"), cutoff=0.8).rstrip()


def _plain(name: str) -> str:
    return name.replace("-", "_")


def override(config: Config, words: TrainArguments) -> Config:
    """The config with the flags' values, parsed and explained by tyro; open options by us."""
    import tyro

    if words.earlier:
        config = merged(config, with_moved_keys(words.earlier))
    kept = {name: dict(value_at(config, name)) for name in OPTION_FIELDS}
    for name, value in words.options.items():
        section, _, key = name.rpartition(".")
        kept[section][key] = value
    for name in kept:
        config = replaced(config, name, {})
    config = tyro.cli(
        Config, default=config, args=list(words.rest), prog="bestofk train", description=ABOUT
    )
    for name, options in kept.items():
        config = replaced(config, name, options)
    return config


def resumed(words: TrainArguments) -> int:
    """Continue a run: its own config, and what may be changed about it."""
    assert words.resume is not None
    if words.recipe is not None:
        raise ValueError(f"--resume uses the run's own config; leave the recipe {words.recipe} out")
    folder, checkpoint = Path(words.resume), None
    if folder.parent.name == "checkpoints" and (folder / "state.json").exists():
        folder, checkpoint = folder.parents[1], folder.name
    if not (folder / "config.toml").is_file():
        raise FileNotFoundError(
            f"{folder} is not a run: it has no config.toml; --resume takes the folder that "
            "--run.dir named, or one of its checkpoints"
        )
    config = override(read_own_config(folder), words)
    return go(replaced(config, "run.dir", str(folder)), resume=True, checkpoint=checkpoint)


def go(config: Config, *, resume: bool = False, checkpoint: str | None = None) -> int:
    from bestofk.runs import refuse_begun
    from bestofk.training.checks import check, check_installed

    check(config)  # before torch is imported, let alone a model loaded
    check_installed(config)
    first = os.environ.get("RANK", "0") == "0"
    if first and not resume:
        refuse_begun(config.run.dir)
    try:
        from bestofk.training.train import train
    except ModuleNotFoundError as error:
        raise ValueError(f"training needs {error.name}: pip install 'bestofk[train]'") from error
    outcome = train(config, resume=resume, checkpoint=checkpoint)
    if outcome.signal is not None:
        if first:
            print(
                f"stopped at step {outcome.step}; continue: bestofk train --resume {outcome.path}"
            )
        return 128 + outcome.signal
    if first:
        print(f"done: {outcome.path}/final")
    return 0
