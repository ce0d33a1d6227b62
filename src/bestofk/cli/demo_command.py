"""`bestofk demo`: run the experiment, print the table, write the page."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bestofk.cli import VERBS
from bestofk.cli._options import VerbOptions, parsed
from bestofk.cli._progress import bar
from bestofk.common import write_atomically
from bestofk.demo import (
    Results,
    Settings,
    conditions,
    experiment,
    page,
    rows,
    sentence,
    standalone,
)

# The verb it needs: (command, what it does). Only verbs that exist are shown.
NEXT = {
    "objectives": ("bestofk objectives", "every objective, with its formula, claim and source"),
    "train": ("bestofk train --help", "the same, on a language model"),
    "eval": ("bestofk eval samples.jsonl --k 1,4,16,64", "samples of your own, with intervals"),
    "demo": ("bestofk demo --seed 1 --steps 1000", "other worlds, trained for longer"),
}
IN_PYTHON = (
    'bestofk.advantages(rewards, "max@8")',
    "in Python: the weights themselves, for a training loop of your own; rewards are (prompts, n)",
)


@dataclass(frozen=True, kw_only=True)
class Demo(VerbOptions):
    """What training for one sample does to best-of-k: a table and a page, in seconds.

    One small policy is trained from one start, with equally many samples, for the
    mean, for max@8 and by Pass@8 Training, and evaluated exactly on held-out
    prompts. Needs NumPy only.
    """

    out: Path = Path("demo.html")
    """File for the page, one self-contained HTML file. An existing file is replaced."""
    svg: Path | None = None
    """Also write the figure alone, as an SVG file."""
    seed: int = Settings.seed
    """Decides worlds, prompts and samples: the same seed gives the same numbers."""
    steps: int = Settings.steps
    """Updates of each run."""
    worlds: int = Settings.worlds
    """Independent repetitions; the intervals are over them."""


def main(argv: list[str]) -> int:
    chosen = parsed(Demo, argv, "bestofk demo")
    settings = Settings(seed=chosen.seed, steps=chosen.steps, worlds=chosen.worlds)
    if chosen.svg is not None and chosen.svg.resolve() == chosen.out.resolve():
        raise ValueError(f"--out and --svg both name {chosen.out}: give two files")
    for target in (chosen.out, chosen.svg):
        if target is not None:
            require_writable(target)
    began = time.perf_counter()
    results = run(settings)
    write_atomically(chosen.out, page(results, next_steps()))
    if chosen.svg is not None:
        write_atomically(chosen.svg, standalone(results))
    seconds = time.perf_counter() - began
    if chosen.json:
        print(json.dumps(summary(results, seconds, chosen.out), indent=2))
    else:
        show(results, seconds, chosen.out)
    return 0


def run(settings: Settings) -> Results:
    """The experiment, with a bar on standard error where a person looks on."""
    with bar("training three runs", 1.0, transient=True) as advance:
        return experiment(settings, advance)


def summary(results: Results, seconds: float, out: Path) -> dict[str, Any]:
    """What `--json` prints: the table, with halves of the 95% intervals over worlds."""
    table = {
        row.label: {
            name: {"value": mean, "half": half}
            for name, mean, half in zip(results.names, row.means, row.halves)
        }
        for row in rows(results)
    }
    settings = results.settings
    facts = {"seed": settings.seed, "steps": settings.steps, "worlds": settings.worlds}
    return {"page": str(out), "seconds": seconds, **facts, "table": table}


def show(results: Results, seconds: float, out: Path) -> None:
    """The table, the sentence, the conditions and where to look; plain text when piped."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± still gets its table
    console = Console(highlight=False)
    table = Table(
        title="Held-out pass@k in %, entropy in nats, after training",
        title_justify="left",
        title_style="",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("")
    styles = ("dim", "dark_orange3", "dodger_blue2", "green4")
    for name, style in zip(results.names, styles):
        table.add_column(name, justify="right", header_style=style)
    for row in rows(results):
        cells = [f"[bold]{c}[/bold]" if best else c for c, best in zip(row.cells, row.best)]
        table.add_row(row.label, *cells)
    console.print()
    console.print(table)
    console.print()
    console.print(sentence(results))
    console.print()
    console.print(f"{conditions(results)}.", style="dim")
    console.print()
    console.print(f"{seconds:.1f} s. The curves: {out}", soft_wrap=True, markup=False)


def next_steps() -> list[tuple[str, str]]:
    """What to try after the page, of what this version can do."""
    return [IN_PYTHON, *(step for verb, step in NEXT.items() if verb in VERBS)]


def require_writable(target: Path) -> None:
    """Raise a ValueError, before any work is done, where the page cannot be written."""
    folder = target.resolve().parent
    if target.is_dir():
        raise ValueError(f"{target} is a folder: give a file name, such as {target / 'demo.html'}")
    if target.exists() and not target.is_file():
        raise ValueError(f"{target} is not a regular file: give a file name, such as demo.html")
    if not folder.is_dir():
        raise ValueError(f"folder {folder} does not exist: make it first, or choose another file")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"folder {folder} is not writable: choose another file")
