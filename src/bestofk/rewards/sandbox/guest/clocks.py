"""How long a program was blocked: neither running nor waiting for a core.

A program answers for the CPU time it uses and for the time it is blocked (asleep, stopped, waiting
for a lock). It does not answer for the time it waits for a core, which depends on what else the
machine does. The kernel counts that in the second field of /proc/PID/schedstat:

    blocked = wall time - CPU time - time in the run queue

Where the schedstat of the process does not tell everything (it covers one thread) or does not
exist, the state of its threads is sampled at every tick instead. Waiting for a disk is not
blocked either, and a tick never counts more than a tenth of a second: time in which this very
process was not scheduled (a throttled cgroup, a suspended machine, a jump of the clock) is charged
to no program.
"""

from __future__ import annotations

import contextlib
import os
import time

_PF_EXITING = 4
TICK = 0.05
"""Seconds between two looks at the clocks, about: they vary, so that nobody can sleep in step."""


def tick_milliseconds() -> int:
    return 30 + (time.monotonic_ns() >> 10) % 40


class ProcFiles:
    """Reads a /proc through a descriptor; every answer is empty where it cannot be read.

    `foreign`: the numbers in it are those of a parent's namespace (bubblewrap mounts no /proc).
    """

    def __init__(self, descriptor: int | None, foreign: bool = False) -> None:
        self.descriptor, self.foreign = descriptor, foreign
        self._outer: dict[int, str] = {}

    def read(self, pid: int, name: str) -> bytes:
        if self.descriptor is None:
            return b""
        try:
            path = f"{self._directory(pid)}/{name}"
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.descriptor)
        except OSError:
            return b""
        try:
            return os.read(file, 4096)
        except OSError:  # it has ended
            return b""
        finally:
            os.close(file)

    def states(self, pid: int) -> bytes:
        """The state of each thread of a process, as one letter; empty where it cannot be read."""
        fields = self._fields(pid, "stat")
        if len(fields) < 18:
            return b""
        if int(fields[17]) == 1:
            return fields[0]
        states = b""
        for thread in self._list(pid, "task"):
            states += (self._fields(pid, f"task/{thread}/stat") or [b""])[0]
        return states

    def threads(self, pid: int) -> int:
        """How many threads a process has; 0 where that cannot be read."""
        fields = self._fields(pid, "stat")
        return int(fields[17]) if len(fields) > 17 else 0

    def is_ending(self, pid: int) -> bool:
        """Whether every thread of a process is on its way out, or gone."""
        threads = [self._fields(pid, f"task/{name}/stat") for name in self._list(pid, "task")]
        return bool(threads) and all(len(f) < 7 or int(f[6]) & _PF_EXITING for f in threads)

    def resident_bytes(self, pid: int) -> int:
        """Memory a process has; 0 where that cannot be read."""
        fields = self.read(pid, "statm").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0

    def on_cpu_or_queued(self, pid: int) -> float | None:
        """Seconds that a process of one thread ran or waited for a core; None where unknown."""
        fields = self.read(pid, "schedstat").split()
        return (int(fields[0]) + int(fields[1])) / 1e9 if len(fields) == 3 else None

    def _fields(self, pid: int, name: str) -> list[bytes]:
        """The fields of a `stat` file from the state on; the name before it may hold anything."""
        return self.read(pid, name).rpartition(b")")[2].split()

    def _list(self, pid: int, name: str) -> list[str]:
        try:
            file = os.open(f"{self._directory(pid)}/{name}", os.O_RDONLY, dir_fd=self.descriptor)
        except OSError:
            return []
        try:
            return os.listdir(file)
        except OSError:
            return []
        finally:
            os.close(file)

    def _directory(self, pid: int) -> str:
        if not self.foreign:
            return str(pid)
        if pid not in self._outer:
            self._outer = self._children()
        return self._outer.get(pid, "none")

    def _children(self) -> dict[int, str]:
        """The children of this process: their number here, and their number in this /proc."""
        numbers: dict[int, str] = {}
        me = os.readlink("self", dir_fd=self.descriptor)
        for outer in self._read_path(f"{me}/task/{me}/children").split():
            for line in self._read_path(f"{outer.decode()}/status").splitlines():
                if line.startswith(b"NSpid:"):
                    numbers[int(line.split()[-1])] = outer.decode()
        return numbers

    def _read_path(self, path: str) -> bytes:
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.descriptor)
            try:
                return os.read(file, 1 << 16)
            finally:
                os.close(file)
        return b""


class BlockedClock:
    """Seconds that the processes of one program were blocked, over all of them."""

    def __init__(self, proc: ProcFiles) -> None:
        self.proc = proc
        self.seconds = 0.0
        self.known = True
        """Whether the last tick could tell a program that is blocked from one that is not."""
        self._unsettled = self._used = 0.0

    def start(self) -> None:
        """Another process of the program begins."""
        self._unsettled = self._used = 0.0

    def tick(self, pid: int, elapsed: float) -> None:
        """Count `elapsed` wall seconds, in which the program owed an answer.

        The time in the run queue is only known when the wait is over, so nothing is counted as long
        as a thread is running or waiting for a core (R); the next quiet tick settles it. A tick in
        which it waits for a disk (D) is dropped.
        """
        states = self.proc.states(pid)
        self.known = bool(states)
        if b"D" in states and b"R" not in states:
            return
        self._unsettled += elapsed
        if not states or b"R" in states:
            if len(states) > 1:
                self._unsettled = 0.0
            return
        used = self.proc.on_cpu_or_queued(pid) if len(states) == 1 else None
        if used is None:
            self.seconds += elapsed
        else:
            self.seconds += max(0.0, self._unsettled - (used - self._used))
            self._used = used
        self._unsettled = 0.0
