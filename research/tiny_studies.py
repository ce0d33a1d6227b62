"""Two studies with tiny policies: nine guests (guests/design.md), and training for a selector that
errs (selectors/design.md). Rates and steps are picked by validation, everything shown is measured
on test problems with new seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from evaluations import checkpoints, ends_of_runs, lines_of, run_name, stated
from run import chosen_arms
from tables import beside, number, table, with_intervals


@dataclass(frozen=True)
class Tested:
    """What models earn on test problems: by arm and seed, of the best and of the final one."""

    ks: tuple[int, ...]
    best: dict[tuple[str, int], np.ndarray]
    """(problems, k) of the checkpoint that validation picked."""
    final: dict[tuple[str, int], np.ndarray]
    """(problems, k) after the last step."""

    def mean(self, arm: str, *, final: bool = False) -> np.ndarray:
        """(problems, k) over the new seeds; the start has seed 0 alone."""
        of = self.final if final else self.best
        return np.mean([of[k] for k in of if k[0] == arm and (k[1] > 0 or arm == "start")], axis=0)


def on_test(study: str, problems: str = "test") -> Tested:
    """The counts of a test; of a run's rows the first is the best model, the last the final one."""
    ks, found = checkpoints(f"{study}-{problems}", of=study)
    final = {(arm, seed): each for (arm, seed, _), each in found.items()}
    best = {(arm, seed): each for (arm, seed, _), each in reversed(found.items())}
    return Tested(ks, {key: best[key] for key in final}, final)


def picked(study: str) -> list[str]:
    """The arms that the rules of a study's search pick, one for each rule."""
    return chosen_arms(stated(study), lines_of(study))


SHOWN = (1, 4, 16)
GUESTS = (
    "one sample, chosen by max@16",
    "one sample, chosen by max@1",
    "`max@1+4+16`",
    "`max@16`",
)
"""The rows of the table, in the order of the study's rules; the last two rules are quickstart's."""


def guests_rows(runs: Tested) -> dict[str, tuple[str, np.ndarray]]:
    """By row: the run, and (problems, k) on test. The arm that is best at one sample was chosen
    after the last step, and is tested there."""
    rows = {"start": ("start", runs.mean("start"))}
    for row, arm in zip(GUESTS, picked("guests"), strict=False):
        rows[row] = run_name(arm), runs.mean(arm, final=row == GUESTS[1])
    return rows


def guests_tables() -> dict[str, str]:
    runs = on_test("guests")
    at = [runs.ks.index(k) for k in SHOWN]
    rows = {row: (arm, values[:, at]) for row, (arm, values) in guests_rows(runs).items()}
    start, control = rows["start"][1], rows[GUESTS[0]][1]
    named = {(row, f"`{arm}`" * (arm != "start")): values for row, (arm, values) in rows.items()}
    at_16 = SHOWN.index(16)
    decisive = with_intervals([(rows[row][1] - control)[:, [at_16]] for row in GUESTS[2:]])
    pair = {arm: runs.mean(arm, final=True)[:, at] for arm in picked("guests")[4:]}
    (gap,) = with_intervals([np.subtract(*reversed(pair.values()))])
    reached = {"start": start} | {f"`{run_name(arm)}`": values for arm, values in pair.items()}
    heads = [f"max@{k}" for k in SHOWN]
    ks, found = guests_search()
    search = [
        [f"`{run}`", str(best)]
        + [number(found[run, s][:, ks.index(k)].mean()) for s in (best, last) for k in (1, 16)]
        for run, last, best in ends_of_runs(found, ks.index(16))
    ]
    return {
        "guests": table(["", "run", *heads], beside(named, start)),
        "guests-decides": table(
            ["max@16 on test, minus the control", "difference"],
            [[row, *cells] for row, cells in zip(GUESTS[2:], decisive, strict=True)],
        ),
        "guests-quickstart": table(
            ["after 100 steps", *heads],
            [
                *([n, *map(number, v.mean(axis=0))] for n, v in reached.items()),
                ["difference", *gap],
            ],
        ),
        "guests-search": table(
            ["run", "best step", "max@1", "max@16", "max@1, step 100", "max@16, step 100"], search
        ),
    }


def guests_search() -> tuple[tuple[int, ...], dict[tuple[str, int], np.ndarray]]:
    """The k, and (problems, k) on validation by run and step, of seed 0; the start has step 0."""
    ks, found = checkpoints("guests")
    return ks, {
        (run_name(arm), 0 if arm == "start" else step): values
        for (arm, seed, step), values in found.items()
        if seed == 0
    }


def guests_figure() -> tuple[Any, ...]:
    """What `draw_construct` shows: on test, max@k of the rows; on validation, the search."""
    runs = on_test("guests")
    rows = guests_rows(runs)
    ks, found = guests_search()
    last = dict(sorted(found))
    chosen = {row: (run, last[run]) for row, (run, _) in rows.items()}
    return ks, found, chosen, (runs.ks, {row: v.mean(axis=0) for row, (_, v) in rows.items()})


SELECTORS = ("weak", "fair", "good", "hackable")
ONE_SAMPLE = ("mean", "grpo")


def deployed() -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """By arm without its rate, in the order of the study: the arm with its rate; and (problems, 6)
    on test over the new seeds: one sample, the best of 8, what each selector picks of 8."""
    runs = on_test("selectors")
    by_selector = [on_test("selectors", f"test-{selector}") for selector in SELECTORS]
    eight = [runs.ks.index(1), runs.ks.index(8)]
    arms = {"start": "start"} | {arm.split(" ")[0]: arm for arm in picked("selectors")}
    return arms, {
        name: np.hstack([runs.mean(arm)[:, eight], *(each.mean(arm) for each in by_selector)])
        for name, arm in arms.items()
    }


def row_of(name: str) -> str:
    """The row of an arm: what was trained for."""
    objective, _, selector = name.partition("/")
    if objective == "score":
        return f"`max@8` of the score, {selector}"
    return f"`{objective}`, {selector}" if selector else name if name == "start" else f"`{name}`"


def selector_tables() -> dict[str, str]:
    arms, values = deployed()
    means = {name: each.mean(axis=0) for name, each in values.items()}
    top = np.max([*means.values()], axis=0)
    rows = []
    for name, reached in means.items():
        cells = [
            f"**{number(value)}**" if value == highest else number(value)
            for value, highest in zip(reached, top, strict=True)
        ]
        rate = arms[name].partition("=")[2]
        rows.append([row_of(name), rate, *cells])
    head = ["trained for", "rate", "one sample", "best of 8", *(f"chosen: {s}" for s in SELECTORS)]
    texts = {"selectors": table(head, rows)}
    against = (*ONE_SAMPLE, "max@8", "score")
    columns = []
    for place, selector in enumerate(SELECTORS, start=2):
        own = values[f"select@8/{selector}"][:, [place]]
        others = [f"score/{selector}" if name == "score" else name for name in against]
        columns.append(np.hstack([own - values[other][:, [place]] for other in others]))
    head = ["selector", *(f"minus {row_of(name)}" for name in ONE_SAMPLE), "minus `max@8`"]
    texts["selectors-decides"] = table(
        [*head, "minus `max@8` of the score"],
        [[name, *cells] for name, cells in zip(SELECTORS, with_intervals(columns), strict=True)],
    )
    return texts
