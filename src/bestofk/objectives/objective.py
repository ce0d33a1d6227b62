"""`objective("max@8")`: a string becomes a function from a batch of groups to advantages."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from bestofk.messages import choices, unknown

from . import off_policy as off
from .arrays import (
    Array,
    as_float64,
    as_numpy,
    by_blocks,
    constant,
    fits,
    is_array,
    positive_integer,
)
from .catalog import Claim
from .estimates import zero_one
from .grammar import Stage, Term, parse, requirement
from .grouping import Layout, SmallGroups, gather, in_bucket, lay_out, scatter

OffPolicy: TypeAlias = Literal["exact", "first-order", "own-ratio", "none"]
INPUTS = ("log_ratio", "entropy", "entropy_threshold", "live", "groups", "progress", "rng",
          "sample_weights", "check")  # fmt: skip
OPTIONS = ("weights", "off_policy", "truncate", "self_normalise", "clamp", "threshold",
           "small_groups", "trust_region")  # fmt: skip


class ObjectiveWarning(UserWarning):
    """The objective does something its name does not say."""


@dataclass(frozen=True)
class Objective:
    """A named objective: call it with rewards to get one advantage per sample.

    Advantages are in the mean convention: (1/n) Σ_i A_i ∇log π(y_i) estimates the gradient of the
    objective (exactly so, in expectation, where `claim` is "exact").
    """

    text: str
    stages: tuple[Stage, ...]
    off_policy: OffPolicy = "exact"
    truncate: float | None = None
    self_normalise: bool = False
    clamp: float = 1.0
    threshold: float | None = None
    small_groups: SmallGroups = "drop"
    trust_region: tuple[float, float] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text

    @property
    def terms(self) -> tuple[Term, ...]:
        return tuple(term for stage in self.stages for term in stage.terms)

    @property
    def k(self) -> int:
        """The largest k of any stage (1 for objectives without k)."""
        return max(term.k for term in self.terms)

    @property
    def least_samples(self) -> int:
        """The least number of live samples per prompt that every stage accepts."""
        return max(term.least for term in self.terms)

    @property
    def needs(self) -> frozenset[str]:
        """Inputs to pass beside rewards: of "entropy", "rng", "progress"."""
        inputs = {name for term in self.terms for name in term.entry.needs}
        return frozenset(inputs | ({"progress"} if len(self.stages) > 1 else set()))

    @property
    def claim(self) -> Claim:
        """On policy: "exact", "scaled" (a constant multiple of the gradient) or "biased".

        A mixture with a scaled term is biased: its terms no longer have the shares it states.
        """
        claims = {
            "biased" if term.entry.claim == "scaled" and len(stage.terms) > 1 else term.entry.claim
            for stage in self.stages
            for term in stage.terms
        }
        return "biased" if "biased" in claims else "scaled" if "scaled" in claims else "exact"

    @property
    def off_policy_claim(self) -> Claim:
        """With log_ratio, on samples θ has not seen: "exact", or "biased" by form or bound."""
        bounds = (self.truncate, self.trust_region)
        plain = self.off_policy == "exact" and not self.self_normalise and bounds == (None, None)
        return self.claim if plain and self.takes_log_ratio else "biased"

    @property
    def takes_log_ratio(self) -> bool:
        """Whether an exact off-policy form exists; if not, off-policy steps need a clipped loss."""
        return all(term.entry.baseline is not None for term in self.terms)

    def require_samples(self, n: int) -> None:
        """Raise before anything is sampled if any stage needs more than n samples per prompt.

        Args:
            n: samples per prompt.

        Raises:
            ValueError: the rule, n and the k that fits.
        """
        for term in self.terms:
            if n < term.least:
                need, why = requirement(term, n)
                part = f", in {self.text}" if len(self.terms) > 1 else ""
                raise ValueError(f"{need}, got {n}{part}{why}")

    def at(self, progress: float | None) -> tuple[Term, ...]:
        """The terms in force at a share of the run in [0, 1]."""
        if len(self.stages) == 1:
            return self.stages[0].terms
        if progress is None:
            raise ValueError(f"objective {self.text} changes during a run: progress= is needed")
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"progress is the share of the run done, in [0, 1], got {progress}")
        return [stage for stage in self.stages if stage.start <= progress + 1e-12][-1].terms

    def __call__(
        self,
        rewards: Any,
        *,
        log_ratio: Any = None,
        entropy: Any = None,
        entropy_threshold: float | None = None,
        live: Any = None,
        groups: Any = None,
        progress: float | None = None,
        rng: Any = None,
        sample_weights: Any = None,
        check: bool = True,
    ) -> Array:
        """Advantages (..., n) for rewards (..., n): zeros where not live.

        Plain numbers: no gradient flows through them, whatever the inputs were made of.

        Args:
            rewards: real numbers; NaN marks a sample that could not be scored (not live).
            log_ratio: log π_θ - log π_old of each whole completion, the shape of rewards.
            entropy: mean response entropy, per group or per sample (adaptive design).
            entropy_threshold: by default the median over the groups of this call.
            live: True where a sample counts, the shape of rewards.
            groups: a group id per sample, in any order; rewards are then one row.
            progress: the share of the run done (schedules).
            rng: a NumPy generator or a seed (designs that draw random sets); or the uniform random
                numbers themselves, an array of the shape of rewards (`:full`) or (..., n, n)
                (`:bootstrap`), which tracing needs.
            sample_weights: α > 0 of samples of one prompt that come from several policies, the
                shape of rewards or one row for all groups; log_ratio is then to each sample's own
                policy. Fixed before the samples are seen (`off_policy.pooled`); exact form only.
            check: False never looks at the values, so that jax.jit, jax.vmap, torch.func.vmap and
                torch.compile can trace the call. Rewards must then be finite, all live and, where
                the objective asks for it, 0/1; log-ratios must be finite.

        Inputs that the objective does not need are ignored: `needs` names those it does.

        Raises:
            ValueError: a needed input is missing (by name); a group too small for the objective
                (`small_groups` decides about groups that lost samples); values out of range.
        """
        terms = self.at(progress)
        rewards, restore = as_float64(rewards, "rewards")
        if self.threshold is not None or any(term.entry.zero_one for term in terms):
            rewards = zero_one(rewards, self.threshold, f"objective {self.text}", live, check=check)
        largest = sorted(terms, key=lambda term: term.least)[-1]  # torch.compile: no max(key=)
        need, why = requirement(
            largest, rewards.shape[-1] if rewards.ndim and groups is None else None
        )
        layout = lay_out(
            rewards,
            groups=groups,
            live=live,
            minimum=largest.least,
            need=need,
            why=why,
            small_groups=self.small_groups,
            check=check,
        )
        needed = {name for term in terms for name in term.entry.needs}
        if "rng" in needed:
            rng = self._random_numbers(rng)
        if "entropy" in needed:
            entropy, entropy_threshold = self._entropies(
                entropy, entropy_threshold, rewards, layout, check=check
            )
        if sample_weights is not None:
            sample_weights = self._sample_weights(sample_weights, rewards)
            log_ratio = (
                array_namespace(rewards).zeros_like(rewards) if log_ratio is None else log_ratio
            )
        if log_ratio is not None:
            log_ratio = _log_ratios(log_ratio, rewards, terms)
        pieces = []
        for bucket in layout.buckets:
            given = {"rng": rng} if "rng" in needed else {}
            if "entropy" in needed:
                given |= {"entropy": in_bucket(entropy, bucket), "threshold": entropy_threshold}
            part, ratios = gather(rewards, bucket), None
            if log_ratio is not None:
                ratios = gather(log_ratio, bucket)
                if check:
                    off.require_finite(ratios, "log_ratio", "give samples without one live=False")
            alpha = None
            if sample_weights is not None:
                alpha = off.log_weights(gather(sample_weights, bucket), check=check)
            result: Array = None
            for term in terms:
                share = self._of_term(term, part, ratios, alpha, given, check=check)
                share = share if term.weight == 1.0 else term.weight * share
                result = share if result is None else result + share
            if ratios is not None and self.trust_region is not None:
                xp = array_namespace(result)
                kept = off.inside_region(result, ratios, *self.trust_region, check=check)
                result = xp.where(kept, result, xp.zeros_like(result))
            pieces.append(result)
        whole = scatter(pieces, layout, rewards)
        return fits(restore(whole), whole) if check else restore(whole)

    def _of_term(
        self,
        term: Term,
        rewards: Array,
        log_ratio: Array | None,
        log_alpha: Array | None,
        given: Mapping[str, Any],
        *,
        check: bool,
    ) -> Array:
        """One term's advantages of groups that are all live: (groups, n) → (groups, n)."""
        entry = term.entry
        if log_ratio is not None and self.off_policy != "none":
            assert entry.baseline is not None  # `_log_ratios` has looked
            ratios, named = off.truncated(log_ratio, self.truncate), {"baseline": entry.baseline}
            if self.off_policy == "first-order":
                return off.first_order(rewards, ratios, term.k, clamp=self.clamp, **named)
            if self.off_policy == "own-ratio":
                return off.own_ratio(rewards, ratios, term.k, check=check, **named)
            normalise = self.self_normalise
            if log_alpha is not None:
                ratios = off.pooled(ratios, log_alpha, term.k, check=check)
            if is_torch_array(rewards) and _compiling():
                from .torch_operator import operator

                return operator(rewards, ratios, term.k, entry.baseline, normalise)
            return off.exact(
                rewards, ratios, term.k, self_normalise=normalise, check=check, **named
            )
        xp = array_namespace(rewards)
        if check and entry.caution and bool(xp.all((rewards == 0) | (rewards == 1))):
            warnings.warn(f"{term.text}: {entry.caution}", ObjectiveWarning, stacklevel=4)
        options = {name: self.options[name] for name in entry.options}
        if term.coefficients is not None:
            options["coefficients"] = term.coefficients
        options |= given if entry.needs else {}
        size = [term.k] if entry.takes_k else []

        def function(block: Array) -> Array:
            return entry.function(block, *size, **options)

        return function(rewards) if entry.needs else by_blocks(function, rewards)

    def _sample_weights(self, weights: Any, rewards: Array) -> Array:
        if self.off_policy != "exact":
            raise ValueError(
                "sample_weights belong to off_policy='exact', the one form for samples of several "
                f"policies, got {self.off_policy!r}"
            )
        return off.weights_of_samples(weights, rewards)

    def _random_numbers(self, rng: Any) -> Any:
        """A generator from a generator or a seed; an array of uniform numbers stays what it is."""
        if rng is None:
            raise ValueError(
                f"objective {self.text} draws random sets: rng= is needed, a generator or a seed"
            )
        return rng if is_array(rng) else np.random.default_rng(rng)

    def _entropies(
        self, entropy: Any, threshold: Any, rewards: Array, layout: Layout, *, check: bool
    ) -> tuple[Array, Any]:
        """Mean response entropy per group, (groups,), and the threshold to compare it with."""
        if entropy is None:
            raise ValueError(
                f"objective {self.text} looks at entropy: entropy= is needed, one per group"
            )
        values, _ = as_float64(entropy, "entropy")
        by_sample = tuple(values.shape) == tuple(rewards.shape)
        if not by_sample and math.prod(values.shape) != layout.groups:
            raise ValueError(
                f"entropy must be per group ({layout.groups} of them) or per sample "
                f"{tuple(rewards.shape)}, got {tuple(values.shape)}"
            )
        if not check:
            if threshold is None:
                raise ValueError(
                    f"objective {self.text} with check=False needs entropy_threshold=: the median "
                    "over a batch cannot be taken from one traced group"
                )
            xp = array_namespace(values)
            return (xp.mean(values, axis=-1) if by_sample else values).reshape(-1), threshold
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
        return constant(per_group, rewards), _number("entropy_threshold", threshold)


