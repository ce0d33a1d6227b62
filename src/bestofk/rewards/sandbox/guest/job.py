"""One job of the server: a program being judged, or a function being called."""

from __future__ import annotations

import _socket
import contextlib
import os
import select
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

from . import kernel, wire
from .codec import CodecError

if TYPE_CHECKING:
    from .server import Server

_TICK_MS = 50
_SLICE = struct.pack("@ll", 0, 50_000)
"""How long the checker waits for the program before it looks at the clocks (a timeval)."""
_GRACE = 10.0
"""Wall seconds a checker has to finish after its program was stopped for good."""


class Process:
    """A process the server watches: forked by the zygote, its own child nevertheless."""

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

    def __init__(self, pid: int, control: _socket.socket) -> None:
        super().__init__(pid, float("inf"))
        self.control = control
        self.watched = (control.fileno(), self.handle)
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

    def heard(self) -> dict[int, int]:
        """Descriptors that have something, after a tick at most; the clocks are looked at then.

        Raises EOFError when the host has gone (or speaks out of turn), which ends the server.
        """
        found = dict(self.server.poller.poll(_TICK_MS))
        if self.server.host.fileno() in found:
            raise EOFError("the host is gone")
        process = self.solution
        if process is not None:
            if not found:
                process.reason = self._excess(process)
                if process.reason:
                    self.stop()
                    self.ended(process)
            elif process.handle in found:
                self.stop()
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

    def begin(self, process: Process) -> None:
        self.solution = process
        self.server.poller.register(process.handle, select.POLLIN)

    def stop(self) -> None:
        """End the model's process, if there is one, and count what it used."""
        process, self.solution = self.solution, None
        if process is not None:
            self.server.poller.unregister(process.handle)
            process.kill()
            self.spent += process.cpu


class Call(Watch):
    """`module:function` on plain values."""

    def run(self) -> dict[str, Any]:
        self.report: dict[str, Any] = {}
        cpu = min(float(self.limits["cpu_per_test"]), self.allowance)
        self.begin(self.server.fork_call(self.files, self.limits, cpu))
        try:
            while self.solution is not None:
                self.heard()
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
        self.checker = checker
        self.checker_cpu = kernel.cpu_seconds(checker.pid)
        self.reason: str | None = None
        self.done = False

    def run(self, packet: bytes, eager: bool) -> dict[str, Any]:
        """`packet` is the host's request, which the checker gets as it is, with the first process
        of the program where the job is `eager`."""
        try:
            if eager:
                self._start_with(packet)
            else:
                wire.send(self.checker.control, packet, self.files[1:])
            while not self.done and self.checker.handle >= 0:
                found = self.heard()
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
            wire.send(self.checker.control, wire.pack(news))

    def _obey(self) -> None:
        """A request of the checker: start the program afresh, end it, or note that all is done."""
        try:
            packet, files = wire.receive(self.checker.control)
            if packet == wire.DONE:
                self.done = True
                return
            request = wire.unpack(packet)
        except (EOFError, OSError, CodecError):
            self.server.end_checker()
            return
        process = self.solution
        if process is not None:
            self.stop()
            self.ended(process)
        if request["do"] == "spawn":
            self._spawn(float(request["cpu"]), files)
        for descriptor in files:
            os.close(descriptor)

    def _start_with(self, packet: bytes) -> None:
        ours = self._program([], self.allowance)
        try:
            assert self.solution is not None
            pid = str(self.solution.pid).encode()
            files = [*self.files[1:], ours.fileno()]
            wire.send(self.checker.control, packet + b"\n" + pid, files)
        finally:
            ours.close()

    def _spawn(self, cpu: float, files: list[int]) -> None:
        left = self.allowance - self.spent
        if left <= 0 or self._late() > 0:
            refused = {"event": "refused", "reason": "cpu" if left <= 0 else "wall"}
            wire.send(self.checker.control, wire.pack(refused))
            return
        ours = self._program(files, min(cpu, left))
        try:
            assert self.solution is not None
            started = wire.pack({"event": "started", "pid": self.solution.pid})
            wire.send(self.checker.control, started, [ours.fileno()])
        finally:
            ours.close()

    def _program(self, files: list[int], cpu: float) -> _socket.socket:
        """Start the program; the checker's end of its channel."""
        ours, theirs = _socket.socketpair()
        try:
            ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, _SLICE)
            ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, _SLICE)
            rpc = theirs.fileno()
            self.begin(self.server.fork_program(self.files[0], rpc, files, self.limits, cpu))
        finally:
            theirs.close()
        return ours

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
            self.server.end_checker()

    def _late(self) -> float:
        """Wall seconds beyond what the whole job may take."""
        return time.monotonic() - self.started - self.allowance * self.limits["wall_factor"]
