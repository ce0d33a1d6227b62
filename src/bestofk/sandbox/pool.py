"""The pool of sandbox workers, as the rest of the project sees it."""

from __future__ import annotations

import atexit
import collections
import itertools
import os
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from .guest.codec import CodecError, encode
from .jobs import JobResult, call_outcome, run_job
from .machine_memory import available_memory, shortage
from .outcome import CallOutcome, Limits
from .shared_workers import SharedWorkers
from .tiers import TIERS, strongest
from .worker import Worker, configuration, request

T = TypeVar("T")
R = TypeVar("R")

_CALLER = b"""
def call(target, args):
    import importlib
    module, _, name = target.partition(":")
    function = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    return function(*args)
"""
"""The program that makes a `Sandbox.call`."""


class Sandbox:
    """A pool of workers at one tier.

    Args:
        tier: the least tier that will do; a machine that offers less raises `SandboxError`.
            3 = root: own namespaces and user id per worker; 2 = user namespaces; 1 = landlock and
            seccomp; 0 = limits only, an error without `allow_unsafe=True`.
        at_most: use no more than this tier (to test a lower one); loud when it costs safety.
        workers: programs run at once; the number of usable cores unless told.
        limits: default limits of every run.
        packages: what can be imported besides the standard library: names, or "all", which adds
            bestofk itself too.
        paths: further folders on the import path, readable inside.
        preload: modules imported once, in the fork server, so that calls start warm.
        writable: programs have an empty folder of their own to write in (tiers 3 and 2; an error
            elsewhere). Without it no program can write a file at any tier, so that verdicts do not
            depend on the tier.
    """

    def __init__(
        self,
        *,
        tier: int = 1,
        at_most: int = 3,
        workers: int | None = None,
        limits: Limits | None = None,
        packages: Sequence[str] | Literal["all"] = (),
        paths: Sequence[str] = (),
        preload: Sequence[str] = (),
        writable: bool = False,
        allow_unsafe: bool = False,
    ) -> None:
        if tier not in TIERS or at_most not in TIERS or tier > at_most:
            raise ValueError(f"tiers are 3, 2, 1, 0, tier <= at_most; got {tier=}, {at_most=}")
        if tier == 0 and not allow_unsafe:
            raise ValueError(
                "tier 0 lets a program read every file this user can read; use tier=1, or say "
                "allow_unsafe=True"
            )
        self.workers = workers if workers is not None else len(os.sched_getaffinity(0))
        if self.workers < 1:
            raise ValueError(f"workers is at least 1, got {workers}")
        if isinstance(packages, str) and packages != "all":
            raise ValueError(f'packages is a list of names or "all"; write [{packages!r}]')
        self.limits = _limits(limits) or Limits()
        self._imports = (packages, tuple(paths), tuple(preload))
        self._writable = writable
        self._cores = itertools.cycle(_shuffled_cores())
        first, self.tier = strongest(self._configuration, self.limits, tier, at_most)
        self._state = SharedWorkers(self.workers, self._start)
        self._state.adopt(first)
        _OPEN.add(self)

    def _start(self) -> Worker:
        return Worker(self._configuration(self.tier))

    def _configuration(self, tier: int) -> dict[str, Any]:
        config = configuration(tier, self.limits, *self._imports, self._writable)
        return config | {"core": next(self._cores)}

    def call(
        self, target: str, args: Sequence[Any] = (), *, limits: Limits | None = None
    ) -> CallOutcome:
        """`module:function` called with `args` in the sandbox; see the package's docstring."""
        if target.count(":") != 1:
            raise ValueError(f"a target reads 'module:function', got {target!r}")
        job: dict[str, Any] = {"mode": "record", "entry_point": "call"}
        try:
            recording = encode(job | {"cases": [((target, list(args)), {}, None)]})
        except CodecError as error:
            raise ValueError(f"arguments of {target} are plain values: {error}") from error
        return call_outcome(self.check(_CALLER, recording, pure=True, limits=limits), self.tier)

    def call_many(
        self, target: str, batch: Sequence[Sequence[Any]], *, limits: Limits | None = None
    ) -> list[CallOutcome]:
        """One outcome per argument list, in order, spread over the workers."""
        return self.map(lambda args: self.call(target, args, limits=limits), batch)

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`function` of every item, in order, from as many threads as there are workers.

        Each thread takes the next item when it is done with one; an error leaves the rest undone.
        """
        if len(items) < 2 or self.workers == 1:
            return [function(item) for item in items]
        results: list[Any] = [None] * len(items)
        errors: list[BaseException] = []
        turns = iter(range(len(items)))

        def work() -> None:
            try:
                for turn in turns:
                    results[turn] = function(items[turn])
            except BaseException as error:
                errors.append(error)
                collections.deque(turns, maxlen=0)

        # daemons: the end of the process must not wait for programs nobody asks about any more
        count = min(self.workers, len(items))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            collections.deque(turns, maxlen=0)  # after an interrupt: leave the rest
        if errors:
            raise errors[0]
        return results

    def check(
        self,
        program: bytes,
        tests: bytes,
        *,
        stdio: bool = False,
        pure: bool = False,
        limits: Limits | None = None,
    ) -> JobResult:
        """A program and its tests (an encoded job of `guest.checker`), each in its own process.

        `pure` says that running the tests changes nothing in the process that runs them, which may
        then be used again.
        """
        effective = _limits(limits) or self.limits
        packet, wall = request(eager=not stdio, pure=pure, limits=effective)
        return run_job(
            self._state, lambda worker: worker.check(packet, wall, program, tests), effective.memory
        )

    def shortage(self) -> str:
        """A sentence where all workers together may need more memory than is free; else empty."""
        return shortage(self.workers, self.limits.memory, available_memory())

    def close(self) -> None:
        """End every worker. A closed sandbox starts new ones when it is used again."""
        self._state.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _limits(limits: Limits | None) -> Limits | None:
    if not isinstance(limits, Limits | None):
        raise TypeError(f"limits is a Limits(...), got {type(limits).__name__}")
    return limits


def _shuffled_cores() -> list[int]:
    """Usable cores in an order of this sandbox's own, so that those of several ranks spread.

    The processes of a worker take turns, so one core is enough for them, and waking somebody on
    another core is what costs most on a virtual machine: programs/s grow by two fifths.
    """
    cores = list(os.sched_getaffinity(0))
    random.Random(os.urandom(8)).shuffle(cores)
    return cores


_OPEN: weakref.WeakSet[Sandbox] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_OPEN):
        sandbox.close()


def _after_fork() -> None:
    for sandbox in list(_OPEN):
        sandbox._state.after_fork()


os.register_at_fork(after_in_child=_after_fork)
