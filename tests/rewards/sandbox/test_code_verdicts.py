# ruff: noqa: E501 - programs, one per line
"""The code verifier: forms of tests, statuses, values (29), tasks (30)."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards.base import prepare, refusals
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.rewards.code.statements import split_asserts, split_check
from bestofk.rewards.sandbox.guest.same_values import same, same_text
from bestofk.types import Prompt, Verdict

Judge = Callable[[dict[str, Any], str], Verdict]
PLUS_ONE = {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}


# ------------------------------------------------------------------------------ forms of tests
def test_calls_compare_values(verdict: Judge) -> None:
    calls = [
        {"args": [1, 2], "expected": [1, 2]},
        {"args": [1], "kwargs": {"b": 5}, "expected": [1, 5]},
        {"args": [1, 1], "expected": [2, 2]},
    ]
    judged = verdict({"entry_point": "f", "calls": calls}, "def f(a, b): return (a, b)")
    assert (judged.reward, judged.passed, judged.total) == (2 / 3, 2, 3)
    assert judged.status == "partial"


def test_calls_take_a_declared_tolerance_and_no_other(verdict: Judge) -> None:
    calls = [{"args": [], "expected": [0.3, {"a": 1.0}]}]
    code = "def f(): return [0.1 + 0.2, {'a': 1 + 1e-7}]"
    assert verdict({"entry_point": "f", "calls": calls}, code).reward == 0.0
    loose = {"entry_point": "f", "calls": calls, "tolerance": {"abs": 1e-6}}
    assert verdict(loose, code).reward == 1.0


def test_calls_without_expected_values_take_the_references(verdict: Judge) -> None:
    spec = {
        "entry_point": "f",
        "calls": [{"args": [n]} for n in range(10)],
        "solution": "def f(n): return {n: (n, {n, n + 1})}",
    }
    assert verdict(spec, "def f(x): return {x: (x, {x + 1, x})}").reward == 1.0
    assert verdict(spec, "def f(x): return {x: (x, {x + 1, x})} if x < 5 else x").reward == 0.5
    broken = verdict(spec | {"solution": "def f(n): return n / 0"}, "def f(x): return x")
    assert math.isnan(broken.reward)
    assert "the reference failed on 10 inputs" in broken.detail


def test_short_limits_of_programs_are_not_those_of_the_reference() -> None:
    slow = "import time\ndef f(n):\n    while time.process_time() < 0.6: pass\n    return n"
    spec = {"entry_point": "f", "calls": [{"args": [n]} for n in (1, 2)], "solution": slow}
    prompt = Prompt("slow", "", "code", spec)
    with CodeVerifier(workers=1, limits={"cpu_per_test": 0.2, "cpu_per_program": 0.3}) as judge:
        right, itself = judge([prompt, prompt], ["def f(x): return x", slow])
    assert right.reward == 1.0
    assert (itself.reward, itself.status) == (0.0, "timeout")


def test_asserts_are_counted_one_by_one(verdict: Judge) -> None:
    spec = {
        "asserts": "import math\nassert f(1) == 2\nx = f(2)\nassert x == 3\nassert math.isclose(f(3), 0)"
    }
    judged = verdict(spec, "def f(x): return x + 1")
    assert (judged.passed, judged.total) == (2, 3)


def test_tests_after_a_statement_that_failed_fail(verdict: Judge) -> None:
    spec = {"asserts": "r = f(1)\nassert r == 2\nr = f(2)\nassert r == 2\nassert True is not r"}
    code = "def f(x):\n    if x == 2: raise ValueError\n    return 2"
    assert verdict(spec, code).passed == 1


def test_check_functions_name_the_candidate(verdict: Judge) -> None:
    check = "def check(candidate):\n    assert candidate(1) == 2\n    for i in range(3):\n        assert candidate(i) == i + 1\n"
    spec = {"check": check, "entry_point": "f"}
    assert verdict(spec, "def f(x): return x + 1").passed == 2
    leetcode = {"check": check, "entry_point": "Solution().f"}
    assert verdict(leetcode, "class Solution:\n    def f(self, x): return x + 1").reward == 1.0
    assert verdict(leetcode, "class Solution:\n    def g(self, x): return x + 1").reward == 0.0


def test_a_check_that_returns_is_one_test(verdict: Judge) -> None:
    check = "def check(c):\n    if c(1) != 2:\n        assert False\n    return\n"
    assert verdict({"check": check, "entry_point": "f"}, "def f(x): return x + 1").reward == 1.0
    assert verdict({"check": check, "entry_point": "f"}, "def f(x): return x").reward == 0.0


def test_setup_runs_where_the_program_cannot_reach_it(verdict: Judge) -> None:
    spec = {
        "setup": "def close(a, b): return abs(a - b) < 1e-6",
        "asserts": ["assert close(f(1), 2)"],
    }
    assert verdict(spec, "def f(x): return x + 1").reward == 1.0
    assert verdict(spec, "def close(a, b): return True\ndef f(x): return 0").reward == 0.0


def test_a_prefix_comes_before_the_program(verdict: Judge) -> None:
    spec = PLUS_ONE | {"prefix": "def f(x):\n    '''Add one.'''\n"}
    assert verdict(spec, "    return x + 1").reward == 1.0
    assert verdict(spec, "```python\ndef f(x):\n    return x + 1\n```").reward == 1.0


def test_tests_may_expect_builtin_exceptions(verdict: Judge) -> None:
    spec = {"asserts": "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False"}
    assert verdict(spec, "def f(x): raise ValueError('no')").reward == 1.0
    assert verdict(spec, "def f(x): raise KeyError('no')").reward == 0.0
    assert verdict(spec, "def f(x): return 1").reward == 0.0
    assert (
        verdict(spec, "class ValueError(Exception): pass\ndef f(x): raise ValueError").reward == 1.0
    )


def test_a_builtin_name_is_the_programs_when_the_task_says_so(verdict: Judge) -> None:
    spec = {"asserts": ["assert sum(1, 2) == 12"], "entry_point": "sum"}
    assert verdict(spec, "def sum(a, b): return a * 10 + b").reward == 1.0


def test_death_in_one_test_costs_that_test(verdict: Judge) -> None:
    asserts = {"asserts": [f"assert f({n}) == {n}" for n in range(4)]}
    for death in ("os._exit(0)", "os.abort()", "os.kill(os.getpid(), 9)"):
        code = f"import os\ndef f(x):\n    if x == 1: {death}\n    return x"
        assert verdict(asserts, code).passed == 3


def test_statuses(verdict: Judge) -> None:
    cases = {
        "correct": "def f(x): return x + 1",
        "partial": "def f(x): return 2",
        "incorrect": "def f(x): return 0",
        "unparsed": "def f(x) return",
        "timeout": "def f(x):\n    while True: pass",
        "memory": "def f(x): return len(bytearray(1 << 34))",
        "crashed": "import os; os._exit(3)",
    }
    assert {status: verdict(PLUS_ONE, code).status for status, code in cases.items()} == {
        status: status for status in cases
    }
    assert verdict(PLUS_ONE, "").status == "unparsed"
    assert verdict(PLUS_ONE, "x = " + "1" * (1 << 20)).status == "unparsed"


def test_all_or_nothing_is_an_option(verifier: CodeVerifier) -> None:
    strict = CodeVerifier(reward="all", sandbox=verifier.sandbox)
    prompts = [Prompt("p", "", "code", PLUS_ONE)] * 2
    verdicts = strict(prompts, ["def f(x): return x + 1", "def f(x): return 2"])
    assert [(v.reward, v.passed, v.status) for v in verdicts] == [
        (1.0, 2, "correct"),
        (0.0, 1, "incorrect"),
    ]


def test_cpu_seconds_are_those_of_the_program(verdict: Judge) -> None:
    busy = "import time\ndef f(x):\n    while time.process_time() < x * .2: pass\n    return x + 1"
    idle = "import time\ndef f(x):\n    time.sleep(.3)\n    return x + 1"
    assert 0.3 < verdict(PLUS_ONE, busy).cpu_seconds < 0.8
    assert verdict(PLUS_ONE, idle).cpu_seconds < 0.1


# ------------------------------------------------------------------------------------ 29 values
@pytest.mark.parametrize(
    ("expression", "test", "passes"),
    [
        ("float('nan')", "assert f() != f()", True),
        ("float('nan')", "assert f() == f() + 0", False),
        ("float('inf')", "assert f() > 10**300", True),
        ("10 ** 5000", "assert f() == 10 ** 5000", True),
        ("(i for i in range(3))", "assert list(f()) == [0, 1, 2]", True),
        ("(i for i in range(3))", "assert f() == [0, 1, 2]", False),
        ("(1, 2)", "assert f() == [1, 2]", False),
        ("[1, 2]", "assert f() == [1, 2]", True),
        ("{1, 2}", "assert f() == {2, 1}", True),
        ("{1: {2: (3, [4])}}", "assert f() == {1: {2: (3, [4])}}", True),
        ("1", "assert f() is True", False),
        ("True", "assert f() == 1", True),
        ("b'x'", "assert f() == b'x'", True),
        ("1j", "assert f() ** 2 == -1", True),
        ("object()", "assert f()", False),
        ("lambda: 1", "assert f()()", False),
        ("iter(int, 1)", "assert f()", False),
        ("'\\ud800'", "assert f() == '\\ud800'", True),
        ("__import__('functools').reduce(lambda a, _: [a], range(40), [])", "assert f()", True),
        ("__import__('functools').reduce(lambda a, _: [a], range(500), [])", "assert f()", False),
        ("range(3)", "assert f() == range(3)", True),
        ("{'a': 1}.keys()", "assert f() == {'a'}", True),
        ("map(str, [1, 2])", "assert ''.join(f()) == '12'", True),
        ("__import__('collections').Counter('aab')", "assert f() == {'a': 2, 'b': 1}", True),
    ],
)
def test_values(verdict: Judge, expression: str, test: str, passes: bool) -> None:
    assert verdict({"asserts": [test]}, f"def f(): return {expression}").reward == passes


numbers = (
    st.integers(-5, 5) | st.floats(-5, 5) | st.booleans() | st.none() | st.text("ab", max_size=2)
)
values = st.recursive(
    numbers,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text("ab", max_size=2), v, max_size=3),
    max_leaves=6,
)


@given(values, values)
def test_without_tolerance_comparison_is_pythons_for_json_values(a: Any, b: Any) -> None:
    assert same(a, b) == (a == b)
    assert same(a, a)


def test_comparison_of_special_values() -> None:
    assert same(math.nan, math.nan)
    assert not same(math.nan, 0.0, 1e9)
    assert not same(math.inf, 1e308, 1e300, 1.0)
    assert same(math.inf, math.inf)
    assert not same(10**400, 1.0, 1.0)
    assert same((1, (2,)), [1, [2]])
    assert not same([1], 1)
    assert not same("1", 1)


def test_printed_text_is_compared_in_full() -> None:
    assert same_text("a b \r\nc\n\n", "a b\nc")
    assert not same_text("a", "a\nb")
    assert not same_text("a\nb", "a")
    assert not same_text("a  b", "a b")
    assert same_text("0.333333 x", "0.3333333333 x", 1e-4)
    assert not same_text("0.34 x", "0.3333333333 x", 1e-4)
    assert not same_text("nan", "1", 1e9)


# ------------------------------------------------------------------------------------- 30 tasks
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"asserts": []}, "no tests"),
    ({"asserts": ["assert True", "x = 1"]}, "no tests"),
    ({"check": "def check(f):\n    pass", "entry_point": "f"}, "no tests"),
    ({"calls": [], "entry_point": "f"}, "no tests"),
    ({"stdio": []}, "no tests"),
    ({"asserts": ["assert f(1) == 3"]}, "scores 0"),
    ({"asserts": ["assert f(1) == 2", "assert f(1) == 3"]}, "scores 0.5"),
    ({"asserts": ["raise ValueError", "assert f(1) == 2"]}, "what comes before the tests fails"),
    ({"asserts": ["assert f(object()) == 2"]}, "passed by value"),
    ({"asserts": ["assert f(1 == 2"]}, "SyntaxError"),
    ({"asserts": ["assert eval(str(f(1))) == 2"]}, "must not execute"),
    ({"asserts": ["import pickle", "assert f(1) == 2"]}, "must not execute"),
    ({"asert": ["assert f(1) == 2"]}, "did you mean 'asserts'"),
    ({"asserts": ["assert f(1) == 2"], "stdio": []}, "one of"),
    (
        {"calls": [{"args": [1], "expected": 2}], "entry_point": "f(); g"},
        "entry_point reads like",
    ),
]


@pytest.mark.parametrize(("spec", "reason"), REFUSED)
def test_tasks_that_cannot_be_trusted_are_refused_by_id(
    verifier: CodeVerifier, spec: dict[str, Any], reason: str
) -> None:
    good = Prompt("good", "", "code", PLUS_ONE, reference="def f(x): return x + 1")
    bad = Prompt("bad", "", "code", spec, reference="def f(x): return x + 1")
    refused = refusals(verifier, [good, bad])
    assert list(refused) == ["bad"]
    with pytest.raises(ValueError, match="bad"):
        prepare(verifier, [good, bad])
    why = verifier([bad], ["def f(x): return x + 1"])[0].detail + refused["bad"]
    assert reason in why


def test_duplicate_tests_count_as_written(verdict: Judge) -> None:
    spec = {"asserts": ["assert f(1) == 2", "assert f(1) == 2", "assert f(2) == 3"]}
    judged = verdict(spec, "def f(x): return 2")
    assert (judged.passed, judged.total) == (2, 3)


def test_vacuous_asserts_pay_nobody() -> None:
    cut = split_asserts(
        ["assert True, 'debug'", "assert f(1) == f(1)", "assert f(1) == 2", "assert 1"]
    )
    assert cut.total == 1
    check = "def check(c):\n    assert c(1) == f(1)\n    assert c(1) == 2\n    assert True"
    assert split_check(check, "f").total == 1


def test_what_tests_define_is_not_the_programs() -> None:
    cut = split_asserts(
        "import math as m\ndef g(a): return a\nb = [c for c in range(3)]\nassert f(g(b)) == m.pi"
    )
    assert set(cut.names) == {"f"}


def test_only_tests_that_change_nothing_share_a_checker() -> None:
    assert split_asserts(["assert set(f(1)) == {2}", "assert f(1)[0] == -1"]).pure
    for impure in ("import math", "x = 1", "assert setattr(f, 'a', 1)", "assert f.x == 1", "assert (y := f(1))",
                   "assert print(f(1))", "assert [x for x in f(1)]", "def g(): pass"):  # fmt: skip
        assert not split_asserts([impure, "assert f(1) == 2"]).pure, impure


def test_tests_that_change_their_process_do_not_reach_the_next_task(verifier: CodeVerifier) -> None:
    dirty: dict[str, Any] = {
        "asserts": "import math, builtins\nmath.pi = 3\nbuiltins.abs = None\nassert f(1) == 2"
    }
    clean: dict[str, Any] = {
        "asserts": ["import math", "assert f(2) < math.pi", "assert abs(f(1)) == 2"]
    }
    prompts = [Prompt(str(i), "", "code", spec) for i, spec in enumerate([dirty, clean] * 4)]
    verdicts = verifier(prompts, ["def f(x): return x + 1"] * 8)
    assert [v.reward for v in verdicts] == [1.0] * 8


def test_details_are_fit_for_logs(verdict: Judge) -> None:
    for text in ("raise ValueError('\\ud800\\x1b[2J\\x00\\n')", "return '\\ud800\\x1b[31m'"):
        for spec in (PLUS_ONE, {"entry_point": "f", "calls": [{"args": [1], "expected": 2}]}):
            detail = verdict(spec, f"def f(x): {text}").detail
            assert detail
            assert detail.isprintable()
            detail.encode("utf-8")


def test_thousands_of_failures_are_counted(verdict: Judge) -> None:
    calls = [{"args": [n], "expected": n if n % 2 else -1} for n in range(20_000)]
    judged = verdict({"entry_point": "f", "calls": calls}, "def f(x): return x")
    assert (judged.passed, judged.total) == (10_000, 20_000)


def test_many_threads_may_cut_tests_at_once() -> None:
    source = "\n".join(f"assert f({n}) == [{n}, ({n}, {n + 1})]" for n in range(100))
    with ThreadPoolExecutor(8) as pool:
        totals = list(pool.map(lambda _: split_asserts(source).total, range(24)))
    assert totals == [100] * 24