def _compiling() -> bool:
    import torch

    return torch.compiler.is_compiling()


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
    logs, _ = as_float64(log_ratio, "log_ratio")
    if array_namespace(logs) is not array_namespace(rewards):
        raise ValueError(
            "rewards and log_ratio must be arrays of one library, got "
            f"{type(rewards).__name__} and {type(logs).__name__}"
        )
    if tuple(logs.shape) != tuple(rewards.shape):
        raise ValueError(
            f"log_ratio must have the shape of rewards, {tuple(rewards.shape)} (one number per "
            f"completion: sum over its tokens), got {tuple(logs.shape)}"
        )
    return logs


def objective(
    text: str,
    *,
    weights: Sequence[float] | None = None,
    off_policy: OffPolicy = "exact",
    truncate: float | None = None,
    self_normalise: bool = False,
    clamp: float = 1.0,
    threshold: float | None = None,
    small_groups: SmallGroups = "drop",
    trust_region: float | tuple[float, float] | None = None,
    **options: Any,
) -> Objective:
    """An Objective from its string: `name[@k][:variant]`, a switch, an annealing or a mixture.

    Args:
        text: "max@8", "pass@8:loo-1", "max@8/60%/mean", "max@8..1", "max@1+8".
        weights: of a mixture over k, in the order written; equal by default.
        off_policy: what to do with log_ratio: "exact", "first-order", "own-ratio" or "none".
        truncate: the largest log-ratio; larger ones count as this. Bounds the advantages; biased
            where it cuts, and no trust region. Without an off-policy form it does nothing here.
        self_normalise: divide by the sum of the subsets' weights: always finite, biased; max@k with
            n > k only.
        clamp: bound on |ρ - 1| of the first-order form.
        threshold: makes rewards 0/1 first: reward ≥ threshold passes.
        small_groups: groups with too few live samples are dropped with a warning, or an error.
        trust_region: (low, high), or one number for both: an advantage becomes 0 where its sample's
            log-ratio has risen above high and it pushes the sample further up, or has fallen below
            -low and it pushes further down. Needs log_ratio; biased where it masks.
        options: of the objective itself: beta (rs-grpo), accuracy_threshold (drop-easy),
            coefficients (lstat), sets (bootstrap).

    Raises:
        ValueError: an unknown name, variant or option (with a suggestion); values out of range.

    >>> objective("max@4")([0, 0, 0, 0, 1, 0])
    array([-0.8, -0.8, -0.8, -0.8,  4. , -0.8])
    >>> objective("max@8/60%/mean").at(0.7)[0].text
    'mean'
    """
    stages = parse(text)
    if weights is not None:
        stages = _weighted(text, stages, _numbers("weights", weights))
    terms = [term for stage in stages for term in stage.terms]
    if off_policy not in get_args(OffPolicy):
        raise unknown("off_policy", off_policy, get_args(OffPolicy))
    if small_groups not in get_args(SmallGroups):
        raise unknown("small_groups", small_groups, get_args(SmallGroups))
    if not isinstance(self_normalise, bool):
        raise ValueError(f"self_normalise is true or false, got {self_normalise!r}")
    clamp = _number("clamp", clamp, "the bound on |ρ - 1|, a positive number", lambda x: x > 0)
    if clamp != 1.0 and off_policy != "first-order":
        raise ValueError(f"clamp belongs to off_policy='first-order', got {off_policy!r}")
    if self_normalise and off_policy != "exact":
        raise ValueError(f"self_normalise belongs to off_policy='exact', got {off_policy!r}")
    about_ratios = {"trust_region": trust_region is not None, "self_normalise": self_normalise}
    for name, given in about_ratios.items():
        if given and not any(term.entry.baseline for term in terms):
            raise ValueError(
                f"{name} is about log_ratio=, which objective {text} does not take: leave it out, "
                "or use max@k, pass@k or mean"
            )
    for term in terms if self_normalise else ():
        if term.entry.baseline not in (None, "canonical"):
            plain = term.text.partition(":")[0].replace("reinforce", "mean")
            raise ValueError(
                "self-normalised advantages are centred and have no other baseline: write "
                f"{plain} with self_normalise=True, got {term.text}"
            )
    if truncate is not None:
        truncate = _number("truncate", truncate, "the largest log-ratio, a finite number")
        bounded = self_normalise or off_policy != "exact"
        off.check_truncate(truncate, max(term.k for term in terms), bounded=bounded)
    return Objective(
        text.strip().lower(),
        stages,
        off_policy,
        truncate,
        self_normalise,
        clamp,
        None if threshold is None else _number("threshold", threshold),
        small_groups,
        None if trust_region is None else off.region(trust_region),
        _own_options(text, terms, options),
    )


