"""Terms in variables: whatever is paid has the same value everywhere, however it is written."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("latex2sympy2_extended")

from bestofk.rewards.maths.algebra_worker import Unparsed, equal
from bestofk.rewards.maths.plain_form import plain

Term = Any  # a number, a variable, or (operation, term, term)
POINTS = [
    {"x": Fraction(-7, 3), "y": Fraction(19, 11), "R": Fraction(2, 13)},
    {"x": Fraction(41, 5), "y": Fraction(-3, 17), "R": Fraction(-29, 7)},
    {"x": Fraction(6), "y": Fraction(-11), "R": Fraction(23)},
]
TERMS: st.SearchStrategy[Term] = st.recursive(
    st.integers(1, 5) | st.sampled_from("xyR"),
    lambda terms: st.tuples(st.sampled_from("+-*/"), terms, terms),
    max_leaves=4,
)


def value(term: Term, at: dict[str, Fraction]) -> Fraction:
    if isinstance(term, int):
        return Fraction(term)
    if isinstance(term, str):
        return at[term]
    sign, left, right = term[0], value(term[1], at), value(term[2], at)
    if sign == "/":
        return left / right
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def values(term: Term) -> list[Fraction] | None:
    """At all points, or None where it divides by zero."""
    try:
        return [value(term, at) for at in POINTS]
    except ZeroDivisionError:
        return None


def written(term: Term, compact: bool) -> str:
    if not isinstance(term, tuple):
        return str(term)
    sign, left, right = term[0], written(term[1], compact), written(term[2], compact)
    if sign == "/":
        return f"({left})/({right})" if compact else rf"\dfrac{{{left}}}{{{right}}}"
    if sign == "*":
        return (
            f"({left})({right})" if compact else rf"\left({left}\right) \cdot \left({right}\right)"
        )
    return f"{left}{sign}({right})" if compact else rf"{left}\,{sign}\,({right})"


def paid(gold: str, answer: str) -> bool:
    try:
        return equal(plain(gold), plain(answer))
    except Unparsed:
        return False


@settings(deadline=None, max_examples=60)
@given(TERMS, TERMS)
def test_what_is_paid_has_the_same_value_everywhere(gold: Term, answer: Term) -> None:
    if paid(written(gold, compact=False), written(answer, compact=True)):
        assert values(gold) == values(answer)


@settings(deadline=None, max_examples=60)
@given(TERMS)
def test_a_term_is_paid_in_another_spelling_and_not_plus_a_little(term: Term) -> None:
    if values(term) is None:
        return
    gold = written(term, compact=False)
    assert paid(gold, written(term, compact=True))
    assert not paid(gold, written(("+", term, ("/", 1, 10**30)), compact=True))
