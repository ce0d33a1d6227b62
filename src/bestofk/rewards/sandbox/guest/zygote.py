"""The fork server of one worker: forks the process of every program, and a checker, and watches.

It is started fresh (never forked from the process that trains), imports common modules once, and
never reads a program or a test: those travel in sealed memory files that it only hands on, so there
is nothing of theirs in the memory its children inherit. It runs one job at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import random
import resource
import socket
import sys
from typing import Any, NoReturn

from . import checker, kernel, program, seccomp, wire
from . import room as rooms
from .job import Call, Check, Checker, Process
from .lockdown import (
    LOW,
    Lockdown,
    keep_low_descriptors_free,
    limit_server,
    resource_limits,
)

PRELOAD = (
    "abc", "array", "ast", "atexit", "base64", "bisect", "builtins", "calendar", "cmath", "codecs",
    "collections", "collections.abc", "contextlib", "copy", "csv", "dataclasses", "datetime",
    "decimal", "enum", "fractions", "functools", "gc", "hashlib", "heapq", "io", "itertools",
    "json", "keyword", "linecache", "math", "numbers", "operator", "os", "pathlib", "queue",
    "random", "re", "select", "signal", "statistics", "string", "struct", "sys", "textwrap",
    "threading", "time", "traceback", "types", "typing", "unicodedata", "warnings", "zlib",
)  # fmt: skip


class Server:
    """Waits for jobs on the host's socket."""

    def __init__(self, host: socket.socket, config: dict[str, Any]) -> None:
        self.host = host
        self.room = rooms.enter(config)
        _prepare_interpreter(config)  # inside: what imports read and write is the room's
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # before, its user could not write its id maps
        keep_low_descriptors_free()
        if self.room.own_pids:
            kernel.drop_bounding_set()
            keep = sum(1 << bit for bit in (1, 5, 6, 7, 21))  # DAC KILL SETGID SETUID SYS_ADMIN
            kernel.set_capabilities(0 if config["wrapped"] else keep)
        limit_server()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if seccomp.supported():
            seccomp.install(seccomp.server_program(self.room.own_pids))
        self.base_memory = _address_space(self.room.proc)
        self.program_lock, self.checker_lock = Lockdown(self.room), Lockdown(self.room, True)
        self.checker: Checker | None = None

    def serve(self) -> None:
        while True:
            request, files = wire.receive(self.host)
            try:
                report = self._run(request, files)
            finally:
                for descriptor in files:
                    os.close(descriptor)
            wire.send(self.host, report)

    def _run(self, request: dict[str, Any], files: list[int]) -> dict[str, Any]:
        if request["kind"] == "call":
            return Call(self, request, files).run()
        if self.checker is None or self.checker.ended() or self.checker.worn():
            self._replace_checker(request["limits"])
        assert self.checker is not None
        job = Check(self, request, files, self.checker)
        report = job.run()
        self.checker.jobs += 1
        if not (job.done and request["pure"]):
            self._end_checker()
        return report

    def _end_checker(self) -> None:
        if self.checker is not None:
            self.checker.kill()
            self.checker = None

    def _replace_checker(self, limits: dict[str, Any]) -> None:
        self._end_checker()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = [theirs.fileno()]
        bounds = resource_limits(self.room, limits, self.base_memory, 3600.0)
        pid = kernel.fork()
        if pid == 0:
            self._become(self.checker_lock, files, bounds, checker.run_checker)
        theirs.close()
        self.checker = Checker(pid, ours)

    def fork_program(
        self, source: int, rpc: int, files: list[int], limits: dict[str, Any], cpu: float
    ) -> Process:
        """The model's program: by calls over `rpc`, or with stdin, stdout and stderr given."""
        self.room.renew_box()
        stdio = len(files) == 3
        bounds = resource_limits(self.room, limits, self.base_memory, cpu)
        run = program.run_stdio if stdio else program.run_functions
        pid = kernel.fork()
        if pid == 0:
            self._become(self.program_lock, [*files, rpc, source], bounds, run, limits)
        return Process(pid, cpu)

    def fork_call(self, files: list[int], limits: dict[str, Any], cpu: float) -> Process:
        self.room.renew_box()
        bounds = resource_limits(self.room, limits, self.base_memory, cpu)
        pid = kernel.fork()
        if pid == 0:
            self._become(self.program_lock, files, bounds, program.run_call, limits)
        return Process(pid, cpu)

    def _become(
        self, lock: Lockdown, files: list[int], bounds: list[Any], run: Any, *arguments: Any
    ) -> NoReturn:
        """In the child: lose everything, then run. Never returns to the server's code."""
        try:
            lock.apply(files, bounds)
            gc.enable()
            run(*arguments)
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
    for name in (*PRELOAD, *config["preload"]):
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "guest"]:
        del sys.modules[name]  # a program that imports `guest` shall not find us
    program.add_site_builtins()
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]


def main(descriptor: int) -> None:
    """Entry point of a worker: configure, enter the room, say so, serve."""
    host = socket.socket(fileno=_high(descriptor))
    config, _ = wire.receive(host)
    try:
        ctypes.CDLL(None).mallopt(-8, 1)  # one malloc arena: threads must not eat address space
        server = Server(host, config)
        random.seed(0)  # here: entering the room forks, and Python reseeds after that
        gc.collect()
        gc.disable()
        gc.freeze()
    except BaseException as error:
        with contextlib.suppress(OSError):
            wire.send(host, {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]})
        os._exit(1)
    wire.send(host, {"ok": True, "tier": server.room.tier})
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        server.serve()
    os._exit(0)
