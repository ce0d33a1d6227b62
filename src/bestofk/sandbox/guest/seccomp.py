"""A seccomp filter that allows what a Python program needs and denies everything else.

An allow-list, so that calls which do not exist yet (and io_uring, userfaultfd, bpf, keyrings,
SysV memory, ptrace, perf, namespaces ...) are denied without being named. Denied calls fail with
EPERM instead of killing, so that a library can fall back. A few calls are allowed by argument:
threads but no processes, signals only to oneself (but none that kills or stops), no descriptor
passing, no asynchronous signals through fcntl (which would reach other processes of the same user).

Filters stack and the strictest answer counts, so it comes in two parts: the server takes the
long allow-list, with what it needs itself on top, once; each child takes the short list that
denies the server's own calls again, which is cheap to install.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Callable, Sequence

from . import kernel

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Allowed whatever the arguments: (x86-64, AArch64), None where the call does not exist.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # files and descriptors
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66),
    "pread64": (17, 67), "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70),
    "open": (2, None), "openat": (257, 56), "creat": (85, None), "close": (3, 57),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "statfs": (137, 43), "fstatfs": (138, 44),
    "lseek": (8, 62), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "ftruncate": (77, 46), "getdents64": (217, 61),
    "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "symlink": (88, None), "symlinkat": (266, 36), "link": (86, None),
    "linkat": (265, 37), "readlink": (89, None), "readlinkat": (267, 78), "umask": (95, 166),
    # waiting
    "select": (23, None), "pselect6": (270, 72), "poll": (7, None), "ppoll": (271, 73),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "eventfd2": (290, 19), "pause": (34, None),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "futex": (202, 98),
    "restart_syscall": (219, 128), "wait4": (61, 260), "waitid": (247, 95),
    # memory
    "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "brk": (12, 214),
    "msync": (26, 227),
    # one's own signals, threads and end
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "alarm": (37, None), "getitimer": (36, 102), "setitimer": (38, 103),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "set_tid_address": (218, 96),
    "set_robust_list": (273, 99), "rseq": (334, 293), "exit": (60, 93), "exit_group": (231, 94),
    # asking
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getpgrp": (111, None),
    "getgroups": (115, 158), "getresuid": (118, 148),
    "getresgid": (120, 150), "uname": (63, 160), "sysinfo": (99, 179),
    "getrusage": (98, 165), "times": (100, 153), "time": (201, None), "gettimeofday": (96, 169),
    "clock_getres": (229, 114), "getrlimit": (97, 163), "getcpu": (309, 168),
    "getrandom": (318, 278),
    # a program's own channel; see the rules below for how it is written
    "recvfrom": (45, 207), "getsockname": (51, 204), "getpeername": (52, 205),
    "shutdown": (48, 210),
}  # fmt: skip
# With conditions on the arguments, the same for everybody.
_RULED = {
    "clone3": (435, 435), "openat2": (437, 437), "statx": (332, 291), "ioctl": (16, 29),
    "getsockopt": (55, 209), "sendto": (44, 206), "fsync": (74, 82), "fdatasync": (75, 83),
    "fadvise64": (221, 223), "mmap": (9, 222), "madvise": (28, 233), "close_range": (436, 436),
}  # fmt: skip
# The server's own calls, which its children lose (wholly, or but for what `_limited` says).
_SERVER = {
    "clone": (56, 220), "kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261),
    "setrlimit": (160, 164),
    "fcntl": (72, 25), "prctl": (157, 167), "pidfd_open": (434, 434), "mount": (165, 40),
    "umount2": (166, 39), "setgroups": (116, 159), "setresgid": (119, 149), "setresuid": (117, 147),
    "capset": (126, 91), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446), "sendmsg": (46, 211), "recvmsg": (47, 212),
    "memfd_create": (319, 279), "clock_gettime": (228, 113), "setsockopt": (54, 208),
    "socketpair": (53, 199),
}  # fmt: skip
# What changes a file through its path or a read-only descriptor: Landlock does not watch all of it,
# so only worlds with a file system of their own have it.
_METADATA: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "utimensat": (280, 88),
    "utime": (132, None), "utimes": (235, None), "truncate": (76, 45),
}  # fmt: skip
_CHECKER = ("sendmsg", "recvmsg", "memfd_create", "clock_gettime")

_CHANNEL = 3
"""A program's channel. The kernel numbers sockets and pipes by one counter, so a program gets no
others, and may neither ask for this one's number nor copy it to where that could be asked."""
_GETSOCKOPT = (3, 4, 7, 8, 38, 39)  # SO_TYPE, ERROR, SNDBUF, RCVBUF, PROTOCOL, DOMAIN
_F_ADD_SEALS = 1033
_FCNTL = (0, 1, 2, 3, 4, 1030, 1032)  # dup, flags, pipe size (get)
_FCNTL_LOCKS = (6, 7, 37, 38)
# TCGETS WINSZ FIONREAD FIONBIO FIO(N)CLEX
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_PRCTL = (15, 16)  # the thread's name
_A_THREAD = (0x3D0F00, 0x7D0F00)
"""The flags of `clone` that make a thread, as the C libraries do. Others would give a thread a
table of descriptors of its own, beyond the limit, or let it wait unkillably (CLONE_VFORK)."""
_CLOSE_RANGE = (0, 4)  # close, close on exec; not CLOSE_RANGE_UNSHARE: a table of one's own again
_MADVISE = (0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19)
"""Not what has the kernel work for a program, or lets it wait unkillably: pages moved out or
together (COLD, PAGEOUT, POPULATE, COLLAPSE), searched for alike ones (MERGEABLE)."""
_RLIMIT_CPU = 0
_DEADLY = (9, 19, 20, 21, 22)  # SIGKILL, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU

