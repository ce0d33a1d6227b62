"""Curves and differences drawn by matplotlib: for notebooks, papers and reports alike.

Every figure is drawn from plain data (`curve_data`, `difference_data`), which the report's page
draws too, and states its n, k, problems and confidence. Matplotlib is the extra `plot`. Curves and
comparisons are those of `results`, which draws itself with this module.
"""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bestofk.common import json_safe

from .verdict_words import effects, in_clusters

COLOURS = ("#5f6875", "#1f62c9", "#b8480a", "#0a7f5f", "#9a3fa0", "#856700", "#0c7590", "#b3365e")
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


def plot_curve(curve: Any, ax: Any = None) -> Any:
    """One curve as in the page's first figure; a second call with the same axes adds another."""
    ax = notebook_axes(ax)
    run = len(ax.lines)
    runs = {run: {"name": curve.name, "seeds": "not recorded"}}
    shown = {"label": curve.metric, "curves": [curve_data(curve, run)]}
    with in_style():
        _printed_below(ax, coverage(ax, runs, json_safe(shown, digits=6)))
    return ax


def plot_difference(comparison: Any, ax: Any = None) -> Any:
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


def _printed_below(ax: Any, small: str) -> None:
    """n, k, problems and confidence, in small print below the axis."""
    ax.figure.supxlabel(small.replace(", seeds not recorded", ""), fontsize=6, color="#59606b")


def thin(last: int, most: int = 72) -> list[int]:
    """About `most` values of k at most, evenly spaced on a log axis, all powers of two among them.

    >>> thin(6), len(thin(1024))
    ([1, 2, 3, 4, 5, 6], 63)
    """
    spaced = {round(k) for k in np.geomspace(1, last, most)}
    powers = {2**i for i in range(int(math.log2(last)) + 1)}
    return sorted(spaced | powers | {1, last})


def curve_data(curve: Any, run: int) -> dict[str, Any]:
    ks = thin(int(curve.k[-1]))
    at = np.searchsorted(curve.k, ks)

    def ends(interval: Any) -> dict[str, Any]:
        return {"low": interval.low[at], "high": interval.high[at]}

    return {
        "run": run,
        "k": ks,
        "mean": curve.estimate[at],
        **ends(curve.interval),
        "band": ends(curve.band),
        "fixed": ends(curve.fixed),
        "n": curve.n,
        "problems": len(curve.problems),
        "clusters": curve.clusters,
        "confidence": curve.confidence,
        "resamples": curve.resamples,
        "seed": curve.seed,
        "notes": list(curve.notes),
    }


def difference_data(one: Any, names: Sequence[str]) -> dict[str, Any]:
    ks = thin(int(one.k[-1])) if len(one.k) == one.k[-1] else one.k.tolist()
    at = np.searchsorted(one.k, ks)
    crossing = one.crossing
    return {
        "a": names.index(one.a),
        "b": names.index(one.b),
        "measure": one.metric,
        "k": ks,
        "difference": one.difference[at],
        "low": one.band.low[at],
        "high": one.band.high[at],
        "p": one.p_value[at],
        "wins": one.wins[at],
        "losses": one.losses[at],
        "ties": one.ties[at],
        "crossing": crossing
        and {
            "k": crossing.k,
            "low": crossing.low,
            "high": crossing.high,  # infinity becomes null
            "better": crossing.better_after,
        },
        "verdict": one.verdict,
        "effects": effects(one),
        "problems": len(one.problems),
        "clusters": one.clusters,
        "n_a": one.n_a,
        "n_b": one.n_b,
        "confidence": one.confidence,
        "resamples": one.resamples,
        "seed": one.seed,
        "notes": list(one.notes),
    }


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
        f"{per_run(curves, lambda c: in_clusters(c['problems'], c['clusters']))}, "
        f"{seeds(runs, [c['run'] for c in curves])}; {curves[0]['confidence']:.0%} intervals over "
        "problems"
    )


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
        f"k = 1…{d['k'][-1]}, {in_clusters(d['problems'], d['clusters'])}, paired, "
        f"{seeds(runs, [d['a'], d['b']])}; "
        f"{d['confidence']:.0%} band over problems and all k"
    )


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


def last_k(curve: Mapping[str, Any]) -> str:
    return str(curve["k"][-1])


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