def advantages(
    rewards: Any,
    objective_: str | Objective,
    /,
    *,
    log_ratio: Any = None,
    entropy: Any = None,
    entropy_threshold: float | None = None,
    live: Any = None,
    groups: Any = None,
    progress: float | None = None,
    rng: Any = None,
    sample_weights: Any = None,
    check: bool = True,
    **options: Any,
) -> Array:
    """On-policy or, with log_ratio=, exact off-policy advantages of one batch: (..., n) → (..., n).

    Args:
        rewards: real numbers, (..., n), or one row of samples with groups=; NaN where not scored.
        objective_: a string such as "max@8", or an Objective.
        log_ratio, ..., check: as in `Objective.__call__`.
        options: where a string is given, those of `objective` (weights, threshold, ...).

    >>> advantages([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]], "max@2")
    array([[-1., -1.,  2.],
           [ 0.,  0.,  0.]])
    """
    if isinstance(objective_, Objective) and options:
        hint = choices(next(iter(options)), INPUTS)
        raise ValueError(f"{', '.join(options)} cannot change an Objective; {hint}")
    chosen = objective_ if isinstance(objective_, Objective) else objective(objective_, **options)
    return chosen(
        rewards,
        log_ratio=log_ratio,
        entropy=entropy,
        entropy_threshold=entropy_threshold,
        live=live,
        groups=groups,
        progress=progress,
        rng=rng,
        sample_weights=sample_weights,
        check=check,
    )