_ALLOW = 0x7FFF0000
_KILL = 0x80000000


def _error(number: int) -> int:
    return 0x00050000 | number


def _op(code: int, k: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, jump_true, jump_false, k & 0xFFFFFFFF)


def _load(offset: int) -> bytes:
    return _op(0x20, offset)


def _equal(value: int, jump_true: int, jump_false: int) -> bytes:
    return _op(0x15, value, jump_true, jump_false)


def _has_bits(value: int, jump_true: int, jump_false: int) -> bytes:
    return _op(0x45, value, jump_true, jump_false)


def _return(value: int) -> bytes:
    return _op(0x06, value)


def _argument(index: int) -> int:
    """Offset of an argument's low half in struct seccomp_data; the high half is 4 bytes later."""
    return 16 + 8 * index


def _if_listed(offset: int, values: Sequence[int], answer: bytes) -> list[bytes]:
    """The answer when the four bytes at this offset are listed; go on otherwise."""
    last = len(values) - 1
    compared = [_equal(value, last - at, int(at == last)) for at, value in enumerate(values)]
    return [_load(offset), *compared, answer]


def _allow_if_low_in(index: int, values: tuple[int, ...], otherwise: int) -> list[bytes]:
    """Allow when the low half of an argument (the kernel reads no more of an int) is listed."""
    return [*_if_listed(_argument(index), values, _return(_ALLOW)), _return(_error(otherwise))]


def _allow_mapping() -> list[bytes]:
    """Allow `mmap` but of shared memory without a file: a program is alone, and all of such memory
    stays as long as a page of it is mapped, so no limit on address space bounds it."""
    shared, anonymous = 0x1, 0x20
    flags = [_load(_argument(3)), _has_bits(anonymous, 0, 2), _has_bits(shared, 0, 1)]
    return [*flags, _REFUSE, _return(_ALLOW)]


def _allow_sending() -> list[bytes]:
    """Allow `sendto` without an address, so to the other end only, and without flags that change
    what arrives (MSG_OOB); MSG_NOSIGNAL and MSG_DONTWAIT are harmless."""
    unaddressed = _allow_if_zero(4)
    refuse = len(unaddressed) - 1
    return [_load(_argument(3)), _has_bits(~0x4040 & 0xFFFFFFFF, refuse, 0), *unaddressed]


def _allow_own_signals(pid: int, index: int) -> list[bytes]:
    """Allow signals to oneself but SIGKILL and those that stop, argument `index`: who sends one
    dies of SIGSYS. So a program that was ended by SIGKILL was ended from outside, or by a limit of
    ours, and one that is stopped was stopped from outside."""
    mine = [_load(_argument(0)), _equal(pid, 1, 0), _REFUSE]
    return [*mine, *_if_listed(_argument(index), _DEADLY, _return(_KILL)), _return(_ALLOW)]


def _allow_limits(pid: int) -> list[bytes]:
    """Allow `prlimit64` on oneself. Setting the CPU limit does nothing, which would end in a
    SIGKILL of the program's own making."""
    new = _argument(2)
    asks = [_load(new), _equal(0, 0, 2), _load(new + 4), _equal(0, 1, 0), _PRETEND]
    return [
        _load(_argument(1)),
        _equal(_RLIMIT_CPU, 0, len(asks)),
        *asks,
        *_allow_if_low_in(0, (0, pid), errno.EPERM),
    ]


def _refuse_on_channel() -> list[bytes]:
    """Answer with an error to what asks a program's channel for its number, or copies it."""
    calls = [_ALLOWED[name] for name in ("fstat", "newfstatat", "dup", "dup2", "dup3")]
    numbers = [call[_column()] for call in (*calls, _SERVER["fcntl"])]
    block = _if_listed(0, [number for number in numbers if number is not None], _REFUSE)
    return [_load(_argument(0)), _equal(_CHANNEL, 0, len(block)), *block]


def _allow_if_zero(index: int) -> list[bytes]:
    """Allow when a pointer argument is NULL."""
    return [
        _load(_argument(index)),
        _equal(0, 0, 3),
        _load(_argument(index) + 4),
        _equal(0, 0, 1),
        _return(_ALLOW),
        _return(_error(errno.EPERM)),
    ]


