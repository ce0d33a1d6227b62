"""How memory lies in the process that programs are copies of, so that a copy is cheap.

A fork copies page tables, not pages. Each page that a program then writes to, or finds code on, is
a fault of one to three microseconds, and in Python whoever reads an object writes its reference
count. What every program touches therefore has to lie together. Nothing here changes what a program
can do or see; where something cannot be had, programs are only slower.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable

from . import kernel

_HUGE = 2 << 20
_POOL, _FIRST = 16 << 10, 48  # of Python's allocator: bytes of a pool, where its first block lies
_MOST = 2048
_filling: list[object] = []
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


def start_fresh_pools() -> None:
    """Fill the holes in the allocator's pools, so that what a program makes first lies together.

    To be called last: whatever is freed afterwards is a hole again. A size of which no fresh pool
    comes up (another allocator) is given up.
    """
    for size in range(16, 513, 16):
        for _ in range(_MOST):
            number = len(_filling) << 34  # of two digits, as an integer of 32 bytes has
            filler = object() if size == 16 else number if size == 32 else bytes(size - 33)
            _filling.append(filler)
            if id(filler) % _POOL == _FIRST:
                break
