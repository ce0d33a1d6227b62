"""The page: self-contained, with the table's numbers, and right in a real browser."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bestofk.demo import KS, Results, page, rows, sentence
from report_files import opened, wait_until


class Cells(HTMLParser):
    """The cells of every row of every table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.inside = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def test_the_page_has_the_table_the_sentence_the_settings_and_the_next_steps(
    small: Results,
) -> None:
    text = page(small, [("bestofk <x>", 'a & "b"')])
    head, *body = Cells(text).rows
    assert head == ["", *small.names]
    assert body[: len(rows(small))] == [[row.label, *row.cells] for row in rows(small)]
    assert ["samples per run", "61,440"] in body
    assert html.escape(sentence(small)) in text
    assert "<code>bestofk &lt;x&gt;</code><br>a &amp; &quot;b&quot;" in text
    assert not re.search(r"\{\{\w+\}\}", text)


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def test_the_charts_hold_the_tables_numbers(small: Results) -> None:
    data = data_of(page(small))
    assert [run["name"] for run in data["runs"]] == list(small.names)
    first, *training = data["charts"]
    table = rows(small)
    assert first["x"] == list(KS)
    for place, row in enumerate(table[:-1]):
        said = [
            f"{one['y'][place]:.1f} ± {(one['high'][place] - one['low'][place]) / 2:.1f}"
            for one in first["series"]
        ]
        assert said == list(row.cells)
    for chart, row in zip(training, (table[0], table[-2], table[-1]), strict=True):
        scale = 100 if row.percent else 1
        ends = [one["y"][-1] for one in chart["series"]]
        assert ends == pytest.approx([scale * mean for mean in row.means], rel=1e-5)
        assert chart["x"] == list(small.settings.checkpoints)


@pytest.fixture(scope="module")
def file(small: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "demo.html"
    path.write_text(page(small, [("bestofk objectives", "every objective")]), encoding="utf-8")
    return path


def test_hover_and_keys_read_the_values(browser: Any, file: Path, small: Results) -> None:
    row = rows(small)[-2]
    with opened(browser, file) as view:
        chart = view.locator("#passes .chart")
        over = chart.locator(".u-over").bounding_box()
        view.mouse.move(over["x"] + over["width"] - 2, over["y"] + 40)
        tip = chart.locator(".tip")
        tip.wait_for(state="visible")
        assert f"k = {KS[-1]}" in tip.inner_text()
        for cell in row.cells:
            assert f"{cell.partition(' ')[0]}% [" in tip.inner_text()
        chart.focus()
        view.keyboard.press("Home")
        assert view.locator("#live").inner_text().startswith(f"k = {KS[0]}:")
        assert view.locator(".chart").count() == 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_scrolls_sideways_and_dark_is_dark(browser: Any, file: Path, scheme: str) -> None:
    with opened(browser, file, color_scheme=scheme) as view:
        for width in (320, 640, 1400):
            view.set_viewport_size({"width": width, "height": 800})
            wait_until(view, f"document.documentElement.scrollWidth <= {width}")
        paper = view.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", paper)[0]) < 64) == (scheme == "dark")


def test_the_page_can_be_read_without_scripts(browser: Any, file: Path, small: Results) -> None:
    view = browser.new_context(java_script_enabled=False).new_page()
    view.goto(file.as_uri())
    assert view.locator("tbody").first.locator("tr").count() == 8
    assert view.locator("#sentence").inner_text() == sentence(small)
