"""What a sandboxed run may use, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

CallStatus: TypeAlias = Literal["ok", "raised", "timeout", "memory", "crashed", "unscored"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one program may use: CPU time, and time in which it is blocked.

    A wall-clock limit makes right programs fail on a busy machine. So a program is stopped by the
    CPU time it used itself, and by the time it was blocked (asleep, waiting for anything but a
    core). Waiting for a disk counts a tenth. The time it waits for a core is not charged.
    """

    cpu_per_test: float = 4.0
    """CPU seconds of the program for one test (or one call)."""
    cpu_per_program: float = 16.0
    """CPU seconds of the program over all its tests."""
    blocked_per_program: float = 4.0
    """Seconds in which the program may be blocked, over all its tests."""
    wall_factor: float = 10.0
    """Wall seconds allowed per CPU second allowed, only where the kernel does not say whether a
    program is blocked or waits for a core (no /proc can be read)."""
    memory: int = 512 << 20
    """Bytes of address space above what the bare interpreter has; a program is one process."""
    output: int = 4 << 20
    """Bytes of stdout, of stderr, of one returned value, and of one file."""
    files: int = 16 << 20
    """Bytes of all files a program writes (with `Sandbox(writable=True)` only)."""
    inodes: int = 256
    """Files and folders a program may make (with `Sandbox(writable=True)` only)."""
    descriptors: int = 64
    """Open file descriptors."""
    threads: int = 64
    """Threads. Further processes are never allowed: a program is one process."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"a limit is positive, got {name}={value!r}")


def printable(text: str) -> str:
    """Text a program had a hand in, fit for logs: no surrogates, no control characters.

    >>> printable("a\\ud800\\x1b[2J")
    'a\\\\ud800\\\\x1b[2J'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:500])


@dataclass(frozen=True)
class CallOutcome:
    """What became of one sandboxed call: a value, or the reason why there is none."""

    status: CallStatus
    """`ok` (see `value`), `raised` (the function raised; see `detail`), `timeout`, `memory` and
    `crashed` (caused by what was run: score it 0), `unscored` (caused by us, after retries on fresh
    workers: score it NaN, never 0)."""
    value: Any = None
    """Plain values only: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset,
    dict, range, Fraction, Decimal."""
    cpu_seconds: float = 0.0
    tier: int | None = None
    """Of the sandbox that ran it."""
    detail: str = ""
