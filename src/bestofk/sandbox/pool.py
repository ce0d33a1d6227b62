"""The pool of sandbox workers, as the rest of the project sees it."""

from __future__ import annotations

import atexit
import collections
import itertools
import os
import random
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from .guest.checker import stopped_by
from .guest.codec import CodecError, decode, encode
from .guest.wire import RESULT, unpack
from .machine_memory import available_memory, shortage
from .outcome import CallOutcome, CallStatus, Limits, printable
from .selftest import attack
from .worker import Worker, WorkerKilled, WorkerLost, configuration, request

T = TypeVar("T")
R = TypeVar("R")

TIERS = {
    3: "own namespaces, root file system and user id per worker (root)",
    2: "own namespaces and root file system per worker (user namespaces)",
    1: "Landlock and seccomp: nothing readable but the library",
    0: "limits only: no promise about files",
}
ATTEMPTS = 3
"""How often a run is tried when the failure is ours."""


class SandboxError(RuntimeError):
    """The sandbox cannot keep its promise on this machine."""


@dataclass(frozen=True)
class JobResult:
    """What became of one job: `done` with a report and data, `killer` or `unscored`."""

    status: Literal["done", "killer", "unscored"]
    report: dict[str, Any]
    data: bytes = b""
    detail: str = ""

    def results(self) -> list[Any] | str | None:
        """What the checker wrote of each test: (passed, status, detail), or (ok, value) where it
        recorded. A text says why the task is at fault; None: it did not live to write any."""
        if self.status != "done" or self.report["reason"] or self.report["code"] != 0:
            return None
        try:
            is_recorded = self.data[:1] == b"l"
            results = decode(self.data, RESULT) if is_recorded else unpack(self.data)
        except CodecError:
            return None
        return str(results["fault"]) if isinstance(results, dict) else results

    def ending(self) -> tuple[str, str]:
        """Status and detail of a program whose checker did not finish."""
        if self.report["reason"]:
            return stopped_by(self.report["reason"])
        return "crashed", f"the checker ended early ({self.report['code']})"


