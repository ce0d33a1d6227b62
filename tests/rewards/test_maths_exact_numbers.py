"""Terms of integers are equal exactly when their values, by the rules of school, are."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("sympy")

import sympy

from bestofk.rewards.maths.exact_numbers import same_number

k = sympy.Symbol("k")
Term = Any  # a number or (operation, terms); both as nested tuples
TERMS: st.SearchStrategy[Term] = st.recursive(
    st.fractions(-9, 9, max_denominator=7),
    lambda terms: (
        st.tuples(st.sampled_from("+*/"), terms, terms)
        | st.tuples(st.just("^"), terms, st.integers(-3, 4))
        | st.tuples(st.just("!"), st.integers(0, 6))
        | st.tuples(st.just("choose"), st.integers(3, 7), st.integers(0, 3))
        | st.tuples(st.just("sum"), terms, st.integers(0, 3), st.integers(3, 5))
        | st.tuples(st.just("product"), terms, st.integers(1, 3), st.integers(3, 4))
    ),
    max_leaves=5,
)


def value(term: Term) -> Fraction:
    """Written out by the rules of school; sums and products are of `term + k`."""
    if not isinstance(term, tuple):
        return Fraction(term)
    sign, *rest = term
    if sign in ("sum", "product"):
        inner = value(rest[0])
        parts = [inner + place for place in range(rest[1], rest[2] + 1)]
        return sum(parts, Fraction(0)) if sign == "sum" else math.prod(parts, start=Fraction(1))
    if sign == "!":
        return Fraction(math.factorial(rest[0]))
    if sign == "choose":
        return Fraction(math.comb(*rest))
    a, b = value(rest[0]), value(rest[1])
    return {"+": lambda: a + b, "*": lambda: a * b, "/": lambda: a / b, "^": lambda: a ** int(b)}[
        sign
    ]()


def built(term: Term) -> Any:
    """The same for sympy, with nothing worked out."""
    if not isinstance(term, tuple):
        return sympy.Rational(term.numerator, term.denominator)
    sign, *rest = term
    if sign in ("sum", "product"):
        kind = sympy.Sum if sign == "sum" else sympy.Product
        return kind(sympy.Add(built(rest[0]), k, evaluate=False), (k, rest[1], rest[2]))
    if sign == "!":
        return sympy.factorial(rest[0], evaluate=False)
    if sign == "choose":
        return sympy.binomial(*rest, evaluate=False)
    a, b = built(rest[0]), built(Fraction(rest[1]) if isinstance(rest[1], int) else rest[1])
    if sign == "/":
        return sympy.Mul(a, sympy.Pow(b, -1, evaluate=False), evaluate=False)
    kind = {"+": sympy.Add, "*": sympy.Mul, "^": sympy.Pow}[sign]
    return kind(a, b, evaluate=False)


@settings(deadline=None, max_examples=300)
@given(TERMS, TERMS)
@example(("/", Fraction(1), Fraction(0)), Fraction(1))
def test_two_numbers_are_equal_exactly_when_they_are_written_out(a: Term, b: Term) -> None:
    try:
        values = value(a), value(b)
    except ZeroDivisionError:
        assert same_number(built(a), built(b)) is None
        return
    assert same_number(built(a), built(b)) is (values[0] == values[1])
    assert same_number(built(a), built(values[0])) is True
    assert same_number(built(a), built(values[0] + Fraction(1, 10**40))) is False


def power(base: int, exponent: Any) -> Any:
    return sympy.Pow(sympy.Integer(base), sympy.sympify(exponent), evaluate=False)


@pytest.mark.parametrize(
    "term",
    [sympy.sqrt(2), sympy.pi, k, sympy.I, sympy.oo, sympy.zoo, sympy.nan, power(0, -1),
     sympy.factorial(10**8, evaluate=False), power(2, sympy.Rational(1, 2)),
     sympy.Sum(k, (k, 1, 10**7)), sympy.Sum(k, (k, 3, 1)), sympy.Sum(k, (k, 1, sympy.oo)),
     power(9, power(9, power(9, 9))), power(2, 10**9)],
    ids=range(15),
)  # fmt: skip
def test_what_is_no_number_or_takes_too_long_is_left_to_others(term: Any) -> None:
    assert same_number(term, sympy.Integer(1)) is None
