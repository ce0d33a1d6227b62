"""How many problems and samples a wanted interval, or a wanted power, takes.

The variance of a mean over M problems of the unbiased pass@k has two parts: the problems differ,
and each is known from n samples only,

    Var = ( Var_p[pass@k(p)] + E_p[Var(estimate | p, n)] ) / M.

More samples shrink the second part only; more problems shrink both. For the difference of two runs
on the same problems, most of the first part cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .betabinomial import fit, posterior
from .comparison import compare
from .intervals import t_quantile
from .results import Plan, PlanRow, Samples
from .values import pass_curve, passes_and_samples

MOST_PROBLEMS = 10_000_000
DEFAULT_SHAPE = (0.4, 0.6)
"""Beta(0.4, 0.6): mean pass@1 of .4, many problems near 0 and 1, as benchmarks tend to be."""


@dataclass(frozen=True)
class Population:
    """How difficulty is spread over problems."""

    a: float
    b: float
    described: str
    unlike: float = 0.2
    """Of the between-problem variance, the share that two runs do not have in common."""
    drift: float | None = None
    """Variance over problems of the true difference, where two pilot runs show it."""

    def between(self, k: int) -> float:
        """Var_p[pass@k(p)]."""
        p, weights, _ = posterior(0, self.a, self.b)
        value = 1.0 - (1.0 - p) ** k
        mean = weights[0] @ value
        return float(weights[0] @ (value - mean) ** 2)

    def within(self, k: int, n: int) -> float:
        """E_p[Var(estimate of pass@k from n samples | p)]."""
        _, prior, _ = posterior(0, self.a, self.b)
        _, _, chance = posterior(n, self.a, self.b)
        misses = 1.0 - pass_curve(np.arange(n + 1), np.full(n + 1, n), k)[:, -1]
        mean = chance @ misses
        return float(prior[0] @ np.maximum(chance @ misses**2 - mean**2, 0.0))


def population(
    pilots: Sequence[Samples] = (),
    *,
    k: int = 1,
    shape: tuple[float, float] | None = None,
    threshold: float | None = None,
) -> Population:
    """The population to plan for: from one or two pilot runs, from a stated Beta, or the default.

    With two pilots, the variance of their true difference at k is taken from the data.
    """
    if pilots:
        passes, n = passes_and_samples(pilots[0], threshold)
        live = n > 0
        a, b = fit(passes[live], n[live], np.ones((1, int(live.sum()))))[0]
        text = f"Beta({a:.2f}, {b:.2f}) fitted to {pilots[0].name} ({int(live.sum())} problems)"
        drift = None
        if len(pilots) > 1:
            drift = _drift(pilots, k, threshold)
            text += f"; difference as between {pilots[0].name} and {pilots[1].name}"
        return Population(float(a), float(b), text, drift=drift)
    a, b = shape or DEFAULT_SHAPE
    if a <= 0 or b <= 0:
        raise ValueError(f"a Beta population has two positive parameters, got {a}, {b}")
    how = "stated" if shape else "assumed; give a pilot file, or --population a b"
    return Population(a, b, f"Beta({a:g}, {b:g}), {how}")


def _drift(pilots: Sequence[Samples], k: int, threshold: float | None) -> float:
    """Variance over problems of the true difference: what is seen minus what sampling adds."""
    paired = compare(
        pilots[:2], "pass@k", k_max=k, threshold=threshold, small="drop", resamples=400
    )
    seen = float((paired[0].values_b - paired[0].values_a)[:, -1].var(ddof=1))
    noise = 0.0
    for run in pilots[:2]:
        here = population([run], threshold=threshold)
        noise += here.within(k, max(k, int(run.live[run.live > 0].min())))
    return max(seen - noise, 0.0)


def plan(
    k: int,
    *,
    width: float | None = None,
    power: float | None = None,
    effect: float | None = None,
    people: Population | None = None,
    n: Sequence[int] | None = None,
    problems: int | None = None,
    confidence: float = 0.95,
) -> Plan:
    """Ways to reach an interval of a wanted width, or a wanted power to find a difference.

    Args:
        k: of pass@k.
        width: wanted full width of the interval over problems (quoted: the bounded bootstrap).
        power: wanted chance to find `effect` between two runs on the same problems.
        effect: the difference in pass@k to be found.
        people: the population of problems (`population`).
        n: samples per problem to consider; by default k, 2k, 4k, ... 32k.
        problems: how many there are, where that is given; then rows say what is reached.

    Raises:
        ValueError: neither or both goals; numbers out of range; n < k.
    """
    people = people or population()
    options = _check(k, width, power, effect, n, problems)
    rows = []
    for samples in options:
        goal = _Goal(people, k, samples, width, power, effect, confidence)
        count = problems or goal.least_problems()
        runs = 1 if width is not None else 2
        rows.append(PlanRow(samples, count, count * samples * runs, goal.reached(count)))
    target = width if width is not None else power
    assert target is not None
    enough = [row for row in rows if (row.value <= target if width else row.value >= target)]
    notes: tuple[str, ...] = ()
    if not enough:
        notes = (
            f"with {problems} problems no number of samples considered is enough: "
            "the problems themselves differ too much; more problems are needed",
        )
    return Plan(
        goal="width" if width is not None else "power",
        target=target,
        effect=effect,
        k=k,
        population=people.described,
        rows=tuple(rows),
        best=min(enough or rows, key=lambda row: (row.samples, row.n)),
        confidence=confidence,
        notes=notes,
    )


def _check(
    k: int,
    width: float | None,
    power: float | None,
    effect: float | None,
    n: Sequence[int] | None,
    problems: int | None,
) -> list[int]:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if (width is None) == (power is None):
        raise ValueError(
            "plan for an interval (--width 0.05) or for power (--power 0.8), one of them"
        )
    if width is not None and not 0 < width < 1:
        raise ValueError(f"width lies between 0 and 1, got {width}")
    if power is not None:
        if not 0.05 < power < 1:
            raise ValueError(f"power lies between 0.05 and 1, like 0.8; got {power}")
        if effect is None or not 0 < abs(effect) < 1:
            raise ValueError(
                f"power needs the difference to be found, between 0 and 1 (--effect 0.03), "
                f"got {effect}"
            )
    if problems is not None and problems < 2:
        raise ValueError(f"an interval over problems needs at least two, got {problems}")
    options = sorted({int(each) for each in (n or [k * 2**j for j in range(6)])})
    if options[0] < k:
        raise ValueError(f"pass@{k} needs at least {k} samples per problem, got n = {options[0]}")
    return options


@dataclass(frozen=True)
class _Goal:
    people: Population
    k: int
    n: int
    width: float | None
    power: float | None
    effect: float | None
    confidence: float

    def variance(self) -> float:
        """Of one problem's value, or of one problem's difference between two runs."""
        between, within = self.people.between(self.k), self.people.within(self.k, self.n)
        if self.width is not None:
            return between + within
        drift = self.people.drift
        return (2 * self.people.unlike * between if drift is None else drift) + 2 * within

    def reached(self, problems: int, variance: float | None = None) -> float:
        """The width, or the power, with that many problems."""
        variance = self.variance() if variance is None else variance
        error = np.sqrt(variance / problems)
        if self.width is not None:
            quantile = t_quantile(0.5 + self.confidence / 2, problems - 1)
            # the bounded bootstrap adds one observation at either end of [0, 1]
            return float(min(1.0, 2 * quantile * error + 1 / (problems + 1)))
        assert self.effect is not None
        normal = NormalDist()
        shift = abs(self.effect) / max(error, 1e-12)
        return normal.cdf(shift - normal.inv_cdf(0.5 + self.confidence / 2))

    def least_problems(self) -> int:
        """By bisection: more problems are always better."""
        variance = self.variance()

        def enough(problems: int) -> bool:
            value = self.reached(problems, variance)
            if self.width is not None:
                return value <= self.width
            return value >= (self.power or 0.0)

        low, high = 1, 2
        while not enough(high):
            low, high = high, high * 2
            if high > MOST_PROBLEMS:
                raise ValueError(
                    f"the goal takes more than {MOST_PROBLEMS:,} problems: ask for less"
                )
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high
