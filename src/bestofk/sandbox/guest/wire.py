"""Packets with descriptors, frames of calls and answers, values in memory files.

Packets (JSON) go between the host, the server and the checker; frames between the checker and
the program. What a program sends is decoded by `codec` alone.
"""

from __future__ import annotations

import _socket
import fcntl
import json
import os
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from .codec import CodecError

HEADER = struct.Struct("<IIB")
"""Of a frame: the bytes that follow, the number of the call, and for an answer what it is."""
OK, RAISED, FAILED, ABSENT = range(4)
"""Of an answer: a value, an exception, a program that cannot be loaded, a name it does not have."""
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write
_F_ADD_SEALS = 1033
PACKET = 64 << 10
"""Bytes of one packet at most."""
_RIGHTS = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
_NUMBERS = [struct.Struct(f"{count}i") for count in range(5)]
_ANCILLARY = _socket.CMSG_SPACE(4 * 4)  # no packet has more than four descriptors
TICK = 0.05
"""Seconds between two looks at the clocks, about: they vary, so that nobody can sleep in step."""
_CHUNK = 1 << 16
"""Bytes of one read or write: between two of them the clocks can be looked at."""
DONE = b"done"
"""What the checker says when a job's results are written."""


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Frames:
    """The checker's end of a channel: whole frames out of a stream."""

    def __init__(self, descriptor: int, limit: int, waiting: Callable[[], None]) -> None:
        self.descriptor, self.limit, self.waiting = descriptor, limit, waiting
        self.rest = bytearray()

    def next(self) -> tuple[int, int, bytes]:
        """(number, kind, payload). `waiting` is called around every read and write, and may raise.

        Raises EOFError at the end of the stream, CodecError for a frame that is too long.
        """
        while len(self.rest) < HEADER.size:
            self._more()
        size, number, kind = HEADER.unpack_from(self.rest)
        if size > self.limit:
            raise CodecError(f"a frame has at most {self.limit} bytes, got {size}")
        end = HEADER.size + size
        while len(self.rest) < end:
            self._more()
        payload = bytes(self.rest[HEADER.size : end])
        del self.rest[:end]
        return number, kind, payload

    def _more(self) -> None:
        while True:
            self.waiting()
            try:
                chunk = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                continue
            if not chunk:
                raise EOFError("the other end closed")
            self.rest += chunk
            return

    def send(self, number: int, kind: int, payload: bytes) -> None:
        """One frame, to a program that may not be reading."""
        view = memoryview(HEADER.pack(len(payload), number, kind) + payload)
        while view:
            try:  # noqa: SIM105 - `suppress` would double the time of a call
                view = view[os.write(self.descriptor, view[:_CHUNK]) :]
            except BlockingIOError:
                pass
            self.waiting()


_decoder, _encode = json.JSONDecoder(), json.JSONEncoder().encode


def pack(value: Any) -> bytes:
    return _encode(value).encode()


def unpack(packet: bytes) -> Any:
    """Raises CodecError for what `pack` did not make."""
    try:
        text = packet.decode()
        value, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"no packet: {error}") from None
    if end != len(text):
        raise CodecError(f"no packet: {len(text) - end} characters after the value")
    return value


@lru_cache(64)
def unpack_known(packet: bytes) -> Any:
    """The same, for packets that come again and again; nobody may change what it gives."""
    return unpack(packet)


def send(channel: _socket.socket, packet: bytes, descriptors: Sequence[int] = ()) -> None:
    if descriptors:
        channel.sendmsg([packet], [(*_RIGHTS, _NUMBERS[len(descriptors)].pack(*descriptors))])
    else:
        channel.send(packet)


def receive(channel: _socket.socket) -> tuple[bytes, list[int]]:
    """One packet and its descriptors. Raises EOFError when the other end is gone."""
    packet, passed, _, _ = channel.recvmsg(PACKET, _ANCILLARY, _socket.MSG_CMSG_CLOEXEC)
    numbers: list[int] = []
    for level, kind, payload in passed:
        if (level, kind) == _RIGHTS:
            numbers += _NUMBERS[len(payload) // 4].unpack_from(payload)
    if not packet:
        for number in numbers:
            os.close(number)
        raise EOFError("the other end closed")
    return packet, numbers


def memory_file(data: bytes | None = None) -> int:
    """A file that exists only as a descriptor; sealed against any change when it has data."""
    descriptor = os.memfd_create("value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if data is not None:
        fill(descriptor, data)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    return descriptor


def fill(descriptor: int, data: bytes) -> None:
    """Write a memory file from its start; its position stays there."""
    at = os.pwrite(descriptor, data, 0)
    while at < len(data):
        at += os.pwrite(descriptor, memoryview(data)[at:], at)


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


RESULT = 64 << 20
"""Bytes a job may bring back at most; its own limits are lower."""
