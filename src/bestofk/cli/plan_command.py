"""`bestofk plan`: how many problems and samples a wanted interval or power takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True, kw_only=True)
class Options:
    """How many problems and samples a wanted interval or power takes.

    bestofk plan --k 8 --width 0.05 | bestofk plan --k 8 --power 0.8 --effect 0.03 --pilot a.jsonl
    """

    k: int
    """Of pass@k."""
    width: float | None = None
    """Wanted full width of the interval over problems."""
    power: float | None = None
    """Wanted chance to find a difference of --effect between two runs on the same problems."""
    effect: float | None = None
    pilot: tuple[Path, ...] = ()
    """A file of samples that shows the spread of difficulty; a second one, for the difference."""
    population: tuple[float, float] | None = None
    """a b of a Beta distribution of difficulty, where there is no pilot."""
    problems: int | None = None
    """How many problems there are, where that is fixed."""
    n: tuple[int, ...] = ()
    """Samples per problem to consider; by default k, 2k, ... 32k."""
    threshold: float | None = None
    """A reward of at least this passes (pilot files)."""
    confidence: float = 0.95
    json: bool = False
    """Print everything as JSON instead of a table."""


def main(argv: list[str]) -> int:
    chosen = tyro.cli(Options, args=argv, prog="bestofk plan")
    from bestofk.cli import _show
    from bestofk.evaluation import plan, population, read

    if len(chosen.pilot) > 2:
        raise ValueError(f"one or two pilot files, got {len(chosen.pilot)}")
    pilots = [read(path) for path in chosen.pilot]
    people = population(pilots, k=chosen.k, shape=chosen.population, threshold=chosen.threshold)
    found = plan(
        chosen.k,
        width=chosen.width,
        power=chosen.power,
        effect=chosen.effect,
        people=people,
        n=chosen.n or None,
        problems=chosen.problems,
        confidence=chosen.confidence,
    )
    if chosen.json:
        print(_show.as_json(found))
    else:
        _show.plan(found)
    return 0
