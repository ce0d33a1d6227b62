"""A time limit on one call of a function that this project did not write.

In the main thread the call is interrupted by a signal, which also ends a wait for a server. In any
other thread it runs in a thread of its own, which is left behind when it takes too long: Python
cannot end a thread. Code that never returns to the interpreter (a long regular expression) is not
interrupted in the main thread either, but it is named on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")
_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 7
"""A signal that nothing else uses: an alarm could be the function's own."""
_MAIN = threading.main_thread()
_PATIENCE = 5.0
"""Seconds after the limit at which a call that was not interrupted is named."""


class CallTimeout(BaseException):
    """The call took longer than it may. No `Exception`: a function that catches those and tries
    again must not swallow it."""


def limited_call(function: Callable[..., R], seconds: float, name: str, *args: Any) -> R:
    """`function(*args)`, for at most `seconds`.

    Raises:
        CallTimeout: it took longer.
    """
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
    results: list[R] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(*args))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="bestofk reward function")
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise CallTimeout(f"no answer within {seconds:g} s")
    return results[0]


class _Watchdog:
    """One thread that interrupts the main thread when its call takes too long."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.seconds = 0.0
        self.name = ""
        self.started = False
        self.seen = 0.0
        self.awake = threading.Event()

    def watch(self, seconds: float, name: str) -> None:
        """Interrupt the main thread after `seconds`, unless the deadline is taken back first."""
        if not self.started:
            signal.signal(_SIGNAL, self._interrupt)
            self._start()
        self.seconds, self.name = seconds, name
        self.deadline = time.monotonic() + seconds
        if not self.awake.is_set():
            self.awake.set()

    def _start(self) -> None:
        self.started = True
        threading.Thread(target=self._watch, daemon=True, name="bestofk watchdog").start()

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
            if deadline is None:  # waking it for every call would cost more than most calls
                if time.monotonic() < self.seen + 1.0:
                    time.sleep(0.02)
                    continue
                self.awake.clear()
                if self.deadline is None:
                    self.awake.wait()
                continue
            self.seen = time.monotonic()
            left = deadline - time.monotonic()
            if left > 0:
                time.sleep(min(left, 1.0))
                continue
            signal.pthread_kill(main, _SIGNAL)
            patience = time.monotonic() + _PATIENCE
            while self.deadline == deadline and time.monotonic() < patience:
                time.sleep(0.02)  # the next call must not wait until this one would be named
            if self.deadline == deadline:
                print(
                    f"{self.name} has been running for {time.monotonic() - deadline:.0f} s more "
                    f"than its limit of {self.seconds:g} s, and cannot be interrupted",
                    file=sys.stderr,
                )


_WATCHDOG = _Watchdog()


def _after_fork() -> None:
    """The thread that watches is the parent's, and the forking thread is the main one now."""
    global _MAIN
    _MAIN = threading.main_thread()
    _WATCHDOG.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
