"""Formulas of the site become MathML when it is built: no script, no network, no raw LaTeX."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?=\S)([^$\n]+?)(?<=\S)\$(?!\d)", re.DOTALL)


def formulas() -> list[str]:
    found = []
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        text = re.sub(r"`[^`]*`", "", text)
        found += [block or inline for block, inline in FORMULA.findall(text)]
    return found


def test_every_formula_becomes_mathml_without_raw_latex() -> None:
    spec = importlib.util.spec_from_file_location("offline_math", DOCS / "offline_math.py")
    assert spec is not None
    assert spec.loader is not None
    pytest.importorskip("latex2mathml")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert len(formulas()) > 50
    for formula in formulas():
        made = ElementTree.fromstring(module.mathml(formula))
        shown = "".join(made.itertext())
        assert shown.strip(), formula
        assert not re.search(r"\\[A-Za-z]", shown), (formula, shown)


def test_the_site_asks_the_network_for_nothing() -> None:
    """Neither the settings nor the style sheet names another host; the font of formulas is here."""
    settings = (DOCS / "conf.py").read_text(encoding="utf-8")
    style = (DOCS / "_static" / "site.css").read_text(encoding="utf-8")
    assert "mathjax" not in settings
    assert "//" not in style
    for name in re.findall(r'url\("([^"]+)"\)', style):
        assert (DOCS / "_static" / name).stat().st_size > 100_000
