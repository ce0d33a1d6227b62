"""How a worker's memory lies: the same interpreter as before, only cheaper to copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bestofk.sandbox.guest import zygote as memory

GUEST = str(Path(memory.__file__).parents[1])


def alone(code: str, **environment: str) -> str:
    """What a fresh interpreter prints that runs this with `memory` at hand."""
    start = f"import sys; sys.path.insert(0, {GUEST!r}); from guest import zygote as memory\n"
    command = [sys.executable, "-S", "-c", start + code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_after_the_filling_new_objects_lie_together() -> None:
    told = alone("""
memory.start_fresh_pools()
for size in range(48, 513, 16):
    first, second = bytes(size - 33), bytes(size - 33)
    print(size, id(first) // 16384 == id(second) // 16384, id(second) - id(first) == size)
""")
    rows = [line.split() for line in told.splitlines()]
    assert len(rows) == 30
    together = [same == "True" and adjacent == "True" for _, same, adjacent in rows]
    assert sum(together) >= 25  # what runs in between takes blocks of some sizes


def test_filling_ends_with_another_allocator() -> None:
    told = alone("memory.start_fresh_pools(); print(len(memory._filling))", PYTHONMALLOC="malloc")
    assert 0 < int(told) <= 32 * memory._MOST
