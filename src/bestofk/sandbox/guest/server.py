"""The first process of a worker: takes jobs from the host, has processes forked, and watches them.

It is started fresh (never forked from the process that trains) and runs one job at a time. It never
reads a program or a test: those travel in sealed memory files that it only hands on. It never forks
for a job either: the zygote does, whose memory programs inherit and which sees even less.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import fcntl
import importlib
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import Any

from . import confinement as confinements
from . import kernel, program, seccomp, wire, zygote
from .codec import CodecError
from .process_table import (
    BlockedClock,
    CheckerProcess,
    Process,
    ProcessTable,
    ProcFiles,
    tick_milliseconds,
)
from .zygote import LOW, NoProcess, ZygoteGone, keep_low_descriptors_free, limit_server

_SLICE = struct.pack("@ll", 0, int(wire.TICK * 1e6))
"""How long the checker waits for the program before it looks at the clocks (a timeval)."""
_CHECKER_CPU = 1.0
"""CPU seconds that a checker has beyond those of its program."""


class Job:
    """A program and its tests: the checker asks for the program, and says when it is done."""

    def __init__(
        self,
        table: ProcessTable,
        request: dict[str, Any],
        files: list[int],
        checker: CheckerProcess,
    ) -> None:
        self.table, self.limits, self.files = table, request["limits"], files
        self.allowance = float(self.limits["cpu_per_program"])
        self.spent = 0.0
        self.started = time.monotonic()
        self.program: Process | None = None
        self.blocked = BlockedClock(table.proc)
        self.starved = self.program_killed = self.checker_killed = False
        self.program_signalled = False
        self.killed_at = 0
        """Bytes of memory that a program had which was killed from outside."""
        self.checker = checker
        self.checker_cpu = kernel.cpu_seconds(checker.pid)
        self.checker_awake: float | None = None
        self.reason: str | None = None
        self.done = False
        self.by_calls = bool(request["eager"])

    def run(self, packet: bytes) -> dict[str, Any]:
        """`packet` is the host's request, which the checker gets as it is, with the first process
        of the program where the tests call it."""
        try:
            if self.by_calls:
                self._start_with(packet)
            else:
                wire.send(self.checker.control, packet, self.files[1:])
            while not self.done and not self.starved and self.checker.handle >= 0:
                ready = self._wait_for_events()
                if self.checker.control.fileno() in ready:
                    self._obey()
                elif self.checker.ended():
                    break
                elif not ready:
                    self._watch_checker()
        finally:
            self._stop()
        if not self.done and self.checker.ended():
            checker = self.checker
            self.checker_killed = checker.killed_from_outside() or checker.perhaps_ended_itself()
        return {
            "code": 0 if self.done else 1,
            "reason": self.reason,
            "cpu": self.spent,
            "blocked": self.blocked.seconds,
            "starved": self.starved,
            "program_killed": self.program_killed,
            "killed_at": self.killed_at,
            "program_signalled": self.program_signalled,
            "checker_killed": self.checker_killed,
        }

    def _wait_for_events(self) -> dict[int, int]:
        """Descriptors that have something, after a tick at most; the clocks are looked at then.

        Raises EOFError when the host has gone (or speaks out of turn), which ends the server.
        """
        tick = tick_milliseconds()
        began = time.monotonic()
        ready = dict(self.table.poller.poll(tick))
        if self.table.host.fileno() in ready:
            raise EOFError("the host is gone")
        process = self.program
        if process is not None:
            if process.handle in ready:
                self._finish(process)
            elif not ready:
                if not self.by_calls:  # else it owes an answer only while the checker waits for it
                    self.blocked.tick(process.pid, min(time.monotonic() - began, tick / 1000))
                self._stop_if_over_limits()
        if time.monotonic() - self.started > self.limits["starved_after"]:
            self.starved = True  # the machine gave it so little that it has to be tried again
        return ready

    def _stop_if_over_limits(self) -> None:
        process = self.program
        if process is not None:
            process.reason = _exceeded(process, self.blocked, self.limits)
            if process.reason:
                self._finish(process)
                self.program_killed |= process.reason == "stopped"

    def _finish(self, process: Process, by_us: bool = True) -> None:
        self._stop(by_us)
        if process.killed_from_outside():
            self.program_killed, self.killed_at = True, max(self.killed_at, process.peak)
        self.program_signalled |= process.perhaps_ended_itself()
        news = {"event": "ended", "code": process.code, "reason": process.reason}
        with contextlib.suppress(OSError):
            wire.send(self.checker.control, wire.pack(news))

    def _stop(self, by_us: bool = True) -> None:
        """End the model's process, if there is one, and count what it used."""
        process, self.program = self.program, None
        if process is not None:
            self.table.poller.unregister(process.handle)
            process.kill(by_us)
            if process.reason is None and process.cpu > process.cpu_limit:
                process.reason = "cpu"  # the kernel was first
            self.spent += process.cpu

    def _obey(self) -> None:
        """A request of the checker: start the program afresh, end it, count that the checker waits
        for it, or note that all is done."""
        try:
            packet, files = wire.receive(self.checker.control)
            if packet == wire.DONE:
                self.done = True
                return
            request = wire.unpack(packet)
        except (EOFError, OSError, CodecError) as error:
            self.table.end_checker(by_us=isinstance(error, CodecError))
            return
        process = self.program
        if request["do"] == "wait":
            if process is not None:
                seconds = self._waited_for(float(request["seconds"]))
                self.blocked.tick(process.pid, seconds, answered=request["answered"])
                self._stop_if_over_limits()
            return
        if process is not None:
            closed = request.get("closed") and process.is_ending(self.table.proc)
            self._finish(process, by_us=not closed)
        if request["do"] == "spawn":
            self._spawn(float(request["cpu"]), files)
        for descriptor in files:
            os.close(descriptor)

    def _waited_for(self, seconds: float) -> float:
        """Of the seconds in which a program owed an answer, those in which the checker slept: while
        it runs or waits for a core itself, no program keeps it waiting."""
        awake = self.table.proc.on_cpu_or_queued(self.checker.pid)
        before, self.checker_awake = self.checker_awake, awake
        if awake is None or before is None:
            return seconds
        return max(0.0, seconds - (awake - before))

    def _start_with(self, packet: bytes) -> None:
        program, ours = self._start([], self.allowance)
        with contextlib.closing(ours):
            files = [*self.files[1:], ours.fileno()]
            wire.send(self.checker.control, packet + b"\n%d" % program.pid, files)

    def _spawn(self, cpu: float, files: list[int]) -> None:
        cpu_left = self.allowance - self.spent
        if cpu_left <= 0 or _out_of_blocked_time(self.blocked, self.limits):
            refused = {"event": "refused", "reason": "cpu" if cpu_left <= 0 else "blocked"}
            wire.send(self.checker.control, wire.pack(refused))
            return
        program, ours = self._start(files, min(cpu, cpu_left))
        with contextlib.closing(ours):
            started = wire.pack({"event": "started", "pid": program.pid})
            wire.send(self.checker.control, started, [ours.fileno()])

    def _start(self, files: list[int], cpu: float) -> tuple[Process, _socket.socket]:
        """The program in a new process, and the checker's end of its channel."""
        ours, theirs = _socket.socketpair()
        try:
            ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, _SLICE)
            ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, _SLICE)
            rpc = theirs.fileno()
            process = self.table.fork_program(self.files[0], rpc, files, self.limits, cpu)
        finally:
            theirs.close()
        self.program = process
        self.blocked.start()
        self.table.poller.register(process.handle, select.POLLIN)
        return process, ours

    def _watch_checker(self) -> None:
        """Stop a checker that chokes on what the program returned."""
        used = kernel.cpu_seconds(self.checker.pid) - self.checker_cpu
        if used > self.allowance + _CHECKER_CPU:
            self.reason = "cpu"
            self.table.end_checker()


