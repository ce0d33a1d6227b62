"""Words that stay out of pages, help, messages and docstrings; names in code are not read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from bestofk.cli._recipe_flags import recipe_flags

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
WORDS = re.compile(r"\brefus(?:e|es|ed|al)\b", re.IGNORECASE)
EVENTS = {"refused"}  # of the sandbox's wire


def texts(path: Path) -> list[str]:
    """What a page says outside of names, or the strings of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [re.sub(r"`[^`\n]*`", "", text)]
    return [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_software_does_not_refuse() -> None:
    said = [(path.name, text) for path in [*PAGES, *SOURCES] for text in texts(path)]
    assert [each for each in said if each[1] not in EVENTS and WORDS.search(each[1])] == []


def test_help_does_not_begin_with_a_fragment() -> None:
    assert [each.name for each in recipe_flags() if each.text.startswith("Of ")] == []
