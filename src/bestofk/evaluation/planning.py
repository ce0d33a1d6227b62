"""How many problems and samples a wanted interval, or a wanted power, takes.

The variance of a mean over M problems of the unbiased pass@k has two parts: the problems differ,
and each is known from n samples only,

    Var = ( Var_p[pass@k(p)] + E_p[Var(estimate | p, n)] ) / M.

More samples shrink the second part only; more problems shrink both. For the difference of two runs
on the same problems, most of the first part cancels.

Both goals are about the procedures that will be run: the width is that of simulated intervals of
`curve`, and the power is that of the max-T test of `compare`, whose critical value and whose
differences are simulated for the population.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .betabinomial import fit, miss, posterior
from .comparison import compare
from .intervals import bounds_of_means, log_grid, t_quantile, tail_rank
from .max_t import sign_flip_tests
from .rare_losses import FEW_PROBLEMS, least_gain
from .results import Plan, PlanRow, Samples
from .values import pass_curve, passes_and_samples

MOST_PROBLEMS = 10_000_000
MOST_SIMULATED = 4000
"""The width for more problems is taken from Student's t."""
COLUMNS = 24
"""The test over all k is simulated at this many of them."""
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


@dataclass(frozen=True)
class Pair:
    """Two runs on the same problems: a pool of problems to draw from.

    Both success probabilities are Beta distributed, with a Gaussian copula between them.
    """

    first: np.ndarray
    """(POOL,) success probabilities of run a, and of run b on the same problems."""
    second: np.ndarray

    def draw(self, problems: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The success probabilities of both runs on some problems."""
        chosen = rng.integers(0, len(self.first), problems)
        return self.first[chosen], self.second[chosen]


NORMAL = NormalDist()
POOL = 20_000


def pair_of(people: Population, k: int, effect: float) -> Pair:
    """The population, and one that is better by `effect` in mean pass@k.

    Raises:
        ValueError: there is no room for such an effect.
    """
    here = 1.0 - float(miss(np.array(people.a), np.array(people.b), k))
    objective = here + abs(effect)
    if objective >= 0.9995:
        raise ValueError(
            f"pass@{k} is {here:.3f} in this population ({people.described}): it cannot rise by "
            f"{abs(effect):g}; plan for a smaller effect or a smaller k"
        )
    low, high = people.a, people.a + 1.0
    while 1.0 - float(miss(np.array(high), np.array(people.b), k)) < objective:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        enough = 1.0 - float(miss(np.array(middle), np.array(people.b), k)) >= objective
        low, high = (low, middle) if enough else (middle, high)
    one, other = np.random.default_rng(0).normal(size=(2, POOL))

    def pool(correlation: float) -> Pair:
        latent = correlation * one + np.sqrt(1.0 - correlation**2) * other
        return Pair(_beta(one, people.a, people.b), _beta(latent, high, people.b))

    if people.drift is None:
        return pool(1.0 - people.unlike)
    wide, narrow = 0.0, 1.0  # the correlation that gives the differences their variance
    for _ in range(8):
        middle = (wide + narrow) / 2
        built = pool(middle)
        spread = float(((1 - built.first) ** k - (1 - built.second) ** k).var())
        wide, narrow = (middle, narrow) if spread > people.drift else (wide, middle)
    return pool((wide + narrow) / 2)


def _beta(normal: np.ndarray, a: float, b: float) -> np.ndarray:
    """Normal variables turned into Beta(a, b) ones, by rank."""
    shares = (np.argsort(np.argsort(normal)) + 0.5) / len(normal)
    return np.interp(shares, *_quantiles(a, b))


def _quantiles(a: float, b: float) -> tuple[np.ndarray, np.ndarray]:
    p, weights, _ = posterior(0, a, b)
    share = np.cumsum(weights[0])
    return np.concatenate([[0.0], share]), np.concatenate([p[:1], p])


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
    at: bool = False,
    confidence: float = 0.95,
    seed: int = 0,
) -> Plan:
    """Ways to reach an interval of a wanted width, or a wanted power to find a difference.

    Args:
        k: of pass@k.
        width: wanted full width of the interval over problems (quoted: the bounded bootstrap).
        power: wanted chance that `compare` finds `effect` at k between two runs on the same
            problems, corrected over all k up to n.
        effect: the difference in pass@k to be found.
        people: the population of problems (`population`).
        n: samples per problem to consider; by default k, 2k, 4k, ... 32k.
        problems: how many there are, where that is given; then rows say what is reached.
        at: plan for a comparison at this k alone (`compare --at`).
        seed: of the simulations.

    Raises:
        ValueError: neither or both goals; numbers out of range; n < k.
    """
    people = people or population()
    options = _check(k, width, power, effect, n, problems)
    runs = 1 if width is not None else 2
    target = width if width is not None else power
    assert target is not None
    criteria: dict[int, Width | Power] = {}
    for samples in options:
        if width is not None:
            criteria[samples] = Width(people, k, samples, confidence, seed)
        else:
            assert effect is not None
            pair = pair_of(people, k, effect)
            criteria[samples] = power_of(pair, k, samples, at=at, confidence=confidence, seed=seed)
    rows = []
    for samples, criterion in criteria.items():
        count = problems or least_problems(criterion, target)
        rows.append(PlanRow(samples, count, count * samples * runs, criterion.reached(count)))
    enough = [row for row in rows if (row.value <= target if width else row.value >= target)]
    notes: tuple[str, ...] = ()
    if not enough and problems:
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
        at=at,
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
class Width:
    """The width of the interval over problems, by simulation of `curve`."""

    people: Population
    k: int
    n: int
    confidence: float
    seed: int

    def formula(self, problems: int) -> float:
        """For many problems: Student's t, and the one observation that the bootstrap adds."""
        spread = self.people.between(self.k) + self.people.within(self.k, self.n)
        quantile = t_quantile(0.5 + self.confidence / 2, problems - 1)
        return float(min(1.0, 2 * quantile * np.sqrt(spread / problems) + 1 / (problems + 1)))

    def reached(self, problems: int, trials: int = 24) -> float:
        """The mean width of simulated intervals."""
        if problems > MOST_SIMULATED:
            return self.formula(problems)
        rng = np.random.default_rng(self.seed)
        p = np.interp(rng.random((trials, problems)), *_quantiles(self.people.a, self.people.b))
        passes = rng.binomial(self.n, p)
        table = pass_curve(np.arange(self.n + 1), np.full(self.n + 1, self.n), self.k)[:, -1]
        draws = max(400, int(np.ceil(20 / (1.0 - self.confidence))))
        low, high = bounds_of_means(table[passes].T, (0.0, 1.0), draws, rng)
        rank = tail_rank((1.0 - self.confidence) / 2, draws)
        ends = np.sort(high, axis=0)[rank] - np.sort(low, axis=0)[draws - 1 - rank]
        return float(ends.mean())

    def enough(self, problems: int, target: float) -> bool:
        return self.reached(problems) <= target


@dataclass(frozen=True)
class Power:
    """The chance that `compare` finds the effect at k."""

    effect: float
    spread: float
    """Standard deviation of one problem's difference."""
    critical: float
    """Of the max-T test, in standard errors."""
    level: float
    """Of the test; fewer than 30 problems have to pass a second one (`rare_losses`)."""

    def reached(self, problems: int) -> float:
        errors = np.sqrt(problems) / max(self.spread, 1e-12)
        power = NORMAL.cdf(float(self.effect * errors) - self.critical)
        if problems >= FEW_PROBLEMS:
            return power
        beyond = self.effect - least_gain(problems, 1.0, self.level)
        return min(power, NORMAL.cdf(float(beyond * errors)))

    def enough(self, problems: int, target: float) -> bool:
        return self.reached(problems) >= target


def power_of(pair: Pair, k: int, n: int, *, at: bool, confidence: float, seed: int) -> Power:
    """The spread of the differences, and the critical value of the test, from simulated problems.

    Args:
        at: the test is at k alone, else over all k up to n.
    """
    others = [] if at else [each for each in log_grid(n, COLUMNS).tolist() if each != k - 1]
    columns = np.array([*others, k - 1])
    rng = np.random.default_rng(seed)
    gaps = _gaps(pair, n, columns, POOL, rng)
    critical = sign_flip_tests(gaps[:1000], confidence, 4000, rng).critical
    effect = float(((1 - pair.first) ** k - (1 - pair.second) ** k).mean())
    spread = float(gaps[:, -1].std(ddof=1))
    return Power(effect, spread, critical, 1.0 - confidence)


def _gaps(
    pair: Pair, n: int, columns: np.ndarray, problems: int, rng: np.random.Generator
) -> np.ndarray:
    """(problems, columns) simulated differences of pass@k between two runs of n samples each."""
    size = np.full(problems, n)
    a, b = (pass_curve(rng.binomial(n, p), size, n) for p in pair.draw(problems, rng))
    return (b - a)[:, columns]


def least_problems(criterion: Width | Power, target: float) -> int:
    """The fewest problems that are enough, within one percent: by bisection.

    Raises:
        ValueError: more than ten million.
    """
    low, high = 1, 2
    while not criterion.enough(high, target):
        low, high = high, high * 2
        if high > MOST_PROBLEMS:
            raise ValueError(f"the goal takes more than {MOST_PROBLEMS:,} problems: ask for less")
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if criterion.enough(middle, target) else (middle, high)
    return high
