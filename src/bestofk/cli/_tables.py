"""Tables and sentences for `bestofk eval`, `compare` and `plan`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bestofk.cli._terminal import say
from bestofk.evaluation.results import MEASURES
from bestofk.evaluation.verdict_words import (
    ASSUMED,
    decimals,
    metric_at,
    p_text,
    percent,
    powers_of_two,
)
from bestofk.storage import json_safe

if TYPE_CHECKING:
    from bestofk.evaluation.results import Comparison, Curve, Diversity, Plan
    from bestofk.samples import Samples


WIDTH = 80
"""Columns that a table takes, unless the wide one is asked for."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, wide: bool = False) -> None:
    """A table for terminals and pipes alike; the first column is a name, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    built = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(header):
        built.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        built.add_row(*row)
    console = Console(highlight=False)
    if wide or not console.is_terminal:
        console = Console(highlight=False, width=160 if wide else WIDTH)
    console.print(built)


def cut(name: str, width: int = 12) -> str:
    """A name for the head of a column.

    >>> cut("a-rather-long-name")
    'a-rather-lo…'
    """
    return name if len(name) <= width else f"{name[: width - 1]}…"


def print_source(samples: Samples) -> None:
    """Where a run came from and how its columns were understood."""
    reported = samples.metadata
    mapping = reported.get("mapping", {}).items()
    columns = ", ".join(role if role == column else f"{role}={column}" for role, column in mapping)
    say(f"{samples.name}: {reported.get('path', '')} ({reported.get('format', '')}; {columns})")
    say(f"  {samples.extent}")
    for note in reported.get("notes", ()):
        say(f"  {note}")


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def ends(low: float, high: float) -> str:
    if math.isnan(low) or math.isnan(high):
        return "-"
    places = decimals(low, high)
    return f"{low:.{places}f} to {high:.{places}f}"


def print_curve(curve: Curve, *, wide: bool = False) -> None:
    """The curve at some k: the interval to quote, or every interval named for what it is."""
    passing = "" if curve.threshold is None else f", pass = reward ≥ {curve.threshold:g}"
    intervals = [curve.interval, curve.band, curve.fixed][: 3 if wide else 1]
    rows = []
    for k in curve.shown or powers_of_two(curve.k):
        at = curve.place(k)
        name = metric_at(curve.metric, k)
        shown = (ends(each.low[at], each.high[at]) for each in intervals)
        rows.append((name, number(curve.estimate[at]), *shown))
    sure = percent(curve.confidence)
    if any(ASSUMED in note for note in curve.notes):
        sure += ", bounds assumed"
    head = ("", "estimate", f"{sure} over problems", "band, all k", "these problems only")
    say(curve.title + passing)
    table(head if wide else ("", "estimate", sure), rows, wide=wide)
    for note in curve.notes:
        say(f"  note: {note}")


def print_turns(by_turns: Mapping[int, Curve]) -> None:
    """The best of k trajectories of at most T turns; nothing where there are no trajectories."""
    if not by_turns:
        return
    last = by_turns[max(by_turns)]
    shown = last.shown or sorted({1, *powers_of_two(last.k)[2::2], int(last.k[-1])})
    rows = []
    for k in shown:
        for turns, curve in by_turns.items():
            at = curve.place(k)
            interval = ends(curve.interval.low[at], curve.interval.high[at])
            name = curve.metric.replace("@k", f"@({k}, {turns})")
            rows.append((name, number(curve.estimate[at]), interval))
    say(f"{last.name}: {last.metric.replace('k', '(k, T)')}, trajectories of at most T turns")
    table(("", "estimate", percent(last.confidence)), rows)


def print_comparison(comparison: Comparison, *, wide: bool = False) -> None:
    """The paired difference at some k, and the verdict."""
    sure, level = percent(comparison.confidence), 1 - comparison.confidence
    rows, two = [], " against " in comparison.metric
    for k in comparison.shown or powers_of_two(comparison.k):
        at, one = comparison.place(k), comparison.at(k)
        places = one.decimals
        row = [
            f"k = {k}" if two else metric_at(comparison.metric, k),
            f"{comparison.values_a[:, at].mean():.{places}f}",
            f"{comparison.values_b[:, at].mean():.{places}f}",
            f"{one.value:+.{places}f}",
            f"{one.low:+.{places}f} to {one.high:+.{places}f}",
            p_text(comparison.p_value[at], level=level, bare=True),
        ]
        if wide:
            row.append(f"{comparison.wins[at]}/{comparison.losses[at]}/{comparison.ties[at]}")
        rows.append(row)
    n = f"n = {comparison.n_a[0]} and {comparison.n_b[0]}"
    assumed = ", bounds assumed" * any(ASSUMED in note for note in comparison.notes)
    head = ["", cut(comparison.a), cut(comparison.b), "difference", sure + assumed, "p"]
    if wide:
        head.append("won/lost/tied")
    say(f"{comparison.title}, {n}")
    table(head, rows, wide=wide)
    if len(comparison.k) > 1:
        say(
            f"  {sure} and p are corrected over all k and pairs: "
            f"p ≤ {level:.4g} where the interval excludes 0"
        )
    if comparison.crossing is not None:
        low = "before 1" if comparison.crossing.low == 0 else f"{comparison.crossing.low:.1f}"
        beyond = f"beyond {comparison.k[-1]}, or never"
        high = beyond if math.isinf(comparison.crossing.high) else f"{comparison.crossing.high:.1f}"
        say(
            f"The curves cross at k = {comparison.crossing.k:.1f} ({sure}: {low} to {high}); "
            f"{comparison.crossing.better_after} is ahead after it."
        )
    if comparison.solved_only_a or comparison.solved_only_b:
        say(
            f"Solved only by {comparison.a}: {len(comparison.solved_only_a)}; "
            f"only by {comparison.b}: {len(comparison.solved_only_b)}."
        )
    for note in comparison.notes:
        say(f"  note: {note}")
    say(comparison.verdict)
    chosen = comparison.k if len(comparison.k) < comparison.k[-1] else comparison.k[:1]
    for k in comparison.shown or chosen.tolist():
        say(comparison.quote(k))
    say("")


def print_for_papers(result: Curve | Comparison, *, latex: bool, methods: bool) -> None:
    """What a paper needs, as asked for; never wrapped, so that it can be copied."""
    for printed, make in ((latex, result.to_latex), (methods, result.methods)):
        if printed:
            print(f"{make()}\n")


def print_diversity(diversity: Diversity) -> None:
    """What is known about the variety of samples; nothing where nothing is."""
    measures = ((label, getattr(diversity, name)) for name, label, _ in MEASURES)
    rows = [
        (label, f"{m.value:.3f}", ends(m.low, m.high), f"{m.problems}")
        for label, m in measures
        if m.problems
    ]
    if rows:
        sure = f"{percent(diversity.confidence)} over problems"
        say(f"{diversity.name}: diversity, counted in a draw of m = {diversity.m} samples")
        table(("", "mean", sure, "problems"), rows)
    if diversity.no_answer > 0:
        say(f"  {diversity.no_answer:.1%} of samples have no answer")
    for note in diversity.notes:
        say(f"  note: {note}")


def print_plan(plan: Plan) -> None:
    metric = metric_at(plan.metric, plan.k)
    what = (
        f"an interval of width {plan.target:g} for {metric}"
        if plan.goal == "width"
        else f"power {plan.target:g} to find a difference of {plan.effect:g} in {metric}"
    )
    runs = "" if plan.goal == "width" else " (both runs)"
    scope = " alone (compare --at)" if plan.at else ""
    say(f"For {what}{scope}, at {percent(plan.confidence)}")
    table(
        ("samples per problem", "problems", f"samples{runs}", plan.goal),
        [
            (
                f"n = {row.n}" + (" *" if row == plan.best else ""),
                f"{row.problems:,}",
                f"{row.samples:,}",
                f"{row.value:.3f}",
            )
            for row in plan.rows
        ],
    )
    say(f"  * fewest samples: {plan.best.problems:,} problems × {plan.best.n} samples")
    say(f"  population: {plan.population}")
    for note in plan.notes:
        say(f"  note: {note}")


def as_json(results: Any) -> str:
    """Results for programs: every field, arrays as lists, NaN as null."""
    return json.dumps(json_safe(results), ensure_ascii=False)
