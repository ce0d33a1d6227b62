"""What people see in a terminal: lines of its width, progress on standard error."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import TextIO

from bestofk.messages import is_quiet, printable


@contextlib.contextmanager
def bar(text: str, total: float, *, transient: bool = False) -> Iterator[Callable[[float], None]]:
    """A progress bar for people; nothing for pipes. Yields what takes the amount done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = is_quiet() or not console.is_terminal
    with Progress(console=console, transient=transient, disable=hidden) as progress:
        line = progress.add_task(text, total=total)
        yield lambda amount: progress.update(line, completed=amount)


def say(text: str) -> None:
    """A line on standard output; nothing in it is markup or an escape sequence."""
    print(wrapped(printable(text)))


def wrapped(text: str, stream: TextIO | None = None) -> str:
    """The text with long lines broken between words, where a terminal shows it; else unchanged.

    Args:
        stream: Where the text will be printed; standard output unless stated.
    """
    if not (sys.stdout if stream is None else stream).isatty():
        return text
    return in_columns(text, shutil.get_terminal_size().columns)


def in_columns(text: str, width: int) -> str:
    """The text with long lines broken; those after the first are indented like it.

    >>> in_columns("short\\n  a list of words", 12)
    'short\\n  a list of\\n  words'
    """
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        wrap = textwrap.TextWrapper(
            width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += wrap.wrap(line) if len(line) > width else [line]
    return "\n".join(lines)
