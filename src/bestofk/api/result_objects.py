"""Results as objects: short in a terminal, table and figure in a notebook, and data frames."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bestofk.evaluation import Comparison, Curve, Samples
from bestofk.objectives.diagnostics import Signal
from bestofk.reports.figures import picture, plot_curve, plot_difference


@runtime_checkable
class SampledRun(Protocol):
    """A trained run, as far as evaluation and reports need it."""

    @property
    def path(self) -> Path: ...

    def sample(
        self, split: str | None = None, n: int | None = None, prompts: int | None = None
    ) -> SampleSet: ...


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    >>> Estimate(0.6, 0.57, 0.63)
    0.600 [0.570, 0.630]
    """

    value: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __float__(self) -> float:
        return self.value


class SampleSet(Samples):
    """The samples of one run; `bestofk.evaluation.Samples` that shows itself."""

    @classmethod
    def wrap(cls, samples: Samples) -> SampleSet:
        return cls(**{each.name: getattr(samples, each.name) for each in fields(Samples)})

    def __repr__(self) -> str:
        lost = f", {self.unscored:,} unscored" if self.unscored else ""
        return f"{self.name}: {len(self.problems):,} problems × {_range(self.sizes)} samples{lost}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>"

    def to_pandas(self) -> Any:
        """One row per sample: problem, reward."""
        problems = [self.problems[i] for i in self.problem_of]
        return _pandas().DataFrame({"problem": problems, "reward": self.rewards})


@dataclass(frozen=True, repr=False)
class EvaluationResult:
    """A metric of one run at every k, with 95% intervals over problems."""

    curve: Curve
    shown: tuple[int, ...]
    """The k that are printed."""

    def at(self, k: int) -> Estimate:
        """The estimate at one k."""
        at, interval = self.curve.at(k), self.curve.interval
        return Estimate(
            float(self.curve.estimate[at]), float(interval.low[at]), float(interval.high[at])
        )

    @property
    def title(self) -> str:
        curve = self.curve
        return (
            f"{curve.name}: {curve.metric}, {len(curve.problems):,} problems, "
            f"n = {_range(np.array(curve.n))}"
        )

    def rows(self) -> list[tuple[str, Estimate]]:
        """(metric, estimate) for the k shown."""
        name = self.curve.metric.removesuffix("k") if self.curve.metric != "mean" else ""
        return [(f"{name}{k}" if name else "mean", self.at(k)) for k in self.shown]

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"  {name:<9} {result!r}" for name, result in self.rows())])

    def _repr_html_(self) -> str:
        rows = [(name, f"{e.value:.3f}", f"{e.low:.3f} – {e.high:.3f}") for name, e in self.rows()]
        header = ("", "estimate", f"{self.curve.confidence:.0%}")
        return _table(self.title, header, rows) + picture(self.plot)

    def to_pandas(self) -> Any:
        """One row per k: estimate, low, high."""
        curve = self.curve
        return _pandas().DataFrame(
            {
                "k": curve.k,
                "estimate": curve.estimate,
                "low": curve.interval.low,
                "high": curve.interval.high,
            }
        )

    def plot(self, ax: Any = None) -> Any:
        """The curve against k with its interval, as on the page; returns the matplotlib axes."""
        return plot_curve(self.curve, ax)


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """Run b minus run a, paired by problem, at every k."""

    comparison: Comparison
    shown: tuple[int, ...]

    @property
    def verdict(self) -> str:
        """The result in words."""
        return self.comparison.verdict

    def at(self, k: int) -> Estimate:
        """The difference b - a at one k."""
        (result,) = np.flatnonzero(self.comparison.k == k) if k in self.comparison.k else (None,)
        if result is None:
            have = f"k = {self.comparison.k[0]}..{self.comparison.k[-1]}"
            raise ValueError(f"the comparison has {have}, not {k}: draw more samples per problem")
        interval = self.comparison.interval
        return Estimate(
            float(self.comparison.difference[result]),
            float(interval.low[result]),
            float(interval.high[result]),
        )

    @property
    def title(self) -> str:
        result = self.comparison
        paired = f"{len(result.problems):,} paired problems"
        return f"{result.b} minus {result.a}: {result.metric}, {paired}"

    def __repr__(self) -> str:
        lines = [f"  k = {k:<5} {self.at(k)!r}" for k in self.shown]
        return "\n".join([self.title, *lines, self.verdict])

    def _repr_html_(self) -> str:
        rows = []
        for k in self.shown:
            result = self.at(k)
            rows.append(
                (f"k = {k}", f"{result.value:+.3f}", f"{result.low:+.3f} – {result.high:+.3f}")
            )
        header = ("", "difference", f"{self.comparison.confidence:.0%}")
        verdict = f"<p>{html.escape(self.verdict)}</p>"
        return verdict + _table(self.title, header, rows) + picture(self.plot)

    def to_pandas(self) -> Any:
        """One row per k: difference, low, high, p (corrected over k)."""
        result = self.comparison
        return _pandas().DataFrame(
            {
                "k": result.k,
                "difference": result.difference,
                "low": result.interval.low,
                "high": result.interval.high,
                "p": result.p_value,
            }
        )

    def plot(self, ax: Any = None) -> Any:
        """The difference against k, as on the page; returns the matplotlib axes."""
        return plot_difference(self.comparison, ax)


@dataclass(frozen=True, repr=False)
class ReportFile:
    """A report that was written."""

    path: Path
    size: int
    """Bytes of the page."""
    verdicts: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"{self.path} ({self.size / 1e6:.1f} MB)", *self.verdicts])

    def _repr_html_(self) -> str:
        stated = "".join(f"<p>{html.escape(text)}</p>" for text in self.verdicts)
        path = html.escape(str(self.path), quote=True)
        return f'<p><a href="{path}">{path}</a></p>{stated}'


class SignalResult(Signal):
    """How many groups of a batch teach an objective something."""

    def __repr__(self) -> str:
        used = self.groups - self.dropped
        lost = f"; {self.unscored} samples unscored" if self.unscored else ""
        return f"{used - self.silent} of {used} groups carry signal; k ≤ {self.largest_k}{lost}"

    __str__ = __repr__


def _range(sizes: np.ndarray) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low}" if low == high else f"{low} to {high}"


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        inside = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{inside}</tr>"

    body = "".join(line(row, "td") for row in rows)
    head = line(header, "th")
    return f"<table><caption>{html.escape(title)}</caption>{head}{body}</table>"


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install pandas") from error
    return pandas