def _exceeded(process: Process, blocked: BlockedClock, limits: dict[str, Any]) -> str | None:
    """The limit that a process exceeds, if there is one."""
    if kernel.cpu_seconds(process.pid) > process.cpu_limit:
        return "cpu"
    if _out_of_blocked_time(blocked, limits):
        return "blocked"
    if blocked.stopped > limits["blocked_per_program"]:
        return "stopped"
    wall = time.monotonic() - process.started
    if not blocked.known and wall > process.cpu_limit * limits["wall_factor"]:
        return "wall"  # no /proc: being blocked cannot be told from waiting for a core
    if blocked.proc.threads(process.pid) > limits["threads"]:
        return "threads"
    return None


def _out_of_blocked_time(blocked: BlockedClock, limits: dict[str, Any]) -> bool:
    return bool(blocked.seconds > limits["blocked_per_program"])


# What programs of the usual data sets import. Every module loaded here makes every fork dearer (a
# compiled one by 10 µs); a module that is not costs a program that wants it a few milliseconds.
PRELOAD = (
    "abc", "atexit", "bisect", "builtins", "codecs", "collections", "collections.abc", "contextlib",
    "copy", "enum", "functools", "gc", "heapq", "io", "itertools", "json", "keyword", "math",
    "operator", "os", "random", "re", "signal", "string", "struct", "sys", "time", "types",
    "typing", "warnings",
)  # fmt: skip