_REFUSE = _return(_error(errno.EPERM))
_PRETEND = _return(_error(0))
"""Do nothing, and say that it is done."""


def _rules() -> dict[str, list[bytes]]:
    """What ruled calls may do, in the server and in its children."""
    return {
        # flags behind a pointer; libc falls back
        "clone3": [_return(_error(errno.ENOSYS))],
        "openat2": [_return(_error(errno.ENOSYS))],
        "ioctl": _allow_if_low_in(1, _IOCTL, errno.ENOTTY),
        "statx": [_return(_error(errno.ENOSYS))],  # tells how often anything was mounted
        "getsockopt": _allow_if_low_in(2, _GETSOCKOPT, errno.EPERM),
        "sendto": _allow_sending(),
        "mmap": _allow_mapping(),
        "madvise": _allow_if_low_in(2, _MADVISE, errno.EINVAL),
        "close_range": _allow_if_low_in(2, _CLOSE_RANGE, errno.EINVAL),
        # nothing of a program outlives it, so these have nothing to do; on a file of the host they
        # would be heard by other programs
        "fsync": [_PRETEND],
        "fdatasync": [_PRETEND],
        "fadvise64": [_PRETEND],
    }


def _limited(pid: int, checker: bool) -> dict[str, list[bytes]]:
    """What is left of the server's calls in a child whose process id is `pid`."""
    rules = {name: [_REFUSE] for name in _SERVER} | {
        "clone": _allow_if_low_in(0, _A_THREAD, errno.EPERM),
        "kill": _allow_own_signals(pid, 1),
        "tgkill": _allow_own_signals(pid, 2),
        "prlimit64": _allow_limits(pid),
        "setrlimit": [*_if_listed(_argument(0), (_RLIMIT_CPU,), _PRETEND), _return(_ALLOW)],
        "fcntl": [
            *_if_listed(_argument(1), _FCNTL_LOCKS, _PRETEND),  # it has every lock: it is alone
            *_allow_if_low_in(1, _FCNTL + (_F_ADD_SEALS,) * checker, errno.EPERM),
        ],
        "prctl": _allow_if_low_in(0, _PRCTL, errno.EPERM),
        # the clocks that have a name; the others are the CPU clocks of processes, by their id
        "clock_gettime": _allow_if_low_in(0, tuple(range(12)), errno.EPERM),
    }
    return {name: rule for name, rule in rules.items() if not (checker and name in _CHECKER)}


def _column() -> int:
    return ("x86_64", "aarch64").index(kernel.MACHINE)


def server_program(own_files: bool) -> bytes:
    """The long filter, as BPF instructions; `own_files`: there is a folder to write in, and what is
    of the host is mounted read-only."""
    column = _column()
    code = [
        _load(4),
        _equal(_ARCHITECTURE[kernel.MACHINE], 1, 0),
        _return(_KILL),  # a 32-bit call: another table of numbers
        _load(0),
    ]
    for name, block in _rules().items():
        code += [_equal(_RULED[name][column], 0, len(block)), *block]
    # without a folder to renew for every program there is nothing to mount any more
    own = _METADATA if own_files else {"mount": (None, None), "umount2": (None, None)}
    for numbers in (_ALLOWED | _SERVER | own).values():
        number = numbers[column]
        if number is not None:
            code += [_equal(number, 0, 1), _return(_ALLOW)]
    return b"".join([*code, _REFUSE])


def child_program(pid: int, checker: bool = False) -> bytes:
    """The short filter of one child, as BPF instructions."""
    code = [*_refuse_on_channel(), _load(0)]
    for name, block in _limited(pid, checker).items():
        code += [_equal(_SERVER[name][_column()], 0, len(block)), *block]
    return b"".join([*code, _return(_ALLOW)])


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _loaded(code: bytes, mark: int = 0) -> Callable[[int], None]:
    """Puts the calling thread, and all it starts, under a filter for good: it only writes its
    process id in the place of `mark` into the finished instructions."""
    buffer = ctypes.create_string_buffer(code, len(code))
    words = memoryview(buffer).cast("B").cast("I")
    spots = [at for at in range(1, len(words), 2) if mark and words[at] == mark]
    header = _Program(len(code) // 8, ctypes.addressof(buffer))
    load = kernel.prepared_prctl(
        kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, ctypes.addressof(header)
    )

    def install(pid: int, _kept: _Program = header) -> None:
        for spot in spots:
            words[spot] = pid
        load()

    return install


def prepared(checker: bool) -> Callable[[int], None]:
    """A child's filter, made ahead."""
    mark = 0x5AFEC0DE
    return _loaded(child_program(mark, checker), mark)


def install(code: bytes) -> None:
    """A filter for the calling process (needs no_new_privs)."""
    _loaded(code)(0)


def supported() -> bool:
    return kernel.MACHINE in _ARCHITECTURE
