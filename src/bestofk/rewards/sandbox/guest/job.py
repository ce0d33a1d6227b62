"""One job of the fork server: a program being judged, or a function being called."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from . import kernel, wire

if TYPE_CHECKING:
    from .zygote import Server

_TICK_MS = 50
_GRACE = 10.0
"""Wall seconds a checker has to finish after its program was stopped for good."""


class Process:
    """A child of the fork server."""

    def __init__(self, pid: int, cpu_limit: float) -> None:
        self.pid, self.cpu_limit = pid, cpu_limit
        self.handle = os.pidfd_open(pid)
        self.started = time.monotonic()
        self.reason: str | None = None
        self.code, self.cpu = 0, 0.0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._reap(0)

    def ended(self) -> bool:
        return self.handle < 0 or self._reap(os.WNOHANG)

    def _reap(self, flags: int) -> bool:
        if self.handle < 0:
            return True
        pid, status, usage = os.wait4(self.pid, flags)
        if not pid:
            return False
        self.code = os.waitstatus_to_exitcode(status)
        self.cpu = usage.ru_utime + usage.ru_stime
        os.close(self.handle)
        self.handle = -1
        return True


class Checker(Process):
    """The process that holds tests: kept for further jobs as long as its tests change nothing."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        super().__init__(pid, float("inf"))
        self.control = control
        self.jobs = 0

    def worn(self) -> bool:
        """Whether it has done enough: a bound on anything it might accumulate."""
        return self.jobs >= 256 or kernel.cpu_seconds(self.pid) > 60.0

    def kill(self) -> None:
        super().kill()
        self.control.close()


class Watch:
    """What every job has: a process of the model's, its clocks, and who must be heard meanwhile."""

    def __init__(self, server: Server, request: dict[str, Any], files: list[int]) -> None:
        self.server, self.limits, self.files = server, request["limits"], files
        self.allowance = float(self.limits["cpu_per_program"])
        self.spent = 0.0
        self.started = time.monotonic()
        self.solution: Process | None = None

    def heard(self, others: list[Any]) -> set[int]:
        """Descriptors that have something, after a tick at most; the clocks are looked at then.

        Raises EOFError when the host has gone (or speaks out of turn), which ends the server.
        """
        poller = select.poll()
        for other in (self.server.host, *others):
            poller.register(other, select.POLLIN)
        if self.solution is not None:
            poller.register(self.solution.handle, select.POLLIN)
        found = {descriptor for descriptor, _ in poller.poll(_TICK_MS)}
        if self.server.host.fileno() in found:
            raise EOFError("the host is gone")
        if self.solution is not None and self.solution.handle >= 0:
            process = self.solution
            if process.handle not in found:
                process.reason = self._excess(process) if not found else None
                if process.reason:
                    process.kill()
            if process.ended():
                self.solution = None
                self.spent += process.cpu
                self.ended(process)
        return found

    def ended(self, process: Process) -> None:
        raise NotImplementedError

    def _excess(self, process: Process) -> str | None:
        if kernel.cpu_seconds(process.pid) > process.cpu_limit:
            return "cpu"
        if time.monotonic() - process.started > process.cpu_limit * self.limits["wall_factor"]:
            return "wall"
        if self.server.threads(process.pid) > self.limits["threads"]:
            return "threads"
        return None

    def stop(self) -> None:
        """End the model's process, if there is one."""
        if self.solution is not None:
            self.solution.kill()
            self.spent += self.solution.cpu
            self.solution = None


class Call(Watch):
    """`module:function` on plain values."""

    def run(self) -> dict[str, Any]:
        self.report: dict[str, Any] = {}
        cpu = min(float(self.limits["cpu_per_test"]), self.allowance)
        self.solution = self.server.fork_call(self.files, self.limits, cpu)
        try:
            while self.solution is not None:
                self.heard([])
        finally:
            self.stop()
        return self.report | {"cpu": self.spent}

    def ended(self, process: Process) -> None:
        self.report = {"code": process.code, "reason": process.reason}


class Check(Watch):
    """A program and its tests: the checker asks for the program, and says when it is done."""

    def __init__(
        self, server: Server, request: dict[str, Any], files: list[int], checker: Checker
    ) -> None:
        super().__init__(server, request, files)
        self.checker, self.request = checker, request
        self.checker_cpu = kernel.cpu_seconds(checker.pid)
        self.reason: str | None = None
        self.done = False

    def run(self) -> dict[str, Any]:
        job = {"limits": self.limits, "event": "job"}
        wire.send(self.checker.control, job, self.files[1:])
        if self.request["eager"]:
            self._spawn({"cpu": self.allowance}, [])
        try:
            while not self.done and self.checker.handle >= 0:
                found = self.heard([self.checker.control, self.checker.handle])
                if self.checker.control.fileno() in found:
                    self._obey()
                elif self.checker.ended():
                    break
                elif not found:
                    self._watch_checker()
        finally:
            self.stop()
        return {
            "code": 0 if self.done else 1,
            "reason": self.reason,
            "cpu": self.spent,
        }

    def ended(self, process: Process) -> None:
        news = {"event": "ended", "code": process.code, "reason": process.reason}
        with contextlib.suppress(OSError):
            wire.send(self.checker.control, news)

    def _obey(self) -> None:
        """A request of the checker: start the program afresh, end it, or note that all is done."""
        try:
            request, files = wire.receive(self.checker.control)
        except (EOFError, OSError):
            self.checker.kill()
            return
        if request["do"] == "done":
            self.done = True
            return
        if self.solution is not None:
            process = self.solution
            self.stop()
            self.ended(process)
        if request["do"] == "spawn":
            self._spawn(request, files)
        for descriptor in files:
            os.close(descriptor)

    def _spawn(self, request: dict[str, Any], files: list[int]) -> None:
        left = self.allowance - self.spent
        if left <= 0 or self._late() > 0:
            reason = "cpu" if left <= 0 else "wall"
            wire.send(self.checker.control, {"event": "refused", "reason": reason})
            return
        cpu = min(float(request["cpu"]), left)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            program = self.files[0]
            self.solution = self.server.fork_program(
                program, theirs.fileno(), files, self.limits, cpu
            )
            started = {"event": "started", "pid": self.solution.pid}
            wire.send(self.checker.control, started, [ours.fileno()])

    def _watch_checker(self) -> None:
        """Stop a job that only sleeps, and a checker that chokes on what the program returned.

        The program goes first: a checker that is left can still report the tests passed so far.
        """
        late, used = self._late(), kernel.cpu_seconds(self.checker.pid) - self.checker_cpu
        if late > 0 and self.solution is not None:
            process = self.solution
            process.reason = "wall"
            self.stop()
            self.ended(process)
        elif late > _GRACE or used > self.allowance + 1.0:
            self.reason = "wall" if late > _GRACE else "cpu"
            self.checker.kill()

    def _late(self) -> float:
        """Wall seconds beyond what the whole job may take."""
        return time.monotonic() - self.started - self.allowance * self.limits["wall_factor"]
