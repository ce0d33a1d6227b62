"""Which calls of a test can be made before it is judged."""

from __future__ import annotations

import pytest

from bestofk.rewards.code.hoisting import hoisted, unstopped, with_plans

NAMES = {"f": "f", "candidate": "Solution().f"}


@pytest.mark.parametrize(
    ("source", "calls", "later"),
    [
        ("assert f(1) == 2", ["f(1)"], "assert a0 == 2"),
        ("assert f(1) == f(2)", ["f(1)", "f(2)"], "assert a0 == a1"),
        ("assert f(f(1)) == 2", ["f(f(1))"], "assert a0 == 2"),
        ("assert not f([1, 2], key={'a': 1})", ["f([1, 2], key={'a': 1})"], "assert not a0"),
        ("assert candidate(*[1], **{})", ["candidate(*[1], **{})"], "assert a0"),
        ("assert set(f(3)) == {1, 2}", ["f(3)"], "assert set(a0) == {1, 2}"),
        ("assert abs(f(3) - 1.5) < 1e-6", ["f(3)"], "assert abs(a0 - 1.5) < 1e-06"),
        ("assert math.isclose(f(2), 1)", ["f(2)"], "assert math.isclose(a0, 1)"),
        ("assert near(f(2), 1)", ["f(2)"], "assert near(a0, 1)"),
        ("assert f(math.pi) == 1", ["f(math.pi)"], "assert a0 == 1"),
        ("assert 1 if f(2) else 0", ["f(2)"], "assert 1 if a0 else 0"),
        ("assert f(1) == 2, 'one'", ["f(1)"], "assert a0 == 2, 'one'"),
        ("assert f(1) == 2, f(1)", ["f(1)"], "assert a0 == 2"),
        ("assert f(1)[0].x == 2", ["f(1)"], "assert a0[0].x == 2"),
    ],
)
def test_calls_that_are_always_made_come_first(source: str, calls: list[str], later: str) -> None:
    asking, judged = _plan(source)
    answers = ", ".join(f"a{number}={call}" for number, call in enumerate(calls))
    assert asking.startswith("held(0, (")
    assert asking.endswith(f"), {answers})")
    assert judged == [later]


def _plan(source: str) -> tuple[str, list[str]]:
    plan = hoisted(source, NAMES)
    assert plan is not None
    asking, later = plan
    return asking.replace("__answer_", "a").replace("__", ""), [
        text.replace("__answer_", "a").replace("__", "") for text in later
    ]


def test_a_comprehension_keeps_what_its_comparisons_use() -> None:
    asking, later = _plan("assert all(f(x) == y for x, y in cases if x)")
    assert asking == "held(0, ('all',), a1=[(f(x), copy(y)) for x, y in cases if x])"
    assert later == ["assert all((a0 == y for a0, y in a1))"]


def test_a_loop_holds_its_answers_and_the_variables_they_are_compared_with() -> None:
    asking, later = _plan("for x, y in cases:\n    z = y + 1\n    assert f(x) == z, x")
    assert asking == "for x, y in cases:\n    z = y + 1\n    held(0, ('x', 'z'), a0=f(x))"
    assert later == ["assert a0 == z, x"]


@pytest.mark.parametrize(
    "source",
    [
        "assert x and f(1)",
        "assert 0 < f(1) < f(2)",
        "assert g if x else f(1)",
        "assert (lambda: f(1))() == 1",
        "assert list(map(f, [1, 2])) == [2, 3]",
        "assert (y := f(1)) == y",
        "assert f is not None",
        "for i in range(3):\n    assert near(f(i), i)",
        "for i in range(3):\n    check(i)\n    assert f(i) == i",
        "for i in range(3):\n    assert f(i) == next(expected)",
        "for i in range(3):\n    try:\n        f(i)\n    except ValueError:\n        assert i",
        "while f(1):\n    assert f(2) == 3",
        "x = f(1)",
    ],
)
def test_what_cannot_be_taken_apart_is_left_alone(source: str) -> None:
    assert hoisted(source, NAMES) is None


def test_tests_before_another_statement_depend_on_nothing_that_it_may_change() -> None:
    rows = [
        ("x = 1", False), ("assert f(1) == x", True), ("assert near(f(1), 1)", True),
        ("x = 2", False), ("assert near(f(x), x)", True),
    ]  # fmt: skip
    plans = with_plans(rows, NAMES)
    assert [plan is not None for _, _, plan in plans] == [False, True, False, False, True]
    assert [is_test for _, is_test, _ in plans] == [is_test for _, is_test in rows]


def test_a_failed_assert_ends_no_test_unless_it_may_be_caught() -> None:
    helper = "def near(a, b):\n    assert abs(a - b) < 1"
    assert unstopped(helper, False).endswith("__holds__(abs(a - b) < 1, '')")
    assert unstopped("assert limit > 0", False) == "assert limit > 0"
    endless = "while f(1) > 0:\n    assert f(1) > 1"
    assert unstopped(endless, True) == endless
    caught = "try:\n    near(1, 2)\nexcept AssertionError:\n    ok = True"
    assert with_plans([(helper, False), (caught, False)], NAMES)[0][0] == helper
