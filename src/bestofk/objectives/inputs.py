"""What an objective looks at beside rewards: read once, checked, cut to each bucket of groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bestofk.procedures.arrays import Array, as_float64, as_numpy, constant, is_array
from bestofk.procedures.grouping import Bucket, Layout, gather, in_bucket
from bestofk.procedures.majority import numbered
from bestofk.procedures.selection import DRAWS

from . import off_policy
from .grammar import Term
from .options import CallInputs, finite_number


@dataclass(frozen=True)
class Inputs:
    """Of one call, whole or of one bucket of groups: arrays (..., n) or (groups, n)."""

    log_ratio: Array | None = None
    log_alpha: Array | None = None
    """log of the sample weights."""
    needed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By the needs of the catalog: arguments of the functions that have them."""

    def of(self, bucket: Bucket, *, check: bool) -> Inputs:
        """The inputs of a bucket's groups."""
        ratios = alpha = None
        if self.log_ratio is not None:
            ratios = gather(self.log_ratio, bucket)
            if check:
                off_policy.require_finite(
                    ratios, "log_ratio", "give samples without one live=False"
                )
        if self.log_alpha is not None:
            alpha = off_policy.log_weights(gather(self.log_alpha, bucket), check=check)
        needed = {}
        for need, values in self.needed.items():
            needed[need] = {name: _cut(name, each, bucket) for name, each in values.items()}
            if check and need in ("scores", "tokens"):
                _require_numbers(need, needed[need][need])
        return Inputs(ratios, alpha, needed)

    def arguments(self, needs: Iterable[str]) -> dict[str, Any]:
        """What a function with these needs is called with."""
        return {name: value for need in needs for name, value in self.needed[need].items()}


def read_inputs(
    text: str, terms: Sequence[Term], rewards: Array, layout: Layout, inputs: CallInputs
) -> Inputs:
    """The inputs of a call, those that no term needs left out.

    Args:
        text: the objective, for errors.
        terms: those in force.
        rewards: float64, the shape that per-sample inputs have.
        layout: how the rewards fall into groups.
        inputs: as the caller passed them.
    """
    needed = {name for term in terms for name in term.entry.needs}
    check = inputs.get("check", True)
    if not check and {"answers", "samples"} & needed:
        raise ValueError(
            f"objective {text} looks at samples on the host, which cannot be traced: leave "
            "check=False out"
        )
    arguments: dict[str, dict[str, Any]] = {}
    if "rng" in needed:
        arguments["rng"] = {"rng": _random_numbers(text, inputs.get("rng"))}
    if "noise" in needed:
        arguments["noise"] = {"noise": _gumbel(text, inputs.get("rng"), rewards)}
    if "entropy" in needed:
        arguments["entropy"] = _entropies(text, inputs, rewards, layout)
    for name, why in NEEDED.items():
        if name in needed:
            values = inputs.get(name)
            if values is None:
                raise ValueError(f"objective {text} needs {name}=, one per sample: {why}")
            arguments[name] = {name: _column(name, values, rewards)}
    if "answers" in needed:
        arguments["answers"] = {"answers": numbered(arguments["answers"]["answers"])}
    if "samples" in needed:
        arguments["samples"] = {
            name: None if inputs.get(name) is None else _column(name, inputs[name], rewards)
            for name in ("scores", "answers")
        }
    alpha, log_ratio = inputs.get("sample_weights"), inputs.get("log_ratio")
    if alpha is not None:
        alpha = off_policy.weights_of_samples(alpha, rewards)
        log_ratio = array_namespace(rewards).zeros_like(rewards) if log_ratio is None else log_ratio
    ratios = None if log_ratio is None else _log_ratios(log_ratio, rewards, terms)
    return Inputs(ratios, alpha, arguments)


NEEDED = {
    "tokens": "how many each draw took",
    "scores": "they choose which of k samples is used (with :weighted, they are its votes), and "
    "rewards say what it is worth",
    "answers": "equal ones vote together, None does not vote",
}
"""What inputs with a value per sample are for."""


def _column(name: str, values: Any, rewards: Array) -> Any:
    """A value per sample; answers as they are, on the host."""
    if name != "answers":
        return per_sample(values, rewards, name)
    labels = as_numpy(values) if is_array(values) else np.array(values, dtype=object)
    if labels.shape != tuple(rewards.shape):
        raise ValueError(
            f"answers must have the shape of rewards, {tuple(rewards.shape)}, got {labels.shape}: "
            "turn answers that are lists or tuples into texts"
        )
    return labels


def _cut(name: str, values: Any, bucket: Bucket) -> Any:
    """An argument of all groups for those of a bucket."""
    if values is None or name in ("rng", "threshold"):
        return values
    if name == "entropy":
        return in_bucket(values, bucket)
    if name == "noise":
        draws = [gather(values[..., draw], bucket) for draw in range(values.shape[-1])]
        return array_namespace(values).stack(draws, axis=-1)
    return gather(values, bucket)


