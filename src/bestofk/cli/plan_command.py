"""`bestofk plan`: how many problems and samples a wanted interval or power takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from bestofk.cli._files import ReadingOptions
from bestofk.cli._options import option, parsed
from bestofk.sections import Count, Positive

Share = Annotated[float, Field(gt=0, lt=1)]


class PlanOptions(ReadingOptions):
    """How many problems and samples a wanted interval or power takes."""

    examples: ClassVar = (
        "bestofk plan --k 8 --width 0.05",
        "bestofk plan --k 8 --power 0.8 --effect 0.03 --pilot a.jsonl",
        "bestofk plan --k 8 --metric maj@k --width 0.05 --pilot a.jsonl",
    )

    groups: ClassVar = {
        "Goal": ("k", "metric", "width", "power", "effect", "at", "n", "problems", "confidence"),
        "Problems": ("pilot", "population", "scores", "value", "price", "threshold", "cluster"),
    }

    k: Count
    """The k of the metric."""
    metric: str = "pass@k"
    """As in bestofk eval; all but pass@k take a --pilot with the columns they need."""
    width: Share | None = None
    """Wanted full width of the interval over problems."""
    power: Annotated[float, Field(gt=0.05, lt=1)] | None = None
    """Wanted chance that bestofk compare finds a difference of --effect at this k."""
    effect: Annotated[float, Field(gt=-1, lt=1)] | None = None
    """The difference in the metric to be found."""
    at: bool = False
    """Plan for `bestofk compare --at K`, a test at this k alone, instead of one over every k."""
    pilot: tuple[Path, ...] = ()
    """A file of samples that shows the spread of difficulty; a second one, for the difference."""
    population: tuple[Positive, Positive] | None = option("A B", default=None)
    """Beta(A, B) distribution of difficulty, where there is no pilot [0.4 0.6]."""
    problems: Annotated[int, Field(ge=2)] | None = None
    """Number of problems, where that is fixed."""
    n: tuple[Count, ...] = ()
    """Samples per problem to consider; by default k, 2k, ... 32k."""


def main(argv: list[str]) -> int:
    chosen = parsed(PlanOptions, argv, "bestofk plan")
    from bestofk.cli import _tables
    from bestofk.evaluation import plan, population
    from bestofk.samples import read

    if len(chosen.pilot) > 2:
        raise ValueError(f"one or two pilot files, got {len(chosen.pilot)}")
    pilots = [read(path, **chosen.reading()) for path in chosen.pilot]
    people = None
    if chosen.metric == "pass@k":
        people = population(pilots, k=chosen.k, shape=chosen.population, threshold=chosen.threshold)
    elif chosen.population:
        raise ValueError("--population is for pass@k: other metrics take a --pilot")
    names = ("k", "metric", "width", "power", "effect", "n", "problems", "at")
    goal = {name: getattr(chosen, name) for name in names}
    result = plan(pilots=pilots, people=people, **goal, **chosen.numbers())
    if chosen.as_json:
        print(_tables.as_json(result))
    else:
        _tables.print_plan(result)
    return 0
