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

and optionally `"prefix"`: code put before the program (HumanEval's prompt, LeetCode's imports),
`"time_limit"`: CPU seconds per test, and `"shown"`: tests of the same form that the prompt shows.

The program and the tests run in two sandboxed processes (`bestofk.sandbox`): the tests call
the program by value, so nothing the program does to its own process changes how it is judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from bestofk.messages import one_of
from bestofk.rewards.base import BatchVerifier, way_to_import
from bestofk.rewards.code.extract_program import assembled, extract_code
from bestofk.rewards.code.prepared_tests import (
    PreparedTests,
    References,
    prepared_tests,
    slowness,
)
from bestofk.rewards.code.spec import FORMS
from bestofk.rewards.combine import with_scores
from bestofk.rewards.sandboxed import LazySandbox
from bestofk.sandbox import JobResult, Limits, Sandbox, printable
from bestofk.sections import check_options
from bestofk.types import Prompt, Status, Verdict

MAX_SOURCE = 1 << 20
"""Bytes of program text; longer ones are not run."""
SECONDS_PER_TEST = 0.5
"""CPU seconds that each test adds to a program's time, where a problem states no limit."""
MOST_SECONDS = 120.0
"""CPU seconds of a program over all its tests."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class CodeVerifier(BatchVerifier):
    """Judges Python programs in a sandbox. Starts its workers when first used.

    Args:
        reward: "fraction" of the tests passed, or 1 only when "all" pass.
        score: "shown" makes the share of `shown` tests passed the score, by which select@k chooses;
            each program runs twice then.
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
        score: Literal["shown"] | None = None,
        tier: int = 1,
        workers: int | None = None,
        packages: Sequence[str] | Literal["all"] = (),
        limits: Limits | Mapping[str, Any] | None = None,
        writable: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        one_of("reward", reward, ("fraction", "all"))
        if score is not None:
            one_of("score", score, ("shown",))
        if isinstance(limits, Mapping):
            check_options("limits", Limits, limits)
            limits = Limits(**limits)
        if limits is not None and not isinstance(limits, Limits):
            raise ValueError(
                f"limits are Limits(...) or a mapping such as {{'cpu_per_test': 1.0}}, "
                f"got {limits!r}"
            )
        self.all_or_nothing = reward == "all"
        self.score_by: Literal["shown"] | None = score
        self._options: dict[str, Any] = {
            "tier": tier, "workers": workers, "packages": packages, "limits": limits,
            "writable": writable,
        }  # fmt: skip
        self._sandbox = LazySandbox(sandbox, **self._options)
        self._references = References()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets a verifier with a sandbox of its own."""
        reward: Literal["fraction", "all"] = "all" if self.all_or_nothing else "fraction"
        return partial(CodeVerifier, reward=reward, score=self.score_by, **self._options), ()

    @property
    def settings(self) -> tuple[Any, ...]:
        """What verdicts depend on, beside the program and its tests."""
        options = {key: value for key, value in self._options.items() if key != "workers"}
        return self.all_or_nothing, options

    @property
    def sandbox(self) -> Sandbox:
        return self._sandbox.get()

    def close(self) -> None:
        self._sandbox.close()

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        verdicts = self._judged_by_tests(prompts, texts)
        if not self.score_by:
            return verdicts
        shown = {id(prompt): with_shown_tests(prompt) for prompt in prompts}
        scores = self._judged_by_tests([shown[id(prompt)] for prompt in prompts], texts)
        return with_scores(verdicts, scores)

    def _judged_by_tests(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        distinct = {id(prompt): prompt for prompt in prompts}
        prepared = self.sandbox.map(self._prepared, list(distinct.values()))
        tests_of = dict(zip(distinct, prepared, strict=True))

        def judge(pair: tuple[Prompt, str]) -> Verdict:
            tests = tests_of[id(pair[0])]
            return tests if isinstance(tests, Verdict) else self._judge(tests, pair[1])

        return self.sandbox.map(judge, list(zip(prompts, texts, strict=True)))

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            if not prompt.spec.keys() & set(FORMS):
                raise ValueError(
                    f"verifier code needs one of {', '.join(FORMS)}, and the row of {prompt.id} "
                    f"has {', '.join(prompt.spec) or 'no fields'}"
                )
            if self.score_by and not prompt.spec.get("shown"):
                raise ValueError(
                    f"score = 'shown' chooses by the tests that a prompt shows, and {prompt.id} "
                    "shows none: let the task show some (task.options.shown of mbpp), or name a "
                    "task.scorer"
                )

    def _prepared(self, prompt: Prompt) -> PreparedTests | Verdict:
        """The tests, or the unscored verdict of a task that cannot be judged (no model's fault)."""
        try:
            tests = prepared_tests(prompt.spec, self._references, self.sandbox)
            if tests.total:
                return tests
            detail = (
                f"task {prompt.id} has no tests: none calls the program in a way that can fail (a "
                "function with the name of a builtin is named by entry_point)"
            )
        except Exception as error:  # whatever a spec holds: RecursionError for tests too deep, ...
            detail = f"task {prompt.id}: {type(error).__name__}: {error}"[:300]
        return Verdict(float("nan"), "unscored", total=0, detail=detail)

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        return [line for line in (self.sandbox.shortage(),) if line]

    def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
        """Tasks that one constant solves, and those whose tests pay a program that defines
        nothing: `for x in []: assert f(x) == 1`."""

        def paid(prompt: Prompt) -> str:
            tests = self._prepared(prompt)
            if not isinstance(tests, PreparedTests):
                return ""
            if constant := tests.solved_by_constant():
                return f"a program that {constant} passes every test: add other answers"
            empty = self._run(replace(tests, prefix=""), "pass\n")  # a prefix may begin a function
            if not empty.passed or (tests.stdio and empty.passed < empty.total):
                return ""
            return (
                f"a program that defines nothing passes {empty.passed} of {empty.total} tests: let "
                "each call the program"
            )

        reasons = zip(prompts, self.sandbox.map(paid, prompts), strict=True)
        return {prompt.id: why for prompt, why in reasons if why}

    def _judge(self, tests: PreparedTests, text: str) -> Verdict:
        code = extract_code(text, tests.names, prefix=tests.prefix)
        if not code.strip():
            detail = "no code after the thinking" if text.strip() else "no code"
            return Verdict(
                0.0, "unparsed", total=tests.total, tier=self.sandbox.tier, detail=detail
            )
        return self._run(tests, code)

    def _limits(self, tests: PreparedTests) -> Limits:
        """Unless limits are stated, CPU time follows the problem's time limit, its tests and the
        machine."""
        limits = self.sandbox.limits
        if self._options["limits"] is not None or limits != Limits():
            return limits
        each, slow = max(tests.time_limit, SECONDS_PER_TEST), slowness()
        program = max(limits.cpu_per_program, min(each * tests.total, MOST_SECONDS))
        return replace(
            limits,
            cpu_per_test=slow * max(limits.cpu_per_test, tests.time_limit),
            cpu_per_program=slow * program,
        )

    def _run(self, tests: PreparedTests, code: str) -> Verdict:
        tier, size = self.sandbox.tier, len(code)
        if size <= MAX_SOURCE:
            source = assembled(tests.prefix, code).encode("utf-8", "surrogatepass")
            size = len(source)
        if size > MAX_SOURCE:
            detail = f"a program has at most {MAX_SOURCE} bytes, got {size}"
            return Verdict(0.0, "unparsed", total=tests.total, tier=tier, detail=detail)
        limits = self._limits(tests)
        if 2 * tests.output > limits.output:  # a right answer must fit, in other spaces too
            limits = replace(limits, output=2 * tests.output)
        run = self.sandbox.check(
            source, tests.job, stdio=tests.stdio, pure=tests.pure, limits=limits
        )
        return _verdict(run, tests.total, tier, self.all_or_nothing)


def with_shown_tests(prompt: Prompt) -> Prompt:
    """The prompt judged by the tests that it shows."""
    form = next(name for name in FORMS if prompt.spec.get(name) is not None)
    return replace(prompt, spec={**prompt.spec, form: prompt.spec["shown"], "shown": None})


def _verdict(run: JobResult, total: int, tier: int, all_or_nothing: bool) -> Verdict:
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
    reward = 0.0 if all_or_nothing else passed / total
    status = "partial" if reward > 0.0 else cast(Status, first)
    way = way_to_import(detail, by_reference=False)
    detail = printable(_ADDRESS.sub("", detail)) + way
    return Verdict(reward, status, passed, total, cpu, tier, detail)
