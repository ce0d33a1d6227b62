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

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from bestofk.procedures import SUBSETS
from bestofk.procedures.binomials import subset_share
from bestofk.procedures.subsets import Worth
from bestofk.samples import Samples

from .comparison import compare
from .curves import reward_bounds
from .difficulty import fit, miss, sampling_variance
from .intervals import bounds_of_means, by_cluster, log_grid, tail_rank
from .per_problem import MetricRules, pass_curve, passes_and_samples, rules_of, values_by_k
from .rare_losses import least_gain
from .results import Metric, Plan, PlanRow
from .sign_flips import sign_flip_tests
from .verdict_words import metric_at

MOST_PROBLEMS = 10_000_000
MOST_SIMULATED = 4000
"""The width for more problems follows from this many: it falls as 1 / √problems."""
TRIALS = 96
COLUMNS = 24
"""The test over all k is simulated at this many of them."""
POOL = 20_000
DEFAULT_SHAPE = (0.4, 0.6)
"""Beta(0.4, 0.6): mean pass@1 of .4, many problems near 0 and 1, as benchmarks tend to be."""
POOLED = 500
"""Problems drawn again from a pilot, each with samples drawn again, for metrics beyond pass@k."""
UNLIKE = 0.2
"""Without two pilots: one minus the correlation of the difficulties of two runs."""


@dataclass(frozen=True)
class Population:
    """How difficulty is spread over problems: Beta(a, b)."""

    a: float
    b: float
    described: str
    drift: float | None = None
    """Variance over problems of the true difference, where two pilot runs show it."""
    effect: float = 1.0
    """Of the design: problems in clusters count as this many times fewer."""


def pair_of(people: Population, k: int, effect: float) -> np.ndarray:
    """(2, POOL) success probabilities on the same problems: of the population, and of one that is
    better by `effect` in mean pass@k. Both are Beta distributed, with a Gaussian copula."""
    from scipy.optimize import brentq
    from scipy.special import betaincinv

    here = 1.0 - miss(people.a, people.b, k)
    if here + abs(effect) >= 0.9995:
        raise ValueError(
            f"pass@{k} is {here:.3f} in this population ({people.described}): it cannot rise by "
            f"{abs(effect):g}; plan for a smaller effect or a smaller k"
        )
    better = brentq(lambda a: 1.0 - miss(a, people.b, k) - here - abs(effect), people.a, 1e9)
    one, other = np.random.default_rng(0).normal(size=(2, POOL))

    def beta(normal: np.ndarray, a: float) -> np.ndarray:
        shares = (np.argsort(np.argsort(normal)) + 0.5) / POOL  # by rank
        return np.asarray(betaincinv(a, people.b, shares))

    def pool(correlation: float) -> np.ndarray:
        latent = correlation * one + np.sqrt(1.0 - correlation**2) * other
        return np.stack([beta(one, people.a), beta(latent, better)])

    if people.drift is None:
        return pool(1.0 - UNLIKE)
    wide, narrow = 0.0, 1.0  # the correlation that gives the differences their variance
    for _ in range(8):
        middle = (wide + narrow) / 2
        spread = float(np.diff((1 - pool(middle)) ** k, axis=0).var())
        wide, narrow = (middle, narrow) if spread > people.drift else (wide, middle)
    return pool((wide + narrow) / 2)