class Sandbox:
    """A pool of workers at one tier.

    Args:
        tier: the least tier that will do; a machine that offers less raises `SandboxError`.
            3 = root: own namespaces and user id per worker; 2 = user namespaces; 1 = landlock and
            seccomp; 0 = limits only, an error without `allow_unsafe=True`.
        at_most: use no more than this tier (to test a lower one); loud when it costs safety.
        workers: programs run at once; the number of usable cores unless told.
        limits: default limits of every run.
        packages: what can be imported besides the standard library: names, or "all".
        paths: further folders on the import path.
        preload: modules imported once, in the fork server.
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
        self._describe = (packages, tuple(paths), tuple(preload))
        self._writable = writable
        self._state = SharedWorkers(self.workers)
        self._cores = itertools.cycle(_shuffled_cores())
        first, self.tier = self._first_worker(tier, at_most)
        self._state.adopt(first)
        _OPEN.add(self)

    def _first_worker(self, least: int, most: int) -> tuple[Worker, int]:
        """The strongest tier that withstands the self-test, and the worker that did."""
        not_offered = []
        for tier in range(most, least - 1, -1):
            if self._writable and tier < 2:
                not_offered.append(
                    f"tier {tier}: writable=True needs a file system of its own, which only "
                    "tiers 3 and 2 have"
                )
                continue
            if tier == 3 and os.geteuid() != 0:
                not_offered.append("tier 3: needs root")
                continue
            worker = None
            try:
                worker = Worker(self._configuration(tier))
                worked = attack(worker, self.limits) if tier else []
            except OSError as error:
                not_offered.append(f"tier {tier}: {error}")
            else:
                if not worked:
                    _warn_of_low_tier(tier, most, not_offered)
                    return worker, tier
                not_offered.append(f"tier {tier}: a hostile program could {', '.join(worked)}")
            if worker is not None:
                worker.close()
        raise SandboxError(
            f"no sandbox of tier {least} or better on this machine; {'; '.join(not_offered)}; "
            "`bestofk doctor` says what to install"
        )

    def _configuration(self, tier: int) -> dict[str, Any]:
        packages, paths, preload = self._describe
        config = configuration(tier, self.limits, packages, paths, preload, self._writable)
        return config | {"core": next(self._cores)}

    def call(
        self, target: str, args: Sequence[Any] = (), *, limits: Limits | None = None
    ) -> CallOutcome:
        """`module:function` called with `args` in the sandbox; see the package's docstring."""
        if target.count(":") != 1:
            raise ValueError(f"a target reads 'module:function', got {target!r}")
        try:
            arguments = encode((target, list(args)))
        except CodecError as error:
            raise ValueError(f"arguments of {target} are plain values: {error}") from error
        effective = _limits(limits) or self.limits
        packet, wall = request("call", eager=False, pure=False, limits=effective)
        run = self._run(lambda worker: worker.call(packet, wall, arguments), effective.memory)
        if run.status != "done":
            status: CallStatus = "crashed" if run.status == "killer" else "unscored"
            return CallOutcome(status, tier=self.tier, detail=run.detail)
        return _outcome(run, self.tier)

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
        packet, wall = request("check", eager=not stdio, pure=pure, limits=effective)
        return self._run(
            lambda worker: worker.check(packet, wall, program, tests), effective.memory
        )

    def shortage(self) -> str:
        """A sentence where all workers together may need more memory than is free; else empty."""
        return shortage(self.workers, self.limits.memory, available_memory())

    def _run(self, job: Callable[[Worker], tuple[dict[str, Any], bytes]], memory: int) -> JobResult:
        """One job, tried again on a fresh worker when the failure is ours.

        A job whose worker crashes twice while it has it is taken for the cause (`killer`): leaving
        such programs unscored would let a model drop its failures. The same holds for a program
        that ends twice by a signal it can send to itself. No program can send SIGKILL, to itself
        or to its worker: where that ended either, nobody is blamed, unless it ended a program twice
        that used more than half of its `memory`. Where memory is short, fewer workers go on.
        """
        deaths, signals, kills, detail = 0, 0, 0, ""
        for attempt in range(ATTEMPTS):
            if attempt and not deaths and not signals:
                time.sleep(0.2 * attempt)
            worker = None
            try:
                worker = self._state.lend(lambda: Worker(self._configuration(self.tier)))
                report, data = job(worker)
            except WorkerLost as error:
                deaths, detail = deaths + 1, f"its worker died: {error}"
                self._state.discard(worker)
                if deaths == 2:
                    return JobResult("killer", {}, detail="killed its worker twice: " + detail)
            except OSError as error:
                detail = str(error)
                self._state.discard(worker)
                if isinstance(error, WorkerKilled):
                    self._state.shrink(memory)
            except BaseException:
                self._state.discard(worker)
                raise
            else:
                signals += report["program_signalled"]
                kills += 2 * report["killed_at"] > memory
                detail = _failure_of_ours(report, signals)
                if detail:
                    self._state.discard(worker)
                    if report["killed_at"] or report["checker_killed"]:
                        self._state.shrink(memory)
                    if kills == 2:
                        return JobResult("done", report | {"reason": "memory"})
                    continue
                self._state.give_back(worker)
                return JobResult("done", report, data)
        return JobResult("unscored", {}, detail=f"the sandbox failed {ATTEMPTS} times: {detail}")

    def close(self) -> None:
        """End every worker. A closed sandbox starts new ones when it is used again."""
        self._state.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedWorkers:
    """The workers of one process; a forked child starts with none."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._reset()

    def _reset(self) -> None:
        self.pid = os.getpid()
        self.free: list[Worker] = []
        self.all: set[Worker] = set()
        self.out = 0
        self.turn = threading.Condition()
        self.line: collections.deque[object] = collections.deque()

    def after_fork(self) -> None:
        """In a forked child: the workers belong to the parent."""
        for worker in self.all:
            worker.forget()
        self._reset()

    def adopt(self, worker: Worker) -> None:
        self.all.add(worker)
        self.free.append(worker)

    def lend(self, start: Callable[[], Worker]) -> Worker:
        """A free worker, a new one, or, when all are out, one that comes back: first come, first
        served, or a large batch would keep a small one waiting to its end."""
        me = object()
        with self.turn:
            self.line.append(me)
            try:
                while self.out >= self.size or self.line[0] is not me:
                    self.turn.wait()
                self.out += 1
            finally:
                self.line.remove(me)
                self.turn.notify_all()
            while self.free:
                worker = self.free.pop()
                if worker.process.poll() is None:
                    return worker
                self.all.discard(worker)  # it died while idle: no program is to blame
                worker.close()
        try:
            worker = start()
        except BaseException:
            with self.turn:
                self.out -= 1
                self.turn.notify_all()
            raise
        with self.turn:
            self.all.add(worker)
        return worker

    def give_back(self, worker: Worker) -> None:
        with self.turn:
            self.out -= 1
            if worker in self.all:
                self.free.append(worker)
            self.turn.notify_all()

    def discard(self, worker: Worker | None) -> None:
        if worker is None:
            return
        with self.turn:
            self.out -= 1
            self.all.discard(worker)
            self.turn.notify_all()
        worker.close()

    def shrink(self, memory: int) -> None:
        """Let one worker fewer run, where all of them may need more than there is."""
        with self.turn:
            if shortage(self.size, memory, available_memory()):
                self.size = max(1, self.size - 1)

    def close(self) -> None:
        with self.turn:
            workers, self.free = list(self.all), []
            self.all = set()
        for worker in workers:
            worker.close()


def _limits(limits: Limits | None) -> Limits | None:
    if not isinstance(limits, Limits | None):
        raise TypeError(f"limits is a Limits(...), got {type(limits).__name__}")
    return limits


def _failure_of_ours(report: dict[str, Any], signals: int) -> str:
    """Why a run has to be repeated although its worker lives; empty where it need not be."""
    if report["starved"]:
        return "the machine was too busy to give the program its CPU time"
    if report["checker_killed"]:
        return "its checker was killed from outside, as when memory is short"
    if report["program_killed"]:
        return "it was killed from outside, as when memory is short"
    if report["program_signalled"] and signals < 2:
        return "a signal ended it"
    return ""


def _shuffled_cores() -> list[int]:
    """Usable cores in an order of this sandbox's own, so that those of several ranks spread.

    The processes of a worker take turns, so one core is enough for them, and waking somebody on
    another core is what costs most on a virtual machine: programs/s grow by two fifths.
    """
    cores = list(os.sched_getaffinity(0))
    random.Random(os.urandom(8)).shuffle(cores)
    return cores


def _warn_of_low_tier(tier: int, most: int, not_offered: list[str]) -> None:
    if tier == 0 or most < 3:
        warnings.warn(
            f"the sandbox runs at tier {tier} ({TIERS[tier]}): at_most={most}"
            + "".join(f"; {reason}" for reason in not_offered),
            RuntimeWarning,
            stacklevel=4,
        )


def _outcome(run: JobResult, tier: int) -> CallOutcome:
    """What a finished `call` means."""
    cpu, reason, code = run.report["cpu"], run.report["reason"], run.report["code"]
    if reason:
        status, detail = stopped_by(reason)
        return CallOutcome(cast(CallStatus, status), None, cpu, tier, detail)
    try:
        status, *rest = decode(run.data)
        if status == "ok" and code == 0:
            return CallOutcome("ok", rest[0], cpu, tier)
        if status in ("raised", "memory") and code == 0:
            return CallOutcome(status, None, cpu, tier, printable(": ".join(map(str, rest))))
    except (CodecError, ValueError, TypeError, IndexError):
        pass
    return CallOutcome("crashed", None, cpu, tier, f"the process ended with {code} and no value")


_OPEN: weakref.WeakSet[Sandbox] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_OPEN):
        sandbox.close()


def _after_fork() -> None:
    for sandbox in list(_OPEN):
        sandbox._state.after_fork()


os.register_at_fork(after_in_child=_after_fork)
