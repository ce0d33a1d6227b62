"""A time limit on one call, sync or async, of a function that this project did not write.

In the main thread the call is interrupted by a signal, which also ends a wait for a server. In any
other thread it runs in a thread of its own, which is left behind when it takes too long: Python
cannot end a thread. Code that never returns to the interpreter (a long regular expression) is not
interrupted in the main thread either, but it is named on stderr.

All async calls share one event loop in a thread, so that they can share clients and locks. One that
blocks the loop is left behind with it, and the next call starts another.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")
_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 7
"""A signal that nothing else uses: an alarm could be the function's own."""
_MAIN = threading.main_thread()
_TICK = 0.05
"""Seconds between two looks at the clock."""
_PATIENCE = 5.0
"""Seconds after the limit at which a call that was not interrupted is named."""


class CallTimeout(BaseException):
    """The call took longer than it may. No `Exception`: a function that catches those and tries
    again must not swallow it."""


def limited_call(function: Callable[..., Any], seconds: float | None, name: str, *args: Any) -> Any:
    """`function(*args)`, awaited where it is async, for at most `seconds`, or without a limit.

    Raises:
        CallTimeout: it took longer.
    """
    result = function(*args) if seconds is None else _called(function, seconds, name, args)
    return limited_wait(result, seconds) if inspect.isawaitable(result) else result


def _called(function: Callable[..., R], seconds: float, name: str, args: tuple[Any, ...]) -> R:
    if threading.current_thread() is not _MAIN or not hasattr(signal, "SIGRTMIN"):
        return _in_thread(function, seconds, args)
    if _WATCHDOG.deadline is not None:  # a judge that calls a judge: the outer limit holds
        return function(*args)
    _WATCHDOG.watch(seconds, name)
    try:
        return function(*args)
    finally:
        _WATCHDOG.deadline = None


def _in_thread(function: Callable[..., R], seconds: float, args: tuple[Any, ...]) -> R:
    outcome: Future[R] = Future()

    def call() -> Callable[[], None]:
        try:
            return partial(outcome.set_result, function(*args))
        except BaseException as error:
            return partial(outcome.set_exception, error)

    in_thread(call)
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if not outcome.done():
            raise CallTimeout(f"no answer within {seconds:g} s") from None
        return outcome.result()  # or the function's own error of that kind


def in_thread(work: Callable[[], Callable[[], None] | None]) -> None:
    """Begin work in a daemon thread; what it returns is called when the thread is idle again."""
    try:
        worker = _IDLE.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    worker.work.put(work)


class _Worker(threading.Thread):
    """Makes one call after another: a new thread for each would take longer than most calls."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="bestofk author's code")
        self.work: SimpleQueue[Callable[[], Callable[[], None] | None]] = SimpleQueue()

    def run(self) -> None:
        while True:
            then = self.work.get()()
            _IDLE.append(self)
            if then:
                then()
            del then  # an idle thread holds nothing


_IDLE: list[_Worker] = []


def limited_wait(awaitable: Awaitable[R], seconds: float | None) -> R:
    """What an async call returns, after at most `seconds`. It is cancelled when it takes longer.

    Raises:
        CallTimeout: it took longer.
        RuntimeError: another call blocked the event loop meanwhile; this one may be tried again.
    """
    tasks = []

    async def outcome() -> tuple[R | None, BaseException | None]:
        tasks.append(asyncio.current_task())
        try:
            return await awaitable, None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a SystemExit would end the loop
            return None, error

    loop = _event_loop()
    future = asyncio.run_coroutine_threadsafe(outcome(), loop)
    try:
        result, error = future.result(seconds)
    except TimeoutError:
        late = f"no answer within {seconds:g} s"
        if _answers(loop):
            raise CallTimeout(late) from None
        if asyncio.current_task(loop) in tasks:
            raise CallTimeout(
                f"{late}; it blocks the event loop: await what it waits for"
            ) from None
        raise RuntimeError("another call blocked the event loop") from None
    finally:
        future.cancel()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


_LOOP: asyncio.AbstractEventLoop | None = None
_LOOP_LOCK = threading.Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop of all async calls, in a thread of its own."""
    global _LOOP
    with _LOOP_LOCK:
        if _LOOP is None:
            _LOOP = asyncio.new_event_loop()
            threading.Thread(target=_LOOP.run_forever, daemon=True, name="bestofk async").start()
        return _LOOP


def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop runs what it is given; if not, the next call gets another."""
    global _LOOP
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    if answered.wait(_PATIENCE):
        return True
    with _LOOP_LOCK:
        _LOOP = None if _LOOP is loop else _LOOP
    return False


class _Watchdog:
    """One thread that interrupts the main thread when its call takes too long."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.seconds = 0.0
        self.name = ""
        self.started = False

    def watch(self, seconds: float, name: str) -> None:
        """Interrupt the main thread after `seconds`, unless the deadline is taken back first."""
        if not self.started:
            self.started = True
            signal.signal(_SIGNAL, self._interrupt)
            threading.Thread(target=self._watch, daemon=True, name="bestofk watchdog").start()
        self.seconds, self.name = seconds, name
        self.deadline = time.monotonic() + seconds

    def _interrupt(self, *_: object) -> None:
        """In the main thread, when the call may be over already."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.deadline = None
            raise CallTimeout(f"no answer within {self.seconds:g} s")

    def _watch(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while True:
            deadline = self.deadline
            if deadline is None or time.monotonic() < deadline:
                time.sleep(_TICK)  # to be woken for every call would cost more than most calls
                continue
            signal.pthread_kill(main, _SIGNAL)
            patience = time.monotonic() + _PATIENCE
            while self.deadline == deadline and time.monotonic() < patience:
                time.sleep(_TICK)  # the next call must not wait until this one would be named
            if self.deadline == deadline:
                print(
                    f"{self.name} has been running for {time.monotonic() - deadline:.0f} s more "
                    f"than its limit of {self.seconds:g} s, and cannot be interrupted",
                    file=sys.stderr,
                )


_WATCHDOG = _Watchdog()


def _after_fork() -> None:
    """The thread that watches is the parent's, and the forking thread is the main one now."""
    global _LOOP, _LOOP_LOCK, _MAIN
    _IDLE.clear()
    _LOOP, _LOOP_LOCK, _MAIN = None, threading.Lock(), threading.main_thread()
    _WATCHDOG.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
