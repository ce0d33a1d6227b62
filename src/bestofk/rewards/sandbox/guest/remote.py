"""The checker's hold on the program: calls by value, clocks, and its death.

Whatever the program sends is only worth the plain value that is decoded from it.
"""

from __future__ import annotations

import _socket
import builtins
import marshal
import os
import time
from typing import Any

from . import kernel, wire
from .clocks import TICK
from .codec import CodecError, NotPlainError, decode, encode
from .wire import ABSENT, FAILED, OK, RAISED

_KILL = wire.pack({"do": "kill"})
_KILL_CLOSED = wire.pack({"do": "kill", "closed": True})
"""End a program that closed its channel: it is ending by itself, most likely."""
_UNLOADED = {
    "SyntaxError": "unparsed",
    "IndentationError": "unparsed",
    "TabError": "unparsed",
    "MemoryError": "memory",
}


BLOCKED = ("blocked", "wall")
"""Limits after which a program is not tried again: it would sleep again."""
_LIMITS = {
    "cpu": ("timeout", "stopped by the cpu limit"),
    "blocked": ("timeout", "stopped by the limit on blocked time: it slept, or waited in vain"),
    "wall": ("timeout", "stopped by the wall limit"),
    "threads": ("memory", "stopped by the threads limit"),
}


def stopped_by(limit: str) -> tuple[str, str]:
    """The status and the detail of a program that exceeded a limit."""
    return _LIMITS[limit]