def population(
    pilots: Sequence[Samples] = (),
    *,
    k: int = 1,
    shape: tuple[float, float] | None = None,
    threshold: float | None = None,
) -> Population:
    """The population to plan for: from one or two pilot runs, from a stated Beta, or the default.

    With two pilots, the variance of their true difference at k is taken from the data. Clusters of
    the first pilot are taken for those of the runs to come.
    """
    if pilots:
        passes, n = passes_and_samples(pilots[0], threshold)
        live = n > 0
        a, b = fit(passes[live], n[live])
        text = f"Beta({a:.2f}, {b:.2f}) fitted to {pilots[0].name} ({int(live.sum())} problems)"
        clusters = pilots[0].cluster_of(np.flatnonzero(live))
        effect = design_effect((passes[live] / n[live])[:, None], clusters)
        if clusters is not None:
            text += f", in clusters (design effect {effect:.1f})"
        drift = None
        if len(pilots) > 1:
            drift = _drift(pilots, k, threshold)
            text += f"; difference as between {pilots[0].name} and {pilots[1].name}"
        return Population(a, b, text, drift=drift, effect=effect)
    a, b = shape or DEFAULT_SHAPE
    how = "stated" if shape else "assumed; give a pilot file, or --population a b"
    return Population(a, b, f"Beta({a:g}, {b:g}), {how}")


def design_effect(values: np.ndarray, clusters: np.ndarray | None) -> float:
    """Variance of the mean of values (P, 1) over clusters, over that of independent problems; ≥ 1.

    >>> design_effect(np.array([[0.0], [0.0], [1.0], [1.0]]), np.array([0, 0, 1, 1]))
    3.0
    """
    centred = values - values.mean()
    units, _ = by_cluster(centred, clusters)
    alone, together = (
        float((each**2).sum() / max(len(each) - 1, 1) / len(each)) for each in (centred, units)
    )
    return max(1.0, together / alone) if alone > 0 else 1.0


def _drift(pilots: Sequence[Samples], k: int, threshold: float | None) -> float:
    """Variance over problems of the true difference: what is seen minus what sampling adds."""
    paired = compare(
        pilots[:2], "pass@k", k_max=k, threshold=threshold, small="drop", resamples=400
    )
    observed = float((paired[0].values_b - paired[0].values_a)[:, -1].var(ddof=1))
    noise = 0.0
    for run in pilots[:2]:
        here = population([run], threshold=threshold)
        n, one = max(k, int(run.live[run.live > 0].min())), np.array([k])
        noise += sampling_variance(n, one, np.array([here.a]), np.array([here.b])).item()
    return max(observed - noise, 0.0)


