"""Judge programs: completion → code → the fraction of tests it passes.

A prompt's `spec` (JSON values only) holds one of

- function calls: `{"entry_point": "f", "calls": [{"args": [...], "kwargs": {...}, "expected": v}],
  "tolerance": {"abs": 1e-6, "rel": 1e-6}}`. JSON has no tuples, so list and tuple compare alike.
  Where `expected` is left out of every call, `"solution"` (reference code) supplies it: MBPP+.
- assert statements: `{"asserts": ["assert f(1) == 2", ...], "setup": "import math"}` (a list or one
  source text): MBPP. Names the tests do not define are the program's; `entry_point` is needed only
  where the function has the name of a builtin.
- a check function: `{"check": "def check(candidate): ...", "entry_point": "f", "setup": "..."}`:
  HumanEval (`entry_point: "f"`) and LeetCode (`"Solution().f"`). `setup` runs before the tests, in
  the checker; give HumanEval's prompt there.
- stdin/stdout: `{"stdio": [{"input": "1 2\\n", "output": "3\\n"}], "tolerance": {...}}`. Words are
  compared, not layout; numbers with a point may differ by 1e-6. Where several outputs are right,
  `"checker"` is Python code with `def check(input, output, expected)`, which says whether one is.

and optionally `"prefix"`: code put before the program (HumanEval's prompt, LeetCode's imports), and
`"time_limit"`: CPU seconds per test.

The program and the tests run in two sandboxed processes (`bestofk.sandbox`): the tests call
the program by value, so nothing the program does to its own process changes how it is judged.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, cast

from bestofk.messages import unknown
from bestofk.rewards.base import BatchVerifier, way_to_import
from bestofk.rewards.code.extract_program import assembled, extract_code
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
from bestofk.sandbox import RESULT, JobResult, Limits, Sandbox, encode, printable
from bestofk.sections import check_options
from bestofk.types import Prompt, Status, Verdict

MAX_SOURCE = 1 << 20
"""Bytes of program text; longer ones are not run."""
SECONDS_PER_TEST = 0.5
"""CPU seconds that each test adds to a program's time, where a problem states no limit."""
MOST_SECONDS = 120.0
"""CPU seconds of a program over all its tests."""
LOOP_SECONDS = 0.007
"""What the loop of `slowness` takes on a usual machine, for which the limits are set."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class PreparedTests:
    """A task's tests, ready for the checker."""

    job: bytes
    total: int
    paths: tuple[str, ...]
    """What the tests call: 'f', 'Solution().f'."""
    prefix: str
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


