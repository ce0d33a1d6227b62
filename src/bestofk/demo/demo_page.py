"""The page: one self-contained HTML file that asks the network for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from .chart import LINES, PALETTE, Chart, Frame, drawing, pass_chart, swatch, training_charts
from .conclusions import conditions, rows, sentence
from .experiment import Results


def page(results: Results, next_steps: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page as text.

    Args:
        results: what `experiment` returned.
        next_steps: (command, what it does), to read on with.
    """
    main = pass_chart(results)
    slots = {
        "style": PALETTE.format(scope=":root") + LINES,
        "sentence": escape(sentence(results)),
        "title": escape(main.title),
        "legend": _legend(results.names),
        "wide": _figure(Frame(main, 720, 400), results.names),
        "narrow": _figure(Frame(main, 360, 330, left=42, right=12), results.names),
        "training": "".join(
            f"<div><h3>{escape(chart.title)}</h3>"
            f"{_figure(Frame(chart, 236, 190, left=44, right=14), results.names)}</div>"
            for chart in training_charts(results)
        ),
        "conditions": escape(conditions(results)),
        "table": _table(results),
        "settings": _settings(results),
        "strategies": str(results.settings.strategies),
        "next": "".join(
            f"<li><code>{escape(command)}</code><span>{escape(what)}</span></li>"
            for command, what in next_steps
        ),
    }
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    for name, value in slots.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def _legend(names: Sequence[str]) -> str:
    return "".join(
        '<li><svg viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">'
        f"{swatch(run)}</svg>"
        f"{escape(name)}</li>"
        for run, name in enumerate(names)
    )


def _figure(frame: Frame, names: Sequence[str]) -> str:
    """A chart that answers pointer, touch and arrow keys: to assistive technology, a slider."""
    chart = frame.chart
    last = len(chart.places) - 1
    return (
        f'<div class="chart" role="slider" tabindex="0" aria-label="{escape(_label(chart))}" '
        f'aria-valuemin="0" aria-valuemax="{last}" aria-valuenow="{last}" '
        f'aria-valuetext="{escape(_spoken(chart, names, last))}">'
        f'<svg viewBox="0 0 {frame.width} {frame.height}" aria-hidden="true">{drawing(frame)}'
        f'<g class="at" visibility="hidden"><line class="cursor" y1="{frame.top}" '
        f'y2="{frame.height - frame.bottom}"/></g></svg>'
        '<div class="tip" hidden></div>'
        f'<script type="application/json">{frame.geometry()}</script></div>'
    )


def _label(chart: Chart) -> str:
    return f"{chart.title}; arrow keys move along {chart.x_label}"


def _spoken(chart: Chart, names: Sequence[str], place: int) -> str:
    stated = ", ".join(f"{name} {values[place]}" for name, values in zip(names, chart.values))
    return f"{chart.place_names[place]}: {stated}"


def _table(results: Results) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in results.names)
    body = []
    for row in rows(results):
        cells = "".join(
            f"<td>{'<strong>' if best else ''}{cell}{'</strong>' if best else ''}</td>"
            for cell, best in zip(row.cells, row.best)
        )
        body.append(f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    return f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody>"


def _settings(results: Results) -> str:
    chosen = results.settings
    pairs = {
        "samples per prompt, n": f"{chosen.n}",
        "k trained for": f"{chosen.k}",
        "prompts trained on": f"{chosen.prompts:,}",
        "held-out prompts": f"{chosen.held_out:,}",
        "prompts per step": f"{chosen.batch}",
        "steps": f"{chosen.steps:,}",
        "samples per run": f"{chosen.samples:,}",
        "strategies": f"{chosen.strategies}",
        "visible features": f"{chosen.features}",
        "learning rate (Adam)": f"{chosen.learning_rate:g}",
        "worlds": f"{chosen.worlds}",
        "seed": f"{chosen.seed}",
    }
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs.items())
