"""The page and the figure: self-contained, and with the table's numbers."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bestofk.demo import Results, Settings, experiment, page, rows, sentence, standalone
from bestofk.demo.chart import LINES, PALETTE, Frame, pass_chart, training_charts

VOID = {"meta", "link", "br", "img", "input", "hr"}
FIGURE = Path(__file__).parents[2] / "docs" / "images" / "demo.svg"


class Reader(HTMLParser):
    """Collects table cells, and checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.ids.extend(value for name, value in attrs if name == "id" and value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_pages_table_is_the_table(small: Results) -> None:
    head, *body = read(page(small)).rows
    assert head == ["", *small.names]
    assert body == [[row.label, *row.cells] for row in rows(small)]


def test_the_page_has_the_sentence_the_settings_and_the_next_steps(small: Results) -> None:
    text = page(small, [("bestofk <x>", 'a & "b"')])
    assert html.escape(sentence(small)) in text
    assert "<code>bestofk &lt;x&gt;</code><span>a &amp; &quot;b&quot;</span>" in text
    assert "<dt>samples per run</dt><dd>61,440</dd>" in text
    assert "{{" not in text
    ids = read(text).ids
    assert len(ids) == len(set(ids))


def test_the_page_asks_for_nothing_and_is_small(small: Results) -> None:
    text = page(small)
    without_names = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<img|<iframe|\bsrc=", without_names)
    assert re.findall(r'href="([^"]*)"', text) == ["data:,"]
    assert len(text.encode()) < 100_000


def test_the_scripts_values_are_the_tables(small: Results) -> None:
    geometries = [
        json.loads(found)
        for found in re.findall(r'<script type="application/json">(.*?)</script>', page(small))
    ]
    assert len(geometries) == 5  # the figure, wide and narrow, and three during training
    for wide in geometries[:2]:
        for place, row in enumerate(rows(small)[:-1]):
            assert wide["names"][place] == row.label
            said = [values[place].replace("%", "") for values in wide["values"]]
            assert said == list(row.cells)
    ends = [[values[-1].replace("%", "") for values in chart["values"]] for chart in geometries[2:]]
    table = rows(small)
    assert ends == [list(table[place].cells) for place in (0, -2, -1)]


def test_points_lie_where_their_values_are(small: Results) -> None:
    for chart in (pass_chart(small), *training_charts(small)):
        frame = Frame(chart, 720, 400)
        low, high = frame.y(chart.levels[0][0]), frame.y(chart.levels[-1][0])
        assert high == frame.top
        assert low == frame.height - frame.bottom
        span = chart.levels[-1][0]
        for run, ys in enumerate(json.loads(frame.geometry())["y"]):
            values = [(low - y) / (low - high) * span for y in ys]
            assert values == pytest.approx(chart.means[run].tolist(), abs=0.001 * span)


def test_the_figure_alone_is_xml_with_its_conditions(small: Results) -> None:
    root = ElementTree.fromstring(standalone(small))
    name = "{http://www.w3.org/2000/svg}"
    texts = [node.text or "" for node in root.iter(f"{name}text")]
    for run in small.names:
        assert run in texts
    joined = " ".join(texts)
    for part in ("n = 16", "k = 8", "1,024 prompts", "95%", "3 worlds", "seed 0"):
        assert part in joined
    assert len(list(root.iter(f"{name}polyline"))) == 4
    assert "prefers-color-scheme:dark" in standalone(small)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_can_be_read_in_light_and_dark() -> None:
    light, dark = PALETTE.split("@media")
    for scheme in (light, dark):
        colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", scheme))
        paper = luminance(colours["paper"])
        for name in ("ink", "soft", "run0", "run1", "run2", "run3"):  # runs colour text in the tip
            pair = sorted((luminance(colours[name]), paper))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, name
    assert LINES.count("stroke-dasharray") >= 3  # runs differ in dash as well


def test_the_committed_figure_shows_what_the_defaults_give() -> None:
    results = experiment(Settings())
    fresh, kept = standalone(results), FIGURE.read_text(encoding="utf-8")

    def numbers(text: str) -> list[float]:
        found = re.search(r"<desc[^>]*>(.*?)</desc>", text)
        assert found
        return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,.]*\d", found[1])]

    # Rounding differs between processors and may turn a sample: the last digits may move.
    assert numbers(kept) == pytest.approx(numbers(fresh), abs=1.0), (
        "regenerate it: bestofk demo --svg docs/images/demo.svg"
    )
    assert re.sub(r"[\d.,]+", "", kept) == re.sub(r"[\d.,]+", "", fresh)
