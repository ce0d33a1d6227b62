"""The fork server of one worker: forks a checker and a program for every job, and watches them.

It is started fresh (never forked from the process that trains), imports common modules once, and
never reads a program or a test: those travel in sealed memory files that it only hands on, so there
is nothing of theirs in the memory its children inherit. It runs one job at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from . import kernel, room as rooms, wire
from .lockdown import arrange_descriptors, lock_down

PRELOAD = (
    "abc array ast atexit base64 bisect builtins calendar cmath codecs collections "
    "collections.abc contextlib copy csv dataclasses datetime decimal enum fractions functools gc "
    "hashlib heapq io itertools json keyword linecache math numbers operator os pathlib queue "
    "random re select signal statistics string struct sys textwrap threading time traceback types "
    "typing unicodedata warnings zlib"
).split()
_TICK = 0.05


class Job:
    """One program being judged: its checker, the process that runs it now, and what it has used."""

    def __init__(self, server: Server, request: dict[str, Any], descriptors: list[int]) -> None:
        self.server, self.limits = server, request["limits"]
        self.call = request["kind"] == "call"
        self.program, self.result = descriptors[0], descriptors[-1]
        self.tests = descriptors[1] if len(descriptors) > 2 else -1
        self.spent = self.checker_spent = 0.0
        self.allowance = float(self.limits["cpu_per_program"])
        self.started = time.monotonic()
        self.wall = self.allowance * self.limits["wall_factor"]
        self.reason: str | None = None
        self.checker: Process | None = None
        self.solution: Process | None = None
        self.control: socket.socket | None = None
        self.code = 0

    def run(self) -> dict[str, Any]:
        """Until the checker (or the called function) has ended, or the host is gone."""
        try:
            if self.call:
                self.solution = self.server.fork_call(self)
            else:
                self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.checker = self.server.fork_checker(self, theirs)
                theirs.close()
            while self._live():
                self._turn()
        finally:
            for process in (self.solution, self.checker):
                if process is not None:
                    process.kill()
            self._settle()
            if self.control is not None:
                self.control.close()
        return {
            "code": self.code,
            "reason": self.reason,
            "cpu": self.spent,
            "checker_cpu": self.checker_spent,
        }

    def _live(self) -> bool:
        return self.solution is not None if self.call else self.checker is not None

    def _turn(self) -> None:
        """Wait for something to happen, deal with it, and look at the clocks."""
        poller = select.poll()
        poller.register(self.server.host, select.POLLIN | select.POLLHUP)
        for process in (self.solution, self.checker):
            if process is not None:
                poller.register(process.handle, select.POLLIN)
        if self.control is not None:
            poller.register(self.control, select.POLLIN)
        events = dict(poller.poll(_TICK * 1000))
        if self.server.host.fileno() in events:
            raise EOFError("the host is gone, or speaks out of turn")
        if self.control is not None and self.control.fileno() in events:
            self._obey()
        self._settle()
        if not events:
            self._watch()

    def _settle(self) -> None:
        """Reap who has ended."""
        if self.solution is not None and self.solution.ended():
            self._solution_ended(self.solution)
        if self.checker is not None and self.checker.ended():
            self.checker_spent, self.code = self.checker.cpu, self.checker.code
            self.checker = None

    def _solution_ended(self, process: Process) -> None:
        self.spent += process.cpu
        self.solution = None
        if self.call:
            self.code, self.reason = process.code, process.reason
        elif self.control is not None:
            news = {"event": "ended", "code": process.code, "cpu": process.cpu}
            with contextlib.suppress(OSError):
                wire.send(self.control, news | {"reason": process.reason})

    def _obey(self) -> None:
        """A request of the checker: start the program afresh, or end it."""
        assert self.control is not None
        try:
            request, descriptors = wire.receive(self.control)
        except (EOFError, OSError, ValueError):
            return
        if self.solution is not None:
            self.solution.kill()
            self._settle()
        if request.get("do") == "spawn":
            self._spawn(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _spawn(self, request: dict[str, Any], descriptors: list[int]) -> None:
        assert self.control is not None
        left = self.allowance - self.spent
        if left <= 0:
            wire.send(self.control, {"event": "refused", "reason": "cpu"})
            return
        cpu = min(float(request["cpu"]), left)
        ours, theirs = socket.socketpair()
        self.solution = self.server.fork_program(self, theirs.fileno(), descriptors, cpu)
        wire.send(
            self.control, {"event": "started", "pid": self.solution.pid}, [ours.fileno()]
        )
        ours.close()
        theirs.close()

    def _watch(self) -> None:
        """Stop who has used up a budget."""
        if self.solution is not None:
            self.solution.reason = self._excess(self.solution)
            if self.solution.reason:
                self.solution.kill()
        if self.checker is not None:
            late = time.monotonic() - self.started > self.wall
            if late or kernel.cpu_seconds(self.checker.pid) > self.allowance + 1.0:
                self.reason = "wall" if late else "cpu"
                self.checker.kill()

    def _excess(self, process: Process) -> str | None:
        if kernel.cpu_seconds(process.pid) > process.cpu_limit:
            return "cpu"
        if time.monotonic() - process.started > process.cpu_limit * self.limits["wall_factor"]:
            return "wall"
        if self.server.threads(process.pid) > self.limits["threads"]:
            return "threads"
        return None


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


class Server:
    """Waits for jobs on the host's socket."""

    def __init__(self, host: socket.socket, config: dict[str, Any]) -> None:
        self.host, self.config = host, config
        self.room = rooms.enter(config)
        self.empty = wire.memory_file(b"")
        self.sink = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        if self.room.own_pids:
            self._shed_privileges()
        self.base_memory = _address_space(self.room.proc)

    def _shed_privileges(self) -> None:
        kernel.drop_bounding_set()
        keep = sum(1 << bit for bit in (1, 5, 6, 7, 21))  # DAC, KILL, SETGID, SETUID, SYS_ADMIN
        kernel.set_capabilities(keep)

    def serve(self) -> None:
        while True:
            try:
                request, descriptors = wire.receive(self.host)
            except EOFError:
                return
            try:
                self.room.renew_box()
                report = Job(self, request, descriptors).run()
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            wire.send(self.host, report)

    def fork_program(self, job: Job, rpc: int, files: list[int], cpu: float) -> Process:
        """The model's program: by calls over `rpc`, or with stdin, stdout and stderr given."""
        self.room.renew_box()
        pid = os.fork()
        if pid:
            return Process(pid, cpu)
        standard = files if len(files) == 3 else [self.empty, self.sink, self.sink]
        self._become("run_program", job, [*standard, rpc, job.program], cpu, len(files) == 3)

    def fork_checker(self, job: Job, control: socket.socket) -> Process:
        pid = os.fork()
        if pid:
            return Process(pid, job.allowance)
        files = [self.empty, self.sink, self.sink, control.fileno(), job.tests, job.result]
        self._become("run_checker", job, files, job.allowance, checker=True)

    def fork_call(self, job: Job) -> Process:
        cpu = min(job.limits["cpu_per_test"], job.allowance)
        pid = os.fork()
        if pid:
            return Process(pid, cpu)
        self._become("run_call", job, [self.empty, self.sink, self.sink, job.program, job.result], cpu)

    def _become(
        self, entry: str, job: Job, files: list[int], cpu: float, stdio: bool = False,
        checker: bool = False,
    ) -> NoReturn:
        """In the child: lose everything, then run. Never returns to the server's code."""
        try:
            module = _CHECKER if checker else _PROGRAM
            rules = self.room.rules
            kept = files if rules is None else [*files, rules]
            arrange_descriptors(kept)
            if rules is not None:
                self.room.rules = len(files)
            lock_down(
                self.room, job.limits, base_memory=self.base_memory, cpu=cpu, checker=checker
            )
            limits = job.limits
            for name in [n for n in sys.modules if n == "guest" or n.startswith("guest.")]:
                del sys.modules[name]
            gc.enable()
            getattr(module, entry)(limits, stdio)
        except BaseException:
            os._exit(70)
        os._exit(0)

    def threads(self, pid: int) -> int:
        """How many threads a process has; 0 where /proc cannot be had."""
        if self.room.proc is None:
            return 0
        try:
            descriptor = os.open(f"{pid}/stat", os.O_RDONLY, dir_fd=self.room.proc)
        except OSError:
            return 0
        try:
            return int(os.read(descriptor, 4096).rpartition(b")")[2].split()[17])
        finally:
            os.close(descriptor)


