"""Inside the sandbox, in a process of its own: hold the tests, call the program, count.

The program lives in another process and is reached by value-only calls, so an object that claims to
equal everything, a patched builtin or a walk up the stack never meets the code that decides.
"""

from __future__ import annotations

import _socket
import importlib
import os
from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType
from typing import Any

from . import wire
from .codec import CodecError, decode, encode
from .remote import BLOCKED, Gone, Remote, TaskFault, stopped_by
from .same_values import same, same_text

_CONTROL = 3
_MOST_HELD = 16 << 20
"""Bytes of answers that wait to be compared: as values they take ten times that."""

Result = tuple[bool, str, str]  # passed, status, detail


def _attempt(test: Callable[[], str]) -> Result:
    """Run one test: an empty complaint means passed."""
    try:
        complaint = test()
    except Gone as gone:
        return (False, gone.status, gone.detail)
    except TaskFault:
        raise
    except MemoryError:
        return (False, "memory", "the value returned does not fit")
    except ImportError as error:
        if error.name:  # of this process: one of the program arrives without the module's name
            raise TaskFault(f"the tests cannot import: {error}") from None
        return (False, "incorrect", _describe(error))
    except BaseException as error:
        return (False, "incorrect", _describe(error))
    return (not complaint, "incorrect" if complaint else "correct", complaint)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:  # an integer too long to print
        return type(error).__name__


class _Pending:
    """Tests whose comparison waits until the program is asked nothing more.

    Comparing takes longer when an answer is wrong: a program that is still to be asked could hear
    that from the clock, and try answers until one is right.
    """

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.results: list[Result] = []
        self.waiting: list[tuple[int, Callable[[Any], str], Any]] = []

    def add(self, ask: Callable[[], Any], judge: Callable[[Any], str]) -> None:
        """Ask now, judge later what was answered; no answer is a result already."""
        answers: list[Any] = []

        def test() -> str:
            answers.append(ask())
            return ""

        outcome = _attempt(test)
        if answers:
            self.waiting.append((len(self.results), judge, answers[0]))
        self.results.append(outcome)
        if self.remote.held > _MOST_HELD:
            self.remote.end()
            self.settle()

    def settle(self) -> None:
        for at, judge, answer in self.waiting:
            self.results[at] = _attempt(partial(judge, answer))
        self.waiting.clear()


def _check_calls(job: dict[str, Any], remote: Remote) -> list[Result]:
    pending, path = _Pending(remote), job["entry_point"]

    def judge(args: list[Any], expected: Any, actual: Any) -> str:
        if same(actual, expected, job["absolute"], job["relative"]):
            return ""
        return f"{path}{_short(tuple(args))} gave {_short(actual)}, expected otherwise"

    for args, kwargs, expected in job["cases"]:
        ask = partial(remote.call, path, tuple(args), kwargs)
        pending.add(ask, partial(judge, args, expected))
    pending.settle()
    return pending.results


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer too long to print
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def _check_statements(job: dict[str, Any], remote: Remote) -> list[Result]:
    """Statements in order; those marked as tests are counted one by one.

    A test with a plan (`rewards.code.hoisting`) has its calls made now and is run later. When a
    statement between tests fails, the tests after it have nothing to stand on and fail too.
    """
    space: dict[str, Any] = {"__name__": "tests", "__given__": _given}
    space |= {name: _Proxy(remote, path) for name, path in job["names"].items()}
    try:
        space |= {name: importlib.import_module(name) for name in job["modules"]}
    except ImportError as error:
        raise TaskFault(f"the tests cannot import: {error}") from None

    def run(source: str, answers: dict[str, Any]) -> str:
        remote.gone = None
        exec(_compiled(source), space | answers if answers else space)
        if remote.gone is not None:  # the test swallowed it
            raise remote.gone
        return ""

    def ask(calls: list[tuple[str, str]]) -> dict[str, Any]:
        answers = {}
        for number, (path, given) in enumerate(calls):
            args, kwargs = eval(_compiled(given, "eval"), space)
            answers[f"__answer_{number}__"] = remote.call(path, args, kwargs)
        return answers

    pending = _Pending(remote)
    broken: Result | None = None
    for source, is_test, plan in job["statements"]:
        if broken is not None:
            pending.results += [broken] * is_test
        elif plan is not None:
            calls, later = plan
            pending.add(partial(ask, calls), partial(run, later))
        else:
            outcome = _attempt(partial(run, source, {}))
            if is_test:
                pending.results.append(outcome)
            elif not outcome[0]:
                if not remote.calls:  # the program had no part in it
                    raise TaskFault(f"what comes before the tests fails: {outcome[2]}")
                broken = outcome
    pending.settle()
    return pending.results


def _given(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


@lru_cache(1024)
def _compiled(source: str, mode: str = "exec") -> CodeType:
    return compile(source, "tests.py", mode, dont_inherit=True)


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
            gone = Gone(*stopped_by(news["reason"]))
            if news["reason"] in BLOCKED or news["event"] == "refused":
                remote.failed = gone  # it sleeps, or has used up everything: do not try it again
            raise gone
        if news["code"] != 0:
            last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][-200:]
            status = "memory" if last.startswith("MemoryError") else "crashed"
            raise Gone(status, last or f"exit status {news['code']}")
        text = output.decode("utf-8", "surrogateescape")  # no expected text has what this makes
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
    failures = 0
    short: list[Result] = []
    for passed, status, detail in results:
        failures += not passed
        short.append((passed, status, detail if failures <= kept else ""))
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
        try:
            results = _MODES[job["mode"]](job, remote)
            recorded = job["mode"] == "record"
            answer = encode(results, wire.RESULT) if recorded else wire.pack(_brief(results))
        except (TaskFault, CodecError) as fault:  # CodecError: more results than fit
            answer = wire.pack({"fault": str(fault)[:500]})
        wire.fill(files[1], answer)
        for descriptor in files[:2]:
            os.close(descriptor)
        wire.send(control, wire.DONE)
        remote.leave()  # last: an end of file would wake a program that is about to be killed


@lru_cache(64)
def _request(packet: bytes) -> dict[str, Any]:
    return wire.unpack(packet)
