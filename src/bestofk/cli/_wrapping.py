"""Text in lines of the terminal's width."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TextIO


def wrapped(text: str, stream: TextIO | None = None) -> str:
    """The text with long lines broken between words, where a terminal shows it; else unchanged.

    Args:
        stream: Where the text will be printed; standard output unless stated.
    """
    if not (sys.stdout if stream is None else stream).isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    """One line in several; those after the first are indented like it.

    >>> _parts("  a list of words", 12)
    ['  a list of', '  words']
    """
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