class Server:
    """Waits for jobs on the host's socket."""

    def __init__(self, host: _socket.socket, config: dict[str, Any]) -> None:
        self.host = host
        confinement = confinements.enter(config)
        _prepare_interpreter(config)  # confined: imports read and write what programs can
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # before, its user could not write its id maps
        keep_low_descriptors_free()
        if confinement.own_pids:
            kernel.drop_bounding_set()
            rights = (1, 5, 6, 7) + (21,) * confinement.box  # DAC KILL SETGID SETUID SYS_ADMIN
            _keep_capabilities(sum(1 << bit for bit in rights))
            confinement.own_ids()
        limit_server()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if seccomp.supported():
            seccomp.install(seccomp.server_program(confinement.box))
        proc = ProcFiles(confinement.proc)
        self.table = ProcessTable(host, confinement, proc, _address_space(confinement.proc))

    def serve(self) -> None:
        while True:
            packet, files = wire.receive(self.host)
            try:
                report = self._run(packet, files)
            except NoProcess as error:
                self.table.end_checker()
                report = {"error": str(error)}
            finally:
                for descriptor in files:
                    os.close(descriptor)
            wire.send(self.host, wire.pack(report))

    def _run(self, packet: bytes, files: list[int]) -> dict[str, Any]:
        request = wire.unpack_known(packet)  # jobs differ in their files, hardly in anything else
        checker = self.table.usable_checker(request["limits"])
        job = Job(self.table, request, files, checker)
        report = job.run(packet)
        if job.done and request["pure"]:
            checker.jobs += 1
        else:
            self.table.end_checker()
        return report


def _keep_capabilities(mask: int) -> None:
    """These, and the one that sets process ids anew, where the server has it."""
    try:
        kernel.set_capabilities(mask | kernel.CAP_CHECKPOINT_RESTORE)
    except OSError:
        kernel.set_capabilities(mask)


def _high(descriptor: int) -> int:
    """The same file at a descriptor that no child's standard files will overwrite."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, LOW)
    os.close(descriptor)
    return moved


def _address_space(proc: int | None) -> int:
    """Bytes of address space the bare fork server has; programs get their limit on top."""
    if proc is None:
        return max(64 << 20, 4 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    descriptor = os.open("self/statm", os.O_RDONLY, dir_fd=proc)
    try:
        return int(os.read(descriptor, 4096).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)


def _prepare_interpreter(config: dict[str, Any]) -> None:
    """What a program finds: modules, path, streams."""
    sys.path[:] = [path for path in sys.path if path != config["guest"]] + config["import_path"]
    sys.argv[:] = ["main.py"]
    sys.meta_path.insert(0, program.LoopsWithWaker)
    for name in (*PRELOAD, *config["preload"]):
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "guest"]:
        del sys.modules[name]  # a program that imports `guest` shall not find us
    program.add_site_builtins()
    if not config["writable"]:
        program.fail_alike_at_every_tier()
    program.open_stdin_by_name()
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]


def _die_before_the_host() -> None:
    """When memory is short the kernel shall end what a model wrote, and not the training run. All
    processes of a worker inherit this; raising it needs no privilege."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _usual_signals() -> None:
    """A host started by nohup or in the background ignores some signals. Programs would inherit
    that, and the verdict on one that sends itself a signal would depend on it."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python ignores these
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def main(descriptor: int) -> None:
    """Entry point of a worker: configure, confine itself, report that, serve."""
    _usual_signals()
    host = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, _high(descriptor))
    config = wire.unpack(wire.receive(host)[0])
    _die_before_the_host()
    with contextlib.suppress(OSError):  # the core may be gone: then anywhere
        os.sched_setaffinity(0, [config["core"]])
    try:
        ctypes.CDLL(None).mallopt(-8, 1)  # one malloc arena: threads must not eat address space
        zygote.code_on_huge_pages()
        server = Server(host, config)
    except BaseException as error:
        with contextlib.suppress(OSError):
            reason = f"{type(error).__name__}: {error}"[:2000]
            wire.send(host, wire.pack({"ok": False, "error": reason}))
        os._exit(1)
    wire.send(host, wire.pack({"ok": True}))
    try:
        server.serve()
    except ZygoteGone as gone:
        os._exit(gone.args[0] & 0xFF)  # as if it had ended so itself
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    os._exit(0)