def plan(
    k: int,
    metric: Metric = "pass@k",
    *,
    pilots: Sequence[Samples] = (),
    threshold: float | None = None,
    bounds: tuple[float, float] | None = None,
    price: float = 0.0,
    value: Worth | None = None,
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
        k: of the metric.
        metric: as in `curve`. How rewards, scores and answers go together is taken from a pilot,
            whose problems and samples are drawn again; pass@k takes `people`.
        pilots: for metrics other than pass@k: one run; two for the differences.
        threshold, bounds, price, value: as in `curve`.
        width: wanted full width of the interval over problems (quoted: the bounded bootstrap).
        power: wanted chance that `compare` finds `effect` at k between two runs on the same
            problems, corrected over all k up to n.
        effect: the difference in the metric to be found.
        people: the population of problems (`population`).
        n: samples per problem to consider; by default k, 2k, 4k, ... 32k.
        problems: how many there are, where that is given; then rows say what is reached.
        at: plan for a comparison at this k alone (`compare --at`); true of subsets@k.
        seed: of the simulations.

    Raises:
        ValueError: neither or both goals; power without an effect; n < k.
    """
    if (width is None) == (power is None):
        raise ValueError(
            "plan for an interval (--width 0.05) or for power (--power 0.8), one of them"
        )
    if power is not None and not effect:
        raise ValueError("power needs the difference to be found (--effect 0.03)")
    options = sorted(n or [k * 2**j for j in range(6)])
    if options[0] < k:
        name = metric_at(metric, k)
        raise ValueError(f"{name} needs at least {k} samples per problem, got n = {options[0]}")
    rules = rules_of([metric], threshold=threshold, price=price, value=value, bounds=bounds)
    at = at or metric == SUBSETS.metric
    if metric != "pass@k":
        people = _people_of(pilots, metric, k, rules)
        ends = reward_bounds(pilots, metric, bounds, price=price, k_max=k)[0]
    people = people or population()
    target = width or power or 0.0
    change = effect or 0.0
    pair = pair_of(people, k, change) if metric == "pass@k" and power is not None else None

    def enough(value: float) -> bool:
        return value <= target if width is not None else value >= target

    rows = []
    for samples in options:
        rng = np.random.default_rng(seed)
        if pair is not None:
            gaps = _gaps_of_pair(pair, k, samples, at, rng)
            mean_gain = float(((1 - pair[0]) ** k - (1 - pair[1]) ** k).mean())
            reached = power_of(gaps, mean_gain, 1.0, confidence, rng)
        elif metric == "pass@k":
            reached = width_of(_passes(people, k, samples), (0.0, 1.0), confidence, seed)
        else:
            runs = [*pilots, pilots[0]][:2] if power is not None else pilots[:1]
            values = _drawn_again(runs, metric, k, samples, at or not power, rules, rng)
            if power is None:
                reached = width_of(_from_pool(values[0][:, -1]), ends, confidence, seed)
            else:
                gaps = values[1] - values[0]
                gaps = gaps - gaps.mean(axis=0) + change
                reached = power_of(gaps, change, ends[1] - ends[0], confidence, rng)
        alone = int(problems / people.effect) if problems else _least(reached, enough)
        count = problems or int(np.ceil(alone * people.effect))
        total = count * samples * (1 if power is None else 2)
        rows.append(PlanRow(samples, count, total, reached(max(alone, 2))))
    good = [row for row in rows if enough(row.value)]
    notes: tuple[str, ...] = ()
    if not good and problems:
        notes = (
            f"with {problems} problems no number of samples considered is enough: "
            "the problems themselves differ too much; more problems are needed",
        )
    return Plan(
        goal="width" if width is not None else "power",
        target=target,
        effect=effect,
        k=k,
        metric=metric,
        population=people.described,
        rows=tuple(rows),
        best=min(good or rows, key=lambda row: (row.samples, row.n)),
        confidence=confidence,
        at=at,
        notes=notes,
    )


Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
"""(generator, shape) → values of random problems."""


def _passes(people: Population, k: int, n: int) -> Draw:
    table = 1.0 - subset_share(n, k)[::-1]  # by the number of passes
    return lambda rng, shape: table[rng.binomial(n, rng.beta(people.a, people.b, shape))]


def _from_pool(pool: np.ndarray) -> Draw:
    return lambda rng, shape: rng.choice(pool, shape)


def width_of(
    draw: Draw, ends: tuple[float, float], confidence: float, seed: int
) -> Callable[[int], float]:
    """The mean width of simulated intervals of `curve`, as a function of the number of problems."""

    @functools.cache
    def reached(problems: int) -> float:
        if problems > MOST_SIMULATED:
            return reached(MOST_SIMULATED) * float(np.sqrt(MOST_SIMULATED / problems))
        rng = np.random.default_rng(seed)
        values = draw(rng, (TRIALS, problems))
        draws = max(400, int(np.ceil(20 / (1.0 - confidence))))
        low, high = bounds_of_means(values.T, ends, draws, rng)
        rank = tail_rank((1.0 - confidence) / 2, draws)
        widths = np.sort(high, axis=0)[rank] - np.sort(low, axis=0)[draws - 1 - rank]
        return float(widths.mean())

    return reached


def _columns(k: int, n: int, at: bool) -> np.ndarray:
    """The places of the k that are tested, k last."""
    other_k = [] if at else [each for each in log_grid(n, COLUMNS).tolist() if each != k - 1]
    return np.array([*other_k, k - 1])


def _gaps_of_pair(
    pair: np.ndarray, k: int, n: int, at: bool, rng: np.random.Generator
) -> np.ndarray:
    """Differences in pass@k of two runs on random problems, (POOL, columns)."""
    chances, columns = pair[:, rng.integers(0, POOL, POOL)], _columns(k, n, at)
    a, b = (pass_curve(rng.binomial(n, p), np.full(POOL, n), n)[:, columns] for p in chances)
    return np.asarray(b - a)


def _people_of(pilots: Sequence[Samples], metric: Metric, k: int, rules: MetricRules) -> Population:
    """What a plan from pilots rests on, in words, and the effect of clusters."""
    if not pilots:
        raise ValueError(
            f"a plan for {metric} takes a pilot (--pilot FILE): how rewards, scores and answers go "
            "together cannot be assumed"
        )
    run = pilots[0]
    rows = np.flatnonzero(run.live >= k)
    if not rows.size:
        raise ValueError(f"{run.name}: no problem has {k} scored samples to plan {metric} from")
    values = values_by_k(run, metric, rows, np.array([k]), rules)
    clusters = run.cluster_of(rows)
    effect = design_effect(values, clusters)
    text = f"problems and samples of {run.name} drawn again ({len(rows)} problems)"
    text += f", in clusters (design effect {effect:.1f})" if clusters is not None else ""
    text += f"; difference as to {pilots[1].name}" if len(pilots) > 1 else ""
    return Population(1.0, 1.0, text, effect=effect)


def _drawn_again(
    runs: Sequence[Samples],
    metric: Metric,
    k: int,
    n: int,
    at: bool,
    rules: MetricRules,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Values of POOLED random problems with n samples each, drawn with replacement: for each run,
    (POOLED, columns). Two runs share problems; one run taken twice shares all but UNLIKE of them.
    """
    shared = sorted(set.intersection(*(set(run.problems) for run in runs)))
    if not shared:
        raise ValueError("the two pilots have no problem in common")
    picks = rng.integers(0, len(shared), POOLED)
    columns, tables = _columns(k, n, at), []
    for number, run in enumerate(runs):
        if number and run is runs[0]:
            other = rng.random(POOLED) < UNLIKE
            picks = np.where(other, rng.integers(0, len(shared), POOLED), picks)
        row = {problem: at for at, problem in enumerate(run.problems)}
        scored = [np.flatnonzero(~np.isnan(run.rewards[run.of(row[p])])) for p in shared]
        starts = [run.offsets[row[p]] for p in shared]
        able = [each if each.size else np.zeros(1, np.int64) for each in scored]
        flat = np.concatenate([starts[p] + rng.choice(able[p], n) for p in picks])
        again = Samples(
            name=run.name,
            problems=tuple(map(str, range(POOLED))),
            offsets=np.arange(POOLED + 1) * n,
            rewards=np.nan_to_num(run.rewards[flat]),
            answers=None if run.answers is None else run.answers[flat],
            scores=None if run.scores is None else run.scores[flat],
            tokens=None if run.tokens is None else run.tokens[flat],
        )
        tables.append(values_by_k(again, metric, np.arange(POOLED), columns + 1, rules))
    return tables


def power_of(
    gaps: np.ndarray, effect: float, size: float, confidence: float, rng: np.random.Generator
) -> Callable[[int], float]:
    """The chance that `compare` finds the effect at k, as a function of the number of problems.

    The spread of the differences and the critical value of the test are those of simulated runs.

    Args:
        gaps: differences of random problems at the k that are tested, the wanted k last.
        size: the range of the metric.
    """
    critical = sign_flip_tests(gaps[:1000], confidence, 4000, rng, size).critical
    spread = max(float(gaps[:, -1].std(ddof=1)), 1e-12)

    def reached(problems: int) -> float:
        error = spread / np.sqrt(problems)
        smallest = max(critical * error, least_gain(error, problems, size, 1.0 - confidence))
        return NormalDist().cdf(float((abs(effect) - smallest) / error))

    return reached


def _least(reached: Callable[[int], float], enough: Callable[[float], bool]) -> int:
    """The fewest problems that are enough, within one percent: by bisection."""
    low, high = 1, 2
    while not enough(reached(high)):
        low, high = high, high * 2
        if high > MOST_PROBLEMS:
            raise ValueError(f"the goal takes more than {MOST_PROBLEMS:,} problems: ask for less")
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(reached(middle)) else (middle, high)
    return high