def _number(
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


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, str | Mapping) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name} is a list of numbers, got {values!r}")
    return tuple(_number(name, value, "a list of finite numbers") for value in values)


def _weighted(text: str, stages: tuple[Stage, ...], shares: Sequence[float]) -> tuple[Stage, ...]:
    if len(stages) != 1 or len(stages[0].terms) != len(shares):
        raise ValueError(
            f"weights= gives one number per term of a mixture such as max@1+8; {text!r} has "
            f"{len(stages[0].terms)} and got {len(shares)}"
        )
    terms = [replace(term, weight=share) for term, share in zip(stages[0].terms, shares)]
    return (Stage(0.0, tuple(terms)),)


def _own_options(text: str, terms: Sequence[Term], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of the objective's own functions, with their defaults, each in its range."""
    chosen = {name: value for term in terms for name, value in term.entry.options.items()}
    for name in given:
        if name not in chosen:
            known = choices(name, [*chosen, *OPTIONS, *INPUTS])
            raise ValueError(f"objective {text} has no option or input {name!r}; {known}")
    chosen |= given
    for name, value in chosen.items():
        if value is ...:
            raise ValueError(f"objective {text} needs {name}=")
        if name == "sets" and value is not None:
            chosen[name] = positive_integer(value, name)
        elif name == "beta":
            chosen[name] = _number(name, value, "a positive number", lambda x: x > 0)
        elif name == "accuracy_threshold":
            what = "the share of correct samples above which a prompt is dropped, in [0, 1]"
            chosen[name] = _number(name, value, what, lambda x: 0 <= x <= 1)
        elif name == "coefficients":
            chosen[name] = alphas = _numbers(name, value)
            for term in terms:
                if name in term.entry.options and len(alphas) != term.k:
                    raise ValueError(
                        f"{term.text} takes {term.k} coefficients, lowest of k first, got {alphas}"
                    )
    return chosen
