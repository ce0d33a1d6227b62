"""Is what the program returned or printed what the task expects? Pure functions on plain values."""

from __future__ import annotations

import math
from typing import Any

from .codec import loaded

_SEQUENCES = (list, tuple)
_ROUNDING = 1e-6
"""Of printed numbers with a point, absolute and relative."""


def same(actual: Any, expected: Any, absolute: float = 0.0, relative: float = 0.0) -> bool:
    """Equal as Python's `==` has it, but list and tuple alike, NaN equal to NaN, floats within the
    declared tolerance (none unless declared), through nested containers.

    JSON, which task specs are made of, has no tuples and no other way to ask for NaN.

    >>> same((1, [2.0]), [1, (2,)]), same(0.3, 0.1 + 0.2), same(0.3, 0.1 + 0.2, 1e-9)
    (True, False, True)
    """
    inexact = isinstance(expected, float | complex) or isinstance(actual, float | complex)
    if inexact or _is_exact(expected) or _is_exact(actual):
        return _same_number(_plain_number(actual), _plain_number(expected), absolute, relative)
    if isinstance(expected, _SEQUENCES):
        if not isinstance(actual, _SEQUENCES) or len(actual) != len(expected):
            return False
        return all(same(a, e, absolute, relative) for a, e in zip(actual, expected, strict=True))
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or actual.keys() != expected.keys():
            return False
        return all(same(actual[key], expected[key], absolute, relative) for key in expected)
    return bool(actual == expected)


_FARTHEST = 5000
"""Exponent of a Decimal beyond which it is not compared as a fraction."""


def _is_exact(value: Any) -> bool:
    """Whether it is a Fraction or a Decimal, without importing either."""
    return type(value) in (loaded("fractions", "Fraction"), loaded("decimal", "Decimal"))


def _plain_number(value: Any) -> Any:
    """A Fraction or Decimal as an exact Fraction, so that kinds of numbers compare by value; as a
    float where that is NaN, infinite or has a huge exponent."""
    if not _is_exact(value):
        return value
    from fractions import Fraction

    if type(value) is Fraction:
        return value
    if not value.is_finite() or abs(value.adjusted()) > _FARTHEST:
        return float(value)
    return Fraction(value)


def _same_number(actual: Any, expected: Any, absolute: float, relative: float) -> bool:
    for value in (actual, expected):
        if not isinstance(value, int | float | complex) and not _is_exact(value):
            return False
    if actual == expected:
        return True
    if actual != actual or expected != expected:
        return actual != actual and expected != expected
    if not absolute and not relative:  # as floats, 2**53 and 2**53 + 1 would be the same
        return False
    try:
        distance, size = abs(actual - expected), abs(expected)
        return bool(size < math.inf and distance <= max(absolute, relative * size))
    except OverflowError:  # an integer beyond every float
        return False


def same_text(actual: str, expected: str, absolute: float = 0.0, relative: float = 0.0) -> bool:
    """All words alike, as most judges compare: line breaks and the number of blanks do not count.

    A word that is a number with a point in the expected text may differ by 1e-6 of it; with a
    tolerance, words that are numbers on both sides may differ by that.

    >>> same_text("1 \\n2\\n\\n", "1\\n2"), same_text("1  2", "1\\n2"), same_text("1", "1\\n2")
    (True, True, False)
    >>> same_text("0.3333333", "0.33333333333"), same_text("0.3", "0.33"), same_text("3.0", "3")
    (True, False, False)
    """
    words, expected_words = actual.split(), expected.split()
    if len(words) != len(expected_words):
        return False
    for one, other in zip(words, expected_words, strict=True):
        if one == other:
            continue
        rounding = _ROUNDING if "." in other else 0.0
        if not (rounding or absolute or relative):
            return False
        try:
            near = max(absolute, rounding), max(relative, rounding)
            if not _same_number(_number(one), _number(other), *near):
                return False
        except ValueError:
            return False
    return True


def _number(word: str) -> int | float:
    """The number that a word is, as other languages read it too: `float` alone also takes digits
    of every script and underscores between them, and blurs large integers."""
    if not word.isascii() or "_" in word:
        raise ValueError(f"not a number: {word}")
    return int(word) if word.removeprefix("-").isdigit() else float(word)
