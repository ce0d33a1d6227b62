"""Line charts as SVG text: the page's figures, and the one file for the README.

Colours are CSS variables, so that one drawing serves light and dark; lines differ in dash and
marker too, so that colour is never the only sign.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from .conclusions import conditions, interval, percentage, sentence
from .experiment import KS, Results

MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-3.6-3.6h7.2v7.2h-7.2z",  # square
    "M0-4.8L4.6 3.4H-4.6z",  # triangle
    "M0-5L5 0L0 5L-5 0z",  # diamond
)

PALETTE = """
{scope}{{--paper:#fdfcfa;--ink:#1c1d20;--soft:#5c6068;--rule:#e4e1da;--band:.13;
--run0:#6a6f78;--run1:#c2490a;--run2:#1f5fae;--run3:#0c7d5d}}
@media (prefers-color-scheme:dark){{{scope}{{--paper:#15171b;--ink:#eceae5;--soft:#a3a7af;
--rule:#2d3138;--band:.17;--run0:#a4a9b3;--run1:#ff9257;--run2:#7ab6ff;--run3:#4fd0a3}}}}
"""

LINES = """
.run0{color:var(--run0)}.run1{color:var(--run1)}.run2{color:var(--run2)}.run3{color:var(--run3)}
.line{fill:none;stroke:currentColor;stroke-width:2.25;stroke-linejoin:round;stroke-linecap:round}
.run0 .line{stroke-dasharray:1 5}.run3 .line{stroke-dasharray:8 5}
.band{fill:currentColor;opacity:var(--band)}
.mark{fill:currentColor;stroke:var(--paper);stroke-width:1.25}
.grid{stroke:var(--rule);stroke-width:1}
.tick,.axis{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
.cursor{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3}
"""


@dataclass(frozen=True)
class Chart:
    """One figure: several runs over the same places on the x axis."""

    title: str
    x_label: str
    places: tuple[float, ...]
    """Where the points lie, from 0 (left) to 1 (right)."""
    place_names: tuple[str, ...]
    """What each point is called when it is asked for."""
    ticks: tuple[tuple[float, str], ...]
    """(place, text) along the x axis."""
    levels: tuple[tuple[float, str], ...]
    """(value, text) along the y axis, lowest first; the first and last bound the axis."""
    means: np.ndarray
    """(runs, points)."""
    halves: np.ndarray
    """(runs, points), of the intervals."""
    values: tuple[tuple[str, ...], ...]
    """(runs, points): how each value is written."""
    markers: bool = True


def pass_chart(results: Results) -> Chart:
    """pass@k against k after training: the figure."""
    means, halves = _over_worlds(results.pass_at_k[:, :, -1])
    places = tuple(float(place) for place in np.linspace(0, 1, len(KS)))
    return Chart(
        title="Chance that at least one of k samples is correct",
        x_label="k, samples drawn",
        places=places,
        place_names=tuple(f"pass@{k}" for k in KS),
        ticks=tuple((place, str(k)) for place, k in zip(places, KS)),
        levels=PERCENT,
        means=means,
        halves=halves,
        values=_written(means, halves, percent=True),
    )


def training_charts(results: Results) -> list[Chart]:
    """pass@1, pass@64 and entropy during training."""
    steps = results.settings.checkpoints
    last = steps[-1]
    histories = [
        (f"pass@{KS[0]}", results.pass_at_k[..., 0], PERCENT, True),
        (f"pass@{KS[-1]}", results.pass_at_k[..., -1], PERCENT, True),
        ("entropy, nats", results.entropy, _nats(results.entropy), False),
    ]
    charts = []
    for title, history, levels, percent in histories:
        means, halves = _over_worlds(history)
        charts.append(
            Chart(
                title=title,
                x_label="steps",
                places=tuple(step / last for step in steps),
                place_names=tuple(f"step {step:,}" for step in steps),
                ticks=((0.0, "0"), (1.0, f"{last:,}")),
                levels=levels,
                means=means,
                halves=halves,
                values=_written(means, halves, percent),
                markers=False,
            )
        )
    return charts


PERCENT = tuple((level / 100, f"{level}%") for level in (0, 25, 50, 75, 100))


def _nats(entropy: np.ndarray) -> tuple[tuple[float, str], ...]:
    return tuple((float(level), str(level)) for level in range(int(np.ceil(entropy.max())) + 1))


def _over_worlds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return interval(np.moveaxis(values, 1, 0))


def _written(means: np.ndarray, halves: np.ndarray, percent: bool) -> tuple[tuple[str, ...], ...]:
    def write(mean: float, half: float) -> str:
        return f"{percentage(mean)} ± {100 * half:.1f}" if percent else f"{mean:.2f} ± {half:.2f}"

    return tuple(tuple(map(write, *pair)) for pair in zip(means, halves))


@dataclass(frozen=True)
class Frame:
    """Pixel geometry of a chart of a given size."""

    chart: Chart
    width: int
    height: int
    left: int = 46
    right: int = 16
    top: int = 12
    bottom: int = 44

    def x(self, place: float) -> float:
        return round(self.left + place * (self.width - self.left - self.right), 1)

    def y(self, value: float) -> float:
        low, high = self.chart.levels[0][0], self.chart.levels[-1][0]
        share = (min(max(value, low), high) - low) / (high - low)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)

    def geometry(self) -> str:
        """What the page's script needs to answer a pointer or a key, as JSON."""
        chart = self.chart
        return json.dumps(
            {
                "width": self.width,
                "height": self.height,
                "x": [self.x(place) for place in chart.places],
                "y": [[self.y(value) for value in run] for run in chart.means.tolist()],
                "names": chart.place_names,
                "values": chart.values,
            },
            ensure_ascii=False,
        )


def drawing(frame: Frame) -> str:
    """Grid, axes, bands, lines and markers, without the <svg> around them."""
    chart = frame.chart
    parts = []
    for value, text in chart.levels:
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{frame.left}" x2="{frame.width - frame.right}" y1="{y}" '
            f'y2="{y}"/><text class="tick" x="{frame.left - 8}" y="{y + 4:.1f}" '
            f'text-anchor="end">{text}</text>'
        )
    base = frame.height - frame.bottom
    parts.extend(
        f'<text class="tick" x="{frame.x(place)}" y="{base + 18}" text-anchor="middle">'
        f"{escape(text)}</text>"
        for place, text in chart.ticks
    )
    parts.append(
        f'<text class="axis" x="{frame.x(0.5)}" y="{base + 36}" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>"
    )
    runs = range(len(chart.means))
    parts.extend(_band(frame, run) for run in runs)
    parts.extend(_line(frame, run) for run in runs)
    return "".join(parts)


def _band(frame: Frame, run: int) -> str:
    chart = frame.chart
    above = _points(frame, chart.means[run] + chart.halves[run])
    below = _points(frame, chart.means[run] - chart.halves[run])
    return (
        f'<g class="run{run}"><polygon class="band" points="{" ".join(above + below[::-1])}"/></g>'
    )


def _line(frame: Frame, run: int) -> str:
    points = _points(frame, frame.chart.means[run])
    marks = ""
    if frame.chart.markers:
        marks = "".join(
            f'<path class="mark" transform="translate({point.replace(",", " ")})" '
            f'd="{MARKERS[run]}"/>'
            for point in points
        )
    return f'<g class="run{run}"><polyline class="line" points="{" ".join(points)}"/>{marks}</g>'


def _points(frame: Frame, values: np.ndarray) -> list[str]:
    pairs = zip(frame.chart.places, values.tolist())
    return [f"{frame.x(place)},{frame.y(value)}" for place, value in pairs]


def swatch(run: int) -> str:
    """A short piece of a run's line with its marker, for legends; 34 × 12."""
    return (
        f'<g class="run{run}"><path class="line" d="M2 6H32"/>'
        f'<path class="mark" transform="translate(17 6)" d="{MARKERS[run]}"/></g>'
    )


def standalone(results: Results, width: int = 760, height: int = 484) -> str:
    """The figure as one SVG file with its own title, legend and conditions, for a README.

    It paints its own paper, so it is legible whatever it is laid on.
    """
    chart = pass_chart(results)
    frame = Frame(chart, width, height, left=64, right=32, top=104, bottom=106)
    legend, at = [], float(frame.left)
    for run, name in enumerate(results.names):
        legend.append(
            f'<g transform="translate({at:.0f} 64)">{swatch(run)}'
            f'<text class="name" x="42" y="10.5">{escape(name)}</text></g>'
        )
        at += 42 + 7.6 * len(name) + 28
    notes = "".join(
        f'<text class="tick" x="{frame.left}" y="{height - 40 + 18 * i}">{escape(line)}</text>'
        for i, line in enumerate(_halves_of(conditions(results)))
    )
    style = PALETTE.format(scope="svg") + LINES
    style += ".sheet{fill:var(--paper);stroke:var(--rule)}.title,.name{fill:var(--ink)}"
    style += ".title{font-size:18px;font-weight:600}.name{font-size:14px}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title desc" '
        "font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif\">"
        f'<title id="title">{escape(chart.title)}</title>'
        f'<desc id="desc">{escape(sentence(results))} {escape(conditions(results))}.</desc>'
        f"<style>{style}</style>"
        f'<rect class="sheet" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>'
        f'<text class="title" x="{frame.left}" y="40">{escape(chart.title)}</text>'
        f"{''.join(legend)}{drawing(frame)}{notes}</svg>\n"
    )


def _halves_of(text: str) -> Sequence[str]:
    """Two lines, broken at the second semicolon-separated clause."""
    first, second, *rest = text.split("; ")
    return (f"{first};", "; ".join([second, *rest]))
