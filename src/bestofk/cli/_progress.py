"""Progress on standard error, for people."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator


def is_quiet() -> bool:
    """Whether the command was given --quiet."""
    return bool(os.environ.get("BESTOFK_QUIET"))


@contextlib.contextmanager
def bar(text: str, total: float, *, transient: bool = False) -> Iterator[Callable[[float], None]]:
    """A progress bar for people; nothing for pipes. Yields what takes the amount done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = is_quiet() or not console.is_terminal
    with Progress(console=console, transient=transient, disable=hidden) as progress:
        line = progress.add_task(text, total=total)
        yield lambda done: progress.update(line, completed=done)