class CodeVerifier(BatchVerifier):
    """Judges Python programs in a sandbox. Starts its workers when first used.

    Args:
        reward: "fraction" of the tests passed, or 1 only when "all" pass.
        tier: the least sandbox tier that will do.
        workers: programs judged at once; the number of usable cores unless told.
        packages: what programs may import besides the standard library.
        limits: CPU seconds, memory and so on per program: `Limits`, or some of its fields.
        writable: programs may write files, in a small folder of their own (tiers 3 and 2).
        sandbox: a sandbox of yours instead of a new one.
    """

    name = "code"

    def __init__(
        self,
        *,
        reward: Literal["fraction", "all"] = "fraction",
        tier: int = 1,
        workers: int | None = None,
        packages: Sequence[str] | Literal["all"] = (),
        limits: Limits | Mapping[str, Any] | None = None,
        writable: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        if reward not in ("fraction", "all"):
            raise unknown("reward", reward, ("fraction", "all"))
        if isinstance(limits, Mapping):
            check_options("limits", Limits, limits)
            limits = Limits(**limits)
        if limits is not None and not isinstance(limits, Limits):
            raise ValueError(
                f"limits are Limits(...) or a mapping such as {{'cpu_per_test': 1.0}}, "
                f"got {limits!r}"
            )
        self.whole = reward == "all"
        self._options: dict[str, Any] = {
            "tier": tier, "workers": workers, "packages": packages, "limits": limits,
            "writable": writable,
        }  # fmt: skip
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._expected: dict[str, list[Any] | str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets a verifier with a sandbox of its own."""
        return _rebuilt, ("all" if self.whole else "fraction", self._options)

    @property
    def settings(self) -> tuple[Any, ...]:
        """What verdicts depend on, beside the program and its tests."""
        return self.whole, {key: self._options[key] for key in self._options if key != "workers"}

    @property
    def sandbox(self) -> Sandbox:
        with self._lock:
            if self._sandbox is None:
                self._sandbox = Sandbox(**self._options)
            return self._sandbox

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        sandbox = self.sandbox
        distinct = {id(prompt): prompt for prompt in prompts}
        prepared = sandbox.map(self._plan_or_reason, list(distinct.values()))
        plans = dict(zip(distinct, prepared, strict=True))

        def judge(pair: tuple[Prompt, str]) -> Verdict:
            plan = plans[id(pair[0])]
            return plan if isinstance(plan, Verdict) else self._judge(plan, pair[1])

        return sandbox.map(judge, list(zip(prompts, texts, strict=True)))

    def _plan_or_reason(self, prompt: Prompt) -> PreparedTests | Verdict:
        """The plan, or the unscored verdict of a task that cannot be judged (no model's fault)."""
        try:
            plan = replace(
                self._plan(prompt.spec), time_limit=float(prompt.spec.get("time_limit") or 0.0)
            )
        except Exception as error:  # whatever a spec holds: RecursionError for tests too deep, ...
            detail = f"task {prompt.id}: {type(error).__name__}: {error}"[:300]
            return Verdict(float("nan"), "unscored", total=0, detail=detail)
        if plan.total < 1:
            detail = (
                f"task {prompt.id} has no tests: none calls the program in a way that can fail (a "
                "function with the name of a builtin is named by entry_point)"
            )
            return Verdict(float("nan"), "unscored", total=0, detail=detail)
        return plan

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        return [line for line in (self.sandbox.shortage(),) if line]

    def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
        """Tasks that one constant solves, and those whose tests pay a program that defines
        nothing: `for x in []: assert f(x) == 1`."""

        def paid(prompt: Prompt) -> str:
            plan = self._plan_or_reason(prompt)
            if not isinstance(plan, PreparedTests):
                return ""
            constant = constant_of_asserts(plan.cut) if plan.cut else plan.constant
            if constant:
                return f"a program that {constant} passes every test: add other answers"
            found = self._run(replace(plan, prefix=""), "pass\n")  # a prefix may begin a function
            if not found.passed or (plan.stdio and found.passed < found.total):
                return ""
            return (
                f"a program that defines nothing passes {found.passed} of {found.total} tests: let "
                "each call the program"
            )

        reasons = zip(prompts, self.sandbox.map(paid, prompts), strict=True)
        return {prompt.id: why for prompt, why in reasons if why}

    def _plan(self, given: Mapping[str, Any]) -> PreparedTests:
        form, spec = checked_spec(given)
        entry_point, prefix = spec.get("entry_point", ""), spec.get("prefix", "")
        absolute, relative = tolerances(spec)
        job: dict[str, Any] = {
            "absolute": absolute, "relative": relative, "entry_point": entry_point
        }  # fmt: skip
        if form == "calls":
            cases = [
                (c["args"], dict(c.get("kwargs", {})), c.get("expected")) for c in spec["calls"]
            ]
            job |= {"mode": "calls", "cases": cases}
            if any("expected" not in call for call in spec["calls"]):
                job["cases"] = self._with_expected(spec, job)
            return PreparedTests(
                encode(job, 1 << 30),
                len(cases),
                (entry_point,),
                prefix,
                constant=constant_of_calls(job["cases"], absolute, relative),
                output=max((len(encode(c[2], 1 << 30)) for c in job["cases"]), default=0),
            )
        if form == "stdio":
            job |= {"mode": "stdio", "cases": [(c["input"], c["output"]) for c in spec["stdio"]]}
            checker = spec.get("checker", "")
            refuse_execution(list(ast.walk(parse(checker))))
            return PreparedTests(
                encode(job | {"checker": checker}, 1 << 30),
                len(spec["stdio"]),
                (),
                prefix,
                stdio=True,
                pure=not checker,
                constant="" if checker else constant_of_stdio(spec["stdio"], absolute, relative),
                output=max((len(c["output"].encode()) for c in spec["stdio"]), default=0),
            )
        cut = _cut(form, spec)
        statements = with_plans(cut.statements, cut.names)
        names = {"names": cut.names, "modules": cut.modules}
        job |= {"mode": "statements", "statements": statements} | names
        paths = tuple(cut.names.values())
        return PreparedTests(encode(job, 1 << 30), cut.total, paths, prefix, pure=cut.pure, cut=cut)

    def _with_expected(self, spec: Mapping[str, Any], job: dict[str, Any]) -> list[Any]:
        """Cases with the reference's results, computed in the sandbox once per task."""
        if not spec.get("solution"):
            raise ValueError("calls without `expected` need `solution`, the reference code")
        recording = encode(job | {"mode": "record"}, 1 << 30)
        source = (spec.get("prefix", "") + spec["solution"]).encode("utf-8", "surrogatepass")
        key = hashlib.sha256(len(source).to_bytes(8, "little") + source + recording).hexdigest()
        if key not in self._expected:
            limits, usual = self.sandbox.limits, Limits()
            limits = replace(
                limits,
                output=RESULT // 2,  # it is trusted
                cpu_per_test=slowness() * max(limits.cpu_per_test, usual.cpu_per_test),
                cpu_per_program=slowness() * max(limits.cpu_per_program, usual.cpu_per_program),
            )
            run = self.sandbox.check(source, recording, pure=True, limits=limits)
            if run.status == "unscored":  # ours, and over when it is asked again
                raise ValueError(f"the reference did not run: {run.detail}")
            self._expected[key] = _recorded(run)
        values = self._expected[key]
        if isinstance(values, str):
            raise ValueError(values)
        return [
            (args, kwargs, expected)
            for (args, kwargs, _), expected in zip(job["cases"], values, strict=True)
        ]

    def _judge(self, plan: PreparedTests, text: str) -> Verdict:
        code = extract_code(text, plan.names, prefix=plan.prefix)
        if not code.strip():
            detail = "no code after the thinking" if text.strip() else "no code"
            return Verdict(0.0, "unparsed", total=plan.total, tier=self.sandbox.tier, detail=detail)
        return self._run(plan, code)

    def _limits(self, plan: PreparedTests) -> Limits:
        """Unless limits are stated, CPU time follows the problem's time limit, its tests and the
        machine."""
        limits = self.sandbox.limits
        if self._options["limits"] is not None or limits != Limits():
            return limits
        each, slow = max(plan.time_limit, SECONDS_PER_TEST), slowness()
        program = max(limits.cpu_per_program, min(each * plan.total, MOST_SECONDS))
        return replace(
            limits,
            cpu_per_test=slow * max(limits.cpu_per_test, plan.time_limit),
            cpu_per_program=slow * program,
        )

    def _run(self, plan: PreparedTests, code: str) -> Verdict:
        tier, size = self.sandbox.tier, len(code)
        if size <= MAX_SOURCE:
            source = assembled(plan.prefix, code).encode("utf-8", "surrogatepass")
            size = len(source)
        if size > MAX_SOURCE:
            detail = f"a program has at most {MAX_SOURCE} bytes, got {size}"
            return Verdict(0.0, "unparsed", total=plan.total, tier=tier, detail=detail)
        limits = self._limits(plan)
        if 2 * plan.output > limits.output:  # a right answer must fit, in other spaces too
            limits = replace(limits, output=2 * plan.output)
        run = self.sandbox.check(source, plan.job, stdio=plan.stdio, pure=plan.pure, limits=limits)
        return _verdict(run, plan.total, tier, self.whole)


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


def _rebuilt(reward: Literal["fraction", "all"], options: dict[str, Any]) -> CodeVerifier:
    return CodeVerifier(reward=reward, **options)


def _recorded(run: JobResult) -> list[Any] | str:
    """What a reference returned, or why that cannot be expected of anybody."""
    values = run.results()
    if values is None:
        return f"the reference did not run: {run.detail or run.report}"
    if isinstance(values, str):
        return f"what the reference returns does not fit: {values}"
    failed = [why for ok, why in values if not ok]
    if failed:
        return f"the reference failed on {len(failed)} inputs: {failed[0]}"
    if all(value is None for _, value in values):
        return (
            "the reference returns None for every input: a call is judged by what it returns, so "
            "let the function return what it changes"
        )
    return [value for _, value in values]


def _cut(form: str, spec: Mapping[str, Any]) -> Statements:
    setup = spec.get("setup", "")
    if form == "asserts":
        return split_asserts(spec["asserts"], setup, spec.get("entry_point", ""))
    return split_check(spec["check"], spec["entry_point"], setup)


def _verdict(run: JobResult, total: int, tier: int, whole: bool) -> Verdict:
    """What a finished run is worth. Everything the program can cause is a number, never NaN."""
    if run.status == "unscored":
        return Verdict(float("nan"), "unscored", total=total, tier=tier, detail=run.detail)
    if run.status == "killer":
        return Verdict(0.0, "crashed", total=total, tier=tier, detail=run.detail)
    cpu = run.report["cpu"]
    results = run.results()
    if isinstance(results, str):
        detail = printable(f"the tests of this task are broken: {results}")
        return Verdict(float("nan"), "unscored", total=total, tier=tier, detail=detail)
    if results is None or len(results) != total:
        status, detail = run.ending()
        return Verdict(0.0, cast(Status, status), 0, total, cpu, tier, detail)
    passed = sum(ok for ok, _, _ in results)
    if passed == total:
        return Verdict(1.0, "correct", total, total, cpu, tier)
    _, first, detail = next(result for result in results if not result[0])
    reward = 0.0 if whole else passed / total
    status = "partial" if reward > 0.0 else cast(Status, first)
    way = way_to_import(detail, by_reference=False)
    detail = printable(_ADDRESS.sub("", detail)) + way
    return Verdict(reward, status, passed, total, cpu, tier, detail)


def reference_of(code: str) -> str:
    """Reference code as the completion a prompt's `reference` wants.

    >>> print(reference_of("x = 1"))
    ```python
    x = 1
    ```
    """
    longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}python\n{code}\n{fence}"
