"""The page in a real browser: silent, offline; it answers pointer, touch and keys, fits a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bestofk.demo import Results, page, rows

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no Chromium on this machine (looked for {', '.join(NAMES)})"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=900_000
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address(small: Results, tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("page") / "demo.html"
    file.write_text(page(small, [("bestofk objectives", "every objective")]), encoding="utf-8")
    return file.as_uri()


def opened(browser: Browser, address: str, **context: Any) -> tuple[Page, list[str]]:
    """The page, and a list to which every complaint and every request but its own is added."""
    complaints: list[str] = []
    view = browser.new_context(**context).new_page()
    view.set_default_timeout(900_000)
    view.on("console", lambda message: complaints.append(message.text))
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.on(
        "request",
        lambda request: None if request.url == address else complaints.append(request.url),
    )
    view.goto(address)
    return view, complaints


def tip(view: Page) -> list[str]:
    return view.locator(".tip:visible").first.inner_text().split("\n")


def expected(small: Results, place: int) -> list[str]:
    row = rows(small)[place]
    cells = [cell.replace(" ±", "% ±") for cell in row.cells]
    return [row.label, *(part for pair in zip(small.names, cells) for part in pair)]


WIDE: dict[str, Any] = {"viewport": {"width": 1100, "height": 900}}
PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 812}, "has_touch": True}


def test_hovering_shows_the_values_of_the_nearest_k(
    browser: Browser, address: str, small: Results
) -> None:
    view, complaints = opened(browser, address, **WIDE)
    assert view.locator(".tip:visible").count() == 0
    chart = view.locator(".wide .chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    for place in range(7):
        x = box["x"] + (46 + place / 6 * (720 - 46 - 16)) * box["width"] / 720
        view.mouse.move(x + 5, box["y"] + 50)
        assert tip(view) == expected(small, place)
        bubble = view.locator(".tip:visible").bounding_box()
        assert bubble is not None
        assert box["x"] <= bubble["x"]
        assert bubble["x"] + bubble["width"] <= box["x"] + box["width"] + 1
    view.mouse.move(2, 2)
    assert view.locator(".tip:visible").count() == 0
    assert complaints == []


def test_keys_move_along_and_say_the_values(browser: Browser, address: str, small: Results) -> None:
    view, complaints = opened(browser, address, **WIDE)
    view.keyboard.press("Tab")
    chart = view.locator(".wide .chart")
    assert chart.evaluate("element => element === document.activeElement")
    assert tip(view) == expected(small, 6)
    for key, place in (("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1), ("End", 6)):
        view.keyboard.press(key)
        assert tip(view) == expected(small, place)
        label, *pairs = expected(small, place)
        said = ", ".join(f"{name} {value}" for name, value in zip(pairs[::2], pairs[1::2]))
        assert chart.get_attribute("aria-valuetext") == f"{label}: {said}"
        assert chart.get_attribute("aria-valuenow") == str(place)
    view.keyboard.press("Escape")
    assert view.locator(".tip:visible").count() == 0
    assert complaints == []


def test_a_phone_shows_values_at_a_touch(browser: Browser, address: str, small: Results) -> None:
    view, complaints = opened(browser, address, **PHONE)
    assert tip(view) == expected(small, 6)  # stands under the chart from the start
    chart = view.locator(".narrow .chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    view.touchscreen.tap(box["x"] + 44 * box["width"] / 360, box["y"] + 60)
    assert tip(view) == expected(small, 0)
    assert complaints == []


WIDE_FONT = (
    '* { font-family: "DejaVu Sans Mono", "Liberation Mono", monospace !important; '
    "letter-spacing: .1em !important }"
)
"""Wider than any font that a machine may have for the ones the page asks for."""


@pytest.mark.parametrize("font", ["", WIDE_FONT], ids=["own-font", "wide-font"])
@pytest.mark.parametrize("width", [320, 375, 640, 768, 1400])
def test_no_width_scrolls_sideways(browser: Browser, address: str, width: int, font: str) -> None:
    view, _ = opened(browser, address, viewport={"width": width, "height": 800})
    if font:
        view.add_style_tag(content=font)
    for chart in view.locator(".chart:visible").all():
        chart.focus()
        view.keyboard.press("Home")
        wide = view.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        smallest = chart.evaluate(
            "element => Math.min(...[...element.querySelectorAll('text')]"
            ".map(text => text.getBoundingClientRect().height))"
        )
        assert smallest >= 11
    table = view.locator(".scroll")
    if width >= 375:
        assert table.evaluate("element => element.scrollWidth <= element.clientWidth")


def test_dark_is_dark(browser: Browser, address: str) -> None:
    papers = []
    for scheme in ("light", "dark"):
        view, _ = opened(browser, address, color_scheme=scheme, **WIDE)
        papers.append(view.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert papers == ["rgb(253, 252, 250)", "rgb(21, 23, 27)"]


def test_the_page_can_be_read_without_scripts(
    browser: Browser, address: str, small: Results
) -> None:
    view, _ = opened(browser, address, java_script_enabled=False, **WIDE)
    assert view.locator(".wide polyline").count() == 4
    assert view.locator("tbody tr").count() == 8
    assert view.locator("h1").count() == 1
