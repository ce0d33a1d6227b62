"""The processes of a worker: how the server has them forked, how long they ran or were blocked,
and how they end.

A program answers for the CPU time it uses and for the time it is blocked (asleep, stopped, waiting
for a lock). It does not answer for the time it waits for a core, which depends on what else the
machine does. The kernel counts that in the second field of /proc/PID/schedstat:

    blocked = wall time - CPU time - time in the run queue

Where the schedstat of the process does not tell everything (it covers one thread) or does not
exist, the state of its threads is sampled at every tick instead. A tick never counts more than a
tenth of a second: time in which this very process was not scheduled (a throttled cgroup, a
suspended machine, a jump of the clock) is charged to no program, nor is time in which it was
stopped: no program can send itself such a signal. Waiting unkillably, as for a slow
disk (state D), counts a tenth: it is the machine's, but nothing a program does may go on for ever.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import select
import signal
import time
from typing import Any

from . import kernel, seccomp, wire, zygote
from .confinement import CHECKER_ID, Confinement
from .zygote import Zygote, resource_limits

_PF_EXITING = 4
_IN_DOUBT = 0.1
"""What a second counts in state D, and one in which threads that are gone may have computed."""


def tick_milliseconds() -> int:
    return 30 + (time.monotonic_ns() >> 10) % 40


class ProcFiles:
    """Reads a /proc through a descriptor; every answer is empty where it cannot be read."""

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor

    def read(self, pid: int, name: str) -> bytes:
        if self.descriptor is None:
            return b""
        try:
            file = os.open(f"{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.descriptor)
            try:
                return os.read(file, 4096)
            finally:
                os.close(file)
        except OSError:  # it has ended
            return b""

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
        """Seconds that a process ran or waited for a core; None where its first thread was not the
        only one that ran, and where it is not known."""
        fields = self.read(pid, "schedstat").split()
        if len(fields) != 3:
            return None
        ran, waited = int(fields[0]) / 1e9, int(fields[1]) / 1e9
        return ran + waited if kernel.cpu_seconds(pid) < ran + _COUNTED_LATER else None

    def _fields(self, pid: int, name: str) -> list[bytes]:
        """The fields of a `stat` file from the state on; the name before it may hold anything."""
        return self.read(pid, name).rpartition(b")")[2].split()

    def _list(self, pid: int, name: str) -> list[str]:
        try:
            file = os.open(f"{pid}/{name}", os.O_RDONLY, dir_fd=self.descriptor)
            try:
                return os.listdir(file)
            finally:
                os.close(file)
        except OSError:
            return []


_COUNTED_LATER = 0.02
"""CPU seconds that a running process may have beyond what the kernel has written down of it."""


class BlockedClock:
    """Seconds that the processes of one program were blocked, over all of them."""

    def __init__(self, proc: ProcFiles) -> None:
        self.proc = proc
        self.seconds = self.stopped = 0.0
        self.known = True
        """Whether the last tick could tell a program that is blocked from one that is not."""
        self._unsettled = self._used = 0.0

    def start(self) -> None:
        """Another process of the program begins."""
        self._unsettled = self._used = 0.0

    def tick(self, pid: int, elapsed: float, *, answered: bool = False) -> None:
        """Count `elapsed` wall seconds, in which the program owed an answer, and has given it by
        now where it is `answered`.

        The time in the run queue is only known when the wait is over, so nothing is counted as long
        as a thread is running or waiting for a core (R); the next quiet tick settles it.
        """
        states = self.proc.states(pid)
        self.known = bool(states)
        if states and not states.strip(b"Tt") and seccomp.supported():
            self.stopped += elapsed
            return
        if b"D" in states and b"R" not in states:
            self.seconds += _IN_DOUBT * elapsed
            return
        self._unsettled += elapsed
        if not states or (b"R" in states and not answered):
            if len(states) > 1:
                self._unsettled = 0.0
            return
        used = self.proc.on_cpu_or_queued(pid) if len(states) == 1 else None
        if used is None:
            self.seconds += _IN_DOUBT * elapsed if answered else elapsed
        else:
            self.seconds += max(0.0, self._unsettled - (used - self._used))
            self._used = used
        self._unsettled = 0.0


_PERHAPS_ITS_OWN = {-signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT}
"""How a process ends that somebody else ended, or that sent itself a signal."""
_ENDING = 30.0
"""Seconds that a process which is on its way out may take."""
_MOST_GROWTH = 64 << 20
"""Bytes of memory that a checker may gain before it is replaced."""


class Process:
    """A process the server watches: forked by the zygote, its own child nevertheless."""

    def __init__(self, pid: int, cpu_limit: float) -> None:
        self.pid, self.cpu_limit = pid, cpu_limit
        self.handle = os.pidfd_open(pid)
        self.started = time.monotonic()
        self.reason: str | None = None
        self.code, self.cpu, self.peak = 0, 0.0, 0
        self.ended_by_us = False

    def kill(self, by_us: bool = True) -> None:
        """End and reap it. `by_us=False`: it is ending already, so its exit status shall be its
        own; if it does not end in time, it is ended by us after all."""
        if not by_us:
            self._ends_within(_ENDING)
        if not self.ended():
            self.ended_by_us = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap(0)

    def ended(self) -> bool:
        return self.handle < 0 or self._reap(os.WNOHANG)

    def killed_from_outside(self) -> bool:
        """Whether something else ended it, as the kernel does when memory is short: by SIGKILL,
        which the filter lets no program send to itself."""
        over_limit = self.cpu > self.cpu_limit  # the kernel's own limit on CPU time kills too
        killed = self.code == -signal.SIGKILL and seccomp.supported()
        return killed and not self.ended_by_us and not over_limit

    def perhaps_ended_itself(self) -> bool:
        """Whether a signal ended it that may have come from outside or from itself."""
        killed = self.code == -signal.SIGKILL and not seccomp.supported()
        return not self.ended_by_us and (killed or self.code in _PERHAPS_ITS_OWN)

    def _reap(self, flags: int) -> bool:
        if self.handle < 0:
            return True
        pid, status, usage = os.wait4(self.pid, flags)
        if not pid:
            return False
        self.code = os.waitstatus_to_exitcode(status)
        self.cpu = usage.ru_utime + usage.ru_stime
        self.peak = usage.ru_maxrss * 1024
        os.close(self.handle)
        self.handle = -1
        return True

    def is_ending(self, proc: ProcFiles) -> bool:
        """Whether it ends by itself: what closed its channel may have done nothing but that."""
        if proc.descriptor is None:
            return self._ends_within(1.0)
        return proc.is_ending(self.pid)

    def _ends_within(self, seconds: float) -> bool:
        if self.handle < 0:
            return True
        waiting = select.poll()
        waiting.register(self.handle, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))


class CheckerProcess(Process):
    """The process that holds tests: kept for further jobs as long as its tests change nothing."""

    def __init__(self, pid: int, control: _socket.socket) -> None:
        super().__init__(pid, float("inf"))
        self.control = control
        self.watched = (control.fileno(), self.handle)
        self.jobs = self.resident = 0

    def worn(self, proc: ProcFiles) -> bool:
        """Whether it has done enough, or has grown: a bound on anything it might accumulate."""
        if self.jobs >= 256 or kernel.cpu_seconds(self.pid) > 60.0:
            return True
        if self.resident and self.jobs % 8:
            return False
        resident = proc.resident_bytes(self.pid)
        self.resident = self.resident or resident
        return resident - self.resident > _MOST_GROWTH

    def kill(self, by_us: bool = True) -> None:
        super().kill(by_us)
        self.control.close()


class ProcessTable:
    """All processes of one worker, and the poller that hears of them and of the host."""

    def __init__(
        self, host: _socket.socket, confinement: Confinement, proc: ProcFiles, base_memory: int
    ) -> None:
        self.host, self.confinement, self.proc = host, confinement, proc
        self.base_memory = base_memory
        self.zygote = Zygote(confinement)
        self.checker: CheckerProcess | None = None
        self.poller = select.poll()
        self.poller.register(host, select.POLLIN)
        self.orders: dict[tuple[float, ...], bytes] = {}

    def usable_checker(self, limits: dict[str, Any]) -> CheckerProcess:
        """The checker of the last job, or a new one where it ended, is worn or has grown."""
        checker = self.checker
        if checker is None or checker.ended() or checker.worn(self.proc):
            checker = self._replace_checker(limits)
        return checker

    def _replace_checker(self, limits: dict[str, Any]) -> CheckerProcess:
        self.end_checker()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            order = self._order(zygote.CHECKER, limits, 3600.0)
            self.confinement.restart_ids(CHECKER_ID)
            checker = self.checker = CheckerProcess(self._fork(order, [theirs.fileno()]), ours)
        finally:
            theirs.close()
        for descriptor in checker.watched:
            self.poller.register(descriptor, select.POLLIN)
        return checker

    def end_checker(self, by_us: bool = True) -> None:
        if self.checker is not None:
            for descriptor in self.checker.watched:
                self.poller.unregister(descriptor)
            self.checker.kill(by_us)
            self.checker = None

    def fork_program(
        self, source: int, rpc: int, files: list[int], limits: dict[str, Any], cpu: float
    ) -> Process:
        """The model's program: by calls over `rpc`, or with stdin, stdout and stderr given.

        What it has left of its CPU time is no part of the order: the zygote would remember that.
        """
        if files:
            order = self._order(zygote.STDIO, limits, limits["cpu_per_test"])
        else:
            order = self._order(zygote.FUNCTIONS, limits, limits["cpu_per_program"])
        self.confinement.renew_box()
        self.confinement.restart_ids()
        return Process(self._fork(order, [rpc, source], files), cpu)

    def _fork(self, order: bytes, files: list[int], standard: list[int] | None = None) -> int:
        """Without standard files it gets /dev/null, opened anew: position and flags of an open file
        are shared by all who inherit it, and would carry notes between programs."""
        if standard:
            return self.zygote.fork(order, [*standard, *files])
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            return self.zygote.fork(order, [null, null, null, *files])
        finally:
            os.close(null)

    def _order(self, what: int, limits: dict[str, Any], cpu: float) -> bytes:
        """What the zygote is to fork; the same for thousands of programs."""
        key = (what, cpu, *limits.values())
        if key not in self.orders:
            if len(self.orders) > 64:
                self.orders.clear()
            if what == zygote.CHECKER:  # it also writes what programs read, and many results
                limits = limits | {"output": wire.RESULT}
            bounds = resource_limits(self.confinement, limits, self.base_memory, cpu)
            self.orders[key] = zygote.order(what, limits["output"], bounds)
        return self.orders[key]
