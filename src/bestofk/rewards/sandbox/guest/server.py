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
import sys
from typing import Any

from . import confinement as confinements
from . import kernel, memory, program, seccomp, wire, zygote
from .job import Call, Check, Checker, Process
from .lockdown import LOW, keep_low_descriptors_free, limit_server, resource_limits
from .zygote import NoProcess, Zygote

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
        self.confinement = confinements.enter(config)
        _prepare_interpreter(config)  # confined: imports read and write what programs can
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # before, its user could not write its id maps
        keep_low_descriptors_free()
        if self.confinement.own_pids:
            kernel.drop_bounding_set()
            keep = sum(1 << bit for bit in (1, 5, 6, 7, 21))  # DAC KILL SETGID SETUID SYS_ADMIN
            kernel.set_capabilities(0 if config["wrapped"] else keep)
        limit_server()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if seccomp.supported():
            seccomp.install(seccomp.server_program(self.confinement.box))
        self.base_memory = _address_space(self.confinement.proc)
        self.zygote = Zygote(self.confinement)
        self.checker: Checker | None = None
        self.poller = select.poll()
        self.poller.register(host, select.POLLIN)
        self.known: dict[bytes, dict[str, Any]] = {}
        self.orders: dict[tuple[float, ...], bytes] = {}

    def serve(self) -> None:
        while True:
            packet, files = wire.receive(self.host)
            try:
                report = self._run(packet, files)
            except NoProcess as error:
                self.end_checker()
                report = {"error": str(error)}
            finally:
                for descriptor in files:
                    os.close(descriptor)
            wire.send(self.host, wire.pack(report))

    def _request(self, packet: bytes) -> dict[str, Any]:
        """Decoded once: jobs differ in their files, hardly ever in anything else."""
        if packet not in self.known:
            if len(self.known) > 64:
                self.known.clear()
            self.known[packet] = wire.unpack(packet)
        return self.known[packet]

    def _run(self, packet: bytes, files: list[int]) -> dict[str, Any]:
        request = self._request(packet)
        if request["kind"] == "call":
            return Call(self, request, files).run()
        if self.checker is None or self.checker.ended() or self.checker.worn():
            self._replace_checker(request["limits"])
        assert self.checker is not None
        job = Check(self, request, files, self.checker)
        report = job.run(packet, request["eager"])
        if job.done and request["pure"]:
            self.checker.jobs += 1
        else:
            self.end_checker()
        return report

    def end_checker(self) -> None:
        if self.checker is not None:
            for descriptor in self.checker.watched:
                self.poller.unregister(descriptor)
            self.checker.kill()
            self.checker = None

    def _replace_checker(self, limits: dict[str, Any]) -> None:
        self.end_checker()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            order = self._order(zygote.CHECKER, limits, 3600.0)
            self.checker = Checker(self._fork(order, [theirs.fileno()]), ours)
        finally:
            theirs.close()
        for descriptor in self.checker.watched:
            self.poller.register(descriptor, select.POLLIN)

    def fork_program(
        self, source: int, rpc: int, files: list[int], limits: dict[str, Any], cpu: float
    ) -> Process:
        """The model's program: by calls over `rpc`, or with stdin, stdout and stderr given."""
        order = self._order(zygote.STDIO if files else zygote.FUNCTIONS, limits, cpu)
        self.confinement.renew_box()
        return Process(self._fork(order, [rpc, source], files), cpu)

    def fork_call(self, files: list[int], limits: dict[str, Any], cpu: float) -> Process:
        self.confinement.renew_box()
        return Process(self._fork(self._order(zygote.CALL, limits, cpu), files), cpu)

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
        """What the zygote is told; the same for thousands of programs."""
        key = (what, cpu, *limits.values())
        if key not in self.orders:
            if len(self.orders) > 64:
                self.orders.clear()
            if what == zygote.CHECKER:  # it also writes what programs read, and many results
                limits = limits | {"output": wire.RESULT}
            bounds = resource_limits(self.confinement, limits, self.base_memory, cpu)
            self.orders[key] = zygote.order(what, limits["output"], bounds)
        return self.orders[key]

    def threads(self, pid: int) -> int:
        """How many threads a process has; 0 where /proc cannot be had."""
        if self.confinement.proc is None:
            return 0
        try:
            descriptor = os.open(f"{pid}/stat", os.O_RDONLY, dir_fd=self.confinement.proc)
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
    """Entry point of a worker: configure, confine itself, report that, serve."""
    host = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, _high(descriptor))
    packet, _ = wire.receive(host)
    config = wire.unpack(packet)
    with contextlib.suppress(OSError):  # the core may be gone: then anywhere
        os.sched_setaffinity(0, [config["core"]])
    try:
        ctypes.CDLL(None).mallopt(-8, 1)  # one malloc arena: threads must not eat address space
        memory.code_on_huge_pages()
        server = Server(host, config)
    except BaseException as error:
        with contextlib.suppress(OSError):
            reason = f"{type(error).__name__}: {error}"[:2000]
            wire.send(host, wire.pack({"ok": False, "error": reason}))
        os._exit(1)
    wire.send(host, wire.pack({"ok": True}))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        server.serve()
    os._exit(0)
