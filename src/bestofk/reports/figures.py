"""Figures for papers: the page's charts drawn by matplotlib, as PNG or SVG files.

Each states its n, k, problems, seeds and confidence in small print below the axis, so that it can
stand alone.
"""

from __future__ import annotations

import functools
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bestofk.common import json_safe
from bestofk.evaluation.charts import (
    STYLE,
    colour,
    coverage,
    difference,
    label,
    last_k,
    letter,
    per_run,
    plain_text,
    powers,
    seeds,
    span,
)

from .page import write

SIZE = (3.5, 2.9)
"""Inches: one column of a two-column paper."""
Draw = Callable[[Any], str]
"""Draws on axes and returns the small print."""


def require_matplotlib() -> None:
    """
    Raises:
        ValueError: it is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ValueError(
            "--png and --svg draw with matplotlib, which is not installed: "
            "pip install 'bestofk[plot]'"
        ) from None


def write_figures(data: Mapping[str, Any], folder: Path, kind: str) -> list[Path]:
    """Write every figure that the data have; return the files.

    Raises:
        OSError: a file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    plain = json_safe(data, digits=6)
    written = []
    for name, draw in drawings(plain):
        path = folder / f"{name}.{kind}"
        with rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure = Figure(figsize=SIZE, layout="constrained")
            axes = figure.subplots()
            small = draw(axes)
            figure.supxlabel(small, fontsize=5, color="#59606b", wrap=True)
            picture = io.BytesIO()
            figure.savefig(picture, format=kind, metadata={"Date": None} if kind == "svg" else None)
        write(path, picture.getvalue())
        written.append(path)
    return written


def drawings(data: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """(file name without ending, what to draw) for every figure the data have."""
    runs = data["runs"]
    draw = functools.partial
    for m in data["measures"]:
        yield slug(f"coverage {m['label']}"), draw(coverage, runs=runs, measure=m)
    for d in data["differences"]:
        name = f"difference {letter(d['b'])}-{letter(d['a'])} {d['measure']}"
        yield slug(name), draw(difference, runs=runs, d=d)
    for m in data["per_problem"]["measures"] if len(data["measures"][0]["curves"]) > 1 else ():
        at = min(1, len(m["k"]) - 1)
        name = f"problems {m['key'].replace('k', str(m['k'][at]))}"
        yield slug(name), draw(scatter, runs=runs, m=m, at=at)
    for m in data["training"]:
        yield slug(f"training {m['label']}"), draw(training, runs=runs, metric=m)
    if data["extrapolation"]:
        yield "beyond-n", draw(beyond, runs=runs, extrapolations=data["extrapolation"])


def slug(text: str) -> str:
    """A file name.

    >>> slug("coverage pass@k"), slug("coverage pass^k"), slug("difference B-A max@k")
    ('coverage-pass-at-k', 'coverage-pass-hat-k', 'difference-b-a-max-at-k')
    """
    words = text.lower().replace("@", " at ").replace("^", " hat ")
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")


def scatter(ax: Any, runs: Sequence[Mapping[str, Any]], m: Mapping[str, Any], at: int) -> str:
    values, k = m["values"][at], m["k"][at]
    pairs = [(a, b) for a, b in zip(values[0], values[1]) if a is not None and b is not None]
    low, high = m["limits"]
    ax.plot([low, high], [low, high], color="#59606b", lw=0.7, ls=":")
    shades = [colour(1) if b > a else colour(0) if a > b else "#b9bdc4" for a, b in pairs]
    ax.scatter(*zip(*pairs), s=9, c=shades, alpha=0.6, linewidths=0)
    name = m["key"].replace("k", str(k))
    ax.set_xlabel(f"{label(runs, 0)}, {name}")
    ax.set_ylabel(f"{label(runs, 1)}, {name}")
    return (
        f"one point per problem, k = {k}, {len(pairs)} problems, n = A {runs[0]['n']}, "
        f"B {runs[1]['n']}, {seeds(runs, [0, 1])}"
    )


def training(ax: Any, runs: Sequence[Mapping[str, Any]], metric: Mapping[str, Any]) -> str:
    for c in metric["curves"]:
        if c.get("low"):
            ax.fill_between(
                c["step"], c["low"], c["high"], color=colour(c["run"]), alpha=0.16, lw=0
            )
        ax.plot(c["step"], c["value"], color=colour(c["run"]), label=label(runs, c["run"]), lw=1.1)
    ax.set_xlabel("step")
    ax.set_ylabel(metric["label"])
    ax.legend()
    return plain_text(metric["facts"].replace(" · ", ", "))


def beyond(
    ax: Any, runs: Sequence[Mapping[str, Any]], extrapolations: Sequence[Mapping[str, Any]]
) -> str:
    for e in extrapolations:
        shade, gone = colour(e["run"]), " (no prediction)" if e["unreliable"] else ""
        name = label(runs, e["run"]) + gone
        ax.plot(e["observed"]["k"], e["observed"]["mean"], color=shade, label=name)
        if not gone:  # a prediction that failed its check is not drawn
            ax.plot(e["k"], e["mean"], color=shade, ls="--")
            ax.fill_between(e["k"], e["low"], e["high"], color=shade, alpha=0.16, lw=0)
    powers(ax, max(e["k"][-1] for e in extrapolations))
    ax.set_ylabel("pass@k")
    ax.legend()
    return (
        "solid measured, broken predicted, "
        f"n = {per_run(extrapolations, lambda e: span(e['n']))}, "
        f"k = 1…{per_run(extrapolations, last_k)}, "
        f"{per_run(extrapolations, lambda e: str(e['problems']))} problems, "
        f"{seeds(runs, [e['run'] for e in extrapolations])}; "
        f"{extrapolations[0]['confidence']:.0%} intervals"
    )
