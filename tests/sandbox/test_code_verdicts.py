# ruff: noqa: E501 - programs, one per line
"""The code verifier: forms of tests, statuses, values (29), tasks (30)."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.rewards.code.statements import split_asserts, split_check
from bestofk.sandbox.guest.same_values import same, same_text
from bestofk.types import Prompt, Verdict

Judge = Callable[[dict[str, Any], str], Verdict]
JudgeAll = Callable[[dict[str, tuple[dict[str, Any], str]]], dict[str, Verdict]]
PLUS_ONE = {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}
RIGHT = "def f(x): return x + 1"


# ------------------------------------------------------------------------------ forms of tests
def calls(*given: Any, **more: Any) -> dict[str, Any]:
    return {"entry_point": "f", "calls": [*given], **more}


PAIRS = [{"args": [1, 2], "expected": [1, 2]}, {"args": [1], "kwargs": {"b": 5}, "expected": [1, 5]}, {"args": [1, 1], "expected": [2, 2]}]  # fmt: skip
NEAR = calls({"args": [], "expected": [0.3, {"a": 1.0}]})
NEARLY = "def f(): return [0.1 + 0.2, {'a': 1 + 1e-7}]"
BY_REFERENCE = calls(*[{"args": [n]} for n in range(10)], solution="def f(n): return {n: (n, {n, n + 1})}")  # fmt: skip
SET_BACK = {"asserts": "r = f(1)\nassert r == 2\nr = f(2)\nassert r == 2\nassert True is not r"}
CHECK = "def check(candidate):\n    assert candidate(1) == 2\n    for i in range(3):\n        assert candidate(i) == i + 1\n"
METHOD = {"check": CHECK, "entry_point": "Solution().f"}
RETURNS = {"check": "def check(c):\n    if c(1) != 2:\n        assert False\n    return\n", "entry_point": "f"}  # fmt: skip
CLOSE = {"setup": "def close(a, b): return abs(a - b) < 1e-6", "asserts": ["assert close(f(1), 2)"]}
RAISES = {"asserts": "try:\n    f(1)\nexcept ValueError:\n    pass\nelse:\n    assert False"}
FOUR = {"asserts": [f"assert f({n}) == {n}" for n in range(4)]}
DIES = "import os\ndef f(x):\n    if x == 1: {}\n    return x"
IN_ORDER = {"asserts": ["x = f(1)", "assert x == 2", "x = f(x)", "assert x == 3", "assert f(x) == 4"]}  # fmt: skip
# `judged` asks the program how often it was called: three times, whenever a test is run.
BEFORE = {"asserts": ["def judged(answer): return (answer, asked())", "assert judged(f(1)) == (2, 3)", "assert judged(f(2)) == (3, 3), f(2)", "assert judged(f(3)) == (0, 3), f(3)"]}  # fmt: skip
ASKED = (
    "calls = []\ndef f(x):\n    calls.append(x)\n    return x + 1\ndef asked(): return len(calls)"
)
# Answers too many to hold are judged in parts; the program starts afresh after each.
IN_PARTS = calls(*[{"args": [i], "expected": [n, "x" * (3 << 20)]} for i, n in enumerate([1, 2, 3, 4, 5, 6, 1, 2])])  # fmt: skip
COUNTS = "calls = []\ndef f(x):\n    calls.append(x)\n    return (len(calls), 'x' * (3 << 20))"
LARGE = "def f(x): return 'x' * (3 << 20)"
SUM = {"stdio": [{"input": "\n".join(map(str, range(400_000))), "output": "79999800000"}]}
NUMBERS = "from decimal import Decimal\nfrom fractions import Fraction\n"
THIRDS = NUMBERS + "def f(x): return [Fraction(x, 3), Decimal(x) / 4]"
ROUNDED = calls({"args": [1], "expected": [0.3333333, 0.25]}, tolerance={"abs": 1e-6})

PASSED: dict[str, tuple[dict[str, Any], str, int, int]] = {
    "calls compare values": (calls(*PAIRS), "def f(a, b): return (a, b)", 2, 3),
    "calls without a tolerance": (NEAR, NEARLY, 0, 1),
    "calls with one": (NEAR | {"tolerance": {"abs": 1e-6}}, NEARLY, 1, 1),
    "calls by reference": (BY_REFERENCE, "def f(x): return {x: (x, {x + 1, x})}", 10, 10),
    "half of them": (BY_REFERENCE, "def f(x): return {x: (x, {x + 1, x})} if x < 5 else x", 5, 10),
    "asserts one by one": ({"asserts": "import math\nassert f(1) == 2\nx = f(2)\nassert x == 3\nassert math.isclose(f(3), 0)"}, RIGHT, 2, 3),
    "after a statement that failed": (SET_BACK, "def f(x):\n    if x == 2: raise ValueError\n    return 2", 1, 3),
    "a check": ({"check": CHECK, "entry_point": "f"}, RIGHT, 2, 2),
    "a check of a method": (METHOD, "class Solution:\n    def f(self, x): return x + 1", 2, 2),
    "of another method": (METHOD, "class Solution:\n    def g(self, x): return x + 1", 0, 2),
    "a check that returns": (RETURNS, RIGHT, 1, 1),
    "and finds a wrong value": (RETURNS, "def f(x): return x", 0, 1),
    "setup": (CLOSE, RIGHT, 1, 1),
    "setup out of reach": (CLOSE, "def close(a, b): return True\ndef f(x): return 0", 0, 1),
    "an exception": (RAISES, "def f(x): raise ValueError('no')", 1, 1),
    "another exception": (RAISES, "def f(x): raise KeyError('no')", 0, 1),
    "no exception": (RAISES, "def f(x): return 1", 0, 1),
    "an own exception of that name": (RAISES, "class ValueError(Exception): pass\ndef f(x): raise ValueError", 1, 1),
    "a builtin name": ({"asserts": ["assert sum(1, 2) == 12"], "entry_point": "sum"}, "def sum(a, b): return a * 10 + b", 1, 1),
    "a module's name": ({"asserts": ["assert bisect([1, 2], 2) == 1", "assert bisect([math.inf], 1) == 7"]}, "def bisect(a, x): return a.index(x) if x in a else 7", 2, 2),
    "death by exit": (FOUR, DIES.format("os._exit(0)"), 3, 4),
    "death by abort": (FOUR, DIES.format("os.abort()"), 3, 4),
    "death by a signal": (FOUR, DIES.format("os.kill(os.getpid(), 9)"), 3, 4),
    "duplicates": ({"asserts": ["assert f(1) == 2", "assert f(1) == 2", "assert f(2) == 3"]}, "def f(x): return 2", 2, 3),
    "thousands of failures": (calls(*[{"args": [n], "expected": n if n % 2 else -1} for n in range(8_000)]), "def f(x): return x", 4_000, 8_000),
    "tests that change what others use": (IN_ORDER, RIGHT, 3, 3),
    "the same, wrong": (IN_ORDER, "def f(x): return 2", 1, 3),
    "all calls before any answer is judged": (BEFORE, ASKED, 2, 3),
    "answers in parts": (IN_PARTS, COUNTS, 8, 8),
    "an input longer than outputs": ({"stdio": [{"input": "x" * (5 << 20), "output": f"{5 << 20}\n"}]}, "print(len(input()))", 1, 1),
    "a reference's results longer than one output": (calls({"args": [1]}, {"args": [2]}, solution=LARGE), LARGE, 2, 2),
    "a huge input, read": (SUM, "import sys\nprint(sum(map(int, sys.stdin)))", 1, 1),
    "a huge input, unread": (SUM, "print(79999800000)", 1, 1),
    "bytes that are no text": ({"stdio": [{"input": "", "output": "\ufffd\n"}]}, "import sys\nsys.stdout.buffer.write(b'\\xff\\n')", 0, 1),
    "the sign that replaces them": ({"stdio": [{"input": "", "output": "\ufffd\n"}]}, "print('\\ufffd')", 1, 1),
    "fractions and decimals of calls": (calls({"args": [1]}, {"args": [2]}, solution=THIRDS), THIRDS, 2, 2),
    "other fractions": (calls({"args": [1]}, {"args": [2]}, solution=THIRDS), THIRDS.replace("x, 3", "x, 4"), 0, 2),
    "within a tolerance": (ROUNDED, THIRDS, 1, 1),
    "without": (ROUNDED, THIRDS.replace("x, 3", "x, 4"), 0, 1),
    "a value that breaks a statement": ({"asserts": "value = f(1)\nmore = value + 1\nassert f(more) == 4"}, "def f(x): return None", 0, 1),
}  # fmt: skip

DEEP = "__import__('functools').reduce(lambda a, _: [a], range({}), [])"
VALUES = [
    ("float('nan')", "assert f() != f()", 1),
    ("float('nan')", "assert f() == f() + 0", 0),
    ("float('inf')", "assert f() > 10**300", 1),
    ("10 ** 5000", "assert f() == 10 ** 5000", 1),
    ("(i for i in range(3))", "assert list(f()) == [0, 1, 2]", 1),
    ("(i for i in range(3))", "assert f() == [0, 1, 2]", 0),
    ("(1, 2)", "assert f() == [1, 2]", 0),
    ("{1: {2: (3, [4])}}", "assert f() == {1: {2: (3, [4])}}", 1),
    ("1", "assert f() is True", 0),
    ("True", "assert f() == 1", 1),
    ("1j", "assert f() ** 2 == -1", 1),
    ("object()", "assert f()", 0),
    ("lambda: 1", "assert f()()", 0),
    ("iter(int, 1)", "assert f()", 0),
    ("'\\ud800'", "assert f() == '\\ud800'", 1),
    (DEEP.format(40), "assert f()", 1),
    (DEEP.format(500), "assert f()", 0),
    ("{'a': 1}.keys()", "assert f() == {'a'}", 1),
    ("map(str, [1, 2])", "assert ''.join(f()) == '12'", 1),
    ("__import__('collections').Counter('aab')", "assert f() == {'a': 2, 'b': 1}", 1),
    ("Fraction(1, 2)", "assert f() == Fraction(1, 2) != f() + 7", 1),
    ("Fraction(1, 2)", "assert f() == 0.5", 1),
    ("1 / 2", "assert f() == Fraction(1, 2)", 1),
    ("Decimal(1) / 10", "assert f() == Decimal('0.1') != f() + 7", 1),
    ("Decimal('0.100')", "assert f() == Decimal('0.1')", 1),
    ("[Decimal(1)]", "assert f() == [Decimal(1)]", 1),
    ("Decimal(1)", "assert f() == 1", 1),
]


HONEST = {
    "leaves after the definitions": "def f(x):\n    return x + 1\nexit()",
    "reads at the top level": "def f(x):\n    return x + 1\nprint(f(int(input())))",
    "async": "import asyncio\nasync def f(x):\n    await asyncio.sleep(0.001)\n    return x + 1",
    "NBSP": "def f(x):\n\xa0 \xa0 if x:\n    \xa0\xa0\xa0\xa0return x + len('\xa0')\n",
}


def test_scripts_around_right_functions_are_right(judge_all: JudgeAll) -> None:
    found = judge_all({name: (PLUS_ONE, program) for name, program in HONEST.items()})
    assert {name: verdict.reward for name, verdict in found.items()} == dict.fromkeys(HONEST, 1.0)


def test_what_the_tests_make_of_an_answer_is_no_fault_of_the_task(verdict: Judge) -> None:
    """Answers of other types would leave a program unscored."""
    program = "def f(x):\n    if x == 3: return {answer}\n    return len(list(x))"
    for passed in ("iter(f(3))", "reversed(f(3))", "f(3)", "type(f(3))"):
        spec = {"asserts": [f"assert f({passed}) == 3"]}
        for answer in ("range(3)", "dict.fromkeys('abc', 1).items()", "[1, 2, 3]", "{1: 2}.keys()"):
            judged = verdict(spec, program.format(answer=answer))
            assert judged.reward == float("type" not in passed and "{1" not in answer), judged


CHECKER = """
def check(input, output, expected):
    a, b = map(int, output.split())
    return a * b == int(input)
