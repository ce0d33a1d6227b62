"""What tests of the sandbox's machinery share: small programs, and a look at the process table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bestofk.sandbox import Sandbox
from bestofk.types import Prompt

PLUS_ONE = {"asserts": ["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4"]}
RIGHT = "def f(x): return x + 1"
SLOW = "def f(x):\n    n = 0\n    while n < 2_000_000: n += 1\n    return x + 1"
New = Callable[..., Sandbox]


def prompts(count: int, spec: dict[str, Any] = PLUS_ONE) -> list[Prompt]:
    return [Prompt("p", "", "code", spec)] * count


def alone(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Code in an interpreter of its own."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, **options
    )


def descendants(root: int) -> list[int]:
    """Process ids below `root`, from /proc."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [root]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def eventually(condition: Callable[[], bool], seconds: float = 300.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
