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
import signal
import sys
from typing import Any

from . import confinement as confinements
from . import file_errors, kernel, memory, program, seccomp, wire
from .clocks import ProcFiles
from .job import CallJob, CheckJob
from .lockdown import LOW, keep_low_descriptors_free, limit_server
from .process_table import ProcessTable
from .zygote import NoProcess, ZygoteGone

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

    def __init__(self, host: _socket.socket, config: dict[str, Any], files: list[int]) -> None:
        """`files`: the host's /proc, where bubblewrap mounts none."""
        self.host = host
        confinement = confinements.enter(config)
        _prepare_interpreter(config)  # confined: imports read and write what programs can
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # before, its user could not write its id maps
        keep_low_descriptors_free()
        if confinement.own_pids:
            kernel.drop_bounding_set()
            keep = sum(1 << bit for bit in (1, 5, 6, 7, 21))  # DAC KILL SETGID SETUID SYS_ADMIN
            kernel.set_capabilities(0 if config["wrapped"] else keep)
        limit_server()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if seccomp.supported():
            seccomp.install(seccomp.server_program(confinement.box))
        proc = ProcFiles(files[0], foreign=True) if files else ProcFiles(confinement.proc)
        self.table = ProcessTable(host, confinement, proc, _address_space(confinement.proc))
        self.known: dict[bytes, dict[str, Any]] = {}

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
            return CallJob(self.table, request, files).run()
        checker = self.table.usable_checker(request["limits"])
        job = CheckJob(self.table, request, files, checker)
        report = job.run(packet)
        if job.done and request["pure"]:
            checker.jobs += 1
        else:
            self.table.end_checker()
        return report


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
    if not config["writable"]:
        file_errors.alike_at_every_tier()
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
    packet, files = wire.receive(host)
    config, files = wire.unpack(packet), [_high(file) for file in files]
    _die_before_the_host()
    with contextlib.suppress(OSError):  # the core may be gone: then anywhere
        os.sched_setaffinity(0, [config["core"]])
    try:
        ctypes.CDLL(None).mallopt(-8, 1)  # one malloc arena: threads must not eat address space
        memory.code_on_huge_pages()
        server = Server(host, config, files)
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
