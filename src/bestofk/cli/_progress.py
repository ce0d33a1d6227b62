"""A progress bar on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(text: str, total: int) -> Iterator[Callable[[float], None]]:
    """A progress bar for people; nothing for pipes. Yields what takes the amount done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        line = progress.add_task(text, total=total)
        yield lambda done: progress.update(line, completed=done)
