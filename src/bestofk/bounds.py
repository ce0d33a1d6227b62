"""Bounds of settings, declared at the field and checked in one place.

@dataclass(frozen=True, kw_only=True)
class Sampling:
    temperature: Positive = 1.0

    def __post_init__(self) -> None:
        check_bounds(self)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from bestofk.common import unknown


@dataclasses.dataclass(frozen=True)
class Bound:
    """A rule in words, and whether a value obeys it."""

    rule: str
    holds: Callable[[Any], bool]


Count = Annotated[int, Bound("at least 1", lambda value: value >= 1)]
NaturalNumber = Annotated[int, Bound("0 or more", lambda value: value >= 0)]
Positive = Annotated[float, Bound("above 0", lambda value: value > 0)]
NonNegative = Annotated[float, Bound("0 or more", lambda value: value >= 0)]
Fraction = Annotated[float, Bound("between 0 and 1", lambda value: 0 <= value <= 1)]
PositiveFraction = Annotated[float, Bound("above 0 and at most 1", lambda value: 0 < value <= 1)]


def _parts(hint: Any) -> Iterator[Any]:
    """A type and the types inside it: an Optional or a tuple hides its annotations."""
    yield hint
    if get_origin(hint) not in (Annotated, Literal):
        for inside in get_args(hint):
            yield from _parts(inside)


@cache
def _rules(kind: type) -> dict[str, tuple[tuple[Bound, ...], tuple[str, ...]]]:
    """By field: its bounds, and the words it chooses from."""
    rules = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        parts = list(_parts(hint))
        bounds = [
            extra
            for part in parts
            if get_origin(part) is Annotated
            for extra in get_args(part)[1:]
            if isinstance(extra, Bound)
        ]
        words = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
        rules[name] = (tuple(bounds), words)
    return rules


def check_bounds(settings: Any) -> None:
    """Raise where a field of a settings dataclass breaks the bound declared at it.

    Numbers must be finite; None, where a field allows it, means "off" and has no bound.

    Raises:
        ValueError: The field, its rule and the value.
    """
    kind: type = type(settings)
    for name, (bounds, words) in _rules(kind).items():
        value = getattr(settings, name)
        if words and value is not None and value not in words:
            raise unknown(name, value, words)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"{name} is a finite number, got {item}")
            for bound in bounds:
                if item is not None and not bound.holds(item):
                    raise ValueError(f"{name} is {bound.rule}, got {item:g}")
