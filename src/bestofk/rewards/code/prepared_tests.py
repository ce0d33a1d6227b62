"""A task's tests, ready for the checker: from a prompt's spec, once for all its programs."""

from __future__ import annotations

import ast
import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from bestofk.rewards.code.hoisting import with_plans
from bestofk.rewards.code.one_answer import (
    constant_of_asserts,
    constant_of_calls,
    constant_of_stdio,
)
from bestofk.rewards.code.spec import checked_spec, tolerances
from bestofk.rewards.code.statements import (
    Statements,
    parse,
    refuse_execution,
    split_asserts,
    split_check,
)
from bestofk.sandbox import RESULT, JobResult, Limits, Sandbox, encode

LOOP_SECONDS = 0.007
"""What the loop of `slowness` takes on a usual machine, for which the limits are set."""
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class PreparedTests:
    """A task's tests, ready for the checker."""

    job: bytes
    total: int
    paths: tuple[str, ...] = ()
    """What the tests call: 'f', 'Solution().f'."""
    prefix: str = ""
    stdio: bool = False
    pure: bool = True
    """Whether running the tests leaves the checker's process as it was."""
    constant: str = ""
    """What a constant that passes every test does, where there is one; see `cut` for asserts."""
    cut: Statements | None = None
    output: int = 0
    """Bytes that the largest right answer takes, where that is known ahead."""
    time_limit: float = 0.0
    """CPU seconds per test that the problem grants; 0 where it says nothing."""

    @property
    def names(self) -> set[str]:
        """What the program has to define."""
        return {path.partition(".")[0].removesuffix("()") for path in self.paths}

    def solved_by_constant(self) -> str:
        """What a constant that passes every test does, or ""."""
        return constant_of_asserts(self.cut) if self.cut else self.constant


class References:
    """What reference solutions return: each is run once in the sandbox."""

    def __init__(self) -> None:
        self._results: dict[str, list[Any] | str] = {}
        """By what was run: the results, or why they cannot be expected of anybody."""

    def results(self, spec: Mapping[str, Any], job: dict[str, Any], sandbox: Sandbox) -> list[Any]:
        if not spec.get("solution"):
            raise ValueError("calls without `expected` need `solution`, the reference code")
        recording = encode(job | {"mode": "record"}, _MOST_BYTES)
        source = (spec.get("prefix", "") + spec["solution"]).encode("utf-8", "surrogatepass")
        key = hashlib.sha256(len(source).to_bytes(8, "little") + source + recording).hexdigest()
        if key not in self._results:
            limits, defaults = sandbox.limits, Limits()
            limits = replace(
                limits,
                output=RESULT // 2,  # it is trusted
                cpu_per_test=slowness() * max(limits.cpu_per_test, defaults.cpu_per_test),
                cpu_per_program=slowness() * max(limits.cpu_per_program, defaults.cpu_per_program),
            )
            run = sandbox.check(source, recording, pure=True, limits=limits)
            if run.status == "unscored":  # ours, and over when it is asked again
                raise ValueError(f"the reference did not run: {run.detail}")
            self._results[key] = _recorded(run)
        results = self._results[key]
        if isinstance(results, str):
            raise ValueError(results)
        return results


def _recorded(run: JobResult) -> list[Any] | str:
    """What a reference returned, or why that cannot be expected of anybody."""
    values = run.results()
    if values is None:
        return f"the reference did not run: {run.detail or run.report}"
    if isinstance(values, str):
        return f"what the reference gets or returns does not fit: {values}"
    failed = [why for status, why in values if status != "ok"]
    if failed:
        return f"the reference failed on {len(failed)} inputs: {failed[0]}"
    if all(value is None for _, value in values):
        return (
            "the reference returns None for every input: a call is judged by what it returns, so "
            "let the function return what it changes"
        )
    return [value for _, value in values]


def prepared_tests(
    task_spec: Mapping[str, Any], references: References, sandbox: Sandbox
) -> PreparedTests:
    """The tests of a spec. Raises whatever a spec may hold that no program can be judged by."""
    form, spec = checked_spec(task_spec)
    absolute, relative = tolerances(spec)
    job: dict[str, Any] = {
        "absolute": absolute, "relative": relative, "entry_point": spec.get("entry_point", ""),
    }  # fmt: skip
    if form == "calls":
        tests = _calls(spec, job, references, sandbox)
    elif form == "stdio":
        tests = _stdio(spec, job)
    else:
        tests = _statements(form, spec, job)
    seconds = float(spec.get("time_limit") or 0.0)
    return replace(tests, prefix=spec.get("prefix", ""), time_limit=seconds)


def _calls(
    spec: Mapping[str, Any], job: dict[str, Any], references: References, sandbox: Sandbox
) -> PreparedTests:
    calls = spec["calls"]
    cases = [(c["args"], dict(c.get("kwargs", {})), c.get("expected")) for c in calls]
    job |= {"mode": "calls", "cases": cases}
    if any("expected" not in call for call in calls):
        results = references.results(spec, job, sandbox)
        cases = [
            (args, kwargs, value) for (args, kwargs, _), value in zip(cases, results, strict=True)
        ]
    return PreparedTests(
        encode(job | {"cases": cases}, _MOST_BYTES),
        len(cases),
        (spec["entry_point"],),
        constant=constant_of_calls(cases, job["absolute"], job["relative"]),
        output=max((len(encode(expected, _MOST_BYTES)) for *_, expected in cases), default=0),
    )


def _stdio(spec: Mapping[str, Any], job: dict[str, Any]) -> PreparedTests:
    cases, checker = spec["stdio"], spec.get("checker", "")
    refuse_execution(list(ast.walk(parse(checker))))
    pairs = [(case["input"], case["output"]) for case in cases]
    return PreparedTests(
        encode(job | {"mode": "stdio", "cases": pairs, "checker": checker}, _MOST_BYTES),
        len(cases),
        stdio=True,
        pure=not checker,
        constant="" if checker else constant_of_stdio(cases, job["absolute"], job["relative"]),
        output=max((len(output.encode()) for _, output in pairs), default=0),
    )


def _statements(form: str, spec: Mapping[str, Any], job: dict[str, Any]) -> PreparedTests:
    cut = statements_of(form, spec)
    job |= {"mode": "statements", "statements": with_plans(cut.statements, cut.names)}
    job |= {"names": cut.names, "modules": cut.modules}
    paths = tuple(cut.names.values())
    return PreparedTests(encode(job, _MOST_BYTES), cut.total, paths, pure=cut.pure, cut=cut)


def statements_of(form: str, spec: Mapping[str, Any]) -> Statements:
    """Asserts, or the body of a check function, cut into statements."""
    setup, entry_point = spec.get("setup", ""), spec.get("entry_point", "")
    if form == "asserts":
        return split_asserts(spec["asserts"], setup, entry_point)
    return split_check(spec["check"], entry_point, setup)


@lru_cache(1)
def slowness() -> float:
    """CPU time of plain Python here, in that of a usual machine; at least 1. Measured once, by the
    quickest of a few tries, and in half steps, so that two starts on one machine agree."""
    tries = []
    for _ in range(7):
        began, total = time.thread_time(), 0
        for number in range(100_000):
            total += number * number % 7
        tries.append(time.thread_time() - began)
    return max(1.0, math.ceil(2 * min(tries) / LOOP_SECONDS) / 2)
