"""`bestofk train`: train a model on a task for an objective; write the model and its evaluations.

bestofk train countdown-tiny --objective max@16 --run.dir runs/a
bestofk train --resume runs/a
bestofk train recipe.toml --dry-run
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any

from pydantic import Field

import bestofk
from bestofk.cli._options import VerbOptions, argument, collect, completed, flags_of
from bestofk.cli._recipe_flags import recipe_flags, recipe_help
from bestofk.cli._terminal import wrapped
from bestofk.config import Config, leaves, merged, read
from bestofk.messages import choices, is_quiet
from bestofk.storage import json_safe

if TYPE_CHECKING:
    from bestofk.training.resolve import RunSettings

ABOUT = """usage: bestofk train [RECIPE] [--section.key value ...]

Train a model on a task, or on your own data and reward. RECIPE is a .toml file
or the name of a shipped recipe:
  {recipes}

  --resume RUN   resume an interrupted run; it ends exactly like an
                 uninterrupted one
  --watch        serve a page of curves on this machine while the run trains
  --dry-run      show what differs from the defaults, tokens and memory;
                 --dry-run --verbose shows every setting
  --schema       print the JSON schema of a recipe, for editors
Several GPUs: torchrun --nproc_per_node 8 -m bestofk train RECIPE
Your data and reward: --task.name dataset --task.options.train rows.jsonl
                      --task.verifier myreward.py:reward"""


class TrainOptions(VerbOptions):
    """What a command line states beside settings."""

    recipe: str | None = argument("[RECIPE]", default=None)
    resume: str | None = None
    watch: bool = False
    dry_run: bool = False
    print_schema: bool = Field(False, json_schema_extra={"words": ["--schema"]})


def main(argv: list[str]) -> int:
    if {"-h", "--help", "--help-all"} & set(argv):
        names = textwrap.wrap(", ".join(shipped_recipes()) or "none here", 76)
        about = ABOUT.format(recipes="\n  ".join(names))
        print(recipe_help(about, everything="--help-all" in argv))
        return 0
    options, changes = split(argv)
    if options.print_schema:
        print(json.dumps(Config.model_json_schema(), indent=2))
        return 0
    settings = settled(options, changes)
    if not options.dry_run:
        return go(settings, options)
    from bestofk.training.cost import dry_run

    summary = dry_run(settings, everything=bool(os.environ.get("BESTOFK_TRACEBACK")))
    if options.as_json:
        lines = {"settings": dict(leaves(settings.recipe)), "said": summary.splitlines()}
        print(json.dumps(json_safe(lines), indent=2, default=str))
    else:
        print(wrapped(summary))
    return 0


def settled(options: TrainOptions, changes: dict[str, Any]) -> RunSettings:
    """The settings of a run that is resumed, or of one that a recipe and flags state."""
    from bestofk.training.resolve import resolve, resumed

    if options.resume is None:
        config = stated_by(options.recipe, changes)
        return resolve(config, dry=options.dry_run)
    if options.recipe is not None:
        raise ValueError(
            f"--resume uses the run's own config; leave the recipe {options.recipe} out"
        )
    return resumed(options.resume, changes)


def stated_by(recipe: str | None, changes: dict[str, Any]) -> Config:
    """What a recipe and changes to it state; its files may lie beside it."""
    if recipe is None:
        return merged(Config(), changes)
    path = find_recipe(recipe)
    return beside_recipe(merged(read(path), changes), path.parent)


def split(argv: list[str]) -> tuple[TrainOptions, dict[str, Any]]:
    """The options of the verb, and the settings by their dotted names."""
    own = flags_of(TrainOptions)
    values, loose = collect([*own, *recipe_flags()], argv, "bestofk train")
    own_values = {flag.name: values.pop(flag.name) for flag in own if flag.name in values}
    return completed(TrainOptions, own_values, loose, "bestofk train"), values


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
    names = shipped_recipes()
    raise FileNotFoundError(f"no recipe file {text}; shipped recipes: {choices(text, names)}")


def beside_recipe(config: Config, folder: Path) -> Config:
    """The config with files found beside the recipe where the working folder does not have them."""
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))
    for key in ("verifier", "scorer", "held_out", "environment"):
        names = getattr(config.task, key) or ""
        if ".py:" in names:
            result = re.sub(r"[^=, ][^=,]*\.py(?=:)", lambda file: _found(file[0], folder), names)
            config = merged(config, {f"task.{key}": result})
    for key in ("train", "validation", "test", "path", "checker"):
        source = config.task.options.get(key)
        if isinstance(source, str):
            config = merged(config, {f"task.options.{key}": _found(source, folder)})
    return config


def _found(path: str, folder: Path) -> str:
    return str(folder / path) if not Path(path).exists() and (folder / path).exists() else path


def go(settings: RunSettings, options: TrainOptions) -> int:
    """Train; 0 when the run is complete, 128 + the signal when one stopped it."""
    from bestofk.training.train import train

    first, as_json = os.environ.get("RANK", "0") == "0", options.as_json
    with contextlib.ExitStack() as around:
        if as_json:
            around.enter_context(contextlib.redirect_stdout(sys.stderr))
        if first and options.watch:
            around.enter_context(watched(settings.run.dir))
        elif first and not is_quiet():
            print(f"watch: bestofk report --watch {settings.run.dir}", flush=True)
        outcome = train(settings)
    stopped = outcome.signal is not None
    if first and as_json:
        by = None if outcome.signal is None else Signals(outcome.signal).name
        final = None if stopped else f"{outcome.path}/final"
        line = {"run": str(outcome.path), "step": outcome.step, "stopped_by": by, "final": final}
        print(json.dumps(line))
    elif first and stopped:
        print(f"stopped at step {outcome.step}; resume: bestofk train --resume {outcome.path}")
    elif first:
        print(f"done: {outcome.path}/final")
    return 128 + outcome.signal if outcome.signal is not None else 0


@contextlib.contextmanager
def watched(folder: str) -> Iterator[None]:
    """A page that follows the run, served by a process of its own for as long as this one lives."""
    command = [sys.executable, "-m", "bestofk", "report", "--watch", folder, "--port", "0"]
    server = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
    try:
        yield
    finally:
        server.terminate()
        server.wait()
