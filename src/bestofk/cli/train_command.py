"""`bestofk train`: train a model on a task for an objective; write the model and its evaluations.

bestofk train countdown-tiny --objective max@16 --run.dir runs/a
bestofk train --resume runs/a
bestofk train recipe.toml --dry-run
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bestofk
from bestofk.common import choices, did_you_mean, json_safe
from bestofk.config import (
    OPTION_FIELDS,
    Config,
    leaves,
    literal,
    merged,
    read,
    read_own_config,
    replaced,
    value_at,
)
from bestofk.moved_keys import KEYS, with_moved_keys

ABOUT = """usage: bestofk train [RECIPE] [--section.key value ...]

Train a model on a task, or on your own data and reward. RECIPE is a .toml file
or the name of a shipped recipe:
  {recipes}

  --resume RUN   resume an interrupted run; it ends exactly like an
                 uninterrupted one
  --dry-run      show what differs from the defaults, tokens and memory;
                 --dry-run --verbose shows every setting
  --json         print the result as JSON
Several GPUs: accelerate launch --num_processes 8 -m bestofk train RECIPE
Your data and reward: --task.name dataset --task.options.train rows.jsonl
                      --task.verifier myreward.py:reward"""


@dataclass(frozen=True)
class TrainArguments:
    """The command line, apart from the config's own flags."""

    recipe: str | None = None
    resume: str | None = None
    dry_run: bool = False
    json: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    earlier: dict[str, Any] = field(default_factory=dict)
    """Flags of earlier versions, by section and key."""
    rest: tuple[str, ...] = ()


def main(argv: list[str]) -> int:
    if {"-h", "--help", "--help-all"} & set(argv):
        from bestofk.cli._settings import help_text

        about = ABOUT.format(recipes=", ".join(shipped_recipes()) or "none here")
        print(help_text(about, everything="--help-all" in argv))
        return 0
    words = split(argv)
    if words.resume is not None:
        return resumed(words)
    if not argv:
        raise ValueError(
            "a recipe is needed, such as countdown-tiny; or --resume RUN; "
            "bestofk train --help says more"
        )
    recipe = None if words.recipe is None else find_recipe(words.recipe)
    config = override(Config() if recipe is None else read(recipe), words)
    if recipe is not None:
        config = beside_recipe(config, recipe.parent)
    if words.dry_run:
        from bestofk.training.cost import dry_run

        summary = dry_run(config, everything=bool(os.environ.get("BESTOFK_TRACEBACK")))
        if words.json:
            lines = {"settings": dict(leaves(config)), "said": summary.splitlines()}
            summary = json.dumps(json_safe(lines), indent=2, default=str)
        print(summary)
        return 0
    return go(config, as_json=words.json)


RECIPES = (Path(bestofk.__file__).parent / "recipes", Path(bestofk.__file__).parents[2] / "recipes")
"""Where shipped recipes are: inside the installed package, or in a clone."""


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted({path.parent.name for folder in RECIPES for path in folder.glob("*/run.toml")})


def find_recipe(text: str) -> Path:
    """A recipe's file, or the run.toml of a shipped recipe by its name."""
    if text.endswith(".toml") or Path(text).exists():
        return Path(text)
    for folder in RECIPES:
        if (folder / text / "run.toml").is_file():
            return folder / text / "run.toml"
    known = shipped_recipes()
    raise FileNotFoundError(f"no recipe file {text}; shipped recipes: {choices(text, known)}")


def beside_recipe(config: Config, folder: Path) -> Config:
    """The config with files found beside the recipe where the working folder does not have them."""
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))
    name = config.task.verifier
    if name and ".py:" in name:
        file, _, function = name.rpartition(":")
        result = _found(file, folder)
        config = replaced(config, "task.verifier", f"{result}:{function}")
    for key in ("train", "validation", "test", "path"):
        given = config.task.options.get(key)
        if isinstance(given, str):
            config = replaced(config, f"task.options.{key}", _found(given, folder))
    return config


def _found(path: str, folder: Path) -> str:
    return str(folder / path) if not Path(path).exists() and (folder / path).exists() else path


def split(argv: Sequence[str]) -> TrainArguments:
    """Take out the recipe, --resume, --dry-run and dotted options; the rest is the config's."""
    words, rest, options = list(argv), list[str](), dict[str, Any]()
    earlier: dict[str, Any] = {}
    recipe = resume = None
    dry_run = as_json = False
    while words:
        word = words.pop(0)
        name, joined, value = word.removeprefix("--").partition("=")
        field_of = next((f for f in OPTION_FIELDS if _plain(name).startswith(f"{f}.")), None)
        if word == "--dry-run":
            dry_run = True
        elif word == "--json":
            as_json = True
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
    return TrainArguments(recipe, resume, dry_run, as_json, options, earlier, tuple(rest))


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
    config = tyro.cli(Config, default=config, args=list(words.rest), prog="bestofk train")
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
    return go(
        replaced(config, "run.dir", str(folder)),
        resume=True,
        checkpoint=checkpoint,
        as_json=words.json,
    )


def go(
    config: Config, *, resume: bool = False, checkpoint: str | None = None, as_json: bool = False
) -> int:
    """Train; 0 when the run is complete, 128 + the signal when one stopped it."""
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
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        outcome = train(config, resume=resume, checkpoint=checkpoint)
    stopped = outcome.signal is not None
    pushed = None
    if first and not stopped:
        from bestofk.training.hub import push_final

        pushed = push_final(config, outcome.path)
    if first and as_json:
        line = {"run": str(outcome.path), "step": outcome.step, "signal": outcome.signal}
        print(json.dumps({**line, "final": None if stopped else f"{outcome.path}/final"}))
    elif first and stopped:
        print(f"stopped at step {outcome.step}; resume: bestofk train --resume {outcome.path}")
    elif first:
        print(f"done: {outcome.path}/final" + (f"\npushed: {pushed}" if pushed else ""))
    return 128 + outcome.signal if outcome.signal is not None else 0