def _address_space(proc: int | None) -> int:
    """Bytes of address space the bare fork server has; programs get their limit on top."""
    if proc is None:
        return 64 << 20
    descriptor = os.open("self/statm", os.O_RDONLY, dir_fd=proc)
    try:
        return int(os.read(descriptor, 4096).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)


def _preload(names: list[str]) -> None:
    for name in names:
        importlib.import_module(name)


_PROGRAM: Any = None
_CHECKER: Any = None


def main(descriptor: int) -> None:
    """Entry point of a worker: configure, enter the room, say so, serve."""
    global _PROGRAM, _CHECKER
    host = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    config, _ = wire.receive(host)
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        ctypes.CDLL(None).mallopt(-8, 1)  # one malloc arena: threads must not eat address space
        sys.path[:] = [path for path in sys.path if path != config["guest"]]
        from . import checker, program

        _PROGRAM, _CHECKER = program, checker
        sys.path += config["import_path"]
        _preload([*PRELOAD, *config["preload"]])
        server = Server(host, config)
        gc.collect()
        gc.disable()
        gc.freeze()
    except BaseException as error:
        with contextlib.suppress(OSError):
            wire.send(host, {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]})
        os._exit(1)
    wire.send(host, {"ok": True, "tier": server.room.tier, "pid": os.getpid()})
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        server.serve()
    os._exit(0)
