"""Equality of what was parsed: terms, matrices, sets, relations. Runs in the worker process.

Nothing is rounded. Decimals are exact fractions, rational values are compared exactly, and others
(roots, logarithms) by whether their difference vanishes to 600 digits. Terms with variables are
compared at several points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy.core.relational import Relational

from bestofk.rewards.maths.exact_numbers import same_number

DIGITS = 40
CANCELS = 600
"""Digits to which a difference of irrational numbers must vanish to be zero."""
UNENDING = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
# Values of the first three variables, and what is added for every three more. Both orders and both
# signs occur, and integers, where floor and ceiling meet. The first two are never negative
# together, as sqrt(x) sqrt(y) is sqrt(xy) in school.
POINTS = (
    (("37/29", "53/31", "71/43"), "3/7"),
    (("141/23", "-59/37", "13/47"), "-5/11"),
    (("-113/89", "11/97", "-217/83"), "13/9"),
    (("5", "3", "8"), "6"),
    (("4", "10", "7"), "-13"),
)
# Factorials, binomials and sums up to a variable are meant for integers, and exact there.
INTEGER_POINTS = (
    (("5", "3", "8"), "6"),
    (("4", "10", "7"), "13"),
    (("7", "2", "3"), "5"),
    (("9", "6", "4"), "2"),
    (("12", "5", "9"), "3"),
)
_FRACTIONAL = 3  # of the points; at the others, integers, a term may have a pole
_ON_INTEGERS = (sympy.factorial, sympy.binomial, sympy.Sum, sympy.Product)
_MOST_FACTORS = 2000
"""The largest power of a matrix that is multiplied out."""
_IMAGINARY = {sympy.Symbol("i"): sympy.I}
_FLIPPED = {
    sympy.StrictGreaterThan: sympy.StrictLessThan,
    sympy.GreaterThan: sympy.LessThan,
}


class Undecided(ValueError):
    """A value that cannot be worked out here."""


def closed_form(term: sympy.Expr) -> sympy.Expr:
    """The term with its sums, products and integrals between numbers worked out.

    Raises:
        Undecided: one that sympy cannot work out, and every infinite product.
    """
    values = {}
    for part in term.atoms(*UNENDING):
        if not part.free_symbols:
            values[part] = part.doit()
            infinite = isinstance(part, sympy.Product) and part.has(sympy.oo)
            if infinite or values[part].has(*UNENDING):
                raise Undecided("a sum, product, integral or limit that is not worked out")
    return term.xreplace(values)


def exact(value: Any) -> Any:
    """The same with decimals as fractions, figure by figure: 0.1 is 1/10."""
    if not isinstance(value, sympy.Basic | sympy.MatrixBase):
        return value
    decimals = value.atoms(sympy.Float)
    if isinstance(value, sympy.Float):
        return sympy.Rational(str(value))
    return value.xreplace({decimal: sympy.Rational(str(decimal)) for decimal in decimals})


def same_object(expected: Any, value: Any) -> bool:
    """Whether two parsed answers are equal; things of different kinds are not."""
    expected, value = _power_of_matrix(expected), _power_of_matrix(value)
    if is_matrix(expected) or is_matrix(value):
        return _same_matrix(expected, value)
    if isinstance(expected, sympy.Set) or isinstance(value, sympy.Set):
        return _same_set(expected, value)
    if _is_relation(expected) or _is_relation(value):
        return _same_relations(expected, value)
    if isinstance(expected, sympy.Tuple) and isinstance(value, sympy.Tuple):
        return _same_each(expected.args, value.args)
    if isinstance(expected, sympy.Expr) and isinstance(value, sympy.Expr):
        return same_value(expected, value)
    return False


def same_value(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """Whether two terms are equal: exactly, or at every point of their variables.

    Where no value can be had (an unknown function), only what simplifies to the same is equal.
    """
    exactly = same_number(gold, answer)
    if exactly is not None:
        return exactly
    gold, answer = (term.subs(_IMAGINARY) for term in (gold, answer))
    if any(term.has(sympy.nan, sympy.zoo) for term in (gold, answer)):
        return False
    if gold == answer:
        return True
    gold, answer = (closed_form(term) for term in (gold, answer))
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    decided = outside = 0
    on_integers = any(p.free_symbols for t in (gold, answer) for p in t.atoms(*_ON_INTEGERS))
    points = INTEGER_POINTS if on_integers else POINTS if symbols else POINTS[:1]
    for place, point in enumerate(points):
        at = _values_at(point, symbols)
        a, b = (closed_form(term.subs(at)) for term in (gold, answer))
        zero = _is_zero(a - b)
        if zero is False and symbols and _is_unreal(a) and _is_unreal(b):
            outside += 1  # roots and logarithms of school: no value for either side here
            continue
        if zero is False:
            return False
        if zero is None and place < _FRACTIONAL and not on_integers:
            break
        decided += zero is True
    else:
        return decided > 1 if outside else decided > 0
    return bool(sympy.simplify(gold - answer) == 0)


def _values_at(point: Any, symbols: Sequence[Any]) -> dict[Any, Any]:
    first, step = point
    return {
        symbol: sympy.Rational(first[i % 3]) + (i // 3) * sympy.Rational(step)
        for i, symbol in enumerate(symbols)
    }


def _is_unreal(value: sympy.Expr) -> bool:
    """Whether a term without variables has a value, and that is no real number."""
    number = sympy.N(value, DIGITS)
    if not number.is_number or number.has(sympy.nan, sympy.zoo, sympy.oo):
        return False
    imaginary = number.as_real_imag()[1]
    return bool(imaginary.is_Number and imaginary != 0 and getattr(imaginary, "_prec", 2) != 1)


def _is_zero(term: sympy.Expr) -> bool | None:
    """Whether a term without variables is zero; None where it has no value."""
    if not term.has(*UNENDING):
        term = term.doit()
        if term.is_Rational:
            return bool(term == 0)
    number = sympy.N(term, DIGITS, maxn=CANCELS)
    if not number.is_number or number.has(sympy.nan, sympy.zoo, sympy.oo):
        return None
    for part in number.as_real_imag():
        if not part.is_Number:
            return None
        if part != 0 and getattr(part, "_prec", 2) != 1:  # precision 1: it cancelled to nothing
            return False
    return True


def _power_of_matrix(value: Any) -> Any:
    """A power of a matrix as a matrix: the parser leaves it a power of something."""
    if isinstance(value, sympy.Pow) and isinstance(value.base, sympy.MatrixBase):
        power = value.exp.doit()
        if power.is_Integer and abs(power) <= _MOST_FACTORS and value.base.is_square:
            return value.base ** int(power)
    return value


def is_matrix(value: Any) -> bool:
    """Whether it is a matrix or a product of matrices."""
    return isinstance(value, sympy.MatrixBase | sympy.MatrixExpr)


def _same_matrix(expected: Any, value: Any) -> bool:
    if not (is_matrix(expected) and is_matrix(value)):
        return False
    expected, value = (sympy.Matrix(matrix.doit()) for matrix in (expected, value))
    return expected.shape == value.shape and _same_each(expected.flat(), value.flat())


def _same_each(expected: Sequence[Any], value: Sequence[Any]) -> bool:
    return len(expected) == len(value) and all(map(same_object, expected, value))


def _same_set(expected: Any, value: Any) -> bool:
    """Unions of intervals and points, whatever their order or overlap."""
    if not (isinstance(expected, sympy.Set) and isinstance(value, sympy.Set)):
        return False
    return _pair_up(_pieces(expected), _pieces(value), _same_piece)


def _pair_up(reference: list[Any], response: list[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Whether each of one list has one of the other to itself, whatever their order."""
    unpaired = list(response)
    for one in reference:
        at = next((at for at, other in enumerate(unpaired) if same(one, other)), None)
        if at is None:
            return False
        del unpaired[at]
    return not unpaired


