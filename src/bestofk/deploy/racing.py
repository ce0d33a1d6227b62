"""Draw samples of one prompt side by side until one passes: the procedure that `serve` runs.

No HTTP here: a draw is a coroutine that gives a line, as `choosing.choose` reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from bestofk.deploy.choosing import Chooser
from bestofk.types import reaches


class DrawFailed(Exception):
    """A sample that could not be drawn, while others may be."""

    def __init__(self, message: str, status: int = 502, *, is_final: bool = False) -> None:
        """
        Args:
            status: of the answer to the client, if no sample comes.
            is_final: whether every other sample would fail alike.
        """
        super().__init__(message)
        self.status, self.is_final = status, is_final


@dataclass
class Race:
    """What became of the draws of one prompt."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    """Judged samples, in the order in which their verdicts came."""
    failures: list[DrawFailed] = field(default_factory=list)
    cancelled: int = 0
    is_late: bool = False
    """Whether the time was up before a pass or k samples."""
    repeated: list[DrawFailed] = field(default_factory=list)
    """Why requests of draws were repeated."""


async def race(
    draw: Callable[[int], Coroutine[Any, Any, dict[str, Any]]],
    k: int,
    by: Chooser,
    *,
    threshold: float,
    at_once: int,
    seconds: float,
) -> Race:
    """Draw up to k samples, `at_once` side by side; the first pass cancels its siblings.

    A vote and a score see all k. A draw that fails is not replaced. When the time is up, what has
    come is what there is.

    Args:
        draw: the line of the sample of that number, judged.

    Raises:
        DrawFailed: one that every other sample would share, before any sample came.
    """
    result, started = Race(), 0
    tasks = set[asyncio.Task[dict[str, Any]]]()
    end = asyncio.get_running_loop().time() + seconds
    try:
        while True:
            while started < k and len(tasks) < at_once:
                tasks.add(asyncio.create_task(draw(started), name=str(started)))
                started += 1
            seconds_left = end - asyncio.get_running_loop().time()
            result.is_late = bool(tasks) and seconds_left <= 0
            if not tasks or result.is_late:
                break
            ended, tasks = await asyncio.wait(
                tasks, timeout=seconds_left, return_when=asyncio.FIRST_COMPLETED
            )
            for task in sorted(ended, key=lambda task: int(task.get_name())):
                try:
                    result.lines.append(task.result())
                except DrawFailed as failure:
                    result.failures.append(failure)
            if any(failure.is_final for failure in result.failures) and not result.lines:
                raise next(failure for failure in result.failures if failure.is_final)
            rewards = (line["reward"] for line in result.lines)
            if by == "verifier" and any(r is not None and reaches(r, threshold) for r in rewards):
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        result.cancelled = len(tasks)
    return result
