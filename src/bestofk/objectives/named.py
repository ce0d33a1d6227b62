"""`objective("max@8")`: a string becomes a function from a batch of groups to weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from array_api_compat import array_namespace

from bestofk.common import choices

from . import off_policy as off
from . import off_policy_forms as forms
from .arrays import Array, as_float64, by_blocks, fits
from .catalog import Claim
from .estimates import zero_one
from .grammar import Stage, Term, parse, requirement
from .grouping import Bucket, SmallGroups, gather, lay_out, scatter
from .inputs import (
    INPUTS,
    finite_ratios,
    group_entropies,
    group_weights,
    in_bucket,
    random_numbers,
)
from .off_policy_region import inside, region
from .options import OffPolicy, check_forms, check_kinds, own_options, weighted


class ObjectiveWarning(UserWarning):
    """The objective does something its name does not say."""


@dataclass(frozen=True)
class Objective:
    """A named objective: call it with rewards to get one weight per sample.

    Weights are in the mean convention: (1/n) Σ_i A_i ∇log π(y_i) estimates the gradient of the
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
        """On policy: "exact", "scaled" (a constant multiple of the gradient) or "biased"."""
        claims = {term.entry.claim for term in self.terms}
        return "biased" if "biased" in claims else "scaled" if "scaled" in claims else "exact"

    @property
    def off_policy_claim(self) -> Claim:
        """With log_ratio, on samples θ has not seen: "exact", or "biased" by form or bound."""
        bounds = (self.truncate, self.trust_region)
        plain = self.off_policy == "exact" and not self.self_normalise and bounds == (None, None)
        return self.claim if plain and self.takes_log_ratio else "biased"

    @property
    def unbiased(self) -> bool:
        """Deprecated: `claim == "exact"` says the same, and `claim` knows "scaled" too."""
        return self.claim == "exact"

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
                raise ValueError(f"{need}, got {n}{why}")

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
        prompt_weights: Any = None,
        check: bool = True,
    ) -> Array:
        """Weights (..., n) for rewards (..., n): zeros where not live.

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
            prompt_weights: what each prompt counts, at least 0: one number per group, in the order
                of the groups (with `groups`: of their sorted ids). Multiplies the weights.
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
        largest = sorted(terms, key=lambda term: term.least)[-1]
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
        inputs: dict[str, Any] = {"check": check}
        if any("rng" in term.entry.needs for term in terms):
            inputs["rng"] = random_numbers(rng, self.text)
        if any("entropy" in term.entry.needs for term in terms):
            inputs["entropy"], inputs["threshold"] = group_entropies(
                entropy, entropy_threshold, rewards, layout, self.text, check=check
            )
        if log_ratio is not None:
            log_ratio = self._ratios(log_ratio, rewards, terms)
        pieces = []
        for bucket in layout.buckets:
            ratios = None if log_ratio is None else gather(log_ratio, bucket)
            if check and ratios is not None:
                finite_ratios(ratios)
            piece = self._dense(
                terms,
                rewards=gather(rewards, bucket),
                log_ratio=ratios,
                bucket=bucket,
                inputs=inputs,
            )
            pieces.append(piece)
        if prompt_weights is not None:
            shares = group_weights(prompt_weights, rewards, layout, check=check)
            pieces = [piece * in_bucket(shares, bucket)[:, None]
                      for piece, bucket in zip(pieces, layout.buckets)]  # fmt: skip
        result = scatter(pieces, layout, rewards)
        return fits(restore(result), result) if check else restore(result)

    def _dense(
        self,
        terms: Sequence[Term],
        rewards: Array,
        log_ratio: Array | None,
        bucket: Bucket,
        inputs: Mapping[str, Any],
    ) -> Array:
        total = None
        for term in terms:
            if log_ratio is None or self.off_policy == "none":
                part = self._on_policy(term, rewards, bucket, inputs)
            else:
                cut = off.truncated(log_ratio, self.truncate)
                part = self._off_policy(term, rewards, cut, inputs["check"])
            part = part if term.weight == 1.0 else term.weight * part
            total = part if total is None else total + part
        if log_ratio is None or self.trust_region is None:
            return total
        kept = inside(total, log_ratio, *self.trust_region)
        return array_namespace(total).where(kept, total, array_namespace(total).zeros_like(total))

    def _on_policy(
        self, term: Term, rewards: Array, bucket: Bucket, inputs: Mapping[str, Any]
    ) -> Array:
        entry = term.entry
        xp = array_namespace(rewards)
        if inputs["check"] and entry.caution and bool(xp.all((rewards == 0) | (rewards == 1))):
            warnings.warn(f"{term.text}: {entry.caution}", ObjectiveWarning, stacklevel=5)
        named = {name: self.options[name] for name in entry.options}
        if term.coefficients is not None:
            named["coefficients"] = term.coefficients
        if "rng" in entry.needs:
            named["rng"] = inputs["rng"]
        if "entropy" in entry.needs:
            chosen = in_bucket(inputs["entropy"], bucket)
            named.update(entropy=chosen, threshold=inputs["threshold"])
        size = [term.k] if entry.takes_k else []
        if entry.needs:
            return entry.function(rewards, *size, **named)
        return by_blocks(lambda block: entry.function(block, *size, **named), rewards)

    def _off_policy(self, term: Term, rewards: Array, log_ratio: Array, check: bool) -> Array:
        baseline = term.entry.baseline
        assert baseline is not None  # checked in _ratios
        if self.off_policy == "first-order":
            return forms.first_order(
                rewards, log_ratio, term.k, baseline=baseline, clamp=self.clamp
            )
        if self.off_policy == "own-ratio":
            return forms.own_ratio(rewards, log_ratio, term.k, baseline=baseline, check=check)
        return off.exact(
            rewards,
            log_ratio,
            term.k,
            baseline=baseline,
            self_normalise=self.self_normalise,
            check=check,
        )

    def _ratios(self, log_ratio: Any, rewards: Array, terms: Sequence[Term]) -> Array:
        for term in terms:
            if term.entry.baseline is None:
                raise ValueError(
                    f"objective {term.text} has no exact off-policy form and takes no log_ratio: "
                    "use the clipped loss with on-policy weights, or max@k, pass@k or mean (with "
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
    text: str | Objective,
    *,
    variant: str | None = None,
    design: str | None = None,
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
        variant: instead of `:variant` in the string; `design` is the same for passk-training.
        weights: of a mixture over k, in the order written; equal by default.
        off_policy: what to do with log_ratio: "exact", "first-order", "own-ratio" or "none".
        truncate: the largest log-ratio; larger ones count as this. Bounds the weights; biased where
            it cuts, and no trust region. Without an off-policy form it does nothing here.
        self_normalise: divide by the sum of the subsets' weights: always finite, biased; max@k with
            n > k only.
        clamp: bound on |ρ - 1| of the first-order form.
        threshold: makes rewards 0/1 first: reward ≥ threshold passes.
        small_groups: groups with too few live samples are dropped with a warning, or an error.
        trust_region: (low, high), or one number for both: a weight becomes 0 where its sample's
            log-ratio has risen above high and the weight pushes it further up, or has fallen below
            -low and it pushes further down. Needs log_ratio; biased where it masks.
        options: of the objective itself: beta (rs-grpo), accuracy_threshold (drop-easy),
            coefficients (lstat).

    Raises:
        ValueError: an unknown name, variant or option (with a suggestion); values out of range.

    >>> objective("max@4")([0, 0, 0, 0, 1, 0])
    array([-0.8, -0.8, -0.8, -0.8,  4. , -0.8])
    >>> objective("max@8/60%/mean").at(0.7)[0].text
    'mean'
    """
    if isinstance(text, Objective):
        raise ValueError(f"{text} is an Objective already; give options where it is made")
    if variant is not None and design is not None and variant != design:
        raise ValueError(f"variant={variant!r} and design={design!r} name the same thing: give one")
    check_kinds(
        {"variant": variant, "design": design, "weights": weights, "truncate": truncate}
        | {"self_normalise": self_normalise, "clamp": clamp, "threshold": threshold}
    )
    stages = parse(text, variant or design)
    if weights is not None:
        stages = weighted(text, stages, weights)
    has_region = trust_region is not None
    check_forms(text, off_policy, truncate, self_normalise, clamp, has_region, stages)
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"threshold must be a finite number, got {threshold}")
    if small_groups not in get_args(SmallGroups):
        raise ValueError(f"small_groups must be 'error' or 'drop', got {small_groups!r}")
    return Objective(
        text.strip().lower() if variant is None and design is None else _label(stages, text),
        stages,
        off_policy,
        truncate,
        self_normalise,
        clamp,
        threshold,
        small_groups,
        None if trust_region is None else region(trust_region),
        own_options(text, stages, options),
    )


def advantages(rewards: Any, objective_: str | Objective, /, **named: Any) -> Array:
    """On-policy or, with log_ratio=, exact off-policy weights of one batch: (..., n) → (..., n).

    Args:
        rewards: real numbers, (..., n), or one row of samples with groups=; NaN where not scored.
        objective_: a string such as "max@8", or an Objective.
        named: inputs of `Objective.__call__` (log_ratio, entropy, live, groups, progress, rng,
            prompt_weights, check) and, when the objective is a string, options of `objective`.

    >>> advantages([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]], "max@2")
    array([[-1., -1.,  2.],
           [ 0.,  0.,  0.]])
    """
    inputs = {name: named.pop(name) for name in INPUTS if name in named}
    if isinstance(objective_, Objective):
        if named:
            hint = choices(next(iter(named)), INPUTS)
            raise ValueError(f"{', '.join(named)} cannot change an Objective; {hint}")
        return objective_(rewards, **inputs)
    return objective(objective_, **named)(rewards, **inputs)


def _label(stages: tuple[Stage, ...], text: str) -> str:
    return stages[0].terms[0].text if len(stages) == 1 and len(stages[0].terms) == 1 else text
