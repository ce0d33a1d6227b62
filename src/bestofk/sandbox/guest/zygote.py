"""The process that every program and every checker is a copy of. It does nothing but fork.

After a fork the kernel copies each page that either side writes to, and in Python reading is
writing (reference counts). So the less the zygote runs between two forks, the less a program costs;
whatever needs more than a few lines happens in the server, which is never forked. For the same
reason a child gives up its rights by what was prepared here, and memory is laid out to be copied.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import gc
import marshal
import math
import os
import random
import resource
import signal
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from . import checker, kernel, program, seccomp
from . import confinement as confinements
from .confinement import BOX, Confinement

FUNCTIONS, STDIO, CHECKER = range(3)
_loads, _enable_gc, _exit = marshal.loads, gc.enable, os._exit
_RUNS = (program.run_functions, program.run_stdio, checker.run_checker)


def order(what: int, output: int, bounds: Bounds) -> bytes:
    """One process to be made: what it runs, how much it may answer, the kernel's limits on it."""
    return marshal.dumps((what, output, bounds))


class NoProcess(OSError):
    """The machine gives no process: no fault of the program's."""


class ZygoteGone(Exception):
    """It ended, with this code: no process can be made any more."""


class Zygote:
    """The server's hold on it. Made once, when everything that programs shall find is loaded.

    It shares the server's table of descriptors, so that the files of a program need not be sent.
    """

    def __init__(self, confinement: Confinement) -> None:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, struct.pack("@ll", 1, 0))
        self.channel, channel = ours.detach(), theirs.detach()
        server = os.getpid()
        self.pid = kernel.fork_sharing_files()
        if self.pid == 0:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(0)
            locks = [lockdown(confinement)] * CHECKER + [lockdown(confinement, checker=True)]
            program.warm_up()
            random.seed(0)  # entering the namespaces forked, and Python reseeds after that
            gc.collect()
            gc.disable()
            gc.freeze()
            _serve(channel, locks)

    def fork(self, order: bytes, files: Sequence[int]) -> int:
        """A new child of the caller's, locked down, with `files` as its only descriptors."""
        os.write(self.channel, bytes((len(files), *files)) + order)
        while True:
            try:
                pid = int.from_bytes(os.read(self.channel, 8), "little")
                break
            except BlockingIOError:  # no end of file tells: both ends are in the shared table
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    code = os.waitstatus_to_exitcode(status)
                    raise ZygoteGone(code, "the zygote is gone") from None
        if not pid:
            raise NoProcess("no further process could be made")
        return pid


def _serve(channel: int, locks: list[Any]) -> NoReturn:
    read, write, fork_beside = os.read, os.write, kernel.fork_beside
    orders: dict[bytes, tuple[int, int, Bounds]] = {}
    while True:
        packet = read(channel, 4096)
        files = 1 + packet[0]
        order = packet[files:]
        if order not in orders:
            if len(orders) > 64:
                orders.clear()
            orders[order] = _loads(order)
        pid = fork_beside()
        if pid == 0:
            _become(orders[order], packet[1:files], locks)
        write(channel, max(pid, 0).to_bytes(8, "little"))


def _become(order: tuple[int, int, Bounds], files: bytes, locks: list[Any]) -> NoReturn:
    """In the child: lose everything, then run. Never returns to the zygote's code."""
    try:
        what, output, bounds = order
        locks[what](files, bounds)
        _enable_gc()
        _RUNS[what](output)
    except BaseException:
        _exit(70)
    _exit(0)


# ------------------------------------------------- how a child gives up what it does not need
Bounds = list[tuple[int, tuple[int, int]]]
"""Resource limits: which, and (soft, hard)."""

LOW = 16
"""Descriptors below this are a child's; the fork server keeps its own above."""

MOST_DESCRIPTORS = 256
"""The fork server's own limit, so that the number of each is one byte."""


def keep_low_descriptors_free() -> None:
    """Occupy descriptors 3 to LOW - 1, so that whatever the server opens lies above them."""
    for number in range(3, LOW):
        os.dup2(0, number, inheritable=False)


