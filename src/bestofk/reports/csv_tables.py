"""The numbers behind the page as CSV files, at every k."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .content import DIVERSITY
from .findings import Findings
from .page import write
from .training import training_curves

Rows = Iterator[Sequence[Any]]


def write_tables(findings: Findings, folder: Path) -> list[Path]:
    """Write every table that the findings have; return the files.

    Raises:
        OSError: a file cannot be written.
    """
    tables = {
        "curves": curves(findings),
        "differences": differences(findings),
        "problems": problems(findings),
        "diversity": diversity(findings),
        "extrapolation": extrapolation(findings),
        "training": training(findings),
    }
    written = []
    for name, rows in tables.items():
        head = next(rows)
        body = list(rows)
        if body:
            path = folder / f"{name}.csv"
            write(path, to_csv([head, *body]))
            written.append(path)
    return written


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(
        [cell(value) for value in row] for row in rows
    )
    return stream.getvalue().encode("utf-8", "replace").decode("utf-8")


def cell(value: Any) -> Any:
    """A value as CSV holds it: empty for NaN; text that a spreadsheet would take for a formula is
    given an apostrophe, since ids and names come from files that may hold anything.

    >>> cell("=1+1"), cell(-0.5), cell(float("nan"))
    ("'=1+1", -0.5, '')
    """
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return ""
    return value


def curves(findings: Findings) -> Rows:
    yield ("run", "metric", "k", "estimate", "low", "high", "band_low", "band_high", "fixed_low",
           "fixed_high", "t_low", "t_high", "problems", "n_min", "n_max", "threshold", "confidence",
           "resamples", "seed")  # fmt: skip
    for group in (*findings.curves.values(), findings.means):
        for c in group:
            for i, k in enumerate(c.k):
                ends = [
                    end[i]
                    for pair in (c.interval, c.band, c.fixed, c.t)
                    for end in (pair.low, pair.high)
                ]
                yield (c.name, c.metric, k, c.estimate[i], *ends, len(c.problems), *c.n,
                       math.nan if c.threshold is None else c.threshold, c.confidence, c.resamples,
                       c.seed)  # fmt: skip


def differences(findings: Findings) -> Rows:
    yield ("a", "b", "metric", "k", "difference", "low", "high", "band_low", "band_high", "p",
           "p_single", "wins", "losses", "ties", "crossing_k", "crossing_low", "crossing_high",
           "problems", "confidence", "resamples", "seed")  # fmt: skip
    for d in findings.comparisons:
        crossing = [math.nan] * 3
        if d.crossing:
            crossing = [d.crossing.k, d.crossing.low, d.crossing.high]
        for i, k in enumerate(d.k):
            yield (d.a, d.b, d.metric, k, d.difference[i], d.interval.low[i], d.interval.high[i],
                   d.band.low[i], d.band.high[i], d.p_value[i], d.p_value_single[i], d.wins[i],
                   d.losses[i], d.ties[i], *crossing, len(d.problems), d.confidence, d.resamples,
                   d.seed)  # fmt: skip


def problems(findings: Findings) -> Rows:
    """Each problem's estimates at powers of two."""
    yield ("run", "problem", "metric", "k", "estimate")
    for group in findings.curves.values():
        for c in group:
            last = int(c.k[-1])
            for k in sorted({2**i for i in range(last.bit_length()) if 2**i <= last} | {last}):
                at = c.at(k)
                for row, problem in enumerate(c.problems):
                    yield c.name, problem, c.metric, k, c.values[row, at]


def diversity(findings: Findings) -> Rows:
    yield ("run", "measure", "m", "value", "low", "high", "problems", "confidence")
    for one in findings.diversities:
        for field, _, _ in DIVERSITY:
            result = getattr(one, field)
            if not math.isnan(result.value):
                numbers = (result.value, result.low, result.high, result.problems)
                yield (one.name, field, one.m, *numbers, one.confidence)


def extrapolation(findings: Findings) -> Rows:
    yield ("run", "k", "estimate", "low", "high", "unreliable", "reasons", "beta_a", "beta_b",
           "problems", "n_min", "n_max", "confidence", "seed")  # fmt: skip
    for e in findings.extrapolations:
        for i, k in enumerate(e.k):
            yield (e.name, k, e.estimate[i], e.interval.low[i], e.interval.high[i],
                   str(e.unreliable).lower(), "; ".join(e.reasons), e.a, e.b, e.problems, *e.n,
                   e.confidence, e.seed)  # fmt: skip


def training(findings: Findings) -> Rows:
    yield ("run", "figure", "step", "value", "low", "high")
    for block in training_curves(findings.sources):
        for c in block["curves"]:
            blank = [math.nan] * len(c["step"])
            for row in zip(c["step"], c["value"], c.get("low", blank), c.get("high", blank)):
                yield findings.sources[c["run"]].name, block["label"], *row
