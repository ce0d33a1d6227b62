"""The last steps of a forked child before it runs anything: give up everything it does not need.

What can be prepared is prepared in the fork server: every object a child touches is a page fault,
and page faults are most of what a program costs.
"""

from __future__ import annotations

import math
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

from . import kernel, landlock, seccomp
from .confinement import BOX, Confinement

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
            landlock.restrict(rules)
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
    wanted = {
        resource.RLIMIT_AS: base_memory + limits["memory"],
        # the fork server stops a program earlier, and more exactly
        resource.RLIMIT_CPU: math.ceil(cpu) + 2,
        resource.RLIMIT_FSIZE: limits["output"],
        resource.RLIMIT_NOFILE: limits["descriptors"],
    }
    if confinement.counts_threads:
        wanted[resource.RLIMIT_NPROC] = limits["threads"] + 4
    capped: Bounds = []
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
