"""The last steps of a forked child before it runs anything: give up everything it does not need.

What can be prepared is prepared in the fork server: every object a child touches is a page fault,
and page faults are most of what a program costs.
"""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Sequence
from typing import Any

from . import kernel, landlock, seccomp
from .room import BOX, Room

LOW = 16
"""Descriptors below this are a child's; the fork server keeps its own above."""

MOST_DESCRIPTORS = 1024
"""The fork server's own limit, so that closing them all is short."""


def keep_low_descriptors_free() -> None:
    """Occupy descriptors 3 to LOW - 1, so that whatever the server opens lies above them."""
    for number in range(3, LOW):
        os.dup2(0, number, inheritable=False)


class Lockdown:
    """How a child of one kind loses its rights: user, capabilities, limits, Landlock, seccomp."""

    def __init__(self, room: Room, checker: bool = False) -> None:
        self.room = room
        self.uid = None if room.uid is None else room.uid + checker
        self.box = BOX if room.box else "/"
        self.filter = seccomp.Template(checker) if seccomp.supported() else None
        self.drop = kernel.prepared_loss_of_capabilities()
        self.die_with_parent = kernel.prepared_prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        self.undumpable = kernel.prepared_prctl(kernel.PR_SET_DUMPABLE, 0)

    def apply(self, files: Sequence[int], limits: list[tuple[int, tuple[int, int]]]) -> None:
        """In the child. Descriptors become `files`, and every other one is closed.

        Fewer than five files leave the first three to /dev/null, opened anew: position and flags of
        an open file are shared by all who inherit it, and would carry notes between programs.
        """
        if len(files) < 5:
            null = os.open("/dev/null", os.O_RDWR)
            files = [null, null, null, *files]
        for target, descriptor in enumerate(files):
            os.dup2(descriptor, target)
        os.chdir(self.box)
        if self.uid is not None:  # takes the capabilities with it
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        else:
            self.drop()
        if not self.room.own_pids:  # after the change of user, which would clear it
            self.die_with_parent()
            if os.getppid() == 1:
                os._exit(1)
        if self.room.rules is not None:
            landlock.restrict(self.room.rules)
        os.closerange(len(files), MOST_DESCRIPTORS)
        for which, pair in limits:
            resource.setrlimit(which, pair)
        self.undumpable()
        if self.filter is not None:
            self.filter.apply(os.getpid())


def resource_limits(
    room: Room, limits: dict[str, Any], base_memory: int, cpu: float
) -> list[tuple[int, tuple[int, int]]]:
    """The kernel's own limits for one child, never above what the server itself has."""
    wanted = {
        resource.RLIMIT_AS: base_memory + limits["memory"],
        # the fork server stops a program earlier, and more exactly
        resource.RLIMIT_CPU: math.ceil(cpu) + 2,
        resource.RLIMIT_FSIZE: limits["output"],
        resource.RLIMIT_NOFILE: limits["descriptors"],
    }
    if room.counts_threads:
        wanted[resource.RLIMIT_NPROC] = limits["threads"] + 4
    capped = []
    for which, value in wanted.items():
        _, hard = resource.getrlimit(which)
        value = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        capped.append((which, (value, value)))
    return capped


def limit_server() -> None:
    """What the server needs none of, and its children inherit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MOST_DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for which in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
        resource.setrlimit(which, (0, 0))
