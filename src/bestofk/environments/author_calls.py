"""Calls of an author's code, each for a limited time.

What needs them is a generator: it yields a call and is sent what it returned. So a thread whose
call is late is left behind, and another goes on with the generator: none waits for another.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVar

from bestofk.rewards.time_limit import CallTimeout, in_thread, limited_wait

R = TypeVar("R")
_TICK = 0.05
"""Seconds between two looks at the clock."""


class AuthorCall(NamedTuple):
    """A call of a function, sync or async."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    seconds: float

    def outcome(self) -> tuple[Any, BaseException | None]:
        """What it returned, or what it raised."""
        try:
            said = self.function(**self.arguments)
            return limited_wait(said, self.seconds) if inspect.isawaitable(said) else said, None
        except GeneratorExit as error:  # thrown into a generator it would close it
            return None, RuntimeError(f"GeneratorExit: {error}")
        except BaseException as error:
            return None, error


Calling: TypeAlias = Generator[AuthorCall, Any, R]
"""Makes calls on its way to a result."""


class AuthorThreads:
    """Threads for calls, of which so many are made at once: each calls another when it begins, so
    code that answers at once has few of them."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.threads, self.is_called = at_once, 0, False
        self.lock, self.over = threading.Lock(), threading.Event()
        self.waiting = SimpleQueue[Any]()
        self.running: dict[object, tuple[float, Any]] = {}
        """Until when, and what waits from then on. Whoever takes a call out goes on with it: the
        thread that made it, or another when it is late."""
        threading.Thread(target=self._watch, daemon=True, name="bestofk environments").start()

    def close(self) -> None:
        """Begin no call any more, and wait for none."""
        self.over.set()
        self.running.clear()
        for _ in range(self.threads):
            self.waiting.put(None)

    def start(self, callings: Iterable[tuple[int, Calling[Any]]], done: SimpleQueue[Any]) -> None:
        """Begin to make their calls; `done` gets each number with a result, or what was raised."""
        for number, calling in callings:
            self.waiting.put((number, calling, done, None))
        self._call_thread()

    def results(self, callings: Iterable[Calling[R]]) -> list[R]:
        """All results, or the first error among them."""
        numbered, done = list(enumerate(callings)), SimpleQueue[tuple[int, Any]]()
        self.start(numbered, done)
        found = dict(done.get() for _ in numbered)
        return [checked(found[number]) for number, _ in numbered]

    def _call_thread(self) -> None:
        """Have another thread begin, where calls wait and none is on its way."""
        with self.lock:
            if self.is_called or self.waiting.empty() or self.threads == self.at_once:
                return
            self.is_called, self.threads = True, self.threads + 1
        in_thread(self._work)

    def _work(self) -> None:
        self.is_called = False
        while (begun := self.waiting.get()) and not self.over.is_set() and self._go_on(*begun):
            pass

    def _go_on(
        self, number: int, calling: Calling[Any], done: SimpleQueue[Any], error: Any
    ) -> bool:
        """Make the calls up to the result; whether this thread was not left behind meanwhile."""
        said = None
        try:
            self._call_thread()
            while True:
                call = calling.throw(error) if error else calling.send(said)
                token, until = object(), time.monotonic() + call.seconds
                late = CallTimeout(f"no answer within {call.seconds:g} s")
                self.running[token] = until, (number, calling, done, late)
                said, error = call.outcome()
                if self.running.pop(token, None) is None:
                    return False
        except StopIteration as end:
            done.put((number, end.value))
        except BaseException as raised:
            done.put((number, raised))
        return True

    def _watch(self) -> None:
        while not self.over.wait(_TICK):
            for token, (until, begun) in list(self.running.items()):
                if until < time.monotonic() and self.running.pop(token, None) is not None:
                    self.waiting.put(begun)
                    in_thread(self._work)  # in the place of the one that was left behind


def checked(result: R | BaseException) -> R:
    """A result; raises what was raised instead."""
    if isinstance(result, BaseException):
        raise result
    return result
