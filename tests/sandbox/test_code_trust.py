# ruff: noqa: E501 - programs, one per line
"""Tests that pay anybody, and specs that say nothing sensible, are refused with the way out (30)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bestofk.rewards.base import prepare, refusals
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.rewards.code.statements import split_asserts, split_check
from bestofk.sandbox import Limits
from bestofk.types import Prompt, Verdict

Judge = Callable[[dict[str, Any], str], Verdict]
JudgeAll = Callable[[dict[str, tuple[dict[str, Any], str]]], dict[str, Verdict]]
Spec = dict[str, Any]
PLUS = "def f(x): return x + 1"


def refused(verifier: CodeVerifier, tasks: Sequence[tuple[Spec, str]]) -> list[str]:
    """Why each task is refused, asked for in one batch; empty where it is accepted."""
    prompts = [Prompt(str(i), "", "code", *task) for i, task in enumerate(tasks)]
    found = refusals(verifier, prompts)
    return [found.get(prompt.id, "") for prompt in prompts]


def unsaid(found: Sequence[str], reasons: Sequence[str]) -> dict[str, str]:
    """Reasons that were expected, with what was said in their place."""
    return {why: said for why, said in zip(reasons, found, strict=True) if why not in said}


# ----------------------------------------------------------------------------- asserts in helpers
EQUAL = "def near(a, b):\n    assert a == b"
MANY = "def check(c):\n    assert c(1) == 2\n    def many(n):\n        for i in range(n):\n            assert c(i) == i + 1\n    many(5)\n"
HELPERS: dict[str, tuple[Spec, int]] = {
    "called last": ({"asserts": ["assert f(1) == 2", "def t():\n    assert f(2) == 3", "t()"]}, 2),
    "in the setup": ({"setup": EQUAL, "asserts": ["assert f(1) == 2", "near(f(2), 3)", "near(f(3), 4)"]}, 3),
    "that raises": ({"setup": EQUAL.replace("assert a == b", "if a != b: raise ValueError"), "asserts": ["assert f(1) == 2", "near(f(2), 3)"]}, 2),
    "that calls another": ({"setup": f"{EQUAL}\ndef both(a, b):\n    near(a, b)", "asserts": ["assert f(1) == 2", "both(f(2), 3)"]}, 2),
    "in a loop": ({"setup": EQUAL, "asserts": ["assert f(1) == 2", "for i in range(5):\n    near(f(i), i + 1)"]}, 2),
    "nested in a check": ({"check": MANY, "entry_point": "f"}, 2),
    "a method": ({"asserts": "class T:\n    def t(self):\n        assert f(2) == 3\nassert f(1) == 2\nT().t()"}, 2),
    "unittest's": ({"asserts": "import unittest\nt = unittest.TestCase()\nassert f(1) == 2\nt.assertEqual(f(2), 3)"}, 2),
}  # fmt: skip


def test_asserts_in_helpers_count(verifier: CodeVerifier, judge_all: JudgeAll) -> None:
    assert set(refused(verifier, [(spec, PLUS) for spec, _ in HELPERS.values()])) == {""}
    found = judge_all({name: (spec, "def f(x): return 2") for name, (spec, _) in HELPERS.items()})
    counted = {name: (verdict.passed, verdict.total) for name, verdict in found.items()}
    assert counted == {name: (1, total) for name, (_, total) in HELPERS.items()}


# -------------------------------------------------------------------------------- refused outright
REFUSED: list[tuple[Spec, str, str]] = [
    ({"asserts": []}, PLUS, "no tests"),
    ({"asserts": ["assert True", "x = 1"]}, PLUS, "no tests"),
    ({"check": "def check(f):\n    pass", "entry_point": "f"}, PLUS, "no tests"),
    ({"calls": [], "entry_point": "f"}, PLUS, "no tests"),
    ({"stdio": []}, PLUS, "no tests"),
    ({"asserts": ["assert f(1) == 2", "assert f(1) == 3"]}, PLUS, "scores 0.5"),
    ({"asserts": ["raise ValueError", "assert f(1) == 2"]}, PLUS, "what comes before the tests fails"),
    ({"asserts": ["assert f(object()) == 2"]}, PLUS, "passed by value"),
    ({"asserts": ["assert f(1 == 2"]}, PLUS, "SyntaxError"),
    ({"asserts": ["assert eval(str(f(1))) == 2"]}, PLUS, "must not execute"),
    ({"asserts": ["import pickle", "assert f(1) == 2"]}, PLUS, "must not execute"),
    ({"asert": ["assert f(1) == 2"]}, PLUS, "did you mean 'asserts'"),
    ({"asserts": ["assert f(1) == 2"], "stdio": []}, PLUS, "one of"),
    ({"calls": [{"args": [1], "expected": 2}], "entry_point": "f(); g"}, PLUS, "entry_point reads like"),
    ({"asserts": ["assert (f(1) == 2, 'one')", "assert f(2) == 3"]}, PLUS, "take away the parentheses"),
    ({"asserts": ["for i in range(3):\n    assert (f(i) == i + 1, i)"]}, PLUS, "take away the parentheses"),
    ({"asserts": ["assert f(1) == 2 or 'wrong'"]}, PLUS, "write `assert condition, message`"),
    ({"asserts": ["assert f(1) == 2 or f'{1} wrong'"]}, PLUS, "write `assert condition, message`"),
    ({"asserts": ["assert f(1) == 2", "f(2)"]}, PLUS, "no test comes after `f(2)`"),
    ({"asserts": ["assert f(1) == 2", "def run():\n    f(2)", "run()"]}, PLUS, "no test comes after `run()`"),
    ({"asserts": ["assert f(1) == 2", "x = f(2)"]}, PLUS, "no test comes after `x = f(2)`"),
    ({"asserts": ["assert f(1) == 2", "def test_two():\n    assert f(2) == 3"]}, PLUS, "asserts of test_two never run"),
    ({"asserts": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)\nassert unittest.main"}, PLUS, "asserts of T never run"),
    ({"asserts": ["assert sum([1, 2]) == 3", "assert max(1, 2) == 2"]}, PLUS, "named by entry_point"),
    ({"asserts": ["import math", "assert math.pi > 3"]}, PLUS, "has no tests"),
    ({"asserts": ["assert [f(1)]", "assert lambda: f(1)", "assert f(1) is f(1)"]}, PLUS, "has no tests"),
    ({"asserts": ["assert isclose(f(1), 2.0)"]}, "from math import isclose\ndef f(x): return x + 1.0", "import or define isclose"),
    ({"asserts": ["r = f(1)", "assert isclose(r, 2.0)"]}, "from math import isclose\ndef f(x): return x + 1.0", "import or define isclose"),
    ({"asserts": ["try:\n    f(1)\n    assert False\nexcept Exception:\n    pass", "assert f(2) == 3"]}, PLUS, "catches its own assert"),
    ({"asserts": ["try:\n    assert f(1) == 2\nexcept:\n    print('wrong')", "assert f(2) == 3"]}, PLUS, "catches its own assert"),
    ({"asserts": ["assert f(1) == 2", "assert f(2) == 3", "for x in []:\n    assert f(x) == 2"]}, PLUS, "defines nothing passes 1 of 3 tests: let each call"),
    ({"asserts": ["assert f(1) == 2", "assert f(2) == 3", "assert all(f(x) for x in [])"]}, PLUS, "defines nothing passes 1 of 3 tests"),
    ({"asserts": ["if False:\n    assert f(1) == 2"], "prefix": "import math\n"}, PLUS, "defines nothing passes 1 of 1 tests"),
    ({"stdio": [{"input": "1", "output": ""}, {"input": "2", "output": "\n"}]}, "pass", "always prints '' passes every test"),
    ({"entry_point": "f", "calls": [{"args": [[3, 1, 2]]}, {"args": [[1]]}], "solution": "def f(a): a.sort()"}, "def f(a): a.sort()", "returns None for every input"),
]  # fmt: skip


def test_tasks_that_cannot_be_trusted_are_refused_by_id(verifier: CodeVerifier) -> None:
    found = refused(verifier, [(spec, reference) for spec, reference, _ in REFUSED])
    assert unsaid(found, [reason for *_, reason in REFUSED]) == {}
    good, bad = (
        Prompt("good", "", "code", TRUSTED[0][0], PLUS),
        Prompt("bad", "", "code", REFUSED[0][0], PLUS),
    )
    with pytest.raises(ValueError, match="bad"):
        prepare(verifier, [good, bad])


def test_statements_that_have_nothing_to_do_with_the_program_are_no_matter() -> None:
    cut = split_asserts(
        ["assert f(1) == 2", "assert 1 == 1", "assert len('ab') == 2", "print('done')"]
    )
    assert cut.statements == (("assert f(1) == 2", True),)
    grown = split_asserts(
        "r = []\nr.append(f(1))\nassert r == [2]\nimport heapq\nheapq.heappush(r, f(2))\nassert r[1] == 3"
    )
    assert grown.total == 2


def test_a_judge_that_the_tests_import_is_theirs() -> None:
    for setup in (
        "from math import isclose",
        "from math import *",
        "import math\nisclose = math.isclose",
    ):
        assert split_asserts(["assert isclose(f(1), 2.0)"], setup).names == {"f": "f"}
    assert split_asserts(["assert math.isclose(f(f(1)), 3.0)"]).names == {"f": "f"}
    assert split_check("def check(c):\n    assert c(c(1)) == f(2)", "f").names == {"c": "f"}


def calls(*cases: tuple[Any, Any], **more: Any) -> Spec:
    listed = [{"args": [given], "expected": expected} for given, expected in cases]
    return {"entry_point": "f", "calls": listed, **more}


SOLVED_BY_ONE_ANSWER: list[tuple[Spec, str, str]] = [
    ({"asserts": ["assert f(1) is True", "assert f(2) == True"]}, "def f(x): return x < 5", "returns True"),
    ({"asserts": ["assert f(1) == 7", "assert 7 == f(2)"]}, "def f(x): return 7", "returns 7"),
    ({"asserts": ["assert f(1) == 7"]}, "def f(x): return 6 + x", "returns 7"),
    ({"check": "def check(c):\n    assert c(1) == 'no'\n    assert c(2) == 'no'", "entry_point": "Solution().f"}, "class Solution:\n    def f(self, x): return 'yes' if x > 5 else 'no'", "returns 'no'"),
    (calls((1, [4]), (2, [4])), "def f(x): return [4]", "returns [4]"),
    (calls((1, 5.0), (2, 5.1), (3, 4.9), tolerance={"abs": 0.15}), "def f(x): return {1: 5, 2: 5.1, 3: 4.9}[x]", "returns 5.0"),
    ({"entry_point": "f", "calls": [{"args": [n]} for n in range(5)], "solution": "def f(x): return 'a'"}, "def f(x): return 'a'", "returns 'a'"),
    ({"stdio": [{"input": "1", "output": "YES\n"}, {"input": "2", "output": "YES"}]}, "print('YES')", "prints 'YES\\n'"),
]  # fmt: skip


def test_tasks_that_one_constant_solves_are_refused(verifier: CodeVerifier) -> None:
    """The reference itself passes: what is refused are the tests."""
    found = refused(verifier, [(spec, reference) for spec, reference, _ in SOLVED_BY_ONE_ANSWER])
    wanted = [
        f"a program that always {what} passes every test" for *_, what in SOLVED_BY_ONE_ANSWER
    ]
    assert unsaid(found, wanted) == {}


TRUSTED: list[tuple[Spec, str]] = [
    ({"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}, PLUS),
    ({"asserts": ["assert f(1)", "assert not f(2)"]}, "def f(x): return x == 1"),
    ({"asserts": ["try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False", "assert f(2) == 3"]}, "def f(x):\n    if x == 1: raise ValueError\n    return 3"),
    ({"asserts": ["assert f() == 42"]}, "def f(): return 42"),
    ({"asserts": ["assert abs(f(1) - 2) < 1e-6", "assert abs(f(2) - 3) < 1e-6"]}, PLUS),
    (calls((1, True), (2, False)), "def f(x): return x == 1"),
    ({"entry_point": "f", "calls": [{"args": [], "expected": 42}]}, "def f(): return 42"),
    ({"stdio": [{"input": "", "output": "hello"}]}, "print('hello')"),
    ({"stdio": [{"input": "1", "output": "1"}, {"input": "2", "output": ""}]}, "x = input()\nif x == '1': print(x)"),
    (calls((1, 2), (2, 3), setup=None, tolerance=None, prefix=None), PLUS),
]  # fmt: skip


def test_tasks_that_ask_for_a_thought_are_taken(verifier: CodeVerifier) -> None:
    assert refused(verifier, TRUSTED) == [""] * len(TRUSTED)


def test_a_reference_that_fails_is_not_run_again(verifier: CodeVerifier) -> None:
    broken = {"entry_point": "f", "calls": [{"args": [7]}], "solution": "def f(x): return x / 0"}
    judge = CodeVerifier(sandbox=verifier.sandbox)
    details = {judge([Prompt("t", "", "code", broken)], [PLUS])[0].detail for _ in range(2)}
    assert len(details) == 1
    [reason] = judge._references._results.values()
    assert str(reason) in details.pop()


# ------------------------------------------------------------------------------------------- specs
DEEP = "assert f(" + "-" * 5000 + "1) == 2"
BAD_SPECS: list[tuple[Spec, str]] = [
    (calls((1, 2), tolerance={"abs": math.inf}), "finite number, at least 0, got inf"),
    (calls((1, 2), tolerance={"rel": -1}), "finite number, at least 0, got -1"),
    (calls((1, 2), tolerance={"abs": "1e-3"}), "finite number, at least 0, got '1e-3'"),
    (calls((1, 2), tolerance={"atol": 1e-3}), "unknown key of a tolerance 'atol'"),
    (calls((1, 2), tolerance=1e-3), "a tolerance reads"),
    (calls((1, 2), setup=3), "`setup` is text, got 3"),
    ({"calls": [{"args": [1], "expected": 2}], "entry_point": 3}, "`entry_point` is text"),
    ({"calls": [{"args": 3, "expected": 2}], "entry_point": "f"}, "`args` of a call are a list, got 3"),
    ({"calls": [{"expected": 2}], "entry_point": "f"}, "`args` of a call are a list, got None"),
    ({"calls": [{"args": [1], "kwargs": [1], "expected": 2}], "entry_point": "f"}, "`kwargs` of a call are an object"),
    ({"calls": [{"args": [1], "expects": 2}], "entry_point": "f"}, "did you mean 'expected'"),
    ({"calls": [[1, 2]], "entry_point": "f"}, "a call reads"),
    ({"calls": {"args": [1]}, "entry_point": "f"}, "`calls` is a list"),
    ({"calls": [{"args": [1], "expected": 2}, {"args": [2]}], "entry_point": "f", "solution": PLUS}, "or none has, got 1 of 2"),
    ({"asserts": 3}, "`asserts` is a list of texts"),
    ({"asserts": None}, "got none"),
    ({"asserts": [DEEP]}, "RecursionError"),
    ({"check": ["def check(c): pass"], "entry_point": "f"}, "`check` is text"),
    ({"stdio": [{"input": 1, "output": "2"}]}, "a case of `stdio` reads"),
    ({"stdio": [["1", "2"]]}, "a case of `stdio` reads"),
    ({"stdio": "1 2"}, "`stdio` is a list"),
]  # fmt: skip


def test_a_spec_that_cannot_be_understood_spoils_only_its_own_task(
    verifier: CodeVerifier,
) -> None:
    specs = [calls((1, 2), (2, 3)), *[spec for spec, _ in BAD_SPECS]]
    asked = [Prompt(str(i), "", "code", spec) for i, spec in enumerate(specs)]
    good, *bad = verifier.judge_batch(asked, [PLUS] * len(asked))
    assert good.reward == 1.0
    assert all(math.isnan(verdict.reward) for verdict in bad)
    assert unsaid([v.detail for v in bad], [reason for _, reason in BAD_SPECS]) == {}


def test_limits_may_be_given_by_name() -> None:
    judge = CodeVerifier(limits={"cpu_per_test": 2.5})
    assert judge._options["limits"] == Limits(cpu_per_test=2.5)
    with pytest.raises(ValueError, match="did you mean 'cpu_per_test'"):
        CodeVerifier(limits={"cpu_per_tests": 2.5})
    with pytest.raises(ValueError, match="got 'cpu_per_test'"):
        CodeVerifier(limits="cpu_per_test")  # type: ignore[arg-type]


def test_details_name_no_addresses(verdict: Judge) -> None:
    judged = verdict(calls((1, 2), (2, 3)), "def f(x): return (i for i in range(x))")
    assert judged.reward == 0.0
    assert judged.detail
    assert "0x" not in judged.detail
