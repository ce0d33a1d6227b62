"""One job of a sandbox: tried again where its failure is ours, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from .guest.checker import STOPPED_BY
from .guest.codec import CodecError, decode
from .guest.wire import RESULT, unpack
from .outcome import CallOutcome, CallStatus, printable
from .shared_workers import SharedWorkers
from .worker import Worker, WorkerKilled, WorkerLost

Job: TypeAlias = Callable[[Worker], tuple[dict[str, Any], bytes]]
"""Has a worker run something: its report, and the bytes that were written."""
ATTEMPTS = 3
"""How often a run is tried when the failure is ours."""


@dataclass(frozen=True)
class JobResult:
    """What became of one job: `done` with a report and data, `killer` or `unscored`."""

    status: Literal["done", "killer", "unscored"]
    report: dict[str, Any]
    data: bytes = b""
    detail: str = ""

    def results(self) -> list[Any] | str | None:
        """What the checker wrote of each test: (passed, status, detail), or ("ok", value) and
        (status, detail) where it recorded. A text says why the task is at fault; None: it did not
        live to write any."""
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
            return STOPPED_BY[self.report["reason"]]
        return "crashed", f"the checker ended early ({self.report['code']})"


def run_job(workers: SharedWorkers, job: Job, memory: int) -> JobResult:
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
            worker = workers.lend()
            report, data = job(worker)
        except WorkerLost as error:
            deaths, detail = deaths + 1, f"its worker died: {error}"
            workers.discard(worker)
            if deaths == 2:
                return JobResult("killer", {}, detail="killed its worker twice: " + detail)
        except OSError as error:
            detail = str(error)
            workers.discard(worker)
            if isinstance(error, WorkerKilled):
                workers.shrink(memory)
        except BaseException:
            workers.discard(worker)
            raise
        else:
            signals += report["program_signalled"]
            kills += 2 * report["killed_at"] > memory
            detail = _failure_of_ours(report, signals)
            if detail:
                workers.discard(worker)
                if report["killed_at"] or report["checker_killed"]:
                    workers.shrink(memory)
                if kills == 2:
                    return JobResult("done", report | {"reason": "memory"})
                continue
            workers.give_back(worker)
            return JobResult("done", report, data)
    return JobResult("unscored", {}, detail=f"the sandbox failed {ATTEMPTS} times: {detail}")


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


def call_outcome(run: JobResult, tier: int) -> CallOutcome:
    """What a `call` came to."""
    if run.status != "done":
        return CallOutcome(
            "crashed" if run.status == "killer" else "unscored", tier=tier, detail=run.detail
        )
    cpu, results = run.report["cpu"], run.results()
    if results is None:
        status, value = run.ending()
    elif isinstance(results, str):  # what it returned cannot be handed on
        status, value = "raised", results
    else:
        [(status, value)] = results
    if status == "ok":
        return CallOutcome("ok", value, cpu, tier)
    return CallOutcome(cast(CallStatus, status), None, cpu, tier, printable(value))
