"""Inside the sandbox, in a process of its own: hold the tests, call the program, count.

The program lives in another process and is reached by value-only calls, so an object that claims to
equal everything, a patched builtin or a walk up the stack never meets the code that decides.
"""

from __future__ import annotations

import _socket
import builtins
import contextlib
import copy
import importlib
import marshal
import os
import resource
import time
from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType
from typing import Any

from . import kernel, wire
from .codec import MAX_BYTES, CodecError, NotPlainError, decode, encode
from .same_values import same, same_text
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


_NAP = 0.005
"""Seconds for an answer beyond what waking two processes takes."""
BLOCKED = ("blocked", "wall")
"""Limits after which a program is not tried again: it would sleep again."""
STOPPED_BY = {
    "cpu": ("timeout", "stopped by the cpu limit"),
    "blocked": ("timeout", "stopped by the limit on blocked time: it slept, or waited in vain"),
    "wall": ("timeout", "stopped by the wall limit"),
    "threads": ("memory", "stopped by the threads limit"),
    "stopped": ("crashed", "stopped from outside"),
    "memory": ("memory", "ended twice by the kernel, with more than half of its memory in use"),
}
"""The status and the detail of a program, by the limit that it exceeded."""


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


class AnswerClock:
    """How long the program takes to answer: it has so much CPU time for each test, and the server
    counts how long it was blocked meanwhile, and ends it in time."""

    def __init__(self, control: _socket.socket) -> None:
        self.control = control
        self.pid = 0
        self.cpu_limit = self.since = 0.0
        self.answered = 0.0
        """Seconds in which it owed answers that came before the clocks were looked at."""

    def start(self, pid: int, cpu: float) -> None:
        """It is asked now, and has so many CPU seconds to answer."""
        self.pid = pid
        self.cpu_limit, self.since = self._cpu() + cpu, time.monotonic()

    def is_over(self) -> bool:
        """Once a tick: whether it has used up its CPU time."""
        now = time.monotonic()
        seconds = now - self.since
        if seconds < wire.TICK:
            return False
        if self._cpu() > self.cpu_limit:
            return True
        self.since = now
        self._report(seconds, answered=False)
        return False

    def stop(self) -> None:
        """It answered. Who naps for less than a tick in each of many calls does not escape."""
        seconds = time.monotonic() - self.since
        if seconds > _NAP:
            self.answered += seconds
        if self.answered >= wire.TICK:
            self._report(self.answered, answered=True)
            self.answered = 0.0

    def _report(self, seconds: float, *, answered: bool) -> None:
        owed = min(seconds, 2 * wire.TICK)  # more: this process was not scheduled
        wire.send(self.control, wire.pack({"do": "wait", "seconds": owed, "answered": answered}))

    def _cpu(self) -> float:
        try:
            return kernel.cpu_seconds(self.pid)
        except OSError:
            return 0.0


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
        self.clock = AnswerClock(control)
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
        self.clock.start(self.pid, self.limits["cpu_per_test"])
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
            if len(request) <= MAX_BYTES:
                return request, True
        except ValueError:
            pass
        try:
            return encode((path, args, kwargs)), False
        except CodecError as error:
            detail = f"an argument of {path} cannot be passed by value: {error}"
            tests_alone = isinstance(error, NotPlainError) and not error.is_builtin
            if self.values and not tests_alone:  # it may be made of the program's own values
                raise CodecError(detail) from None
            raise TaskFault(detail) from None

    def _start(self) -> None:
        if self.failed is not None:
            raise self.failed
        self.channel, self.pid = self.first or self._spawn()
        self.first = None
        self.frames = wire.Frames(self.channel, self.frame, self._waiting)
        self.clock.start(self.pid, self.limits["cpu_per_test"])
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
            answers, kind, payload = self.frames.next()
            if answers != number or kind not in ((OK, RAISED, ABSENT) if number else (OK, FAILED)):
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
        self.clock.stop()
        return kind, value

    def _waiting(self) -> None:
        if self.clock.is_over():
            raise self._ended("timeout", "more CPU time than one call may use")

    def _ended(self, status: str, detail: str, closed: bool = False) -> Gone:
        """End the process for good; the verdict of the server, if it has one, comes first."""
        os.close(self.channel)
        self.channel = -1
        wire.send(self.control, _KILL_CLOSED if closed else _KILL)
        news, _ = self._news(("ended",))
        if news["reason"]:
            gone = Gone(*STOPPED_BY[news["reason"]])
            if news["reason"] in BLOCKED:  # it sleeps: do not try it again
                self.failed = gone
            return gone
        return Gone(status, detail or f"the process ended with {news['code']}")

    def _news(self, events: tuple[str, ...]) -> tuple[dict[str, Any], list[int]]:
        while True:
            packet, descriptors = wire.receive(self.control)
            news = wire.unpack(packet)
            if news["event"] in events:
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
        """The whole program once, with a standard input: how it ended, stdout, stderr.

        The files are made even where it is not run again: their numbers would tell the next one.
        """
        files = [wire.memory_file(stdin), wire.memory_file(), wire.memory_file()]
        if self.failed is not None:
            for file in files:
                os.close(file)
            raise self.failed
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


