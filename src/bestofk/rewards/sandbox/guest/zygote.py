"""The process that every program and every checker is a copy of. It does nothing but fork.

After a fork the kernel copies each page that either side writes to, and in Python reading is
writing (reference counts). So the less the zygote runs between two forks, the less a program costs;
whatever needs more than a few lines happens in the server, which is never forked.
"""

from __future__ import annotations

import gc
import marshal
import os
import random
import signal
import socket
from collections.abc import Sequence
from typing import Any, NoReturn

from . import checker, kernel, program, wire
from .lockdown import Bounds, lockdown
from .room import Room

FUNCTIONS, STDIO, CALL, CHECKER = range(4)
_loads, _enable_gc, _exit = marshal.loads, gc.enable, os._exit
_RUNS = (program.run_functions, program.run_stdio, program.run_call, checker.run_checker)


def order(what: int, output: int, bounds: Bounds) -> bytes:
    """One process to be made: what it runs, how much it may answer, the kernel's limits on it."""
    return marshal.dumps((what, output, bounds))


class Zygote:
    """The server's hold on it. Made once, when everything that programs shall find is loaded."""

    def __init__(self, room: Room, host: socket.socket) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if kernel.fork() == 0:
            os.close(host.fileno())
            self.channel.close()
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            locks = [lockdown(room)] * CHECKER + [lockdown(room, checker=True)]
            program.warm_up()
            random.seed(0)  # entering the room forked, and Python reseeds after that
            gc.collect()
            gc.disable()
            gc.freeze()
            _serve(theirs, locks)
        theirs.close()

    def fork(self, order: bytes, files: Sequence[int]) -> int:
        """A new child of the caller's, locked down, with `files` as its only descriptors."""
        wire.send(self.channel, order, files)
        pid = int.from_bytes(self.channel.recv(8), "little")
        if not pid:
            raise OSError("the zygote could not fork")
        return pid


def _serve(channel: socket.socket, locks: list[Any]) -> NoReturn:
    receive, fork_beside, send, close = wire.receive, kernel.fork_beside, channel.send, os.close
    while True:
        try:
            order, files = receive(channel, 5)
        except (EOFError, OSError):
            os._exit(0)
        pid = fork_beside()
        if pid == 0:
            _become(order, files, locks)
        send(max(pid, 0).to_bytes(8, "little"))
        for descriptor in files:
            close(descriptor)


def _become(order: bytes, files: list[int], locks: list[Any]) -> NoReturn:
    """In the child: lose everything, then run. Never returns to the zygote's code."""
    try:
        what, output, bounds = _loads(order)
        locks[what](files, bounds)
        _enable_gc()
        _RUNS[what](output)
    except BaseException:
        _exit(70)
    _exit(0)
