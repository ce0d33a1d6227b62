"""The page as text: nothing from outside leaves its data block; a file is whole or absent."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.reports.page import SCRIPTS, STYLES, encode, part, render
from bestofk.storage import json_safe

ATTACKS = (
    "</script><script>window.pwned = 1</script>",
    "<!--<script>",
    "<img src=x onerror=window.pwned=1>",
    "\u2028\u2029&lt;\x00\ud800 {{data}} {{script}}",
)


class Elements(HTMLParser):
    """Start tags and the text inside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1][0] if self.tags else "", data))


def data_of(page: str) -> Any:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert len(found) == 1
    return json.loads(found[0])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_encoded_data_read_back_as_they_were(value: Any) -> None:
    assert json.loads(encode(value)) == value


@given(st.text(st.characters()) | st.sampled_from(ATTACKS))
def test_encoded_text_cannot_leave_a_script_element(text: str) -> None:
    encoded = encode([text])
    assert not set(encoded) & set("<>&\u2028\u2029\x00")
    encoded.encode("utf-8")  # lone surrogates are escaped


def test_numbers_keep_six_digits_and_what_json_lacks_becomes_null() -> None:
    given = {"a": np.array([1 / 3, np.nan, np.inf]), "b": np.int64(7), "c": -math.inf, 3: (True,)}
    assert json_safe(given, digits=6) == {"a": [0.333333, None, None], "b": 7, "c": None, 3: [True]}


@pytest.mark.parametrize("attack", ATTACKS)
def test_page_has_two_scripts_whatever_its_title_and_data(attack: str) -> None:
    page = render({"text": attack}, title=attack, version=attack)
    page.encode("utf-8")
    elements = Elements(page)
    scripts = [attributes for tag, attributes in elements.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    assert not any(name.startswith("on") for _, attributes in elements.tags for name in attributes)
    assert data_of(page) == {"text": attack}
    assert not {"img", "svg", "iframe", "link", "object"} & {tag for tag, _ in elements.tags}


def test_policy_admits_this_script_and_style_and_nothing_else() -> None:
    page = render({}, title="t", version="0")
    elements = Elements(page)
    policy = next(
        str(a["content"])
        for _, a in elements.tags
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        text = "".join(re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S))
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}


def test_parts_can_stand_inside_their_elements() -> None:
    for name in SCRIPTS:
        text = part(name)
        assert "</script" not in text.lower(), name
        assert "<!--" not in text, name
        assert "\r" not in text, name
    for name in STYLES:
        assert "</style" not in part(name).lower(), name
        assert "url(" not in part(name), name
        assert "@import" not in part(name), name


def test_scripts_never_write_markup_or_run_text() -> None:
    ways = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|"
        r"setTimeout\(\s*[\"'`]|createContextualFragment|DOMParser|srcdoc|import\("
    )
    for name in SCRIPTS:
        if name.startswith("page/"):
            assert not ways.findall(part(name)), name


def test_vendored_version_is_the_stated_one() -> None:
    stated = re.search(r"\| uPlot \| ([0-9.]+) \| MIT", part("vendor/README.md"))
    banner = re.search(r"uPlot \(v([0-9.]+)\)", part("vendor/uplot.min.js"))
    assert stated is not None
    assert banner is not None
    assert stated[1] == banner[1]
    assert "MIT License" in part("vendor/LICENSE.uplot")
