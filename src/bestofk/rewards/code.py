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
- stdin/stdout: `{"stdio": [{"input": "1 2\\n", "output": "3\\n"}], "tolerance": {...}}`.

and optionally `"prefix"`: code put before the program (HumanEval's prompt, LeetCode's imports).

The program and the tests run in two sandboxed processes (`bestofk.rewards.sandbox`): the tests call
the program by value, so nothing the program does to its own process changes how it is judged.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from bestofk.rewards.base import BatchVerifier, unknown
from bestofk.rewards.hoisting import with_plans
from bestofk.rewards.programs import Statements, extract_code, split_asserts, split_check
from bestofk.rewards.sandbox import Limits, Sandbox
from bestofk.rewards.sandbox.guest.codec import CodecError, decode, encode
from bestofk.rewards.sandbox.guest.wire import unpack
from bestofk.rewards.sandbox.outcome import printable
from bestofk.rewards.sandbox.pool import Run
from bestofk.types import Prompt, Status, Verdict

MAX_SOURCE = 1 << 20
"""Bytes of program text; longer ones are not run."""
_FORMS = ("calls", "asserts", "check", "stdio")
_KEYS = {*_FORMS, "entry_point", "tolerance", "solution", "setup", "prefix"}
_PATH = re.compile(r"[^\W\d]\w*(\(\))?(\.[^\W\d]\w*(\(\))?)*")


@dataclass(frozen=True)
class Plan:
    """A task's tests, ready for the checker."""

    job: bytes
    total: int
    entry_point: str
    prefix: str
    stdio: bool = False
    pure: bool = True
    """Whether running the tests leaves the checker's process as it was."""


def verifier(
    *,
    reward: Literal["fraction", "all"] = "fraction",
    tier: int = 1,
    workers: int | None = None,
    packages: Sequence[str] | Literal["all"] = (),
    limits: Limits | None = None,
    sandbox: Sandbox | None = None,
) -> CodeVerifier:
    """The code verifier; see this module's docstring for the specs it understands.

    Args:
        reward: "fraction" of the tests passed, or 1 only when "all" pass.
        tier: the least sandbox tier that will do.
        workers: programs judged at once; the number of usable cores unless told.
        packages: what programs may import besides the standard library.
        limits: CPU seconds, memory and so on per program.
        sandbox: a sandbox of yours instead of a new one.
    """
    return CodeVerifier(
        reward=reward, tier=tier, workers=workers, packages=packages, limits=limits, sandbox=sandbox
    )


