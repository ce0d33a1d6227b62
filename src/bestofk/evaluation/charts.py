"""Curves and differences drawn by matplotlib, for notebooks and papers.

Every figure states its n, k, problems and confidence in small print. Matplotlib is the extra
`plot`. Curves and comparisons are those of `results`, which draws itself with this module.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable
from typing import Any

from bestofk.messages import printable
from bestofk.samples.sample_arrays import in_clusters

from .verdict_words import one_or_range, percent

COLOURS = ("#5f6875", "#1f62c9", "#b3323f", "#0a7f5f", "#9a3fa0", "#856700", "#0c7590", "#c2571a")
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


def plot_curve(curve: Any, ax: Any = None) -> Any:
    """A metric against k with its interval; a second call with the same axes adds another."""
    ax = notebook_axes(ax)
    shade = COLOURS[len(ax.lines) % len(COLOURS)]
    with in_style():
        ax.fill_between(curve.k, curve.interval.low, curve.interval.high, color=shade, alpha=0.16,
                        lw=0)  # fmt: skip
        ax.plot(curve.k, curve.estimate, color=shade, label=_name(curve.name),
                marker="o" if len(curve.k) == 1 else None)  # fmt: skip
        ax.set_ylabel(curve.metric)
        ax.legend()
        _finish(ax, curve, f"n = {one_or_range(curve.n)}", "intervals over problems")
    return ax


def plot_difference(comparison: Any, ax: Any = None) -> Any:
    """The difference of two runs against k, with its band and the crossing."""
    ax = notebook_axes(ax)
    ends = comparison.band
    with in_style():
        ax.axhline(0, color="#59606b", lw=0.8)
        ax.fill_between(comparison.k, ends.low, ends.high, color=COLOURS[1], alpha=0.16, lw=0)
        ax.plot(comparison.k, comparison.difference, color=COLOURS[1])
        if comparison.crossing:
            k = comparison.crossing.k
            ax.axvline(k, color="#1a56b0", lw=0.9, ls="--")
            ax.annotate(f"crossing k ≈ {k:.3g}", (k, 1), xycoords=("data", "axes fraction"),
                        xytext=(3, -2), textcoords="offset points", va="top", color="#1a56b0",
                        fontsize=7)  # fmt: skip
        ax.set_ylabel(f"difference in {comparison.metric}")
        ax.set_title(_name(f"{comparison.b}  minus  {comparison.a}"), loc="left")
        n = f"n = {one_or_range(comparison.n_b)} and {one_or_range(comparison.n_a)}"
        _finish(ax, comparison, n, "band over problems and all k")
    return ax


def _finish(ax: Any, result: Any, n: str, intervals: str) -> None:
    """k in powers of two; and below the axis n, k, problems and confidence, in small print."""
    from matplotlib.ticker import NullLocator

    last = int(result.k[-1])
    ticks = [2**i for i in range(max(last, 2).bit_length()) if 2**i <= max(last, 2)]
    ticks = ticks[:: 1 + len(ticks) // 9]
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{tick}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("k")
    problems = in_clusters(len(result.problems), result.clusters)
    small = f"{n}, k = 1…{last}, {problems}; {percent(result.confidence)} {intervals}"
    before = ax.figure.get_supxlabel().splitlines()  # of a curve that was drawn here already
    ax.figure.supxlabel("\n".join(dict.fromkeys([*before, small])), fontsize=6, color="#59606b")


def picture(draw: Callable[[Any], object]) -> str:
    """What a notebook shows of a result: its figure as an HTML image; empty without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    image = io.BytesIO()
    with in_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(5.0, 3.6), layout="constrained")
        draw(figure.subplots())
        figure.savefig(image, format="png", dpi=144)
    encoded = base64.b64encode(image.getvalue()).decode("ascii")
    return f'<img alt="" width="500" src="data:image/png;base64,{encoded}">'


def notebook_axes(ax: Any = None) -> Any:
    """Axes to draw on: those given, or new ones in the style of the figures."""
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


def _name(text: str) -> str:
    """A name as matplotlib shows it: no mathematics, no control characters."""
    return printable(text).replace("$", r"\$")
