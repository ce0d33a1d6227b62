"""Inside the sandbox, in a process of its own: hold the tests, call the program, count.

The program lives in another process and is reached by value-only calls, so an object that claims to
equal everything, a patched builtin or a walk up the stack never meets the code that decides.
"""

from __future__ import annotations

import _socket
import builtins
import importlib
import marshal
import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

from . import kernel, wire
from .codec import CodecError, decode, encode
from .compare import same, same_text
from .wire import FAILED, HEADER, OK, RAISED

_CONTROL = 3
_KILL = wire.pack({"do": "kill"})


class Gone(BaseException):
    """The program gave no answer. No Exception: a test's `except Exception` must not hide it."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


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
        self.deadline = self.cpu_limit = 0.0

    def call(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.channel < 0:
            self._start()
        self.number += 1
        request, by_marshal = self._request(path, args, kwargs)
        self._allow(self.limits["cpu_per_test"])
        try:
            header = HEADER.pack(len(request), self.number, by_marshal)
            wire.write_all(self.channel, header + request)
        except OSError:
            raise self._ended("crashed", "it closed its channel") from None
        kind, value = self._answer(self.number)
        if kind == OK:
            return value
        name, text = value
        if name == "MemoryError":
            raise Gone("memory", "MemoryError")
        raise _exception(name, text)

    def _request(
        self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, bool]:
        """The call as bytes. `marshal` is quick and knows plain values only; what it refuses (a
        subclass, a range) goes by our own codec. The program may read both: it trusts us."""
        try:
            request = marshal.dumps((path, args, kwargs), 2)
            if len(request) <= self.frame:
                return request, True
        except ValueError:
            pass
        try:
            return encode((path, args, kwargs), self.frame), False
        except CodecError as error:
            raise CodecError(f"an argument of {path} cannot be passed by value: {error}") from None

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
            status = {"SyntaxError": "unparsed", "MemoryError": "memory"}.get(name, "crashed")
            self.failed = Gone(status, f"loading the program: {name}: {text}")
            raise self.failed

    def _spawn(self) -> tuple[int, int]:
        cpu = self.limits["cpu_per_program"]
        wire.send(self.control, wire.pack({"do": "spawn", "cpu": cpu}))
        news, descriptors = self._news(("started", "refused"))
        if news["event"] == "refused":
            self.failed = Gone("timeout", "the program's CPU budget is used up")
            raise self.failed
        return descriptors[0], news["pid"]

    def _answer(self, number: int) -> tuple[int, Any]:
        """(OK, the value) or (RAISED or FAILED, (name, text)), whoever wrote it."""
        try:
            told, kind, payload = self.frames.next()
            if told != number or kind not in (OK, FAILED if number == 0 else RAISED):
                raise CodecError("it forged an answer")
            if number == 0 and kind == OK:
                return OK, None
            value = decode(payload, self.frame)
            if kind != OK and not (
                type(value) is tuple and len(value) == 2 and all(type(v) is str for v in value)
            ):
                raise CodecError("it forged an answer")
        except (EOFError, OSError):
            raise self._ended("crashed", "") from None
        except CodecError as error:
            raise self._ended("crashed", f"its answer is no value: {error}") from None
        return kind, value

    def _allow(self, cpu: float) -> None:
        self.cpu_limit = self._cpu() + cpu
        self.deadline = time.monotonic() + cpu * self.limits["wall_factor"]

    def _cpu(self) -> float:
        try:
            return kernel.cpu_seconds(self.pid)
        except OSError:
            return 0.0

    def _waiting(self) -> None:
        """Nothing came for a while: has the program used up this test's budget?"""
        if self._cpu() > self.cpu_limit:
            raise self._ended("timeout", "more CPU time than one test may use")
        if time.monotonic() > self.deadline:
            self.failed = self._ended("timeout", "no answer, and little CPU time used")
            raise self.failed

    def _ended(self, status: str, detail: str) -> Gone:
        """End the process for good; the verdict of the server, if it has one, comes first."""
        os.close(self.channel)
        self.channel = -1
        wire.send(self.control, _KILL)
        news, _ = self._news(("ended",))
        reasons = {"cpu": "timeout", "wall": "timeout", "threads": "memory"}
        if news["reason"] in reasons:
            return Gone(reasons[news["reason"]], f"stopped by the {news['reason']} limit")
        return Gone(status, detail or f"the process ended with {news['code']}")

    def _news(self, wanted: tuple[str, ...]) -> tuple[dict[str, Any], list[int]]:
        while True:
            packet, descriptors = wire.receive(self.control)
            news = wire.unpack(packet)
            if news["event"] in wanted:
                return news, descriptors

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


Result = tuple[bool, str, str]  # passed, status, detail


def _attempt(test: Callable[[], str]) -> Result:
    """Run one test: an empty complaint means passed."""
    try:
        complaint = test()
    except Gone as gone:
        return (False, gone.status, gone.detail)
    except MemoryError:
        return (False, "memory", "the value returned does not fit")
    except BaseException as error:
        return (False, "incorrect", f"{type(error).__name__}: {error}"[:200])
    return (not complaint, "incorrect" if complaint else "correct", complaint)


