"""Numbers, intervals and tables as the pages have them."""

from __future__ import annotations

from collections.abc import Iterable


def number(value: float, signed: bool = False) -> str:
    """Three digits, as the tables have them: .385, +.012, −.100."""
    text = f"{abs(value):.3f}".removeprefix("0")
    return ("−" if value < 0 else "+" if signed else "") + text


def difference(gap: float, half: float) -> str:
    """A difference with its interval; * excludes 0."""
    ends = f"[{number(gap - half, True)}, {number(gap + half, True)}]"
    return f"{number(gap, True)} {ends}{'*' if abs(gap) > half else ''}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (list(head), *map(list, rows))]
    lines.insert(1, "|" + "---|" * (lines[0].count("|") - 1))
    return "\n".join(lines)
