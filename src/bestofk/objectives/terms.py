"""The advantages of one term of an objective, for groups that are all live."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from array_api_compat import array_namespace, is_torch_array

from bestofk.procedures import MAX
from bestofk.procedures.arrays import Array, by_blocks
from bestofk.procedures.importance import pooled
from bestofk.procedures.symmetric_sums import scaled

from . import off_policy as off
from .grammar import Term
from .inputs import Inputs

OffPolicy: TypeAlias = Literal["exact", "first-order", "own-ratio", "none"]


class ObjectiveWarning(UserWarning):
    """The objective does something its name does not say."""


@dataclass(frozen=True)
class RatioUse:
    """What is done with log-ratios."""

    form: OffPolicy
    truncate: float | None
    self_normalise: bool
    clamp: float


def advantages_of_term(
    term: Term,
    rewards: Array,
    inputs: Inputs,
    use: RatioUse,
    options: Mapping[str, Any],
    *,
    check: bool,
) -> Array:
    """(groups, n) → (groups, n), times the share of the term in its mixture."""
    chosen = {name: options[name] for name in term.entry.options}
    if inputs.log_ratio is not None and use.form != "none":
        result = _off_policy(term, rewards, inputs, use, chosen, check=check)
    else:
        result = _on_policy(term, rewards, inputs, chosen, check=check)
    return result if term.weight == 1.0 else term.weight * result


def _off_policy(
    term: Term, rewards: Array, inputs: Inputs, use: RatioUse, chosen: Any, *, check: bool
) -> Array:
    procedure, baseline = term.entry.procedure, term.entry.baseline
    assert procedure.off_policy is not None  # `_log_ratios` has looked
    assert baseline is not None
    ratios = off.truncated(inputs.log_ratio, use.truncate)
    chosen = inputs.arguments(procedure.needs) | chosen
    if use.form == "first-order":
        return off.first_order(rewards, ratios, term.k, baseline=baseline, clamp=use.clamp)
    if use.form == "own-ratio":  # corrects each sample, ignores its siblings: biased
        on_policy = procedure.weights[baseline](rewards, term.k, **chosen)
        return scaled(on_policy, ratios, check=check)
    if inputs.log_alpha is not None and procedure.weighs_sizes:
        chosen["log_alpha"] = inputs.log_alpha
    elif inputs.log_alpha is not None:
        ratios = pooled(ratios, inputs.log_alpha, term.k, check=check)
    form: dict[str, Any] = {"baseline": baseline, "self_normalise": use.self_normalise}
    if is_torch_array(rewards) and procedure is MAX and _compiling():
        from .torch_operator import operator

        return operator(rewards, ratios, term.k, **form)
    chosen |= {"log_ratio": ratios, "check": check}
    return procedure.off_policy(rewards, k=term.k, **form, **chosen)


def _on_policy(term: Term, rewards: Array, inputs: Inputs, chosen: Any, *, check: bool) -> Array:
    entry, xp = term.entry, array_namespace(rewards)
    if check and entry.caution and bool(xp.all((rewards == 0) | (rewards == 1))):
        warnings.warn(f"{term.text}: {entry.caution}", ObjectiveWarning, stacklevel=5)
    if term.coefficients is not None:
        chosen = {"coefficients": term.coefficients}
    chosen = chosen | inputs.arguments(entry.needs)
    size = [term.k] if entry.takes_k else []

    def function(block: Array) -> Array:
        return entry.function(block, *size, **chosen)

    return function(rewards) if entry.needs else by_blocks(function, rewards)


def _compiling() -> bool:
    import torch

    return torch.compiler.is_compiling()
