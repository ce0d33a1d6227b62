"""Tables and sentences for `bestofk eval`, `compare` and `plan`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bestofk.evaluation import (
        Comparison,
        Curve,
        Diversity,
        Extrapolation,
        Measure,
        Plan,
        ReweightedEstimate,
        Samples,
    )


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for terminals and pipes alike; the first column is a name, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(header):
        made.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    console.print(made)


def say(text: str) -> None:
    """A line of plain text; nothing in it is markup."""
    print(text)


def source(samples: Samples) -> None:
    """Where a run came from and how its columns were understood."""
    told = samples.metadata
    pairs = ", ".join(f"{role}={column}" for role, column in told.get("mapping", {}).items())
    sizes = samples.sizes
    n = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    say(f"{samples.name}: {told.get('path', '')} ({told.get('format', '')}; {pairs})")
    say(
        f"  {len(samples.problems):,} problems × {n} samples"
        + (f", {samples.unscored:,} unscored" if samples.unscored else "")
    )
    for note in told.get("notes", ()):
        say(f"  {note}")


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def ends(low: float, high: float) -> str:
    return "-" if math.isnan(low) or math.isnan(high) else f"{low:.3f} to {high:.3f}"


def shown_k(k: np.ndarray, wanted: Sequence[int]) -> list[int]:
    """The k to print: those asked for, else powers of two and the last."""
    if wanted:
        return sorted(set(wanted))
    last = int(k[-1])
    powers = [2**j for j in range(last.bit_length()) if 2**j <= last]
    return sorted({*powers, last})


def curve(found: Curve, wanted: Sequence[int]) -> None:
    """The curve at some k, every interval named for what it is."""
    n = f"{found.n[0]}" if found.n[0] == found.n[1] else f"{found.n[0]} to {found.n[1]}"
    passing = "" if found.threshold is None else f", pass = reward ≥ {found.threshold:g}"
    rows = []
    for k in shown_k(found.k, wanted):
        at = found.at(k)
        rows.append(
            (
                found.metric if found.metric == "mean" else found.metric.replace("k", str(k)),
                number(found.estimate[at]),
                ends(found.interval.low[at], found.interval.high[at]),
                ends(found.t.low[at], found.t.high[at]),
                ends(found.band.low[at], found.band.high[at]),
                ends(found.fixed.low[at], found.fixed.high[at]),
            )
        )
    sure = f"{found.confidence:.0%}"
    table(
        f"{found.name}: {found.metric}, {len(found.problems):,} problems, n = {n}{passing}",
        ("", "estimate", f"{sure} over problems", "by t", "band, all k", "these problems only"),
        rows,
    )
    for note in found.notes:
        say(f"  note: {note}")


def comparison(found: Comparison, wanted: Sequence[int]) -> None:
    """The paired difference at some k, and the verdict."""
    rows = []
    for k in shown_k(found.k, wanted):
        at = k - 1
        rows.append(
            (
                found.metric if found.metric == "mean" else found.metric.replace("k", str(k)),
                number(float(found.values_a[:, at].mean())),
                number(float(found.values_b[:, at].mean())),
                f"{found.difference[at]:+.4f}",
                f"{found.interval.low[at]:+.3f} to {found.interval.high[at]:+.3f}",
                f"{found.band.low[at]:+.3f} to {found.band.high[at]:+.3f}",
                f"{found.p_value[at]:.4f}",
                f"{found.wins[at]}/{found.losses[at]}/{found.ties[at]}",
            )
        )
    sure = f"{found.confidence:.0%}"
    n = f"n = {found.n_a[0]} and {found.n_b[0]}"
    table(
        f"{found.b} minus {found.a}: {found.metric}, {len(found.problems):,} paired problems, {n}",
        ("", found.a, found.b, "difference", sure, "band, all k", "p (all k)", "won/lost/tied"),
        rows,
    )
    if found.crossing is not None:
        low = "before 1" if found.crossing.low == 0 else f"{found.crossing.low:.1f}"
        beyond = f"beyond {found.k[-1]}, or never"
        high = beyond if math.isinf(found.crossing.high) else f"{found.crossing.high:.1f}"
        say(
            f"The curves cross at k = {found.crossing.k:.1f} ({sure}: {low} to {high}); "
            f"{found.crossing.better_after} is ahead after it."
        )
    if found.solved_only_a or found.solved_only_b:
        say(
            f"Solved only by {found.a}: {len(found.solved_only_a)}; "
            f"only by {found.b}: {len(found.solved_only_b)}."
        )
    for note in found.notes:
        say(f"  note: {note}")
    say(found.verdict)


def extrapolation(found: Extrapolation) -> None:
    sure = f"{found.confidence:.0%}"
    table(
        f"{found.name}: pass@k beyond n = {found.n[0]}, extrapolated "
        f"(Beta({found.a:.2f}, {found.b:.2f}) over {found.problems} problems)"
        + (" — UNRELIABLE" if found.unreliable else ""),
        ("", "estimate", f"{sure}, if the model holds"),
        [
            (f"pass@{k}", number(value), ends(low, high))
            for k, value, low, high in zip(
                found.k, found.estimate, found.interval.low, found.interval.high
            )
        ],
    )
    if found.holdout_n:
        last = -1
        say(
            f"  check: fitted on {found.holdout_n} samples per problem, it predicts "
            f"pass@{found.holdout_k[last]} = {found.holdout_predicted[last]:.3f}; all samples "
            f"show {found.holdout_observed[last]:.3f}"
        )
    for reason in found.reasons:
        say(f"  unreliable: {reason}")


def diversity(found: Diversity) -> None:
    """What is known about the variety of samples; nothing where nothing is."""
    named: list[tuple[str, Measure]] = [
        (f"distinct answers among {found.m}", found.distinct),
        ("effective number of answers", found.effective),
        (f"distinct wrong answers among {found.m}", found.distinct_wrong),
        (f"distinct correct answers among {found.m}", found.distinct_correct),
        ("compression ratio of completions", found.compression),
        ("entropy of a completion, nats", found.entropy),
        ("entropy per token, nats", found.entropy_per_token),
    ]
    rows = [
        (name, f"{m.value:.3f}", ends(m.low, m.high), f"{m.problems}")
        for name, m in named
        if m.problems
    ]
    if rows:
        sure = f"{found.confidence:.0%} over problems"
        table(f"{found.name}: diversity", ("", "mean", sure, "problems"), rows)
    if found.no_answer > 0:
        say(f"  {found.no_answer:.1%} of samples have no answer")
    for note in found.notes:
        say(f"  note: {note}")


def off_policy(found: ReweightedEstimate) -> None:
    kind = "self-normalised, biased" if found.self_normalised else "unbiased"
    say(
        f"{found.name}: max@{found.k} of the new policy, off policy ({kind}): "
        f"{found.estimate:.4f} ({found.confidence:.0%} over {len(found.problems)} problems: "
        f"{ends(found.low, found.high)}); {found.effective:.0%} of the {found.k}-subsets count"
    )


def plan(found: Plan) -> None:
    what = (
        f"an interval of width {found.target:g} for pass@{found.k}"
        if found.goal == "width"
        else f"power {found.target:g} to find a difference of {found.effect:g} in pass@{found.k}"
    )
    runs = "" if found.goal == "width" else " (both runs)"
    table(
        f"For {what}, at {found.confidence:.0%}",
        ("samples per problem", "problems", f"samples{runs}", found.goal),
        [
            (
                f"n = {row.n}" + (" *" if row == found.best else ""),
                f"{row.problems:,}",
                f"{row.samples:,}",
                f"{row.value:.3f}",
            )
            for row in found.rows
        ],
    )
    say(f"  * fewest samples: {found.best.problems:,} problems × {found.best.n} samples")
    say(f"  population: {found.population}")
    for note in found.notes:
        say(f"  note: {note}")


def as_json(results: Any) -> str:
    """Results for programs: every field, arrays as lists, NaN as null."""
    return json.dumps(_plain(results), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
