# ruff: noqa: E501 - programs, one per line
"""Whose fault it is: what the task or this project breaks is unscored, never charged to a model."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bestofk.rewards.base import refusals
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits
from bestofk.types import Prompt, Verdict
from sandbox_watch import RIGHT, New, descendants, prompts

JudgeAll = Callable[[dict[str, tuple[dict[str, Any], str]]], dict[str, Verdict]]
INSIDE = "def check(candidate):\n    def holds():\n        import nor_this\n        return candidate(1) == 2\n    assert holds()"
HIDDEN = "def check(candidate):\n    try:\n        right = candidate(len) == 3\n    except BaseException:\n        right = False\n    assert right"
BROKEN_TASKS: list[tuple[dict[str, Any], str]] = [
    ({"asserts": ["assert f(1) == 2"], "setup": "import a_module_not_there"}, "a_module_not_there"),
    ({"asserts": ["assert f(1) == 2"], "setup": "limit = 1 / 0"}, "ZeroDivisionError"),
    ({"asserts": "assert f(1) == 2\nimport not_there_either\nassert f(2) == 3"}, "not_there_either"),
    ({"check": INSIDE, "entry_point": "f"}, "nor_this"),
    ({"asserts": "class A: pass\nassert f(1) == 2\nassert f(A()) == 3"}, "type A is not plain"),
    ({"asserts": ["assert f(len) == 3"]}, "builtin_function_or_method is not plain"),
    ({"check": HIDDEN, "entry_point": "f"}, "is not plain"),
    ({"asserts": ["assert f('x' * (17 << 20)) == 3"]}, "cannot be passed by value"),
]  # fmt: skip


def test_a_broken_task_is_unscored_whatever_a_model_writes(verifier: CodeVerifier) -> None:
    """Setups and tests that cannot be run; arguments that cannot be passed, also where a test
    hides that; and one that is too large."""
    texts = [RIGHT, "def f(x): return 3", "x =", "import os; os._exit(1)"]
    for text in texts:
        asked = [Prompt(str(i), "", "code", spec) for i, (spec, _) in enumerate(BROKEN_TASKS)]
        verdicts = verifier(asked, [text] * len(asked))
        for verdict, (_, reason) in zip(verdicts, BROKEN_TASKS, strict=True):
            assert verdict.status == "unscored", verdict
            assert math.isnan(verdict.reward)
            assert reason in verdict.detail
            assert "the tests of this task are broken" in verdict.detail


CAUSED_BY_MODELS = {
    "imports what is not there": "import a_module_that_is_not_there\ndef f(x): return 2",
    "raises an import error": "def f(x): raise ImportError('no', name='x')",
    "raises inside": "def f(x):\n    import not_there\n    return 2",
    "nests too deep": ("def f(x):\n    y = []\n    for _ in range(62): y = [y]\n    return y"),
    "is not plain": "def f(x): return object()",
}


SAID_TO_BE_MISSING = ["__main__", "numpy", "nobody_has_this", "sys", "..", "a.b", "x" * 10_000]


def test_a_module_that_a_program_says_is_missing_is_only_a_name(
    monkeypatch: pytest.MonkeyPatch, judge_all: JudgeAll
) -> None:
    """Also where the host's `__main__` has no spec, as under the console script."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    spec = {"asserts": ["assert f(1) == 2"]}
    cases = {
        name: (spec, f"def f(x): raise Exception({f'No module named {name!r}'!r})")
        for name in SAID_TO_BE_MISSING
    }
    verdicts = judge_all(cases)
    assert {verdict.reward for verdict in verdicts.values()} == {0.0}
    assert [name for name, verdict in verdicts.items() if "packages" in verdict.detail] == ["numpy"]


def test_what_a_model_can_cause_stays_zero(judge_all: JudgeAll) -> None:
    spec = {"asserts": ["assert f(f(1)) == 2", "assert f([[[f(2)]]]) == 3"]}
    found = judge_all({name: (spec, text) for name, text in CAUSED_BY_MODELS.items()})
    assert {name: verdict for name, verdict in found.items() if verdict.reward != 0.0} == {}


def test_answers_above_the_output_limit_are_judged_where_the_task_expects_them(
    new_sandbox: New,
) -> None:
    """Six MiB are right here, and a limit of 4 MiB still stops whoever prints without need."""
    big = {"entry_point": "f", "calls": [{"args": [n]} for n in (3, 6)], "solution": LONG}
    given = {"entry_point": "f", "calls": [{"args": [6], "expected": "x" * (6 << 20)}]}
    printed = {"stdio": [{"input": "6\n", "output": "x" * (6 << 20)}]}
    small = {"entry_point": "f", "calls": [{"args": [1], "expected": "x"}]}
    script = "print('x' * (int(input()) << 20))"
    with new_sandbox(workers=1, limits=Limits(output=4 << 20)) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        specs: list[dict[str, Any]] = [big, given, printed, small]
        asked = [Prompt(str(i), "", "code", spec) for i, spec in enumerate(specs)]
        verdicts = judge(asked, [LONG, LONG, script, "def f(n): return 'x' * (6 << 20)"])
    assert [v.reward for v in verdicts] == [1.0, 1.0, 1.0, 0.0], verdicts
    assert "at most 4194304 bytes" in verdicts[-1].detail


LONG = "def f(n): return 'x' * (n << 20)"


def test_prepare_names_the_package_that_a_reference_misses(verifier: CodeVerifier) -> None:
    spec = {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}
    lines = ("import sortedcontainers", "from a_package_of_nobody.part import thing")
    asked = [
        Prompt(str(i), "", "code", spec, reference=f"```python\n{line}\n{RIGHT}\n```")
        for i, line in enumerate(lines)
    ]
    pytest.importorskip("sortedcontainers")
    refused = refusals(verifier, asked)
    assert 'packages = ["sortedcontainers"]' in refused["0"]
    assert "pip install" not in refused["0"]  # it is installed, and hidden
    assert "pip install a_package_of_nobody" in refused["1"]


@pytest.mark.slow
def test_a_checker_that_grew_is_replaced(new_sandbox: New) -> None:
    """Each task leaves its compiled and decoded tests behind; 16 of these would be 100 MiB."""

    def spec(n: int) -> dict[str, Any]:
        return {"asserts": [f"assert f({n}) == {n + 1}, {'x' * (6 << 20)!r}"]}

    with new_sandbox(workers=1) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        assert judge(prompts(1), [RIGHT])[0].reward == 1.0
        (worker,) = sandbox._state.all
        before = descendants(worker.process.pid)
        for n in range(17):
            assert judge(prompts(1, spec(n)), [RIGHT])[0].reward == 1.0
        after = descendants(worker.process.pid)
    assert len(after) == len(before)
    assert len(set(before) - set(after)) == 1  # the checker alone
