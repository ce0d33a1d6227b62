"""Frames on stream sockets, messages with descriptors on packet sockets, values in memory files."""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from .codec import CodecError, decode, encode

_HEADER = struct.Struct("<I")
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write
_F_ADD_SEALS = 1033
MESSAGE = 64 << 10
"""Bytes of one packet between host, fork server and checker."""


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_frame(descriptor: int, value: Any, limit: int) -> None:
    """Raises CodecError, before anything is written, when the value is not plain or too big."""
    data = encode(value, limit)
    write_all(descriptor, _HEADER.pack(len(data)) + data)


def read_frame(descriptor: int, limit: int, wait: Callable[[], None] | None = None) -> Any:
    """The next value; `wait` is called before every read and may raise to give up.

    Raises EOFError at the end of the stream, CodecError for a frame that is too long or malformed.
    """
    size = _HEADER.unpack(_read_exactly(descriptor, _HEADER.size, wait))[0]
    if size > limit:
        raise CodecError(f"a frame has at most {limit} bytes, got {size}")
    return decode(_read_exactly(descriptor, size, wait), limit)


def _read_exactly(descriptor: int, size: int, wait: Callable[[], None] | None) -> bytes:
    chunks = []
    while size:
        if wait is not None:
            wait()
        chunk = os.read(descriptor, min(size, 1 << 20))
        if not chunk:
            raise EOFError("the other end closed")
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def send(channel: socket.socket, value: Any, descriptors: Sequence[int] = ()) -> None:
    data = encode(value, MESSAGE)
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([data], passed if descriptors else [])


def receive(channel: socket.socket, most: int = 4) -> tuple[Any, list[int]]:
    """One message and its descriptors. Raises EOFError when the other end is gone."""
    room = socket.CMSG_SPACE(most * 4)
    data, passed, _, _ = channel.recvmsg(MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
    numbers = array.array("i")
    for level, kind, payload in passed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
    if not data:
        for number in numbers:
            os.close(number)
        raise EOFError("the other end closed")
    return decode(data, MESSAGE), list(numbers)


def memory_file(data: bytes | None = None) -> int:
    """A file that exists only as a descriptor; sealed against any change when it has data."""
    descriptor = os.memfd_create("value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if data is not None:
        write_all(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    return descriptor


def read_file(descriptor: int, limit: int) -> bytes:
    """The whole of a memory file, from its start, up to `limit` bytes."""
    size = min(os.fstat(descriptor).st_size, limit)
    chunks, at = [], 0
    while at < size:
        chunk = os.pread(descriptor, size - at, at)
        if not chunk:
            break
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)


def readable(descriptor: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


RESULT = 64 << 20
"""Bytes a job may bring back at most; its own limits are lower."""