def _pieces(value: sympy.Set) -> list[Any]:
    """Intervals and points of a set in its simplest form; a set of another kind stays whole."""
    simple = value.doit()
    pieces: list[Any] = []
    for part in simple.args if isinstance(simple, sympy.Union) else (simple,):
        pieces += part.args if isinstance(part, sympy.FiniteSet) else (part,)
    return [p for p in pieces if p is not sympy.S.EmptySet]


def _same_piece(expected: Any, value: Any) -> bool:
    if isinstance(expected, sympy.Interval) and isinstance(value, sympy.Interval):
        if (expected.left_open, expected.right_open) != (value.left_open, value.right_open):
            return False
        return same_value(expected.start, value.start) and same_value(expected.end, value.end)
    if isinstance(expected, sympy.Set) or isinstance(value, sympy.Set):
        return bool(expected == value)
    return same_object(expected, value)


def _is_relation(value: Any) -> bool:
    return isinstance(value, Relational | sympy.And)


def _same_relations(expected: Any, value: Any) -> bool:
    """The same relations in any order: 1 < x < 2 is x > 1 and x < 2."""
    if not (_is_relation(expected) and _is_relation(value)):
        return False
    reference, response = (
        list(one.args) if isinstance(one, sympy.And) else [one] for one in (expected, value)
    )
    return _pair_up(reference, response, _same_relation)


def _same_relation(expected: Any, value: Any) -> bool:
    """Whether one is the other times a number, a positive one for an inequality."""
    if not (isinstance(expected, Relational) and isinstance(value, Relational)):
        return False
    (kind, a), (response_kind, b) = map(_as_difference, (expected, value))
    if kind is not response_kind:
        return False
    if a is None or b is None:
        return same_object(expected.lhs, value.lhs) and same_object(expected.rhs, value.rhs)
    at = _values_at(POINTS[0], sorted(a.free_symbols | b.free_symbols, key=str))
    factor_a, factor_b = a.subs(at), b.subs(at)
    if _is_zero(factor_a) is not False or _is_zero(factor_b) is not False:
        return False
    if issubclass(kind, sympy.Eq | sympy.Ne):
        return same_value(a * factor_b, b * factor_a)
    return same_value(a * factor_b, b * factor_a) and bool((factor_a / factor_b).is_positive)


def _as_difference(relation: Any) -> tuple[type, Any]:
    """The kind of a relation, "greater" turned to "less", and its left side minus its right."""
    kind = _FLIPPED.get(type(relation), type(relation))
    if not all(isinstance(side, sympy.Expr) for side in relation.args):
        return kind, None
    difference = relation.lhs - relation.rhs
    return kind, -difference if kind is not type(relation) else difference
