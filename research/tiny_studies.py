"""Two studies with tiny policies: nine guests (guests/design.md), and training for a selector that
errs (selectors/design.md). Rates and steps are picked by validation, everything shown is measured
on test problems with new seeds.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from count_files import read_counts
from evaluations import KS, best_of_k, shares_of
from run import chosen_arms
from tables import difference, number, table

from bestofk.evaluation.sign_flips import sign_flip_tests

HERE = Path(__file__).parent


def stated(study: str) -> dict[str, Any]:
    return tomllib.loads((HERE / "studies" / f"{study}.toml").read_text(encoding="utf-8"))


def counts(study: str) -> list[dict[str, Any]]:
    return read_counts(HERE / "counts" / f"{study}.parquet")


@dataclass(frozen=True)
class Tested:
    """What models earn on test problems: by arm and seed, of the best and of the final one."""

    ks: tuple[int, ...]
    best: dict[tuple[str, int], np.ndarray]
    """(problems, k) of the checkpoint that validation picked."""
    final: dict[tuple[str, int], np.ndarray]
    """(problems, k) after the last step."""
    steps: dict[tuple[str, int], int]
    """The step of the best one."""

    def mean(self, arm: str, *, final: bool = False) -> np.ndarray:
        """(problems, k) over the new seeds; the start has seed 0 alone."""
        of = self.final if final else self.best
        return np.mean([of[key] for key in self.runs(arm)], axis=0)

    def runs(self, arm: str) -> list[tuple[str, int]]:
        return sorted(key for key in self.best if key[0] == arm and (key[1] > 0 or arm == "start"))


def tested(name: str) -> Tested:
    """The counts of a test; of a run's rows the first is the best model, the last the final one."""
    lines = sorted(counts(name), key=lambda line: line["step"])
    ks = tuple(k for k in KS if k <= lines[0]["samples"])
    shares = shares_of(lines[0]["samples"], ks)
    best: dict[tuple[str, int], np.ndarray] = {}
    final: dict[tuple[str, int], np.ndarray] = {}
    steps: dict[tuple[str, int], int] = {}
    for line in lines:
        key = line["arm"], line["seed"]
        final[key] = best_of_k(line["counts"], shares)
        best.setdefault(key, final[key])
        steps.setdefault(key, line["step"])
    return Tested(ks, best, final, steps)


def picked(study: str) -> list[str]:
    """The arms that the rules of a study's search pick, one for each rule."""
    return chosen_arms(stated(study), counts(study))


def with_intervals(gaps: Sequence[np.ndarray]) -> list[list[str]]:
    """The mean differences of each (problems, columns), with intervals that hold for all."""
    tests = sign_flip_tests(np.hstack(gaps), 0.95, 20_000, np.random.default_rng(0))
    halves = iter(tests.critical * tests.error)
    return [[difference(float(gap), next(halves)) for gap in each.mean(axis=0)] for each in gaps]


def short(arm: str) -> str:
    """`grpo 0.001` for `grpo learning_rate=0.001`."""
    return arm.replace("learning_rate=", "")


SHOWN = (1, 4, 16)
GUESTS = (
    "one sample, chosen by max@16",
    "one sample, chosen by max@1",
    "`max@1+4+16`",
    "`max@16`",
)
"""The rows of the table, in the order of the study's rules; the last two rules are quickstart's."""


def guests_rows(runs: Tested) -> dict[str, tuple[str, np.ndarray]]:
    """By row: the arm, and (problems, k) on test. The arm that is best at one sample was chosen
    after the last step, and is tested there."""
    rows = {"start": ("start", runs.mean("start"))}
    for row, arm in zip(GUESTS, picked("guests"), strict=False):
        rows[row] = arm, runs.mean(arm, final=row == GUESTS[1])
    return rows


