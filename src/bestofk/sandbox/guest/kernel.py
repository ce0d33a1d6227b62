"""The system calls that Python's `os` does not have, through ctypes.

Everything raises OSError with the kernel's errno. Numbers are for x86-64 and AArch64 Linux.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import partial

MACHINE = os.uname().machine

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER = 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
CLONE_FILES, CLONE_PARENT = 0x400, 0x8000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
PR_SET_KEEPCAPS = 8
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE = 1 << 1, 1 << 2, 1 << 40
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

_NUMBERS = {  # x86-64, AArch64
    "pivot_root": (155, 41),
    "mount_setattr": (442, 442),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(MACHINE)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, *arguments: int | bytes | ctypes.Array | ctypes.Structure | None) -> int:
    """A system call from the table above; integers are passed as longs."""
    if _COLUMN is None:
        raise OSError(38, f"no system call table for {MACHINE}")
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(_NUMBERS[name][_COLUMN]), *converted), name)


def prctl(option: int, *arguments: int) -> None:
    prepared_prctl(option, *arguments)()


def prepared_prctl(option: int, *arguments: int) -> Callable[[], None]:
    """A prctl whose arguments are converted now, for a child that must touch little memory."""
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    call, failed = partial(_libc.prctl, ctypes.c_int(option), *padded), f"prctl({option})"

    def run() -> None:
        if call():
            raise OSError(ctypes.get_errno(), failed)

    return run


_held = ctypes.PyDLL(None)  # PyDLL: the interpreter's lock stays held, as os.fork has it
_clone = _held.syscall
_clone.restype = ctypes.c_long
_CLONE = ctypes.c_long({"x86_64": 56, "aarch64": 220}.get(MACHINE, -1))
_BESIDE, _SHARING_FILES = ctypes.c_long(CLONE_PARENT | 17), ctypes.c_long(CLONE_FILES | 17)
_NO_STACK = ctypes.c_long(0)


def fork_sharing_files() -> int:
    """A child that shares the caller's table of descriptors: what one opens or closes, both do.

    Like the next one it does without Python's after-fork hooks, which touch 190 pages and cost
    .7 ms. Sound only in a process that never had a second thread; server and zygote are such.
    Without the hooks `random` is not reseeded: every program starts from the same state, so a
    verdict does not depend on the worker or on chance outside the program.
    """
    return _checked(_clone(_CLONE, _SHARING_FILES, _NO_STACK), "clone")


def fork_beside() -> int:
    """A child with a table of its own, and a sibling: the caller's parent can wait for it.

    -1: failed.
    """
    return _clone(_CLONE, _BESIDE, _NO_STACK)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() if kind else None,
            flags,
            data.encode() or None,
        ),
        f"mount {target}",
    )


def umount(target: str, flags: int = MNT_DETACH) -> None:
    _checked(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    syscall("pivot_root", os.fsencode(new_root), os.fsencode(put_old))


class _MountAttributes(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    ]


def make_readonly(path: str, *, device: bool = False) -> None:
    """The mount at `path` and all below it: read-only, no set-uid, no devices.

    A `device` can still be written to, but neither its mode nor its times can be changed, which
    are those of the whole machine.
    """
    attributes = _MountAttributes(set=MS_RDONLY | MS_NOSUID | (0 if device else MS_NODEV))
    at_fdcwd, at_recursive = -100, 0x8000
    syscall(
        "mount_setattr",
        at_fdcwd,
        os.fsencode(path),
        at_recursive,
        ctypes.byref(attributes),  # type: ignore[arg-type]
        ctypes.sizeof(attributes),
    )


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def set_capabilities(mask: int) -> None:
    """Effective and permitted capabilities := mask, inheritable and ambient := none."""
    prepared_capabilities(mask)()


def prepared_capabilities(mask: int) -> Callable[[], None]:
    """`set_capabilities(mask)`, made ahead."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header, data = _CapHeader(0x20080522, 0), (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    arguments = (ctypes.byref(header), ctypes.byref(data))
    function = _libc.capset

    def run() -> None:
        if function(*arguments):
            raise OSError(ctypes.get_errno(), "capset")

    return run


def drop_bounding_set() -> None:
    """No capability can be regained; without CAP_SETPCAP there is nothing to lose."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            return


def cpu_clock(pid: int) -> int:
    """The clock id of a process's CPU time, threads included; readable without any privilege."""
    return (~pid << 3) | 2


def cpu_seconds(pid: int) -> float:
    """CPU seconds used by a live or unreaped process."""
    return time.clock_gettime(cpu_clock(pid))
