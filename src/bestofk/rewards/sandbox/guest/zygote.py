"""The process that every program and every checker is a copy of. It does nothing but fork.

After a fork the kernel copies each page that either side writes to, and in Python reading is
writing (reference counts). So the less the zygote runs between two forks, the less a program costs;
whatever needs more than a few lines happens in the server, which is never forked.
"""

from __future__ import annotations

import _socket
import gc
import marshal
import os
import random
import signal
import struct
from collections.abc import Sequence
from typing import Any, NoReturn

from . import checker, kernel, memory, program
from .confinement import Confinement
from .lockdown import Bounds, lockdown

FUNCTIONS, STDIO, CALL, CHECKER = range(4)
_loads, _enable_gc, _exit = marshal.loads, gc.enable, os._exit
_RUNS = (program.run_functions, program.run_stdio, program.run_call, checker.run_checker)


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
            memory.start_fresh_pools()
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
    known: dict[bytes, tuple[int, int, Bounds]] = {}
    while True:
        packet = read(channel, 4096)
        files = 1 + packet[0]
        order = packet[files:]
        if order not in known:
            if len(known) > 64:
                known.clear()
            known[order] = _loads(order)
        pid = fork_beside()
        if pid == 0:
            _become(known[order], packet[1:files], locks)
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
