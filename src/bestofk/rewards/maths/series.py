"""Sums and products in an answer, worked out. Runs in the worker process.

A short sum is added term by term, symbolically. A long one of irrational terms becomes a
`LongSum`, which is added to as many digits as are asked for. An infinite product is a quotient of
gamma functions where its factors are a rational function P/Q of the index,

    ∏_{n ≥ s} ∏_i (n - a_i)/(n - b_i) = ∏_i Γ(s - b_i)/Γ(s - a_i),    where Σ a_i = Σ b_i,

and is multiplied out where its factors tend to 1 as fast as a geometric series.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mpmath
import sympy

UNENDING = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
CANCELS = 600
"""Digits to which a difference of irrational numbers must vanish to be zero."""
CANCELS_LONG = 100
"""The same where a long sum is part of it."""
_SHORT = 200
"""Terms that are added symbolically, whatever they are."""
_LONG = 2000
"""Terms that are added symbolically where digits do not decide: floor(log_2 8)."""
_MOST = 10_000
"""Terms that are added by their digits."""
_BITS = int(CANCELS_LONG * 3.33) + 64
_JUMPS = (sympy.floor, sympy.ceiling, sympy.Mod, sympy.frac, sympy.sign, sympy.Piecewise)
_STEADY = 20
"""Factors in a row that must come closer to 1, each by a quarter, before the rest is left out."""


class Undecided(ValueError):
    """A value that cannot be worked out here."""


def closed_form(term: sympy.Expr) -> sympy.Expr:
    """The term with its sums, products and integrals between numbers worked out.

    Raises:
        Undecided: an infinite product that is neither rational nor quick to converge.
    """
    done = {long.args[0] for long in term.atoms(LongSum)}
    parts = [part for part in term.atoms(*UNENDING) - done if not part.free_symbols]
    return term.xreplace({part: _worked_out(part) for part in parts})


def _worked_out(part: Any) -> Any:
    """One sum, product, integral or limit without variables."""
    if not isinstance(part, sympy.Sum | sympy.Product) or len(part.limits) != 1:
        return part.doit()
    index, first, last = part.limits[0]
    if first.is_Integer and last.is_Integer and last >= first:
        count, by_digits = last - first + 1, _has_digits(part.function, index)
        if count <= (_SHORT if by_digits else _LONG):
            terms = [part.function.subs(index, n) for n in range(int(first), int(last) + 1)]
            return (sympy.Add if isinstance(part, sympy.Sum) else sympy.Mul)(*terms)
        if by_digits and count <= _MOST:
            return LongSum(part)
    done = part.doit()
    if isinstance(part, sympy.Product) and done.has(sympy.Product) and last is sympy.oo:
        product = _rational_product(part.function, index, first)
        if product is None and first.is_Integer and _has_digits(part.function, index):
            return LongSum(part)
        if product is None:
            raise Undecided("an infinite product without a closed form that is known here")
        return product
    return done


def _has_digits(function: Any, index: Any) -> bool:
    return bool(function.free_symbols <= {index} and not function.has(*UNENDING, *_JUMPS))


def _rational_product(function: Any, index: Any, first: Any) -> Any:
    """The infinite product of P(n)/Q(n) from `first` on; None where it is no such quotient."""
    above, below = (
        part.as_poly(index, domain="QQ") for part in sympy.fraction(sympy.cancel(function))
    )
    if above is None or below is None or not first.is_Integer:
        return None
    if any(root >= first for root in sympy.roots(below, filter="Z")):
        raise Undecided("an infinite product with a factor that does not exist")
    if above.is_zero or any(root >= first for root in sympy.roots(above, filter="Z")):
        return sympy.S.Zero
    ratio = above.LC() / below.LC()
    change = above.degree() - below.degree()
    if change or abs(ratio) != 1:
        return sympy.oo if (change or abs(ratio) - 1) > 0 else sympy.S.Zero
    if ratio < 0:
        raise Undecided("an infinite product without a limit")
    rest = above.monic() - below.monic()
    if rest.degree() == above.degree() - 1:
        return sympy.oo if rest.LC() > 0 else sympy.S.Zero
    up = [sympy.gamma(first - root) for root in below.all_roots()]
    down = [sympy.gamma(first - root) for root in above.all_roots()]
    return sympy.Mul(*up) / sympy.Mul(*down)


class LongSum(sympy.Function):
    """A sum or product without variables that is worked out to the digits that are asked for."""

    nargs = 1

    @classmethod
    def eval(cls, part: Any) -> None:
        """Nothing is known before digits are asked for."""

    def _eval_evalf(self, precision: int) -> Any:
        return _digits(self.args[0], max(precision, _BITS))


@lru_cache(maxsize=64)
def _digits(part: Any, precision: int) -> Any:
    """The value to `precision` bits; 0 where the terms cancel each other to that."""
    bits = precision + 64
    for _ in range(2):
        with mpmath.workprec(bits):
            try:
                value, size = (
                    _added(part) if isinstance(part, sympy.Sum) else _multiplied(part, bits)
                )
            except ArithmeticError as error:
                raise Undecided(f"a term of a sum or product has no value: {error}") from error
            if abs(value) <= size * mpmath.ldexp(1, -precision):
                return sympy.S.Zero
            lost = mpmath.mag(size) - mpmath.mag(value)
            if lost < 32:
                break
        bits += lost  # terms that cancel in part are added again to more digits
    return _number(value, size, bits, precision)


def _number(value: Any, size: Any, bits: int, precision: int) -> Any:
    """As sympy's; a real or imaginary part that is nothing but rounding is 0."""
    parts = []
    for part in (mpmath.re(value), mpmath.im(value)):
        noise = abs(part) <= size * mpmath.ldexp(1, 16 - bits)
        parts.append(sympy.S.Zero if noise else sympy.Float._new(part._mpf_, precision))
    return parts[0] + sympy.I * parts[1]


def _added(part: Any) -> tuple[Any, Any]:
    """The sum, and the sum of absolute values, which its rounding is measured by."""
    term, start, end = _terms(part)
    assert end is not None  # infinite sums are left to sympy
    values = [term(mpmath.mpf(n)) for n in range(start, end + 1)]
    return mpmath.fsum(values), mpmath.fsum(values, absolute=True)


def _multiplied(part: Any, bits: int) -> tuple[Any, Any]:
    term, start, end = _terms(part)
    value, away, steady = mpmath.mpf(1), mpmath.inf, 0
    for n in range(start, (start + _MOST if end is None else end) + 1):
        factor = term(mpmath.mpf(n))
        if abs(factor) < mpmath.ldexp(1, -bits // 2) and _vanishes(part, n):
            return mpmath.mpf(0), mpmath.mpf(1)
        value *= factor
        if end is None:
            away, before = abs(factor - 1), away
            steady = steady + 1 if away <= 0.75 * before else 0
            if steady > _STEADY and away < mpmath.ldexp(1, -bits):
                return value, abs(value)
    if end is None:
        raise Undecided("an infinite product that converges too slowly to be multiplied out")
    return value, abs(value)


def _terms(part: Any) -> tuple[Any, int, int | None]:
    index, first, last = part.limits[0]
    term = sympy.lambdify([index], part.function, "mpmath")
    return term, int(first), None if last is sympy.oo else int(last)


def _vanishes(part: Any, n: int) -> bool:
    """Whether a tiny factor is 0: sin(π) has digits that are nothing but rounding."""
    factor = sympy.N(part.function.subs(part.limits[0][0], n), 15, maxn=CANCELS)
    return bool(factor == 0 or getattr(factor, "_prec", 2) == 1)