class Gone(BaseException):
    """The program gave no answer. No Exception: a test's `except Exception` must not hide it."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class TaskFault(BaseException):
    """The tests themselves are broken: no program is to blame. No Exception, as above."""


class ProgramError(Exception):
    """The program raised something that has no builtin name."""


# An exception of the program arrives under its own builtin name, for tests that expect one; but not
# these: they steer iteration or mean success and failure to the code around the call.
_NEVER = {"StopIteration", "StopAsyncIteration", "AssertionError", "GeneratorExit"}


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    if name in _NEVER or not (isinstance(kind, type) and issubclass(kind, Exception)):
        return ProgramError(f"{name}: {text}")
    try:
        return kind(text)
    except TypeError:  # UnicodeDecodeError and the like want more
        return ProgramError(f"{name}: {text}")


class Remote:
    """The program in its process, restarted when it dies, as long as it has CPU time left."""

    def __init__(
        self, control: _socket.socket, limits: dict[str, Any], first: tuple[int, int] | None
    ) -> None:
        """`first`: the channel and the id of a process that was started already."""
        self.control, self.limits, self.first = control, limits, first
        self.frame = limits["output"] + 1024
        self.channel = -1
        self.pid = self.number = 0
        self.failed: Gone | None = None
        self.cpu_limit = self.waiting_since = 0.0
        self.held = 0
        """Bytes of answers since the program was last ended by us."""
        self.gone: Gone | TaskFault | None = None
        self.calls = self.values = 0
        """Calls of the program, and those that it answered with a value."""

    def call(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The program's value, or its exception. `gone` remembers what a test might swallow."""
        try:
            return self._call(path, args, kwargs)
        except (Gone, TaskFault) as gone:
            self.gone = gone
            raise

    def _call(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        request, by_marshal = self._request(path, args, kwargs)
        if self.channel < 0:
            self._start()
        self.number += 1
        self._allow(self.limits["cpu_per_test"])
        try:
            self.frames.send(self.number, by_marshal, request)
        except OSError:
            raise self._ended("crashed", "it closed its channel", closed=True) from None
        kind, value = self._answer(self.number)
        if kind == OK:
            self.values += 1
            return value
        name, text = value
        if name == "MemoryError":
            raise Gone("memory", "MemoryError")
        if kind == ABSENT:  # no exception that a test may expect
            raise Gone("incorrect", f"{name}: {text}")
        raise _exception(name, text)

    def _request(
        self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, bool]:
        """The call as bytes. `marshal` is quick and knows plain values only; others (a
        subclass, a range) go by our own codec. The program may read both: it trusts us."""
        try:
            request = marshal.dumps((path, args, kwargs), 2)
            if len(request) <= self.frame:
                return request, True
        except ValueError:
            pass
        try:
            return encode((path, args, kwargs), self.frame), False
        except CodecError as error:
            detail = f"an argument of {path} cannot be passed by value: {error}"
            if self.values and not isinstance(error, NotPlainError):
                raise CodecError(detail) from None  # the program's own values may be too large
            raise TaskFault(detail) from None

    def _start(self) -> None:
        if self.failed is not None:
            raise self.failed
        self.channel, self.pid = self.first or self._spawn()
        self.first = None
        self.frames = wire.Frames(self.channel, self.frame, self._waiting)
        self._allow(self.limits["cpu_per_test"])
        try:
            kind, value = self._answer(0)
        except Gone as gone:  # it cannot even be loaded: no further test can change that
            self.failed = gone
            raise
        if kind != OK:
            name, text = value
            status = _UNLOADED.get(name, "crashed")
            self.failed = Gone(status, f"loading the program: {name}: {text}")
            raise self.failed

    def _spawn(self) -> tuple[int, int]:
        cpu = self.limits["cpu_per_program"]
        wire.send(self.control, wire.pack({"do": "spawn", "cpu": cpu}))
        news, descriptors = self._news(("started", "refused"))
        if news["event"] == "refused":
            what = "CPU" if news["reason"] == "cpu" else "blocked"
            self.failed = Gone("timeout", f"the program's budget of {what} time is used up")
            raise self.failed
        return descriptors[0], news["pid"]

    def _answer(self, number: int) -> tuple[int, Any]:
        """(OK, the value) or (RAISED or FAILED, (name, text)), whoever wrote it."""
        try:
            answered, kind, payload = self.frames.next()
            if answered != number or kind not in ((OK, RAISED, ABSENT) if number else (OK, FAILED)):
                raise CodecError("it forged an answer")
            self.held += len(payload)
            value = (
                None if not number and kind == OK and not payload else decode(payload, self.frame)
            )
            if kind != OK and not (
                type(value) is tuple and len(value) == 2 and all(type(v) is str for v in value)
            ):
                raise CodecError("it forged an answer")
        except (EOFError, OSError):
            raise self._ended("crashed", "", closed=True) from None
        except CodecError as error:
            raise self._ended("crashed", f"its answer is no value: {error}") from None
        return kind, value

    def _allow(self, cpu: float) -> None:
        self.cpu_limit = self._cpu() + cpu
        self.waiting_since = time.monotonic()

    def _cpu(self) -> float:
        try:
            return kernel.cpu_seconds(self.pid)
        except OSError:
            return 0.0

    def _waiting(self) -> None:
        """Nothing came for a while: has the program used up this test's budget? The server counts
        how long it is blocked meanwhile, and ends it in time."""
        if self._cpu() > self.cpu_limit:
            raise self._ended("timeout", "more CPU time than one test may use")
        now = time.monotonic()
        seconds = min(now - self.waiting_since, 2 * TICK)  # more: this process was not scheduled
        self.waiting_since = now
        wire.send(self.control, wire.pack({"do": "wait", "seconds": seconds}))

    def _ended(self, status: str, detail: str, closed: bool = False) -> Gone:
        """End the process for good; the verdict of the server, if it has one, comes first."""
        os.close(self.channel)
        self.channel = -1
        wire.send(self.control, _KILL_CLOSED if closed else _KILL)
        news, _ = self._news(("ended",))
        if news["reason"]:
            gone = Gone(*stopped_by(news["reason"]))
            if news["reason"] in BLOCKED:  # it sleeps: do not try it again
                self.failed = gone
            return gone
        return Gone(status, detail or f"the process ended with {news['code']}")

    def _news(self, wanted: tuple[str, ...]) -> tuple[dict[str, Any], list[int]]:
        while True:
            packet, descriptors = wire.receive(self.control)
            news = wire.unpack(packet)
            if news["event"] in wanted:
                return news, descriptors

    def end(self) -> None:
        """End the process, if there is one; the next call starts another."""
        if self.channel >= 0:
            self._ended("crashed", "")
        self.held = 0

    def leave(self) -> None:
        """Forget the program; the server ends its process."""
        if self.first is not None:
            self.channel, self.first = self.first[0], None
        if self.channel >= 0:
            os.close(self.channel)
            self.channel = -1

    def run(self, stdin: bytes) -> tuple[dict[str, Any], bytes, bytes]:
        """The whole program once, with a standard input: how it ended, stdout, stderr."""
        files = [wire.memory_file(stdin), wire.memory_file(), wire.memory_file()]
        request = {"do": "spawn", "cpu": self.limits["cpu_per_test"]}
        wire.send(self.control, wire.pack(request), files)
        news, descriptors = self._news(("started", "refused"))
        if news["event"] == "started":
            os.close(descriptors[0])
            news, _ = self._news(("ended",))
        output, errors = (wire.read_file(file, self.limits["output"]) for file in files[1:])
        for file in files:
            os.close(file)
        return news, output, errors
