"""Figures for papers: the page's charts drawn by matplotlib, as PNG or SVG files.

Each states its n, k, problems, seeds and confidence in small print below the axis, so that it can
stand alone. Matplotlib is the extra `plot`, imported only here.
"""

from __future__ import annotations

import base64
import functools
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bestofk.common import json_safe
from bestofk.evaluation import Comparison, Curve

from .content import curve_data
from .content import difference as difference_data
from .page import write

COLOURS = ("#5f6875", "#1f62c9", "#b8480a", "#0a7f5f", "#9a3fa0", "#856700", "#0c7590", "#b3365e")
SIZE = (3.5, 2.9)
"""Inches: one column of a two-column paper."""
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#59606b",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e2e3de",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.5,
    "savefig.dpi": 300,
    "svg.hashsalt": "bestofk",
    "svg.fonttype": "none",
    "text.usetex": False,
}
Runs = Sequence[Mapping[str, Any]] | Mapping[int, Mapping[str, Any]]
"""By number."""
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


def notebook_axes(ax: Any = None) -> Any:
    """Axes to draw on: those given, or new ones in the style of the figures.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install 'bestofk[plot]'") from error
    with in_style():
        return plt.subplots(figsize=(5.0, 3.6), layout="constrained")[1]


def in_style() -> Any:
    from matplotlib import rc_context

    return rc_context(STYLE)


def plot_curve(curve: Curve, ax: Any = None) -> Any:
    """One curve as in the page's first figure; a second call with the same axes adds another."""
    ax = notebook_axes(ax)
    run = len(ax.lines)
    runs = {run: {"name": curve.name, "seeds": "not recorded"}}
    shown = {"label": curve.metric, "curves": [curve_data(curve, run)]}
    with in_style():
        _printed_below(ax, coverage(ax, runs, json_safe(shown, digits=6)))
    return ax


def plot_difference(comparison: Comparison, ax: Any = None) -> Any:
    """One comparison as in the page's figure of differences."""
    ax = notebook_axes(ax)
    names = (comparison.a, comparison.b)
    runs = [{"name": name, "seeds": "not recorded"} for name in names]
    with in_style():
        _printed_below(
            ax, difference(ax, runs, json_safe(difference_data(comparison, names), digits=6))
        )
    return ax


def picture(draw: Callable[[Any], object]) -> str:
    """What a notebook shows of a result: its figure as an HTML image; empty without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    drawn = io.BytesIO()
    with in_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        draw(figure.subplots())
        figure.savefig(drawn, format="png", dpi=144)
    encoded = base64.b64encode(drawn.getvalue()).decode("ascii")
    return f'<img alt="" width="500" src="data:image/png;base64,{encoded}">'


def _printed_below(ax: Any, small: str) -> None:
    """n, k, problems and confidence, in small print below the axis."""
    ax.figure.supxlabel(small.replace(", seeds not recorded", ""), fontsize=6, color="#59606b")


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


def letter(run: int) -> str:
    return chr(ord("A") + run) if run < 26 else str(run + 1)


def plain_text(text: str) -> str:
    """A name as matplotlib shows it: no mathematics, no control characters."""
    return "".join(c if c.isprintable() else "�" for c in text).replace("$", r"\$")


def label(runs: Runs, run: int) -> str:
    return plain_text(f"{letter(run)}  {runs[run]['name']}")


def colour(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


def span(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def per_run(items: Sequence[Mapping[str, Any]], of: Callable[[Mapping[str, Any]], str]) -> str:
    """One value where all runs agree, else each with its letter."""
    values = [of(one) for one in items]
    if len(set(values)) == 1:
        return values[0]
    return ", ".join(f"{letter(one['run'])} {value}" for one, value in zip(items, values))


def powers(ax: Any, last: int) -> None:
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log", base=2)
    top = max(last, 2)
    ticks = [2**i for i in range(top.bit_length()) if 2**i <= top]
    ax.set_xticks(ticks[:: 1 + len(ticks) // 9], [f"{t}" for t in ticks[:: 1 + len(ticks) // 9]])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("k")


def seeds(runs: Runs, chosen: Sequence[int]) -> str:
    return "seeds " + per_run([{"run": r} for r in chosen], lambda one: runs[one["run"]]["seeds"])


def coverage(ax: Any, runs: Runs, measure: Mapping[str, Any]) -> str:
    curves = measure["curves"]
    for c in curves:
        ax.fill_between(c["k"], c["low"], c["high"], color=colour(c["run"]), alpha=0.16, lw=0)
        ax.plot(c["k"], c["mean"], color=colour(c["run"]), label=label(runs, c["run"]),
                marker="o" if len(c["k"]) == 1 else None)  # fmt: skip
    powers(ax, max(c["k"][-1] for c in curves))
    ax.set_ylabel(measure["label"])
    ax.legend()
    return (
        f"n = {per_run(curves, lambda c: span(c['n']))}, k = 1…{per_run(curves, last_k)}, "
        f"{per_run(curves, lambda c: str(c['problems']))} problems, "
        f"{seeds(runs, [c['run'] for c in curves])}; {curves[0]['confidence']:.0%} intervals over "
        "problems"
    )


def last_k(curve: Mapping[str, Any]) -> str:
    return str(curve["k"][-1])


def difference(ax: Any, runs: Runs, d: Mapping[str, Any]) -> str:
    ax.axhline(0, color="#59606b", lw=0.8)
    ax.fill_between(d["k"], d["low"], d["high"], color=colour(d["b"]), alpha=0.16, lw=0)
    ax.plot(d["k"], d["difference"], color=colour(d["b"]))
    if d["crossing"]:
        k = d["crossing"]["k"]
        ax.axvline(k, color="#1a56b0", lw=0.9, ls="--")
        ax.annotate(f"crossing k ≈ {k:.3g}", (k, 1), xycoords=("data", "axes fraction"),
                    xytext=(3, -2), textcoords="offset points", va="top", color="#1a56b0",
                    fontsize=7)  # fmt: skip
    powers(ax, d["k"][-1])
    ax.set_ylabel(f"{letter(d['b'])} − {letter(d['a'])}, {d['measure']}")
    names = [label(runs, run) for run in (d["b"], d["a"])]
    ax.set_title(f"{names[0]}  minus  {names[1]}", loc="left")
    return (
        f"n = {letter(d['a'])} {span(d['n_a'])}, {letter(d['b'])} {span(d['n_b'])}, "
        f"k = 1…{d['k'][-1]}, {d['problems']} problems, paired, {seeds(runs, [d['a'], d['b']])}; "
        f"{d['confidence']:.0%} intervals over problems"
    )


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
