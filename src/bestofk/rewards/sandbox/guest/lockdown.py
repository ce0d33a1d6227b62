"""The last steps of a forked child before it runs anything: give up everything it does not need."""

from __future__ import annotations

import fcntl
import math
import os
import resource
import signal
from collections.abc import Sequence
from typing import Any

from . import kernel, landlock, seccomp
from .room import BOX, Room

_RESET = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM)


def arrange_descriptors(wanted: Sequence[int]) -> None:
    """Descriptors 0, 1, 2, ... become `wanted`, in order; every other one is closed.

    They are first copied above the target range, so that none is overwritten before it is used.
    """
    floor = len(wanted) + 3
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, floor) for descriptor in wanted]
    for target, copy in enumerate(copies):
        os.dup2(copy, target, inheritable=True)
    kernel.close_from(len(wanted))


def lock_down(
    room: Room, limits: dict[str, Any], *, base_memory: int, cpu: float, checker: bool = False
) -> None:
    """User, capabilities, limits, Landlock, seccomp: in this order, each for good.

    `wanted` descriptors must already be arranged; the Landlock descriptor is closed here.
    """
    if not room.own_pids:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    for number in _RESET:
        signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    if room.uid is not None:
        uid = room.uid + checker
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if not room.own_pids:  # after the change of user, which clears it
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)
    kernel.set_capabilities(0)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    os.chdir(BOX if room.box else "/")
    os.umask(0o022)
    _set_limits(room, limits, base_memory, cpu)
    if room.rules is not None:
        landlock.restrict(room.rules)
        os.close(room.rules)
    if seccomp.supported():
        seccomp.install(seccomp.program(os.getpid(), checker))


def _set_limits(room: Room, limits: dict[str, Any], base_memory: int, cpu: float) -> None:
    seconds = math.ceil(cpu) + 2  # the fork server stops a program earlier, and more exactly
    wanted = {
        resource.RLIMIT_AS: base_memory + limits["memory"],
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: limits["output"],
        resource.RLIMIT_NOFILE: limits["descriptors"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if room.counts_threads:
        wanted[resource.RLIMIT_NPROC] = limits["threads"] + 4
    for which, value in wanted.items():
        _, hard = resource.getrlimit(which)
        value = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(which, (value, value))