def lockdown(confinement: Confinement, checker: bool = False) -> Callable[[bytes, Bounds], None]:
    """How a child of one kind loses its rights: user, capabilities, limits, Landlock, seccomp.

    Every name is looked up here, in the zygote: looking one up writes to memory.
    """
    uid = None if confinement.uid is None else confinement.uid + checker
    box = BOX if confinement.box else "/"
    rules, own_pids = confinement.rules, confinement.own_pids
    install = seccomp.prepared(checker) if seccomp.supported() else None
    keep_capabilities = kernel.prepared_prctl(kernel.PR_SET_KEEPCAPS, 1)
    set_capabilities = kernel.prepared_capabilities(confinement.capability)
    is_reader = bool(confinement.capability)
    die_with_parent = kernel.prepared_prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    dup2, chdir, close_range, leave = os.dup2, os.chdir, os.closerange, os._exit
    setgroups, setresgid, setresuid = os.setgroups, os.setresgid, os.setresuid
    getpid, getppid, setrlimit = os.getpid, os.getppid, resource.setrlimit

    def apply(files: bytes, bounds: Bounds) -> None:
        """In the child. Descriptors become `files`, and every other one is closed."""
        target = 0
        for descriptor in files:
            dup2(descriptor, target)
            target += 1
        chdir(box)
        if uid is not None:  # takes the capabilities with it
            if is_reader:
                keep_capabilities()
            setgroups([])
            setresgid(uid, uid, uid)
            setresuid(uid, uid, uid)
        if uid is None or is_reader:
            set_capabilities()
        if not own_pids:  # after the change of user, which would clear it
            die_with_parent()
            if getppid() == 1:
                leave(1)
        if rules is not None:
            confinements.restrict(rules)
        close_range(target, MOST_DESCRIPTORS)
        for which, pair in bounds:
            setrlimit(which, pair)
        if install is not None:
            install(getpid())

    return apply


def resource_limits(
    confinement: Confinement, limits: dict[str, Any], base_memory: int, cpu: float
) -> Bounds:
    """The kernel's own limits for one child, never above what the server itself has."""
    bounds = {
        resource.RLIMIT_AS: base_memory + limits["memory"],
        # the fork server stops a program earlier, and more exactly
        resource.RLIMIT_CPU: math.ceil(cpu) + 2,
        resource.RLIMIT_FSIZE: limits["output"],
        resource.RLIMIT_NOFILE: limits["descriptors"],
    }
    if confinement.counts_threads:
        bounds[resource.RLIMIT_NPROC] = limits["threads"] + 4
    capped: Bounds = []
    for which, value in bounds.items():
        _, hard = resource.getrlimit(which)
        value = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        capped.append((which, (value, value)))
    return capped


def limit_server() -> None:
    """What the server needs none of, and its children inherit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = (
        MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MOST_DESCRIPTORS, hard)
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    for which in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
        resource.setrlimit(which, (0, 0))


# ------------------------------------------------- where the code lies, so that a copy is cheap
_HUGE = 2 << 20
_READ_WRITE, _READ_EXECUTE, _PRIVATE_ANONYMOUS = 3, 5, 0x22
_MADV_HUGEPAGE, _MREMAP_MAYMOVE_FIXED = 14, 3

_libc = ctypes.CDLL(None, use_errno=True)
for _name in ("mmap", "mremap"):
    getattr(_libc, _name).restype = ctypes.c_void_p
_size, _at = ctypes.c_size_t, ctypes.c_void_p


def code_on_huge_pages() -> None:
    """Put the interpreter's code on huge pages, which a fork shares at once.

    The kernel does not copy the page tables of a file, so every program would have to find the
    interpreter's code again, at forty faults. The copy has the same bytes at the same addresses.
    Only where data and instructions share their caches: elsewhere code must not be moved like data.
    """
    if kernel.MACHINE != "x86_64":
        return
    with contextlib.suppress(OSError), open("/proc/self/maps") as table:
        span = _whole_huge_pages(table, _address_of_interpreter())
        if span is not None:
            _move_to_huge_pages(*span)


def _address_of_interpreter() -> int:
    return ctypes.cast(ctypes.pythonapi.Py_GetVersion, _at).value or 0


def _whole_huge_pages(table: Iterable[str], address: int) -> tuple[int, int] | None:
    """The huge pages that lie wholly in what is read-only around `address`."""
    first = last = 0
    for line in table:
        fields = line.split()
        start, end = (int(text, 16) for text in fields[0].split("-"))
        if fields[1] not in ("r--p", "r-xp"):
            if first <= address < last:
                break
            continue
        if start != last:
            first = start
        last = end
    start, end = -(-first // _HUGE) * _HUGE, last // _HUGE * _HUGE
    return (start, end) if first <= address < last and start < end else None


def _move_to_huge_pages(start: int, end: int) -> None:
    size = end - start
    got = _libc.mmap(None, _size(size + _HUGE), _READ_WRITE, _PRIVATE_ANONYMOUS, -1, _size(0))
    if got in (None, _at(-1).value):
        return
    copy = -(-got // _HUGE) * _HUGE
    if _libc.madvise(_at(copy), _size(size), _MADV_HUGEPAGE) == 0:
        ctypes.memmove(copy, start, size)
        if _libc.mprotect(_at(copy), _size(size), _READ_EXECUTE) == 0:
            moved = (_at(copy), _size(size), _size(size), _MREMAP_MAYMOVE_FIXED, _at(start))
            if _libc.mremap(*moved) == start:
                _libc.munmap(_at(got), _size(copy - got))
                got, size = copy + size, got - copy  # what is left behind the copy
    _libc.munmap(_at(got), _size(size + _HUGE))