def _check_calls(job: dict[str, Any], remote: Remote) -> list[Result]:
    def test(case: tuple[list[Any], dict[str, Any], Any]) -> str:
        args, kwargs, expected = case
        actual = remote.call(job["entry_point"], tuple(args), kwargs)
        if same(actual, expected, job["absolute"], job["relative"]):
            return ""
        return (
            f"{job['entry_point']}{_short(tuple(args))} gave {_short(actual)}, expected otherwise"
        )

    return [_attempt(lambda case=case: test(case)) for case in job["cases"]]  # type: ignore[misc]


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer too long to print
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def _check_statements(job: dict[str, Any], remote: Remote) -> list[Result]:
    """Statements in order; those marked as tests are counted one by one.

    When a statement between tests fails, the tests after it have nothing to stand on and fail too.
    """
    space: dict[str, Any] = {"__name__": "tests"}
    for name, path in job["names"].items():
        library = name == path and name in sys.stdlib_module_names  # the program's own imports
        space[name] = importlib.import_module(name) if library else _Proxy(remote, path)
    results: list[Result] = []
    broken: Result | None = None
    for source, is_test in job["statements"]:
        if broken is None:

            def run(source: str = source) -> str:
                exec(_compiled(source), space)
                return ""

            outcome = _attempt(run)
            if not is_test and not outcome[0]:
                broken = outcome
        else:
            outcome = broken
        if is_test:
            results.append(outcome)
    return results


@lru_cache(256)
def _compiled(source: str) -> CodeType:
    return compile(source, "tests.py", "exec", dont_inherit=True)


class _Proxy:
    """A function of the program, as the tests see it."""

    def __init__(self, remote: Remote, path: str) -> None:
        self._remote, self._path = remote, path
        self.__name__ = path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote.call(self._path, args, kwargs)


def _check_stdio(job: dict[str, Any], remote: Remote) -> list[Result]:
    def test(stdin: str, expected: str) -> str:
        if remote.failed is not None:
            raise remote.failed
        news, output, errors = remote.run(stdin.encode("utf-8", "surrogatepass"))
        if news["reason"]:
            status = {"threads": "memory"}.get(news["reason"], "timeout")
            gone = Gone(status, f"stopped by the {news['reason']} limit")
            if news["reason"] == "wall" or news["event"] == "refused":
                remote.failed = gone  # it sleeps, or has used up everything: do not try it again
            raise gone
        if news["code"] != 0:
            last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][-200:]
            status = "memory" if last.startswith("MemoryError") else "crashed"
            raise Gone(status, last or f"exit status {news['code']}")
        text = output.decode("utf-8", "replace")
        if same_text(text, expected, job["absolute"], job["relative"]):
            return ""
        return f"printed {_short(text)}, expected otherwise"

    return [_attempt(lambda c=case: test(*c)) for case in job["cases"]]  # type: ignore[misc]


def _record(job: dict[str, Any], remote: Remote) -> list[tuple[bool, Any]]:
    """What a trusted reference returns: the expected values of tasks that only give inputs."""
    values: list[tuple[bool, Any]] = []
    for args, kwargs, _ in job["cases"]:
        try:
            values.append((True, remote.call(job["entry_point"], tuple(args), kwargs)))
        except BaseException as error:
            values.append((False, f"{type(error).__name__}: {error}"[:200]))
    return values


_MODES: dict[str, Callable[[dict[str, Any], Remote], list[Any]]] = {
    "calls": _check_calls,
    "statements": _check_statements,
    "stdio": _check_stdio,
    "record": _record,
}


def _brief(results: list[Result], kept: int = 3) -> list[Result]:
    """The details of the first few failures only: thousands would not fit."""
    told = 0
    short: list[Result] = []
    for passed, status, detail in results:
        told += not passed
        short.append((passed, status, detail if told <= kept else ""))
    return short


def run_checker(_limit: int) -> None:
    """Do jobs as they come: tests in one memory file, results into another.

    The same tests come again and again, once for every sample of a group: they are decoded once.
    """
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, _CONTROL)
    tests: bytes | None = None
    job: dict[str, Any] = {}
    while True:
        packet, files = wire.receive(control)
        request, _, pid = packet.partition(b"\n")
        news = _request(request)
        if "event" in news:  # of the last program, which has ended meanwhile
            for descriptor in files:
                os.close(descriptor)
            continue
        given = wire.read_file(files[0], 1 << 30)
        if given != tests:
            job = decode(given, 1 << 30)
            spent = job["mode"] != "statements" and b"I" in given  # an iterator lasts one run
            tests = None if spent else given
        remote = Remote(control, news["limits"], (files[2], int(pid)) if pid else None)
        results = _MODES[job["mode"]](job, remote)
        recorded = job["mode"] == "record"
        wire.write_all(files[1], encode(results) if recorded else wire.pack(_brief(results)))
        for descriptor in files[:2]:
            os.close(descriptor)
        wire.send(control, wire.DONE)
        remote.leave()  # last: an end of file would wake a program that is about to be killed


@lru_cache(64)
def _request(packet: bytes) -> dict[str, Any]:
    return wire.unpack(packet)
