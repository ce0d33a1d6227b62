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
from pathlib import Path

import bestofk
from bestofk.cli._recipe_flags import TrainArguments, override, split
from bestofk.cli._wrapping import wrapped
from bestofk.common import choices, json_safe
from bestofk.config import Config, leaves, read, read_own_config, replaced

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
        print(summary if words.json else wrapped(summary))
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
