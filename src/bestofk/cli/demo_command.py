"""`bestofk demo`: run the experiment, print the table, write the page."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from bestofk.cli._options import VerbOptions, parsed
from bestofk.cli._tables import table
from bestofk.cli._terminal import bar, in_columns
from bestofk.demo import Results, Settings, conditions, experiment, page, rows, sentence
from bestofk.sections import NaturalNumber
from bestofk.storage import check_writable, write_atomically

NEXT_STEPS = [
    (
        'bestofk.advantages(rewards, "max@8")',
        "in Python: the weights themselves, for a training loop of your own; rewards are "
        "(prompts, n)",
    ),
    ("bestofk objectives", "which objective to use when"),
    ("bestofk train --help", "the same, on a language model"),
    ("bestofk eval samples.jsonl --k 1,4,16,64", "samples of your own, with intervals"),
    ("bestofk demo --seed 1 --steps 1000", "other worlds, trained for longer"),
]
"""What to try after the page."""


class DemoOptions(VerbOptions):
    """What training for one sample does to best-of-k: a table and a page, in seconds.

    One small policy is trained from one start, with equally many samples, for the
    mean, for max@8 and by Pass@8 Training, and evaluated exactly on held-out
    prompts. Needs NumPy only.
    """

    out: Path = Path("demo.html")
    """File for the page, one self-contained HTML file. An existing file is replaced."""
    seed: NaturalNumber = Settings.seed
    """Decides worlds, prompts and samples: the same seed gives the same numbers."""
    steps: Annotated[int, Field(ge=1, le=10_000)] = Settings.steps
    """Updates of each run."""
    worlds: Annotated[int, Field(ge=2, le=30)] = Settings.worlds
    """Independent repetitions; the intervals are over them."""


def main(argv: list[str]) -> int:
    chosen = parsed(DemoOptions, argv, "bestofk demo")
    settings = Settings(seed=chosen.seed, steps=chosen.steps, worlds=chosen.worlds)
    check_writable(chosen.out)
    began = time.perf_counter()
    with bar("training three runs", 1.0, transient=True) as advance:
        results = experiment(settings, advance)
    write_atomically(chosen.out, page(results, NEXT_STEPS))
    seconds = time.perf_counter() - began
    if chosen.as_json:
        print(json.dumps(summary(results, seconds, chosen.out), indent=2))
    else:
        show(results, seconds, chosen.out)
    return 0


def summary(results: Results, seconds: float, out: Path) -> dict[str, Any]:
    """What `--json` prints: the table, with halves of the 95% intervals over worlds."""
    measures = {
        row.label: {
            name: {"value": mean, "half": half}
            for name, mean, half in zip(results.names, row.means, row.halves)
        }
        for row in rows(results)
    }
    settings = results.settings
    facts = {"seed": settings.seed, "steps": settings.steps, "worlds": settings.worlds}
    return {"page": str(out), "seconds": seconds, **facts, "table": measures}


def show(results: Results, seconds: float, out: Path) -> None:
    """The table, the sentence, the conditions and where to look; plain text when piped."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± still gets its table
    print("\nHeld-out pass@k in %, entropy in nats, after training")
    body = [
        [row.label, *(f"[bold]{c}[/]" if best else c for c, best in zip(row.cells, row.best))]
        for row in rows(results)
    ]
    table(("", *results.names), body)
    for text in (sentence(results), f"{conditions(results)}."):
        print(f"{in_columns(text, 80)}\n")
    print(f"{seconds:.1f} s. The curves: {out}")
