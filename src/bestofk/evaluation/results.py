"""The shapes that carry samples and what was found in them. Frozen; arrays are never written to.

Every result names its metric, its problems, its n and its confidence level, so that no figure has
to be shown without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

Metric: TypeAlias = Literal["pass@k", "max@k", "maj@k", "pass^k", "mean"]
METRICS: tuple[Metric, ...] = ("pass@k", "max@k", "maj@k", "pass^k", "mean")


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of one run, one problem after another, without their texts.

    Sample s of problem p stands at flat position `offsets[p] + s` of every per-sample array.
    """

    name: str
    """What to call the run in tables and legends."""
    problems: tuple[str, ...]
    """Problem ids, sorted; runs are paired by them."""
    offsets: np.ndarray
    """(P + 1,) int64."""
    rewards: np.ndarray
    """(N,) float64; NaN = unscored."""
    sample_ids: np.ndarray | None = None
    """(N,) int64, where the file numbers the samples of a problem."""
    answers: np.ndarray | None = None
    """(N,) int64, equal numbers for equal answers; -1 = no answer. None where the file has none."""
    statuses: np.ndarray | None = None
    """(N,) int16, an index into `status_names`; -1 = not stated."""
    status_names: tuple[str, ...] = ()
    tokens: np.ndarray | None = None
    """(N,) float64 number of tokens of each completion; NaN = not stated."""
    logprobs: np.ndarray | None = None
    """(N,) float64 log-probability of each completion under the policy that sampled it."""
    new_logprobs: np.ndarray | None = None
    """(N,) float64 the same under another policy: what the off-policy estimate needs."""
    lines: np.ndarray | None = None
    """(N,) int64 line (or row, from 1) of the file each sample was read from."""
    texts: Mapping[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """By problem index, a bounded excerpt of the completions: for the compression ratio."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Where it came from: path, format, mapping, model, task, sampling, run_id, ... where known."""

    @property
    def sizes(self) -> np.ndarray:
        """(P,) samples per problem, unscored ones included."""
        return np.diff(self.offsets)

    @cached_property
    def live(self) -> np.ndarray:
        """(P,) scored samples per problem: the n that estimates use."""
        return self.count(~np.isnan(self.rewards))

    def count(self, mask: np.ndarray) -> np.ndarray:
        """(P,) how many of each problem's samples a mask (N,) holds."""
        filled = self.sizes > 0
        counts = np.zeros(len(self.problems), dtype=np.int64)
        if filled.any():
            counts[filled] = np.add.reduceat(mask, self.offsets[:-1][filled], dtype=np.int64)
        return counts

    @cached_property
    def unscored(self) -> int:
        return int(np.isnan(self.rewards).sum())

    @property
    def problem_of(self) -> np.ndarray:
        """(N,) problem index of each sample."""
        return np.repeat(np.arange(len(self.problems)), self.sizes)

    def of(self, problem: int) -> slice:
        """The flat positions of one problem's samples."""
        return slice(int(self.offsets[problem]), int(self.offsets[problem + 1]))


@dataclass(frozen=True)
class Interval:
    """Lower and upper ends, one pair per k."""

    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric at every k, with what is and is not known about it.

    `interval`, `t` and `band` speak of the population the problems were drawn from; `fixed` speaks
    of these problems alone and is usually much narrower. Show which one it is.
    """

    name: str
    metric: Metric
    k: np.ndarray
    """(K,) 1..k_max, or [1] for the mean."""
    estimate: np.ndarray
    """(K,) unbiased, the mean over problems."""
    interval: Interval
    """Over problems, by the bounded bootstrap: safe at the ceiling and the floor, never of zero
    width. The one to quote."""
    t: Interval
    """Over problems, by Student's t; NaN where it is not to be trusted (see `informative`)."""
    fixed: Interval
    """For this fixed set of problems: only the sampling of completions varies."""
    band: Interval
    """Over problems, simultaneous: the whole curve lies inside with the stated confidence."""
    values: np.ndarray
    """(P, K) the estimate of each problem; rows as in `problems`."""
    problems: tuple[str, ...]
    """Problems that count; those with too few scored samples are in `left_out`."""
    left_out: tuple[str, ...]
    n: tuple[int, int]
    """Fewest and most scored samples of any problem that counts."""
    unscored: int
    """Samples of the run that could not be scored."""
    informative: np.ndarray
    """(K,) problems that differ from the floor, or from the ceiling: whichever are fewer."""
    bounds: tuple[float, float]
    """The range of rewards that the bounded bootstrap assumes."""
    threshold: float | None
    """reward ≥ threshold passes; None for max@k and mean of real rewards."""
    confidence: float
    resamples: int
    seed: int
    notes: tuple[str, ...] = ()
    """What a reader must be told beside the numbers."""

    def at(self, k: int) -> int:
        """The position of k in the arrays.

        Raises:
            ValueError: the curve has no such k.
        """
        result = np.flatnonzero(self.k == k)
        if not result.size:
            raise ValueError(
                f"the curve of {self.name!r} has k = {self.k[0]}..{self.k[-1]}, not {k}: "
                "draw more samples per problem, or extrapolate"
            )
        return int(result[0])


@dataclass(frozen=True)
class Crossing:
    """Where the difference of two curves changes its sign."""

    k: float
    """Interpolated between whole k on a logarithmic axis."""
    low: float
    """Lower end of the interval; 0 = the sign may already differ at k = 1."""
    high: float
    """Upper end; infinity = the curves may cross beyond the last k, or never."""
    better_after: str
    """Name of the run that is ahead after the crossing."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Run `b` minus run `a`, paired by problem, at every k."""

    a: str
    b: str
    metric: Metric
    k: np.ndarray
    difference: np.ndarray
    """(K,) mean over problems of b - a."""
    interval: Interval
    """At each k on its own, over problems."""
    band: Interval
    """Simultaneous over k and over all comparisons made together."""
    p_value: np.ndarray
    """(K,) two-sided, corrected over k and over all comparisons made (max-T, sign flips).

    With few problems or skewed differences the larger of this and the bounded test's p-value."""
    p_value_single: np.ndarray
    """(K,) two-sided at that k alone, uncorrected."""
    wins: np.ndarray
    """(K,) problems where b is ahead."""
    losses: np.ndarray
    ties: np.ndarray
    crossing: Crossing | None
    verdict: str
    """In words."""
    values_a: np.ndarray
    """(P, K) per problem, rows as in `problems`: the scatter."""
    values_b: np.ndarray
    problems: tuple[str, ...]
    only_a: tuple[str, ...]
    """Problems that only run a has; not compared."""
    only_b: tuple[str, ...]
    solved_only_a: tuple[str, ...]
    """Problems with at least one passing sample in a and none in b (empty for max@k and mean)."""
    solved_only_b: tuple[str, ...]
    n_a: tuple[int, int]
    n_b: tuple[int, int]
    threshold: float | None
    confidence: float
    resamples: int
    seed: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """pass@k beyond n. Read `unreliable` before the numbers; NaN where none can be given."""

    name: str
    k: np.ndarray
    estimate: np.ndarray
    interval: Interval
    """Over problems, over every distribution of difficulty that the samples allow."""
    families: Mapping[str, np.ndarray]
    """What each family of distributions says on its own; the estimate is their average."""
    a: float
    b: float
    """The fitted Beta(a, b), one of the families."""
    n: tuple[int, int]
    problems: int
    unreliable: bool
    reasons: tuple[str, ...]
    """Why, in words; empty when reliable."""
    holdout_n: int
    """Samples per problem that the check was fitted on; 0 where none could be made."""
    holdout_k: np.ndarray
    """k > holdout_n at which the prediction was checked."""
    holdout_predicted: np.ndarray
    holdout_observed: np.ndarray
    """The unbiased estimate from all samples."""
    holdout_interval: Interval
    """Around the prediction."""
    confidence: float
    threshold: float | None
    seed: int


@dataclass(frozen=True)
class Measure:
    """One number over problems with its interval; NaN where the samples do not tell."""

    value: float
    low: float
    high: float
    problems: int
    """How many problems it is a mean over."""


@dataclass(frozen=True, kw_only=True)
class Diversity:
    """How different the samples of one problem are, averaged over problems."""

    name: str
    m: int
    """Counts are what a draw of m samples would show, so runs with different n compare."""
    distinct: Measure
    """Distinct answers among m samples."""
    effective: Measure
    """Effective number of answers: 1 / Σ share²; 1 = always the same, m = all different."""
    distinct_wrong: Measure
    """Distinct answers among the wrong ones of m samples."""
    distinct_correct: Measure
    wrong_share: Measure
    """Distinct wrong answers over wrong answers of all samples; problems without one left out."""
    compression: Measure
    """Size of a problem's completions over their compressed size: more = more repetitive."""
    entropy: Measure
    """Mean -log-probability of a completion, in nats."""
    entropy_per_token: Measure
    no_answer: float
    """Share of samples without an answer."""
    confidence: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReweightedEstimate:
    """max@k of a new policy from samples of an old one."""

    name: str
    k: int
    estimate: float
    low: float
    high: float
    """Over problems."""
    ess: np.ndarray
    """(P,) effective share of the k-subsets of each problem, in (0, 1]."""
    effective: float
    """The same over the subsets of all problems together: what decides whether to answer."""
    problems: tuple[str, ...]
    n: tuple[int, int]
    self_normalised: bool
    confidence: float


@dataclass(frozen=True)
class PlanRow:
    """One way to spend samples."""

    n: int
    """Samples per problem."""
    problems: int
    samples: int
    """Problems × n (× 2 runs for power)."""
    value: float
    """The interval's width, or the power, that this reaches."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many problems and samples a wanted interval or power takes."""

    goal: Literal["width", "power"]
    target: float
    """The wanted full width of the interval, or power."""
    effect: float | None
    """The difference to be found, for power."""
    k: int
    population: str
    """The distribution of difficulty that was assumed, in words."""
    rows: tuple[PlanRow, ...]
    best: PlanRow
    """The row with the fewest samples."""
    confidence: float
    at: bool = False
    """Planned for a comparison at this k alone, not over all k."""
    notes: tuple[str, ...] = ()
