"""Timing as ratios: two functions, taken in turns in one run, best of several."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable


def seconds(function: Callable[[], object], at_least: float = 0.01) -> float:
    """Time of one call, from as many calls in a row as fill `at_least` seconds."""
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - start < at_least:
        function()
        calls += 1
    return (time.perf_counter() - start) / calls


def against(
    ours: Callable[[], object], peer: Callable[[], object], rounds: int = 15
) -> tuple[float, float]:
    """Best time of each, measured in turns so that both see the same machine."""
    ours(), peer()
    pairs = [(seconds(ours), seconds(peer)) for _ in range(rounds)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def milliseconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms"


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def table(title: str, rows: list[tuple[str, ...]]) -> None:
    """Print aligned columns; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"\n{title}\n")
    for number, row in enumerate(rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
