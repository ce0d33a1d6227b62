"""`objective("max@8")`: a string becomes a function from a batch of groups to advantages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack, get_args

from array_api_compat import array_namespace

from bestofk.messages import choices, unknown
from bestofk.procedures import MAX
from bestofk.procedures.arrays import Array, as_float64, fits
from bestofk.procedures.estimates import zero_one
from bestofk.procedures.grouping import SmallGroups, gather, lay_out, scatter

from . import off_policy as off
from .catalog import Claim
from .grammar import Stage, Term, parse, requirement
from .inputs import read_inputs
from .options import (
    INPUTS,
    CallInputs,
    finite_number,
    finite_numbers,
    own_options,
    with_weights,
)
from .terms import OffPolicy, RatioUse, advantages_of_term


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
        """Inputs to pass beside rewards, by the names of `__call__`'s arguments.

        Of "scores", "answers", "tokens" (P, n), "samples" (scores and answers where there are any),
        "entropy", "rng" and "progress". A caller such as a training loop reads this before a run,
        so that a missing scorer is an error then, and passes `scores=` from `Verdict.score`,
        `answers=` from `Verdict.answer`, in the shape of rewards. Samples that are not live may
        have any score.
        Inputs that are not needed are ignored, so a loop may always pass them.
        """
        inputs = {name for term in self.terms for name in term.entry.inputs}
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

    def __call__(self, rewards: Any, **inputs: Unpack[CallInputs]) -> Array:
        """Advantages (..., n) for rewards (..., n): zeros where not live.

        Plain numbers: no gradient flows through them, whatever the inputs were made of.

        Args:
            rewards: real numbers; NaN marks a sample that could not be scored (not live).
            inputs: those of `CallInputs`. `needs` names those that this objective looks at; others
                are ignored.

        Raises:
            TypeError: there is no such input.
            ValueError: a needed input is missing (by name); a group too small for the objective
                (`small_groups` decides about groups that lost samples); values out of range.
        """
        for name in inputs:
            if name not in INPUTS:
                raise TypeError(
                    f"objective {self.text} has no input {name!r}; {choices(name, INPUTS)}"
                )
        live, groups = inputs.get("live"), inputs.get("groups")
        check = inputs.get("check", True)
        terms = self.at(inputs.get("progress"))
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
        if inputs.get("sample_weights") is not None and self.off_policy != "exact":
            raise ValueError(
                "sample_weights belong to off_policy='exact', the one form for samples of several "
                f"policies, got {self.off_policy!r}"
            )
        read = read_inputs(self.text, terms, rewards, layout, inputs)
        use = RatioUse(self.off_policy, self.truncate, self.self_normalise, self.clamp)
        pieces = []
        for bucket in layout.buckets:
            part, here = gather(rewards, bucket), read.of(bucket, check=check)
            result: Array = None
            for term in terms:
                share = advantages_of_term(term, part, here, use, self.options, check=check)
                result = share if result is None else result + share
            if here.log_ratio is not None and self.trust_region is not None:
                xp = array_namespace(result)
                inside = off.inside_region(result, here.log_ratio, *self.trust_region, check=check)
                result = xp.where(inside, result, xp.zeros_like(result))
            pieces.append(result)
        wide = scatter(pieces, layout, rewards)
        return fits(restore(wide), wide) if check else restore(wide)


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
            coefficients (lstat), sets (bootstrap), value, sets and control (subsets: your
            function, how many, an exact objective), price and stop (retry: what a draw costs, and
            the reward that ends it).

    Raises:
        ValueError: an unknown name, variant or option (with a suggestion); values out of range.

    >>> objective("max@4")([0, 0, 0, 0, 1, 0])
    array([-0.8, -0.8, -0.8, -0.8,  4. , -0.8])
    >>> objective("max@8/60%/mean").at(0.7)[0].text
    'mean'
    """
    stages = parse(text)
    if weights is not None:
        stages = with_weights(text, stages, finite_numbers("weights", weights))
    terms = [term for stage in stages for term in stage.terms]
    if off_policy not in get_args(OffPolicy):
        raise unknown("off_policy", off_policy, get_args(OffPolicy))
    if small_groups not in get_args(SmallGroups):
        raise unknown("small_groups", small_groups, get_args(SmallGroups))
    if not isinstance(self_normalise, bool):
        raise ValueError(f"self_normalise is true or false, got {self_normalise!r}")
    clamp = finite_number(
        "clamp", clamp, "the bound on |ρ - 1|, a positive number", lambda x: x > 0
    )
    if clamp != 1.0 and off_policy != "first-order":
        raise ValueError(f"clamp belongs to off_policy='first-order', got {off_policy!r}")
    for term in terms:
        if off_policy == "first-order" and term.entry.procedure is not MAX:
            raise ValueError(
                f"off_policy='first-order' is an expansion of max@k, and {term.text} has none: use "
                "off_policy='exact'"
            )
    if self_normalise and off_policy != "exact":
        raise ValueError(f"self_normalise belongs to off_policy='exact', got {off_policy!r}")
    about_ratios = {"trust_region": trust_region is not None, "self_normalise": self_normalise}
    for name, given in about_ratios.items():
        if given and not any(term.entry.baseline for term in terms):
            raise ValueError(
                f"{name} is about log_ratio=, which objective {text} does not take: leave it out, "
                "or use max@k, select@k, pass@k or mean"
            )
    for term in terms if self_normalise else ():
        if term.entry.baseline not in (None, "canonical"):
            plain = term.text.partition(":")[0].replace("reinforce", "mean")
            raise ValueError(
                "self-normalised advantages are centred and have no other baseline: write "
                f"{plain} with self_normalise=True, got {term.text}"
            )
    if truncate is not None:
        truncate = finite_number("truncate", truncate, "the largest log-ratio, a finite number")
        bounded = self_normalise or off_policy != "exact"
        off.check_truncate(truncate, max(term.k for term in terms), bounded=bounded)
    return Objective(
        text.strip().lower(),
        stages,
        off_policy,
        truncate,
        self_normalise,
        clamp,
        None if threshold is None else finite_number("threshold", threshold),
        small_groups,
        None if trust_region is None else off.region(trust_region),
        own_options(text, terms, options),
    )


def advantages(
    rewards: Any,
    objective_: str | Objective,
    /,
    *,
    scores: Any = None,
    answers: Any = None,
    tokens: Any = None,
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
        scores, ..., check: as in `CallInputs`.
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
        scores=scores,
        answers=answers,
        tokens=tokens,
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