def guests_tables() -> dict[str, str]:
    runs = tested("guests-test")
    at = [runs.ks.index(k) for k in SHOWN]
    rows = guests_rows(runs)
    start = rows["start"][1][:, at]
    gaps = with_intervals([rows[row][1][:, at] - start for row in GUESTS])
    lines = [["start", "", *map(number, start.mean(axis=0))]]
    for row, cells in zip(GUESTS, gaps, strict=True):
        arm, values = rows[row]
        reached = zip(values[:, at].mean(axis=0), cells, strict=True)
        lines.append([row, f"`{short(arm)}`", *(f"{number(v)} ({gap})" for v, gap in reached)])
    texts = {"guests": table(["", "run", *(f"max@{k}" for k in SHOWN)], lines)}

    many = runs.ks.index(16)
    control = rows[GUESTS[0]][1][:, [many]]
    for_k = GUESTS[2:]
    decisive = with_intervals([rows[row][1][:, [many]] - control for row in for_k])
    texts["guests-decides"] = table(
        ["max@16 on test, minus the control", "difference"],
        [[row, *cells] for row, cells in zip(for_k, decisive, strict=True)],
    )

    pair = picked("guests")[4:]
    grpo, mixture = (runs.mean(arm, final=True)[:, at] for arm in pair)
    (gap,) = with_intervals([mixture - grpo])
    texts["guests-quickstart"] = table(
        ["after 100 steps", *(f"max@{k}" for k in SHOWN)],
        [
            ["start", *map(number, start.mean(axis=0))],
            *(
                [f"`{short(arm)}`", *map(number, values.mean(axis=0))]
                for arm, values in zip(pair, (grpo, mixture), strict=True)
            ),
            ["difference", *gap],
        ],
    )
    texts["guests-search"] = guests_search_table()
    return texts


def guests_search() -> tuple[tuple[int, ...], dict[tuple[str, int], np.ndarray]]:
    """The k, and (problems, k) on validation by arm and step, of seed 0."""
    lines = [line for line in counts("guests") if line["seed"] == 0]
    ks = tuple(k for k in KS if k <= lines[0]["samples"])
    shares = shares_of(lines[0]["samples"], ks)
    return ks, {
        (line["arm"], line["step"]): best_of_k(line["counts"], shares)
        for line in lines
        if line["arm"] != "start"
    }


def guests_search_table() -> str:
    ks, found = guests_search()
    many, rows = ks.index(16), []
    for arm in dict.fromkeys(arm for arm, _ in sorted(found, key=lambda key: rate_last(key[0]))):
        steps = [step for name, step in found if name == arm]
        best = max(steps, key=lambda step: (found[arm, step][:, many].mean(), -step))
        shown = [found[arm, step][:, k].mean() for step in (best, max(steps)) for k in (0, many)]
        cells = [number(value) for value in shown]
        rows.append([f"`{short(arm)}`", str(best), *cells])
    head = ["run", "best step", "max@1", "max@16", "max@1, step 100", "max@16, step 100"]
    return table(head, rows)


def rate_last(arm: str) -> tuple[str, float]:
    """Runs in the order of their objectives, then of their rates."""
    objective, _, rate = arm.partition(" learning_rate=")
    return objective, float(rate or 0)


def guests_figure() -> dict[str, Any]:
    """What the figure shows: on test, max@k of the rows; on validation, the runs of the search."""
    runs = tested("guests-test")
    rows = guests_rows(runs)
    ks, found = guests_search()
    steps = {arm: max(step for name, step in found if name == arm) for arm, _ in found}
    first = next(line for line in counts("guests") if line["arm"] == "start")
    found["start", 0] = best_of_k(first["counts"], shares_of(first["samples"], ks))
    return {
        "ks": ks,
        "found": found,
        "picked": {row: (arm, steps.get(arm, 0)) for row, (arm, _) in rows.items()},
        "curves": (runs.ks, {row: values.mean(axis=0) for row, (_, values) in rows.items()}),
    }


SELECTORS = ("weak", "fair", "good", "hackable")
ONE_SAMPLE = ("mean", "grpo")


def deployed() -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """By arm without its rate, in the order of the study: the arm with its rate; and (problems, 6)
    on test over the new seeds: one sample, the best of 8, what each selector picks of 8."""
    runs, by_selector = tested("selectors-test"), [tested(f"selectors-test-{s}") for s in SELECTORS]
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