_CONTROL = 3
_MOST_HELD = 16 << 20
"""Bytes of answers that wait to be compared: as values they take ten times that."""

_UNCHANGING = (int, float, str, bool, bytes, type(None))
_MOST_COPIED = 64 << 20
"""Bytes of variables that wait with answers to be compared; further ones are compared at once."""

Result = tuple[bool, str, str]  # passed, status, detail
Held = list[tuple[int, dict[str, Any]]]
"""What a test asked: which of its asserts, the answers, and the variables that it compares."""


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
        name = "" if isinstance(error, ProgramError) else f"{type(error).__name__}: "
        return f"{name}{error}"[:200]
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

    A test with a plan (`rewards.code.hoisting`) has its calls made now and is judged later, and a
    failed assert in others is noted (`__holds__`), so that a program hears of no failure. When a
    statement between tests fails, the tests after it have nothing to stand on and fail too.
    """
    space: dict[str, Any] = {"__name__": "tests", "__copy__": _copied}
    space |= {name: _Proxy(remote, path) for name, path in job["names"].items()}
    try:
        space |= {name: importlib.import_module(name) for name in job["modules"]}
    except ImportError as error:
        raise TaskFault(f"the tests cannot import: {error}") from None

    memory_limit = _peak_memory() + _MOST_COPIED
    failures: list[str] = []
    space["__holds__"] = lambda holds, said: None if holds else failures.append(said)

    def run(source: str) -> str:
        failures.clear()
        remote.gone = None
        exec(_compiled(source), space)
        if remote.gone is not None:  # the test swallowed it
            raise remote.gone
        if failures:
            raise AssertionError(failures[0])
        return ""

    def ask(asking: str, later: list[str]) -> Held:
        held: Held = []

        def hold(position: int, names: tuple[str, ...], **answers: Any) -> None:
            variables = {name: space[name] for name in names if name in space}
            if _peak_memory() < memory_limit:
                copies = {name: _copied(value) for name, value in variables.items()}
                held.append((position, copies | answers))
            else:
                passed, _, complaint = _attempt(
                    partial(judge, later, [(position, variables | answers)])
                )
                failures.extend([complaint] * (not passed))

        space["__held__"] = hold
        run(asking)
        return held

    def judge(later: list[str], held: Held) -> str:
        for position, values in held:
            exec(_compiled(later[position]), space | values)
        return ""

    pending = _Pending(remote)
    broken: Result | None = None
    for source, is_test, plan in job["statements"]:
        if broken is not None:
            pending.results += [broken] * is_test
        elif plan is not None:
            asking, later = plan
            pending.add(partial(ask, asking, later), partial(judge, later))
        else:
            outcome = _attempt(partial(run, source))
            if is_test:
                pending.results.append(outcome)
            elif not outcome[0]:
                if not remote.calls:  # the program had no part in it
                    raise TaskFault(f"what comes before the tests fails: {outcome[2]}")
                broken = outcome
    pending.settle()
    return pending.results


def _copied(value: Any) -> Any:
    """A value as it is now, for a comparison that comes later; itself where it is not copied, as a
    module."""
    if type(value) in _UNCHANGING:
        return value
    import pickle  # no program needs it: it is not in the zygote

    for copied in (lambda: pickle.loads(pickle.dumps(value, -1)), lambda: copy.deepcopy(value)):
        with contextlib.suppress(Exception):
            return copied()
    return value


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@lru_cache(1024)
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
    check = _own_check(job)

    def test(stdin: str, expected: str) -> str:
        news, output, errors = remote.run(stdin.encode("utf-8", "surrogatepass"))
        if news["reason"]:
            gone = Gone(*STOPPED_BY[news["reason"]])
            if news["reason"] in BLOCKED or news["event"] == "refused":
                remote.failed = gone  # it sleeps, or has used up everything: do not try it again
            raise gone
        if news["code"] != 0:
            last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][-200:]
            status = _UNLOADED.get(last.partition(":")[0], "crashed")
            raise Gone(status, last or f"exit status {news['code']}")
        text = output.decode("utf-8", "surrogateescape")  # no expected text has what this makes
        if check(stdin, text, expected):
            return ""
        return f"printed {_short(text)}, expected otherwise"

    return [_attempt(lambda c=case: test(*c)) for case in job["cases"]]  # type: ignore[misc]


def _own_check(job: dict[str, Any]) -> Callable[[str, str, str], Any]:
    """The comparison of what was printed with what is expected, or the task's own function.

    An exception of that is the program's, whose output it could not read, unless it fails on the
    outputs of the task too.
    """
    if not job["checker"]:
        return lambda _, text, expected: same_text(text, expected, job["absolute"], job["relative"])
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(_compiled(job["checker"]), space)
        check: Callable[[str, str, str], Any] = space["check"]
        refused = [text for stdin, text in job["cases"] if text and not check(stdin, text, text)]
    except Exception as error:
        raise TaskFault(f"the checker fails on expected outputs: {_describe(error)}") from None
    if refused:
        raise TaskFault(f"the checker does not accept the expected output {_short(refused[0])}")
    return check


def _record(job: dict[str, Any], remote: Remote) -> list[tuple[str, Any]]:
    """What calls return, or why they do not: a reference's answers, the value of a single call."""
    values: list[tuple[str, Any]] = []
    for args, kwargs, _ in job["cases"]:
        try:
            values.append(("ok", remote.call(job["entry_point"], tuple(args), kwargs)))
        except Gone as gone:
            values.append((gone.status, gone.detail))
        except Exception as error:
            values.append(("raised", _describe(error)))
    return values


_MODES: dict[str, Callable[[dict[str, Any], Remote], list[Any]]] = {
    "calls": _check_calls,
    "statements": _check_statements,
    "stdio": _check_stdio,
    "record": _record,
}


def _brief(results: list[Result], with_detail: int = 3) -> list[Result]:
    """The details of the first few failures only: thousands would not fit."""
    failures = 0
    short: list[Result] = []
    for passed, status, detail in results:
        failures += not passed
        short.append((passed, status, detail if failures <= with_detail else ""))
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
        news = wire.unpack_known(request)
        if "event" in news:  # of the last program, which has ended meanwhile
            for descriptor in files:
                os.close(descriptor)
            continue
        written = wire.read_file(files[0], 1 << 30)
        if written != tests:
            job = decode(written, 1 << 30)
            spent = job["mode"] != "statements" and b"I" in written  # an iterator lasts one run
            tests = None if spent else written
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
