"""The shapes that carry what was found in samples. Frozen; arrays are never written to.

Every result names its metric, its problems, its n and its confidence level, so that no figure has
to be shown without them.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from bestofk.samples.sample_arrays import in_clusters

from .verdict_words import (
    decimals,
    latex,
    methods,
    metric_at,
    one_or_range,
    percent,
    powers_of_two,
    quote,
)

Metric: TypeAlias = Literal[
    "pass@k", "max@k", "maj@k", "select@k", "retry@k", "pass^k", "mean", "subsets@k",
    "select@k:soft", "retry@k:tokens", "maj@k:ties-wrong", "maj@k:ties-count", "maj@k:weighted",
    "maj@k:weighted:ties-wrong", "maj@k:weighted:ties-count",
]  # fmt: skip
METRICS: tuple[Metric, ...] = get_args(Metric)
"""And `atleast<m>@k` for every m."""
OF_PASSES = ("pass", "maj", "atleast")
"""How metrics begin that look at 0 and 1 alone: chances."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Shown:
    """A result at every k that shows itself: short in a terminal, with table and figure in a
    notebook."""

    metric: str
    """As in `METRICS`; or "select@k against maj@k" where two runs have metrics of their own."""
    k: np.ndarray
    """(K,) 1..k_max, or [1] for the mean; or those that were chosen to be tested."""
    problems: tuple[str, ...]
    """Problems that count."""
    threshold: float | None
    """reward ≥ threshold passes; None for max@k and mean of real rewards."""
    confidence: float
    resamples: int
    """Bootstrap draws, or sign flips."""
    seed: int
    clusters: int | None = None
    """Clusters that the problems fall into: intervals and tests are over clusters then."""
    notes: tuple[str, ...] = ()
    """What a reader must be told beside the numbers."""
    shown: tuple[int, ...] = ()
    """The k that are printed; by default powers of two and the last."""

    verdict = ""
    """In words, of a comparison."""
    signed = False
    """Numbers are differences."""

    @property
    def title(self) -> str:
        raise NotImplementedError

    def numbers(self) -> dict[str, np.ndarray]:
        """Arrays by k: the value and its interval first."""
        raise NotImplementedError

    def plot(self, ax: Any = None) -> Any:
        """The figure against k, as on the page; returns the matplotlib axes."""
        from .charts import plot_curve, plot_difference

        return (plot_difference if self.signed else plot_curve)(self, ax)

    def place(self, k: int) -> int:
        """The position of k in the arrays."""
        places = np.flatnonzero(self.k == k)
        if not places.size:
            raise ValueError(
                f"{self.title} has k = {self.k[0]}..{self.k[-1]}, not {k}: draw more samples"
            )
        return int(places[0])

    def at(self, k: int) -> Estimate:
        """The value at one k, with the interval to quote."""
        at = self.place(k)
        value, low, high, *_ = (float(each[at]) for each in self.numbers().values())
        return Estimate(value, low, high)

    def rows(self) -> list[tuple[str, Estimate]]:
        """(label, estimate) for the k that are shown."""
        chosen = self.shown or powers_of_two(self.k)
        return [(metric_at(self.metric, k), self.at(k)) for k in chosen]

    def to_pandas(self) -> Any:
        """One row per k: the value, low, high; and p of a difference, corrected over k."""
        import pandas

        return pandas.DataFrame({"k": self.k, **self.numbers()})

    def quote(self, k: int = 1) -> str:
        """The sentence to quote at one k: number, interval, p-value, problems × samples."""
        return quote(self, k)

    def methods(self) -> str:
        """A paragraph for a paper: what was estimated, on what, and how."""
        return methods(self)

    def to_latex(self) -> str:
        """The table for a paper (booktabs)."""
        return latex(self)

    def __repr__(self) -> str:
        lines = [f"  {label:<9} {estimate!r}" for label, estimate in self.rows()]
        return "\n".join([self.title, *lines, *filter(None, [self.verdict])])

    def _repr_html_(self) -> str:
        from .charts import picture

        sign = "+" if self.signed else ""
        table = [("", "difference" if self.signed else "estimate", percent(self.confidence))]
        for label, one in self.rows():
            numbers = (one.value, one.low, one.high)
            value, low, high = (f"{each:{sign}.{one.decimals}f}" for each in numbers)
            table.append((label, value, f"{low} – {high}"))
        lines = [
            "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
            for tag, row in zip(["th"] + ["td"] * len(table), table)
        ]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        said = f"<p>{html.escape(self.verdict)}</p>" if self.verdict else ""
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"{said}<table>{caption}{body}</table>{picture(self.plot)}"


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    >>> Estimate(0.6, 0.57, 0.63)
    0.600 [0.570, 0.630]
    """

    value: float
    low: float
    high: float

    @property
    def decimals(self) -> int:
        return decimals(self.low, self.high)

    def text(self, sign: str = "") -> str:
        """The number and its interval, with as many digits as the interval needs."""
        places = self.decimals
        ends = f"{self.low:.{places}f}, {self.high:.{places}f}"
        return f"{self.value:{sign}.{places}f} [{ends}]"

    def __repr__(self) -> str:
        return self.text()

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Interval:
    """Lower and upper ends, one pair per k."""

    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, kw_only=True, repr=False)
class Curve(Shown):
    """A metric at every k, with what is and is not known about it.

    `interval` and `band` speak of the population the problems were drawn from; `fixed` speaks of
    these problems alone and is usually much narrower. Show which one it is.
    """

    name: str
    estimate: np.ndarray
    """(K,) unbiased, the mean over problems."""
    interval: Interval
    """Over problems, by the bounded bootstrap: safe at the ceiling and the floor, never of zero
    width. The one to quote."""
    fixed: Interval
    """For this fixed set of problems: only the sampling of completions varies."""
    band: Interval
    """Over problems, simultaneous: the whole curve lies inside with the stated confidence."""
    values: np.ndarray
    """(P, K) the estimate of each problem; rows as in `problems`."""
    left_out: tuple[str, ...]
    """Problems with too few scored samples."""
    n: tuple[int, int]
    """Fewest and most scored samples of any problem that counts."""
    unscored: int
    """Samples of the run that could not be scored."""
    informative: np.ndarray
    """(K,) problems that differ from the floor, or from the ceiling: whichever are fewer."""
    bounds: tuple[float, float]
    """The range of rewards that the bounded bootstrap assumes."""

    @property
    def title(self) -> str:
        problems = in_clusters(len(self.problems), self.clusters)
        return f"{self.name}: {self.metric}, {problems}, n = {one_or_range(self.n)}"

    def numbers(self) -> dict[str, np.ndarray]:
        """The estimate, and its interval over problems."""
        return {"estimate": self.estimate, "low": self.interval.low, "high": self.interval.high}


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


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Shown):
    """Run `b` minus run `a`, paired by problem, at every k."""

    a: str
    b: str
    difference: np.ndarray
    """(K,) mean over problems of b - a."""
    band: Interval
    """Over problems, simultaneous over k and over all comparisons made together: it excludes 0
    exactly where p ≤ 1 - confidence."""
    p_value: np.ndarray
    """(K,) two-sided, corrected over k and over all comparisons made (max-T, sign flips).

    The larger of this and the p-value that allows for rare large losses (`rare_losses`)."""
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
    only_a: tuple[str, ...]
    """Problems that only run a has; not compared."""
    only_b: tuple[str, ...]
    solved_only_a: tuple[str, ...]
    """Problems with at least one passing sample in a and none in b (empty for max@k and mean)."""
    solved_only_b: tuple[str, ...]
    n_a: tuple[int, int]
    n_b: tuple[int, int]

    signed = True

    @property
    def title(self) -> str:
        paired = in_clusters(len(self.problems), self.clusters)
        runs = f"{self.b} minus {self.a}"
        about = runs if self.metric == f"{self.b} against {self.a}" else f"{runs}: {self.metric}"
        return f"{about}, {paired}, paired"

    def numbers(self) -> dict[str, np.ndarray]:
        """The difference b - a, the band that the verdict uses, and p: corrected over k."""
        ends = {"low": self.band.low, "high": self.band.high}
        return {"difference": self.difference, **ends, "p": self.p_value}


@dataclass(frozen=True)
class Measure:
    """One number over problems with its interval; NaN where the samples do not tell."""

    value: float
    low: float
    high: float
    problems: int
    """How many problems it is a mean over."""


MEASURES = (
    ("distinct", "distinct answers", "in a draw of m samples"),
    ("effective", "effective number of answers", "1 / Σ share²; 1 = always the same"),
    ("distinct_wrong", "distinct wrong answers", "among the wrong ones of m samples"),
    ("distinct_correct", "distinct correct answers", "among the correct ones of m samples"),
    (
        "distinct_among_wrong",
        "distinct answers among 4 wrong",
        "1 = always the same, 4 = no repeats",
    ),
    ("compression", "compression ratio", "text size over compressed size; more = more repetitive"),
    ("entropy", "entropy per completion", "mean −log-probability, nats"),
    ("entropy_per_token", "entropy per token", "nats"),
)
"""Of `Diversity`: the field, its name, and what it is or counts."""


@dataclass(frozen=True, kw_only=True)
class Diversity:
    """How different the samples of one problem are, averaged over problems (`MEASURES`)."""

    name: str
    m: int
    """Counts are what a draw of m samples would show, so runs with different n compare."""
    distinct: Measure
    effective: Measure
    distinct_wrong: Measure
    """Fewer as more are right."""
    distinct_correct: Measure
    distinct_among_wrong: Measure
    """Over problems with 4 wrong samples: the same at every accuracy, as long as the wrong answers
    are the same."""
    compression: Measure
    entropy: Measure
    entropy_per_token: Measure
    no_answer: float
    """Share of samples without an answer."""
    confidence: float
    notes: tuple[str, ...] = ()


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
    metric: Metric = "pass@k"
    notes: tuple[str, ...] = ()