class CodeVerifier(BatchVerifier):
    """Judges Python programs in a sandbox. Starts its workers when first used."""

    name = "code"

    def __init__(
        self,
        *,
        reward: Literal["fraction", "all"] = "fraction",
        tier: int = 1,
        workers: int | None = None,
        packages: Sequence[str] | Literal["all"] = (),
        limits: Limits | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        if reward not in ("fraction", "all"):
            raise unknown("reward", reward, ("fraction", "all"))
        self.whole = reward == "all"
        self._options: dict[str, Any] = {
            "tier": tier, "workers": workers, "packages": packages, "limits": limits
        }  # fmt: skip
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._expected: dict[str, list[Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets a verifier with a sandbox of its own."""
        return _rebuilt, ("all" if self.whole else "fraction", self._options)

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
        made = sandbox.map(self._plan_or_reason, list(distinct.values()))
        plans = dict(zip(distinct, made, strict=True))

        def judge(pair: tuple[Prompt, str]) -> Verdict:
            plan = plans[id(pair[0])]
            return plan if isinstance(plan, Verdict) else self._judge(plan, pair[1])

        return sandbox.map(judge, list(zip(prompts, texts, strict=True)))

    def _plan_or_reason(self, prompt: Prompt) -> Plan | Verdict:
        """The plan, or the unscored verdict of a task that cannot be judged (no model's fault)."""
        try:
            plan = self._plan(prompt.spec)
        except (ValueError, SyntaxError, KeyError, TypeError) as error:
            reason = f"task {prompt.id}: {type(error).__name__}: {error}"[:300]
            return Verdict(float("nan"), "unscored", total=0, detail=reason)
        if plan.total < 1:
            reason = f"task {prompt.id} has no tests"
            return Verdict(float("nan"), "unscored", total=0, detail=reason)
        return plan

    def _plan(self, spec: Mapping[str, Any]) -> Plan:
        form = check_spec(spec)
        entry_point, prefix = spec.get("entry_point", ""), spec.get("prefix", "")
        tolerance = spec.get("tolerance") or {}
        job: dict[str, Any] = {
            "absolute": float(tolerance.get("abs", 0.0)),
            "relative": float(tolerance.get("rel", 0.0)),
            "entry_point": entry_point,
        }
        if form == "calls":
            cases = [
                (c["args"], dict(c.get("kwargs", {})), c.get("expected")) for c in spec["calls"]
            ]
            job |= {"mode": "calls", "cases": cases}
            if any("expected" not in call for call in spec["calls"]):
                job["cases"] = self._with_expected(spec, job)
            total = len(cases)
        elif form == "stdio":
            job |= {"mode": "stdio", "cases": [(c["input"], c["output"]) for c in spec["stdio"]]}
            total = len(spec["stdio"])
        else:
            cut = _cut(form, spec)
            statements = with_plans(cut.statements, cut.names)
            job |= {"mode": "statements", "statements": statements, "names": cut.names}
            total = cut.total
        pure = form in ("calls", "stdio") or cut.pure
        return Plan(encode(job, 1 << 30), total, entry_point, prefix, form == "stdio", pure)

    def _with_expected(self, spec: Mapping[str, Any], job: dict[str, Any]) -> list[Any]:
        """Cases with the reference's results, computed in the sandbox once per task."""
        if not spec.get("solution"):
            raise ValueError("calls without `expected` need `solution`, the reference code")
        recording = encode(job | {"mode": "record"}, 1 << 30)
        source = (spec.get("prefix", "") + spec["solution"]).encode("utf-8", "surrogatepass")
        key = hashlib.sha256(len(source).to_bytes(8, "little") + source + recording).hexdigest()
        if key not in self._expected:
            run = self.sandbox.check(source, recording, pure=True)
            if run.status != "done" or run.report["code"] != 0 or run.report["reason"]:
                raise ValueError(f"the reference did not run: {run.detail or run.report}")
            values = decode(run.data)
            failed = [why for ok, why in values if not ok]
            if failed:
                raise ValueError(f"the reference failed on {len(failed)} inputs: {failed[0]}")
            self._expected[key] = [value for _, value in values]
        return [
            (args, kwargs, expected)
            for (args, kwargs, _), expected in zip(job["cases"], self._expected[key], strict=True)
        ]

    def _judge(self, plan: Plan, text: str) -> Verdict:
        code = extract_code(text, plan.entry_point)
        tier = self.sandbox.tier
        if not code.strip():
            return Verdict(0.0, "unparsed", total=plan.total, tier=tier, detail="no code")
        source = (plan.prefix + code).encode("utf-8", "surrogatepass")
        if len(source) > MAX_SOURCE:
            detail = f"a program has at most {MAX_SOURCE} bytes, got {len(source)}"
            return Verdict(0.0, "unparsed", total=plan.total, tier=tier, detail=detail)
        run = self.sandbox.check(source, plan.job, stdio=plan.stdio, pure=plan.pure)
        return _verdict(run, plan.total, tier, self.whole)


def _rebuilt(reward: Literal["fraction", "all"], options: dict[str, Any]) -> CodeVerifier:
    return CodeVerifier(reward=reward, **options)


def _cut(form: str, spec: Mapping[str, Any]) -> Statements:
    setup = spec.get("setup", "")
    if form == "asserts":
        return split_asserts(spec["asserts"], setup, spec.get("entry_point", ""))
    return split_check(spec["check"], spec["entry_point"], setup)


def check_spec(spec: Mapping[str, Any]) -> str:
    """Which form of tests a spec has; raises ValueError for one that cannot be understood."""
    for key in spec:
        if key not in _KEYS:
            raise unknown("key of a code spec", key, _KEYS)
    forms = [form for form in _FORMS if form in spec]
    if len(forms) != 1:
        raise ValueError(f"a code spec has one of {', '.join(_FORMS)}; got {forms or 'none'}")
    if forms[0] in ("calls", "check") and not _PATH.fullmatch(spec.get("entry_point", "")):
        raise ValueError(
            f"entry_point reads like 'f' or 'Solution().f', got {spec.get('entry_point')!r}"
        )
    return forms[0]


def _verdict(run: Run, total: int, tier: int, whole: bool) -> Verdict:
    """What a finished run is worth. Everything the program can cause is a number, never NaN."""
    if run.status == "unscored":
        return Verdict(float("nan"), "unscored", total=total, tier=tier, detail=run.detail)
    if run.status == "killer":
        return Verdict(0.0, "crashed", total=total, tier=tier, detail=run.detail)
    cpu = run.report["cpu"]
    results = _results(run, total)
    if results is None:
        status: Status = "timeout" if run.report["reason"] else "crashed"
        detail = f"the checker ended early ({run.report['reason'] or run.report['code']})"
        return Verdict(0.0, status, 0, total, cpu, tier, detail)
    passed = sum(ok for ok, _, _ in results)
    if passed == total:
        return Verdict(1.0, "correct", total, total, cpu, tier)
    _, first, detail = next(result for result in results if not result[0])
    reward = 0.0 if whole else passed / total
    status = "partial" if reward > 0.0 else cast(Status, first)
    return Verdict(reward, status, passed, total, cpu, tier, printable(detail))


def _results(run: Run, total: int) -> list[list[Any]] | None:
    """The checker's (passed, status, detail), or None when it did not live to write them."""
    if run.report["reason"] or run.report["code"] != 0:
        return None
    try:
        results = unpack(run.data)
    except CodecError:
        return None
    return results if len(results) == total else None


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
