"""The page: one self-contained HTML file that asks the network for nothing.

Its charts are those of the report (`reports/page/chart.js`).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from bestofk.reports.page import CHARTS, assemble, part
from bestofk.reports.run_colours import palette_places

from .conclusions import conditions, interval, rows, sentence
from .experiment import KS, Results


def page(results: Results, next_steps: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page as text.

    Args:
        results: what `experiment` returned.
        next_steps: (command, what it does), to read on with.
    """
    colours = zip(results.names, palette_places(results.names))
    runs = [{"name": name, "colour": colour} for name, colour in colours]
    data = {"runs": runs, "charts": charts(results)}
    steps = (f"<p><code>{escape(one)}</code><br>{escape(what)}</p>" for one, what in next_steps)
    values = {
        "sentence": escape(sentence(results)),
        "conditions": escape(conditions(results)),
        "table": _table(results),
        "settings": _settings(results),
        "strategies": str(results.settings.strategies),
        "next": "\n".join(steps),
    }
    own = files(__package__)
    template, script = (own.joinpath(name).read_text("utf-8") for name in ("page.html", "demo.js"))
    return assemble(template, [*map(part, CHARTS), script], data, values)


def charts(results: Results) -> list[dict[str, Any]]:
    """pass@k against k after training; pass@1, pass@64 and entropy during training."""
    passes, steps = results.pass_at_k, results.settings.checkpoints
    first, last = f"pass@{KS[0]}", f"pass@{KS[-1]}"
    return [
        _chart("pass@k", "k", KS, 100 * passes[:, :, -1], percent=True, log=True, names=True),
        _chart(first, "step", steps, 100 * passes[..., 0], percent=True),
        _chart(last, "step", steps, 100 * passes[..., -1], percent=True),
        _chart("entropy, nats", "step", steps, results.entropy),
    ]


def _chart(
    title: str, x_label: str, x: Sequence[int], values: np.ndarray, **more: bool
) -> dict[str, Any]:
    """One figure, from values (runs, worlds, points): means with their intervals over worlds."""
    means, halves = interval(np.moveaxis(values, 1, 0))
    series = [{"y": m, "low": m - h, "high": m + h} for m, h in zip(means, halves)]
    unit = ", %" if more.get("percent") else ""
    about = {"title": title, "xLabel": x_label, "yLabel": title + unit, "x": x, **more}
    return {**about, "series": series, "height": 380 if more.get("names") else 220}


def _table(results: Results) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in results.names)
    body = []
    for row in rows(results):
        cells = "".join(
            f"<td><strong>{cell}</strong></td>" if best else f"<td>{cell}</td>"
            for cell, best in zip(row.cells, row.best)
        )
        body.append(f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>')
    return f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody>"


def _settings(results: Results) -> str:
    chosen = results.settings
    pairs = {
        "samples per prompt, n": chosen.n,
        "k trained for": chosen.k,
        "prompts trained on": chosen.prompts,
        "held-out prompts": chosen.held_out,
        "prompts per step": chosen.batch,
        "steps": chosen.steps,
        "samples per run": chosen.samples,
        "strategies": chosen.strategies,
        "visible features": chosen.features,
        "learning rate (Adam)": chosen.learning_rate,
        "worlds": chosen.worlds,
        "seed": chosen.seed,
    }
    return "".join(f"<tr><th>{name}</th><td>{value:,}</td></tr>" for name, value in pairs.items())
