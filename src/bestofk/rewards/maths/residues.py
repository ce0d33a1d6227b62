"""Equality of exact numbers that are too long to write down. Runs in the worker process.

2^(10^9) has 301 million digits, and sums of thousands of fractions not many fewer. Two rational
numbers a and b are equal where they agree modulo a few large primes p that nobody can foresee:

    a ≡ b (mod p),  with a = s/t read as s t^(-1) (mod p)

Each prime divides a difference of B bits with a probability below B / 2^90, so that three of them
err less than once in 10^50 comparisons, for numbers of up to a billion digits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import sympy

PRIMES = 3
PRIME_BITS = 100
MOST_BITS = 1 << 16
"""Bits of an exponent."""
MOST_TERMS = 100_000
"""Terms of a sum or product, and factors of a factorial."""

Names = Mapping[Any, int]
"""Indices of sums and products, and their values."""


class _Unknown(Exception):
    """Not a rational number, or one that takes too long."""


def same_number(a: Any, b: Any) -> bool | None:
    """Whether two terms of integers, + - * / ^, factorials, binomials and finite sums are equal.

    None where they hold anything else (a root, a variable), or where a value does not exist.

    >>> from sympy import Add, Integer, Pow, sqrt
    >>> a = Pow(Integer(2), Integer(10) ** 9, evaluate=False)
    >>> b = Pow(Integer(4), Integer(5) * 10 ** 8, evaluate=False)
    >>> same_number(a, b), same_number(a, Add(b, 1, evaluate=False)), same_number(a, sqrt(2))
    (True, False, None)
    """
    try:
        return all(_residue(a, prime, {}) == _residue(b, prime, {}) for prime in _primes())
    except (_Unknown, RecursionError):
        return None


@lru_cache(maxsize=1)
def _primes() -> tuple[int, ...]:
    """Drawn anew by every process: an answer must not be written for them."""
    chance = random.SystemRandom()
    draws = (chance.getrandbits(PRIME_BITS) | 1 << PRIME_BITS for _ in range(PRIMES))
    return tuple(int(sympy.nextprime(draw)) for draw in draws)


def _residue(term: Any, prime: int, names: Names) -> int:
    if isinstance(term, sympy.Rational):
        return int(term.p) * _inverse(int(term.q), prime) % prime
    if term in names:
        return names[term] % prime
    if isinstance(term, sympy.Add):
        return sum(_residue(part, prime, names) for part in term.args) % prime
    if isinstance(term, sympy.Mul):
        return _product((_residue(part, prime, names) for part in term.args), prime)
    if isinstance(term, sympy.Pow):
        base, power = _residue(term.base, prime, names), _integer(term.exp, names)
        return pow(base if power >= 0 else _inverse(base, prime), abs(power), prime)
    if isinstance(term, sympy.factorial):
        return _factorial(_integer(term.args[0], names), prime)
    if isinstance(term, sympy.binomial):
        n, k = (_integer(part, names) for part in term.args)
        if not 0 <= k <= n:
            raise _Unknown  # conventions differ
        below = _factorial(k, prime) * _factorial(n - k, prime)
        return _factorial(n, prime) * _inverse(below, prime) % prime
    if isinstance(term, sympy.Sum | sympy.Product) and len(term.limits) == 1:
        terms = (_residue(term.function, prime, at) for at in _places(term, names))
        return sum(terms) % prime if isinstance(term, sympy.Sum) else _product(terms, prime)
    raise _Unknown


def _inverse(number: int, prime: int) -> int:
    if number % prime == 0:
        raise _Unknown
    return pow(number, -1, prime)


def _product(factors: Any, prime: int) -> int:
    value = 1
    for factor in factors:
        value = value * factor % prime
    return value


def _factorial(n: int, prime: int) -> int:
    table = _FACTORIALS.setdefault(prime, [1])
    for factor in range(len(table), _counted(n) + 1):
        table.append(table[-1] * factor % prime)
    return table[n]


_FACTORIALS: dict[int, list[int]] = {}


def _places(term: Any, names: Names) -> Iterator[Names]:
    index, first, last = term.limits[0]
    start, end = _integer(first, names), _integer(last, names)
    if end < start:
        raise _Unknown  # conventions differ
    _counted(end - start)
    return ({**names, index: place} for place in range(start, end + 1))


def _counted(number: int) -> int:
    if not 0 <= number <= MOST_TERMS:
        raise _Unknown
    return number


def _integer(term: Any, names: Names) -> int:
    """The value of an exponent or a limit, written out."""
    if isinstance(term, sympy.Integer):
        return int(term)
    if term in names:
        return names[term]
    if isinstance(term, sympy.Add | sympy.Mul):
        parts = [_integer(part, names) for part in term.args]
        if isinstance(term, sympy.Add):
            return sum(parts)
        return _within(sum(part.bit_length() for part in parts), lambda: _whole_product(parts))
    if isinstance(term, sympy.Pow):
        base, power = _integer(term.base, names), _integer(term.exp, names)
        if power < 0:
            raise _Unknown
        return _within(base.bit_length() * power, lambda: base**power)
    raise _Unknown


def _whole_product(factors: list[int]) -> int:
    value = 1
    for factor in factors:
        value *= factor
    return value


def _within(bits: int, value: Callable[[], int]) -> int:
    if bits > MOST_BITS:
        raise _Unknown
    return value()
