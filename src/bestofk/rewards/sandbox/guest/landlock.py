"""Landlock: which files a process may open, without any privilege.

It does not hide that a file exists (stat still answers); it stops opening, listing, writing,
executing, and from ABI 4 on TCP, from ABI 6 on abstract sockets and signals to outside.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from . import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FS_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_FS_RIGHTS_5 = (1 << 16) - 1
_NET_RIGHTS = 3  # bind and connect TCP
_SCOPES = 3  # abstract sockets, signals


class _RulesetAttr(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    try:
        return kernel.syscall("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def ruleset(
    readable: Iterable[str],
    writable: Iterable[str] = (),
    sinks: Iterable[str] = (),
) -> int:
    """A descriptor of rules.

    Read below `readable`; make, write and remove below `writable`; write to the files `sinks`.
    """
    version = abi()
    if not version:
        raise OSError(38, "no Landlock in this kernel")
    handled = _FS_RIGHTS.get(version, _FS_RIGHTS_5)
    attributes = _RulesetAttr(
        fs=handled,
        net=_NET_RIGHTS if version >= 4 else 0,
        scoped=_SCOPES if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = kernel.syscall(
        "landlock_create_ruleset",
        ctypes.byref(attributes),  # type: ignore[arg-type]
        size,
        0,
    )
    for path in readable:
        _allow(rules, path, _READ_FILE | _READ_DIR)
    for path in writable:
        # making devices and sockets stays forbidden, executing too
        _allow(rules, path, handled & ~(_EXECUTE | 1 << 6 | 1 << 9 | 1 << 11 | 1 << 15))
    for path in sinks:
        _allow(rules, path, _READ_FILE | _WRITE_FILE)
    return rules


def _allow(rules: int, path: str, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    try:
        if not os.path.isdir(path):
            access &= _WRITE_FILE | _READ_FILE
        if not access:
            return
        rule = _PathRule(access, parent)
        kernel.syscall("landlock_add_rule", rules, 1, ctypes.byref(rule), 0)  # type: ignore[arg-type]
    finally:
        os.close(parent)


def restrict(rules: int) -> None:
    """Put the calling thread under the rules for good (needs no_new_privs)."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.syscall("landlock_restrict_self", rules, 0)
