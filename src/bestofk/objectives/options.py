"""What objectives take by name: inputs of a call, and options, each in its range."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from bestofk.messages import choices, unknown
from bestofk.procedures.arrays import positive_integer
from bestofk.procedures.subsets import CONTROLS

from .grammar import Stage, Term


class CallInputs(TypedDict, total=False):
    """What an objective is called with beside rewards."""

    scores: Any
    """What chooses a sample at deployment (select@k), the shape of rewards; -inf loses to every
    number. Rewards say what the chosen sample is worth."""
    answers: Any
    """What votes (maj@k), the shape of rewards: equal values are one answer; None and NaN do not
    vote."""
    tokens: Any
    """How many a draw took (retry@k:tokens), the shape of rewards."""
    log_ratio: Any
    """log π_θ - log π_old of each whole completion, the shape of rewards."""
    entropy: Any
    """Mean response entropy, per group or per sample (adaptive design)."""
    entropy_threshold: float | None
    """By default the median over the groups of this call."""
    live: Any
    """True where a sample counts, the shape of rewards."""
    groups: Any
    """A group id per sample, in any order; rewards are then one row."""
    progress: float | None
    """The share of the run done (schedules)."""
    rng: Any
    """A NumPy generator or a seed (designs that draw random sets); or the uniform random numbers
    themselves, an array of the shape of rewards (`:full`), (..., n, n) (`:bootstrap`) or
    (..., n, draws) (`select@k:soft`), which tracing needs."""
    sample_weights: Any
    """α > 0 of samples of one prompt that come from several policies, the shape of rewards or one
    row for all groups; log_ratio is then to each sample's own policy. Fixed before the samples are
    seen (`procedures.importance.pooled`); exact form only."""
    check: bool
    """False never looks at the values, so that jax.jit, jax.vmap, torch.func.vmap and torch.compile
    can trace the call. Rewards must then be finite, all live and, where the objective asks for it,
    0/1; log-ratios must be finite."""


INPUTS = tuple(CallInputs.__annotations__)
OPTIONS = ("weights", "off_policy", "truncate", "self_normalise", "clamp", "threshold",
           "small_groups", "trust_region")  # fmt: skip


MISSING = {
    "price": "what a draw (with :tokens, a token) costs in units of reward: try price=0.02 for a "
    "draw, price=0.0001 for a token",
    "value": "your function (rewards, scores, answers) of k samples that returns what they are "
    "worth: value=lambda rewards, scores, answers: rewards.max()",
    "coefficients": "one for each of the k samples, lowest first: coefficients=[0, 0.5, 0.5]",
    "accuracy_threshold": "the share of correct samples above which a prompt is dropped: try "
    "accuracy_threshold=0.8",
}
"""What to write for an option without a default."""
RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "price": ("what one draw costs, a number of at least 0", lambda x: x >= 0),
    "stop": ("the reward at which no more is drawn", math.isfinite),
    "beta": ("a positive number", lambda x: x > 0),
    "accuracy_threshold": (
        "the share of correct samples above which a prompt is dropped, in [0, 1]",
        lambda x: 0 <= x <= 1,
    ),
}
"""What the number is, and whether it is in range."""


def finite_number(
    name: str,
    value: Any,
    what: str = "a finite number",
    good: Callable[[float], bool] = math.isfinite,
) -> float:
    """`value` as a float: a recipe can hold any kind of value."""
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and good(number)):
        raise ValueError(f"{name} is {what}, got {value!r}")
    return number


def finite_numbers(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, str | Mapping) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name} is a list of numbers, got {values!r}")
    return tuple(finite_number(name, value, "a list of finite numbers") for value in values)


def _takes_three(function: Any) -> bool:
    """Whether this can be called with rewards, scores and answers."""
    try:
        inspect.signature(function).bind(0, 0, 0)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        pass
    return callable(function)


def with_weights(
    text: str, stages: tuple[Stage, ...], shares: Sequence[float]
) -> tuple[Stage, ...]:
    if len(stages) != 1 or len(stages[0].terms) != len(shares):
        raise ValueError(
            f"weights= gives one number per term of a mixture such as max@1+8; {text!r} has "
            f"{len(stages[0].terms)} and got {len(shares)}"
        )
    terms = [replace(term, weight=share) for term, share in zip(stages[0].terms, shares)]
    return (Stage(0.0, tuple(terms)),)


def own_options(text: str, terms: Sequence[Term], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of the objective's own functions, with their defaults, each in its range."""
    chosen = {name: value for term in terms for name, value in term.entry.options.items()}
    for name in given:
        if name not in chosen:
            way_out = choices(name, [*chosen, *OPTIONS, *INPUTS])
            raise ValueError(f"objective {text} has no option or input {name!r}; {way_out}")
    chosen |= given
    for name, value in chosen.items():
        if value is ...:
            raise ValueError(f"objective {text} needs {name}=, {MISSING[name]}")
        if name in RANGES:
            chosen[name] = finite_number(name, value, *RANGES[name])
        elif name == "sets" and value is not None:
            chosen[name] = positive_integer(value, name)
        elif name == "value" and not _takes_three(value):
            raise ValueError(
                "value is a function (rewards, scores, answers) of k samples that returns what "
                f"they are worth, got {value!r}"
            )
        elif name == "control" and value not in (None, *CONTROLS):
            raise unknown("control", value, list(CONTROLS))
        elif name == "coefficients":
            chosen[name] = alphas = finite_numbers(name, value)
            for term in terms:
                if name in term.entry.options and len(alphas) != term.k:
                    raise ValueError(
                        f"{term.text} takes {term.k} coefficients, lowest of k first, got {alphas}"
                    )
    return chosen
