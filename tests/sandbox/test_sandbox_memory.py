"""How a worker's memory lies: the same interpreter as before, only cheaper to copy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bestofk.sandbox.guest import zygote as memory

HUGE = 2 << 20
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
GUEST = str(Path(memory.__file__).parents[1])


def alone(code: str, **environment: str) -> str:
    """What a fresh interpreter prints that runs this with `memory` at hand."""
    start = f"import sys; sys.path.insert(0, {GUEST!r}); from guest import zygote as memory\n"
    command = [sys.executable, "-S", "-c", start + code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(*rows: tuple[int, int, str]) -> list[str]:
    return [f"{start:x}-{end:x} {mode} 00000000 00:00 0  name" for start, end, mode in rows]


def test_only_whole_huge_pages_of_read_only_neighbours_are_moved() -> None:
    at = 8 * HUGE
    rows = [
        (HUGE, 5 * HUGE, "r-xp"),  # somebody else's
        (at, at + 4096, "r--p"),
        (at + 4096, at + HUGE + 4096, "r-xp"),
        (at + HUGE + 4096, at + 2 * HUGE + 8192, "r--p"),
        (at + 2 * HUGE + 8192, at + 9 * HUGE, "rw-p"),
        (at + 9 * HUGE, at + 12 * HUGE, "r-xp"),
    ]
    found = memory._whole_huge_pages(table(*rows), at + 8192)
    assert found == (at, at + 2 * HUGE)
    assert memory._whole_huge_pages(table(*rows[:1], *rows[2:]), at + 8192) == (
        at + HUGE,
        at + 2 * HUGE,
    )
    assert memory._whole_huge_pages(table(*rows), at + 3 * HUGE) is None  # writable
    small = [(at + 4096, at + HUGE + 4096, "r-xp")]
    assert memory._whole_huge_pages(table(*small), at + 8192) is None
    assert memory._whole_huge_pages([], at) is None


@pytest.mark.skipif(
    os.uname().machine != "x86_64" or not SWITCH.exists() or "[never]" in SWITCH.read_text(),
    reason="no huge pages on this machine",
)
def test_the_code_moves_to_huge_pages_and_stays_the_same() -> None:
    told = alone("""
import ctypes, hashlib, re
with open("/proc/self/maps") as table:
    span = memory._whole_huge_pages(table, memory._address_of_interpreter())
def state():
    return hashlib.sha256(ctypes.string_at(span[0], span[1] - span[0])).hexdigest() if span else ""
before = state()
memory.code_on_huge_pages()
import decimal, json, random  # the interpreter goes on
assert json.loads(json.dumps([1, {"a": 2.5}])) == [1, {"a": 2.5}]
assert re.sub("a+", "b", "caat") == "cbt" and sorted([3, 1, 2]) == [1, 2, 3]
assert eval("sum(i * i for i in range(10))") == 285
assert state() == before
huge = sum(map(int, re.findall(r"AnonHugePages: +(\\d+)", open("/proc/self/smaps").read())))
modes = [line.split()[1] for line in open("/proc/self/maps")]
print(span and span[1] - span[0], huge << 10, any("w" in mode and "x" in mode for mode in modes))
""")
    size, huge, writable_code = told.split()
    assert writable_code == "False"
    assert int(huge) >= (0 if size == "None" else int(size))
