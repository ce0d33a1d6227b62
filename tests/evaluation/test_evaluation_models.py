"""The beta-binomial, planning: against scipy and against simulated truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from bestofk.evaluation import Samples, compare, curve, plan, population, samples
from bestofk.evaluation.difficulty import fit, sampling_variance


def truth(a: float, b: float, k: int) -> float:
    return float(1 - np.exp(scipy.special.betaln(a, b + k) - scipy.special.betaln(a, b)))


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (2.0, 5.0), (0.1, 2.0), (8.0, 1.0)])
def test_fit_is_the_maximum_of_scipys_likelihood(a: float, b: float) -> None:
    rng = np.random.default_rng(0)
    n = rng.integers(8, 33, 150)
    c = rng.binomial(n, rng.beta(a, b, 150))

    def loss(log_ab: np.ndarray) -> float:
        return -scipy.stats.betabinom.logpmf(c, n, *np.exp(log_ab)).sum()

    best = scipy.optimize.minimize(loss, np.log([a, b]), method="Nelder-Mead", tol=1e-10)
    found = fit(c, n)
    assert loss(np.log(found)) <= best.fun + 1e-6
    assert found == pytest.approx(np.exp(best.x), rel=1e-3)


def test_clusters_widen_plans(drawn: Callable[..., Samples]) -> None:
    rng = np.random.default_rng(0)
    names = np.repeat(np.arange(12), 10)
    rewards = (rng.random((120, 16)) < rng.beta(0.5, 1.0, 12)[names][:, None]).astype(float)
    alone, together = (samples(rewards, clusters=each) for each in (None, names.tolist()))
    plans = [plan(4, width=0.2, people=population([run]), n=[8]) for run in (alone, together)]
    assert plans[1].best.problems > 4 * plans[0].best.problems
    assert "design effect" in plans[1].population


def test_the_variance_that_sampling_adds_is_that_of_simulated_runs() -> None:
    rng, shapes = np.random.default_rng(0), np.array([[0.5, 1.5], [0.1, 2.0]])
    found = sampling_variance(8, np.array([4]), *shapes.T)[:, 0]
    for (a, b), variance in zip(shapes, found):
        p = rng.beta(a, b, 400_000)
        drawn = 1 - scipy.special.comb(8 - rng.binomial(8, p), 4) / scipy.special.comb(8, 4)
        between = np.var(1 - (1 - p) ** 4)
        assert variance == pytest.approx(np.var(drawn) - between, rel=0.02)


def test_planned_width_is_the_width_that_comes(drawn: Callable[..., Samples]) -> None:
    found = plan(4, width=0.12, people=population(shape=(0.5, 1.0)), n=[8])
    widths = []
    for seed in range(15):
        run = curve(drawn(found.best.problems, 8, 0.5, 1.0, seed), "pass@k", k_max=4)
        widths.append(run.interval.high[3] - run.interval.low[3])
    assert np.mean(widths) == pytest.approx(0.12, rel=0.08)


def test_planned_power_is_the_power_that_comes() -> None:
    rng = np.random.default_rng(0)
    pilots, effect = [], 0.0
    chance = rng.beta(0.8, 1.2, 3000)
    other = np.clip(chance + 0.05, 0, 1)
    effect = float(np.mean((1 - (1 - other) ** 4) - (1 - (1 - chance) ** 4)))
    for name, p in (("A", chance), ("B", other)):
        rewards = (rng.random((3000, 16)) < p[:, None]).astype(float)
        pilots.append(samples(rewards, name=name))
    people = population(pilots, k=4)
    found = plan(4, power=0.8, effect=effect, people=people, n=[16])
    size = found.best.problems
    won = 0
    for trial in range(120):
        p = rng.beta(0.8, 1.2, size)
        q = np.clip(p + 0.05, 0, 1)
        runs = [
            samples((rng.random((size, 16)) < x[:, None]).astype(float), name=str(i))
            for i, x in enumerate((p, q))
        ]
        won += compare(runs, resamples=500, seed=trial)[0].p_value[3] <= 0.05
    assert won / 120 == pytest.approx(0.8, abs=0.1)


def test_width_near_the_ceiling_is_planned_as_it_comes(drawn: Callable[..., Samples]) -> None:
    people = population(shape=(8.0, 1.0))
    found = plan(4, width=0.1, people=people, n=[16])
    size = found.best.problems
    runs = [curve(drawn(size, 16, 8.0, 1.0, seed), "pass@k", k_max=4) for seed in range(12)]
    widths = [run.interval.high[3] - run.interval.low[3] for run in runs]
    assert np.mean(widths) == pytest.approx(0.1, rel=0.1)


def test_a_test_at_one_k_needs_fewer_problems_than_a_test_over_all() -> None:
    people = population(shape=(0.4, 0.6))
    every, one = (plan(8, power=0.8, effect=0.05, people=people, at=at) for at in (False, True))
    assert all(b.problems < a.problems for a, b in zip(every.rows, one.rows))


def test_an_effect_that_has_no_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot rise by"):
        plan(8, power=0.8, effect=0.05, people=population(shape=(8.0, 1.0)))


def test_more_samples_need_fewer_problems_and_the_best_row_is_the_cheapest() -> None:
    found = plan(8, width=0.06)
    counts = [row.problems for row in found.rows]
    assert all(after <= 1.03 * before for before, after in zip(counts, counts[1:]))
    assert counts[-1] < 0.8 * counts[0]
    assert found.best.samples == min(row.samples for row in found.rows)
    assert all(row.value <= 0.06 for row in found.rows)
    fixed = plan(8, width=0.01, problems=100)
    assert fixed.notes
    assert all(row.problems == 100 for row in fixed.rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({}, "one of them"),
        ({"width": 0.1, "power": 0.8}, "one of them"),
        ({"power": 0.8}, "--effect"),
        ({"width": 0.1, "n": [4]}, "at least 8 samples"),
        ({"width": 1e-6}, "ask for less"),
    ],
)
def test_plans_that_make_no_sense_are_refused(call: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(8, **call)  # type: ignore[arg-type]
