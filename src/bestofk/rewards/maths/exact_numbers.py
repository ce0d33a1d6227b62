"""Exact values of terms without variables, written out. Runs in the worker process.

sympy leaves large powers, factorials and sums as they are, or takes seconds to work them out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import sympy

MOST_BITS = 1 << 20
"""Bits of a power."""
MOST_TERMS = 10_000
"""Terms of a sum or product, and the largest number whose factorial is taken."""

Names = Mapping[Any, Fraction]
"""Indices of sums and products, and their values."""


class _Unknown(Exception):
    """Not a rational number, or one that takes too long."""


def same_number(a: Any, b: Any) -> bool | None:
    """Whether two terms of integers, + - * / ^, factorials, binomials and finite sums are equal.

    None where they hold anything else (a root, a variable), where a value does not exist, and where
    it is too long to be written out.

    >>> from sympy import Add, Integer, Pow, sqrt
    >>> a = Pow(Integer(2), 10_000, evaluate=False)
    >>> b = Pow(Integer(4), 5_000, evaluate=False)
    >>> same_number(a, b), same_number(a, Add(b, 1, evaluate=False)), same_number(a, sqrt(2))
    (True, False, None)
    """
    try:
        return _value(a, {}) == _value(b, {})
    except (_Unknown, ZeroDivisionError, RecursionError):
        return None


def _value(term: Any, names: Names) -> Fraction:
    if isinstance(term, sympy.Rational):
        return Fraction(int(term.p), int(term.q))
    if term in names:
        return names[term]
    if isinstance(term, sympy.Add):
        return sum((_value(part, names) for part in term.args), Fraction(0))
    if isinstance(term, sympy.Mul):
        return math.prod((_value(part, names) for part in term.args), start=Fraction(1))
    if isinstance(term, sympy.Pow):
        base, power = _value(term.base, names), _integer(term.exp, names)
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(power) > MOST_BITS:
            raise _Unknown
        return base**power
    if isinstance(term, sympy.factorial):
        return Fraction(math.factorial(_counted(_integer(term.args[0], names))))
    if isinstance(term, sympy.binomial):
        n, k = (_integer(part, names) for part in term.args)
        if not 0 <= k <= n:
            raise _Unknown  # conventions differ
        return Fraction(math.comb(_counted(n), k))
    if isinstance(term, sympy.Sum | sympy.Product) and len(term.limits) == 1:
        values = (_value(term.function, at) for at in _places(term, names))
        is_sum = isinstance(term, sympy.Sum)
        return sum(values, Fraction(0)) if is_sum else math.prod(values, start=Fraction(1))
    raise _Unknown


def _places(term: Any, names: Names) -> Iterator[Names]:
    index, first, last = term.limits[0]
    start, end = _integer(first, names), _integer(last, names)
    _counted(end - start)  # conventions differ for an empty sum
    return ({**names, index: Fraction(place)} for place in range(start, end + 1))


def _counted(number: int) -> int:
    if not 0 <= number <= MOST_TERMS:
        raise _Unknown
    return number


def _integer(term: Any, names: Names) -> int:
    value = _value(term, names)
    if value.denominator != 1:
        raise _Unknown
    return value.numerator
