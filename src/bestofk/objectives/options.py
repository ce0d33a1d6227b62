"""Options of an objective, checked once where it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from bestofk.common import choices, unknown

from .arrays import positive_integer
from .grammar import Stage, Term
from .inputs import INPUTS
from .off_policy import check_truncate

OffPolicy: TypeAlias = Literal["exact", "first-order", "own-ratio", "none"]
OPTIONS = ("variant", "design", "weights", "off_policy", "truncate", "self_normalise", "clamp",
           "threshold", "small_groups", "trust_region")  # fmt: skip


def check_kinds(options: Mapping[str, Any]) -> None:
    """A recipe can hold any kind of value: an option's kind comes before its range.

    Raises:
        ValueError: a list where a number belongs, a text for true or false, and so on.
    """
    for name, value in options.items():
        if value is None:
            continue
        if name in ("variant", "design"):
            good, kind = isinstance(value, str), "the name of a variant"
        elif name == "self_normalise":
            good, kind = isinstance(value, bool), "true or false"
        elif name in ("weights", "coefficients"):
            good = not isinstance(value, str | Mapping) and _is_list_of_numbers(value)
            kind = "a list of numbers"
        else:
            good, kind = _is_number(value), "a number"
        if not good:
            raise ValueError(f"{name} is {kind}, got {value!r}")


def _is_number(value: Any) -> bool:
    if isinstance(value, str | bytes | bool):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_list_of_numbers(value: Any) -> bool:
    try:
        return all(map(_is_number, value))
    except TypeError:
        return False


def weighted(text: str, stages: tuple[Stage, ...], weights: Sequence[float]) -> tuple[Stage, ...]:
    shares = [float(weight) for weight in weights]
    if len(stages) != 1 or len(stages[0].terms) != len(shares):
        raise ValueError(
            f"weights= gives one number per term of a mixture such as max@1+8; {text!r} has "
            f"{len(stages[0].terms)} and got {len(shares)}"
        )
    if not all(map(math.isfinite, shares)):
        raise ValueError(f"weights of a mixture must be finite, got {shares}")
    terms = tuple(
        Term(term.text, term.entry, term.k, share, term.coefficients)
        for term, share in zip(stages[0].terms, shares)
    )
    return (Stage(0.0, terms),)


def check_forms(
    text: str,
    form: str,
    truncate: float | None,
    normalise: bool,
    clamp: float,
    has_region: bool,
    stages: tuple[Stage, ...],
) -> None:
    takes_log_ratio = any(term.entry.baseline for stage in stages for term in stage.terms)
    if not takes_log_ratio and (has_region or normalise):
        raise ValueError(
            f"{'trust_region' if has_region else 'self_normalise'} is about log_ratio=, which "
            f"objective {text} does not take: leave it out, or use max@k, pass@k or mean"
        )
    if form not in get_args(OffPolicy):
        raise unknown("off_policy", form, get_args(OffPolicy))
    if normalise and form != "exact":
        raise ValueError(f"self_normalise belongs to off_policy='exact', got {form!r}")
    if not clamp > 0:
        raise ValueError(f"clamp bounds |ρ - 1| and must be positive, got {clamp}")
    if clamp != 1.0 and form != "first-order":
        raise ValueError(f"clamp belongs to off_policy='first-order', got {form!r}")
    if normalise:
        for term in (term for stage in stages for term in stage.terms):
            if term.entry.baseline not in (None, "canonical"):
                name = term.text.partition(":")[0].replace("reinforce", "mean")
                raise ValueError(
                    "self-normalised weights are centred and have no other baseline: write "
                    f"{name} with self_normalise=True, got {term.text}"
                )
    k = max(term.k for stage in stages for term in stage.terms)
    check_truncate(truncate, k, bounded=normalise or form != "exact")


def own_options(
    text: str, stages: tuple[Stage, ...], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    allowed: dict[str, Any] = {}
    for stage in stages:
        for term in stage.terms:
            allowed.update(term.entry.options)
    for name in options:
        if name not in allowed:
            raise ValueError(
                f"objective {text} has no option or input {name!r}; "
                f"{choices(name, [*allowed, *OPTIONS, *INPUTS])}"
            )
    chosen = {**allowed, **options}
    missing = [name for name, value in chosen.items() if value is ...]
    if missing:
        raise ValueError(f"objective {text} needs {missing[0]}=")
    return {name: _checked(name, value, stages) for name, value in chosen.items()}


def _checked(name: str, value: Any, stages: tuple[Stage, ...]) -> Any:
    if name == "coefficients":
        check_kinds({name: value})
        numbers = tuple(float(number) for number in value)
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"coefficients must be finite numbers, got {numbers}")
        for stage in stages:
            for term in stage.terms:
                if "coefficients" in term.entry.options and len(numbers) != term.k:
                    raise ValueError(
                        f"{term.text} takes {term.k} coefficients, lowest of k first, got {numbers}"
                    )
        return numbers
    if name == "sets":
        return None if value is None else positive_integer(value, "sets")
    check_kinds({name: value})
    number = float(value)
    if name == "accuracy_threshold" and not 0 <= number <= 1:
        raise ValueError(
            "accuracy_threshold is the share of correct samples above which a prompt is dropped, "
            f"in [0, 1], got {value}"
        )
    if not math.isfinite(number) or (name == "beta" and number <= 0):
        raise ValueError(
            f"{name} must be a {'positive ' if name == 'beta' else ''}number, got {value}"
        )
    return number
