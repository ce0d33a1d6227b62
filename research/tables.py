"""Numbers, intervals and tables as the pages have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bestofk.evaluation.sign_flips import sign_flip_tests


def number(value: float, signed: bool = False) -> str:
    """Three digits, as the tables have them: .385, +.012, −.100."""
    text = f"{abs(value):.3f}".removeprefix("0")
    return ("−" if value < 0 else "+" if signed else "") + text


def difference(gap: float, half: float) -> str:
    """A difference with its interval; * excludes 0."""
    ends = f"[{number(gap - half, True)}, {number(gap + half, True)}]"
    return f"{number(gap, True)} {ends}{'*' if abs(gap) > half else ''}"


def with_intervals(gaps: Sequence[np.ndarray]) -> list[list[str]]:
    """The mean differences of each (problems, columns), with intervals that hold for all."""
    tests = sign_flip_tests(np.hstack(gaps), 0.95, 20_000, np.random.default_rng(0))
    halves = iter(tests.critical * tests.error)
    return [[difference(float(gap), next(halves)) for gap in each.mean(axis=0)] for each in gaps]


def beside(values: Mapping[Any, np.ndarray], control: np.ndarray) -> list[list[str]]:
    """Rows of names and means of (problems, columns), each mean with its difference to the
    control."""
    gaps = {names: each - control for names, each in values.items()}
    differ = iter(with_intervals([gap for gap in gaps.values() if gap.any()]))
    rows = []
    for names, each in values.items():
        cells = [number(mean) for mean in each.mean(axis=0)]
        if gaps[names].any():
            cells = [f"{cell} ({gap})" for cell, gap in zip(cells, next(differ), strict=True)]
        rows.append([*names, *cells])
    return rows


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (list(head), *map(list, rows))]
    lines.insert(1, "|" + "---|" * (lines[0].count("|") - 1))
    return "\n".join(lines)