def _require_numbers(name: str, values: Array) -> None:
    xp = array_namespace(values)
    if name == "scores" and bool(xp.any(xp.isnan(values))):
        raise ValueError(
            "scores must be a number for every live sample, got nan: give a sample that cannot be "
            "chosen -inf (one that does not vote 0), or leave it out with live=False"
        )
    if name == "tokens" and bool(xp.any(~(xp.isfinite(values) & (values >= 0)))):
        raise ValueError(
            "tokens must be a number of at least 0 for every live sample: leave a sample whose "
            "tokens are not known out with live=False"
        )


def _gumbel(text: str, rng: Any, rewards: Array) -> Array:
    """Noise for each score, (..., n, draws): that of a sample depends on the generator and its
    place alone, not on what other samples are live."""
    uniform, shape = _random_numbers(text, rng), (*rewards.shape, DRAWS)
    if not is_array(uniform):
        uniform = constant(uniform.random(shape), rewards)
    elif tuple(uniform.shape[:-1]) != tuple(rewards.shape) or not uniform.shape[-1]:
        raise ValueError(
            f"rng as an array must have the shape {shape} for objective {text}, got "
            f"{tuple(uniform.shape)}"
        )
    xp = array_namespace(uniform)
    return -xp.log(-xp.log(xp.clip(uniform, 1e-300, 1.0 - 1e-16)))


def _random_numbers(text: str, rng: Any) -> Any:
    """A generator from a generator or a seed; an array of uniform numbers stays what it is."""
    if rng is None:
        raise ValueError(
            f"objective {text} draws random numbers: rng= is needed, a generator or a seed"
        )
    return rng if is_array(rng) else np.random.default_rng(rng)


def _entropies(text: str, inputs: CallInputs, rewards: Array, layout: Layout) -> dict[str, Any]:
    """Mean response entropy per group, (groups,), and the threshold to compare it with."""
    entropy, threshold = inputs.get("entropy"), inputs.get("entropy_threshold")
    if entropy is None:
        raise ValueError(f"objective {text} looks at entropy: entropy= is needed, one per group")
    values, _ = as_float64(entropy, "entropy")
    by_sample = tuple(values.shape) == tuple(rewards.shape)
    if not by_sample and math.prod(values.shape) != layout.groups:
        raise ValueError(
            f"entropy must be per group ({layout.groups} of them) or per sample "
            f"{tuple(rewards.shape)}, got {tuple(values.shape)}"
        )
    if not inputs.get("check", True):
        if threshold is None:
            raise ValueError(
                f"objective {text} with check=False needs entropy_threshold=: the median "
                "over a batch cannot be taken from one traced group"
            )
        xp = array_namespace(values)
        means = (xp.mean(values, axis=-1) if by_sample else values).reshape(-1)
        return {"entropy": means, "threshold": threshold}
    host = as_numpy(values)
    per_group = _means_by_group(host, layout) if by_sample else host.reshape(-1)
    used = np.concatenate([in_bucket(per_group, bucket) for bucket in layout.buckets] or [[]])
    if not np.isfinite(used).all():
        raise ValueError(
            "entropy must be finite for every group that is used, got "
            f"{used[~np.isfinite(used)][0]}: leave that group out of the call"
        )
    if threshold is None:
        threshold = np.median(used) if used.size else 0.0
    threshold = finite_number("entropy_threshold", threshold)
    return {"entropy": constant(per_group, rewards), "threshold": threshold}


def _means_by_group(values: np.ndarray, layout: Layout) -> np.ndarray:
    """Means over the live samples of each group; NaN where a group is left out."""
    result = np.full(layout.groups, np.nan)
    for bucket in layout.buckets:
        chosen = slice(None) if bucket.groups is None else bucket.groups
        result[chosen] = gather(values, bucket).mean(axis=-1)
    return result


def _log_ratios(log_ratio: Any, rewards: Array, terms: Sequence[Term]) -> Array:
    for term in terms:
        if term.entry.baseline is None:
            raise ValueError(
                f"objective {term.text} has no exact off-policy form and takes no log_ratio: "
                "use the clipped loss with on-policy advantages, or max@k, pass@k or mean (with "
                "the canonical baseline, :loo-1 or :none)"
            )
    return per_sample(
        log_ratio, rewards, "log_ratio", " (one number per completion: sum over its tokens)"
    )


def per_sample(values: Any, rewards: Array, name: str, hint: str = "") -> Array:
    """An input with a number per sample, float64, in the library and the shape of the rewards."""
    numbers, _ = as_float64(values, name)
    if array_namespace(numbers) is not array_namespace(rewards):
        raise ValueError(
            f"rewards and {name} must be arrays of one library, got "
            f"{type(rewards).__name__} and {type(numbers).__name__}"
        )
    if tuple(numbers.shape) != tuple(rewards.shape):
        raise ValueError(
            f"{name} must have the shape of rewards, {tuple(rewards.shape)}{hint}, got "
            f"{tuple(numbers.shape)}"
        )
    return numbers
