"""Which calls of a test can be made before it is judged."""

from __future__ import annotations

import pytest

from bestofk.rewards.code.hoisting import hoisted, with_plans

NAMES = {"f": "f", "candidate": "Solution().f"}


@pytest.mark.parametrize(
    ("source", "calls", "later"),
    [
        ("assert f(1) == 2", ["f(1)"], "assert a0 == 2"),
        ("assert f(1) == f(2)", ["f(1)", "f(2)"], "assert a0 == a1"),
        ("assert not f([1, 2], key={'a': 1})", ["f([1, 2], key={'a': 1})"], "assert not a0"),
        ("assert candidate(*[1], **{})", ["candidate(*[1], **{})"], "assert a0"),
        ("assert set(f(3)) == {1, 2}", ["f(3)"], "assert set(a0) == {1, 2}"),
        ("assert abs(f(3) - 1.5) < 1e-6", ["f(3)"], "assert abs(a0 - 1.5) < 1e-06"),
        ("assert math.isclose(f(2), 1)", ["f(2)"], "assert math.isclose(a0, 1)"),
        ("assert f(math.pi) == 1", ["f(math.pi)"], "assert a0 == 1"),
        ("assert f(1) == 2 and x", ["f(1)"], "assert a0 == 2 and x"),
        ("assert 1 if f(2) else 0", ["f(2)"], "assert 1 if a0 else 0"),
        ("assert all((x > 0 for x in f(5)))", ["f(5)"], "assert all((x > 0 for x in a0))"),
        ("assert f(1) == 2, 'one'", ["f(1)"], "assert a0 == 2, 'one'"),
        ("assert f(1) == 2, f(1)", ["f(1)"], "assert a0 == 2"),
        ("assert f(1)[0].x == 2", ["f(1)"], "assert a0[0].x == 2"),
    ],
)
def test_calls_that_are_always_made_come_first(source: str, calls: list[str], later: str) -> None:
    plan = hoisted(source, NAMES)
    assert plan is not None
    named = [(NAMES[c.partition("(")[0]], "__given__(" + c.partition("(")[2]) for c in calls]
    assert plan[0] == named
    assert plan[1].replace("__answer_", "a").replace("__", "") == later


@pytest.mark.parametrize(
    "source",
    [
        "assert f(f(1)) == 2",
        "assert x and f(1)",
        "assert 0 < f(1) < f(2)",
        "assert g if x else f(1)",
        "assert all(f(i) == i for i in range(3))",
        "assert (lambda: f(1))() == 1",
        "assert list(map(f, [1, 2])) == [2, 3]",
        "assert (y := f(1)) == y",
        "assert f is not None",
        "assert x == 2",
        "for i in range(3):\n    assert f(i) == i",
        "x = f(1)",
        "assert math.sqrt(4) == 2",
    ],
)
def test_what_cannot_be_taken_apart_is_left_alone(source: str) -> None:
    assert hoisted(source, NAMES) is None


def test_tests_before_another_statement_stand_as_they_are() -> None:
    rows = [("x = 1", False), ("assert f(1)", True), ("x = 2", False), ("assert f(x)", True)]
    plans = with_plans(rows, NAMES)
    assert [plan is not None for _, _, plan in plans] == [False, False, False, True]
    assert [row[:2] for row in plans] == rows