"""


def test_a_checker_of_the_task_s_own_judges_where_several_outputs_are_right(verdict: Judge) -> None:
    spec = {"stdio": [{"input": "12\n", "output": "3 4\n"}] * 2, "checker": CHECKER}
    for printed, reward in (("2, 6", 1.0), ("3, 4", 1.0), ("5, 5", 0.0), ("'no'", 0.0)):
        assert verdict(spec, f"print({printed})").reward == reward
    for code, why in (
        (
            "def check(input, output, expected): return output == 'x'",
            "does not accept the expected",
        ),
        ("def other(): pass", "fails on expected outputs: KeyError: 'check'"),
        ("def check(input, output, expected): return eval(output)", "must not execute"),
    ):
        judged = verdict(spec | {"checker": code}, "print(2, 6)")
        assert math.isnan(judged.reward)
        assert why in judged.detail


def test_programs_pass_the_tests_they_should(judge_all: JudgeAll) -> None:
    cases = dict(PASSED)
    for value, test, passes in VALUES:
        spec = {"setup": NUMBERS, "asserts": [test]}
        cases[f"{value}: {test}"] = (spec, f"{NUMBERS}def f(): return {value}", passes, 1)
    found = judge_all({name: case[:2] for name, case in cases.items()})
    counted = {name: (verdict.passed, verdict.total) for name, verdict in found.items()}
    assert counted == {name: case[2:] for name, case in cases.items()}
    for name, verdict in found.items():
        assert verdict.reward == cases[name][2] / cases[name][3], name


def test_a_reference_that_fails_scores_nobody(verdict: Judge) -> None:
    broken = verdict(BY_REFERENCE | {"solution": "def f(n): return n / 0"}, "def f(x): return x")
    assert math.isnan(broken.reward)
    assert "the reference failed on 10 inputs" in broken.detail


def test_short_limits_of_programs_are_not_those_of_the_reference() -> None:
    slow = "import time\ndef f(n):\n    while time.process_time() < 0.6: pass\n    return n"
    prompt = Prompt("slow", "", "code", calls({"args": [1]}, {"args": [2]}, solution=slow))
    with CodeVerifier(workers=1, limits={"cpu_per_test": 0.2, "cpu_per_program": 0.3}) as judge:
        right, itself = judge([prompt, prompt], ["def f(x): return x", slow])
    assert right.reward == 1.0
    assert (itself.reward, itself.status) == (0.0, "timeout")


def test_statuses(judge_all: JudgeAll) -> None:
    cases = {
        "correct": RIGHT,
        "partial": "def f(x): return 2",
        "incorrect": "def f(x): return 0",
        "unparsed": "def f(x) return",
        "unparsed, empty": "",
        "unparsed, too long": "x = " + "1" * (1 << 20),
        "timeout": "def f(x):\n    while True: pass",
        "memory": "def f(x): return len(bytearray(1 << 34))",
        "crashed": "import os; os._exit(3)",
    }
    found = judge_all({status: (PLUS_ONE, code) for status, code in cases.items()})
    assert [v.status for v in found.values()] == [name.split(",")[0] for name in cases]


def test_all_or_nothing_is_an_option(verifier: CodeVerifier) -> None:
    strict = CodeVerifier(reward="all", sandbox=verifier.sandbox)
    prompts = [Prompt("p", "", "code", PLUS_ONE)] * 2
    verdicts = strict(prompts, [RIGHT, "def f(x): return 2"])
    assert [(v.reward, v.passed, v.status) for v in verdicts] == [
        (1.0, 2, "correct"),
        (0.0, 1, "incorrect"),
    ]


def test_cpu_seconds_are_those_of_the_program(judge_all: JudgeAll) -> None:
    busy = "import time\ndef f(x):\n    while time.process_time() < x * .2: pass\n    return x + 1"
    idle = "import time\ndef f(x):\n    time.sleep(.3)\n    return x + 1"
    found = judge_all({"busy": (PLUS_ONE, busy), "idle": (PLUS_ONE, idle)})
    assert found["busy"].cpu_seconds > 0.3
    assert found["idle"].cpu_seconds < found["busy"].cpu_seconds / 2


# ------------------------------------------------------------------------------------ 29 values
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
    assert same_text("a  b", "a\nb")
    assert same_text("0.333333 x", "0.3333333333 x", 1e-4)
    assert not same_text("0.34 x", "0.3333333333 x", 1e-4)
    assert not same_text("nan", "1", 1e9)


def test_only_plain_digits_are_numbers_in_printed_text() -> None:
    assert same_text("1.0 -2", "1 -2.0", 1e-9)
    assert same_text("1e-1 .5 INF", "0.1 0.5 inf", 1e-9)
    for trick in ("1_0e-1", "1_0", "\u0661", "\uff11", "0x1", "--1", "1,0"):
        assert not same_text(trick, "1", 0.5), trick


def test_a_tolerance_does_not_blur_large_integers() -> None:
    assert not same_text("9007199254740993", "9007199254740992", 0.5)
    assert same_text("9007199254740993", "9007199254740992", 1.0)
    assert not same(2**53 + 1, 2.0**53)
    assert not same(10**400, 1.5, 1.0, 1.0)
    assert not same(10**400, 1j, 1.0)
    assert not same(1.0, math.inf, 1e9, 1e9)
    assert not same(complex(math.inf, 0), 1j, 1.0, 1.0)
    assert same(1j, 1j + 1e-9, 1e-6)


# ------------------------------------------------------------------------------------- 30 tasks
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
    verdicts = verifier(prompts, [RIGHT] * 8)
    assert [v.reward for v in verdicts] == [1.0] * 8


def test_details_are_fit_for_logs(verdict: Judge) -> None:
    for text in ("raise ValueError('\\ud800\\x1b[2J\\x00\\n')", "return '\\ud800\\x1b[31m'"):
        for spec in (PLUS_ONE, {"entry_point": "f", "calls": [{"args": [1], "expected": 2}]}):
            detail = verdict(spec, f"def f(x): {text}").detail
            assert detail
            assert detail.isprintable()
            detail.encode("utf-8")


def test_many_threads_may_cut_tests_at_once() -> None:
    source = "\n".join(f"assert f({n}) == [{n}, ({n}, {n + 1})]" for n in range(100))
    with ThreadPoolExecutor(8) as pool:
        totals = list(pool.map(lambda _: split_asserts(source).total, range(24)))
    assert totals == [100] * 24
