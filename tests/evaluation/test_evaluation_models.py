"""The beta-binomial, extrapolation, planning: against scipy and against simulated truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from bestofk.evaluation import Samples, compare, curve, extrapolate, plan, population, samples
from bestofk.evaluation.betabinomial import fit, miss, posterior


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
    found = fit(c, n, np.ones((1, 150)))[0]
    assert loss(np.log(found)) <= best.fun + 1e-6
    assert found == pytest.approx(np.exp(best.x), rel=1e-3)


def test_weights_count_problems_several_times() -> None:
    rng = np.random.default_rng(1)
    c, n = rng.binomial(10, rng.beta(1, 2, 40)), np.full(40, 10)
    times = rng.integers(1, 4, 40)
    repeated = fit(np.repeat(c, times), np.repeat(n, times), np.ones((1, int(times.sum()))))
    assert fit(c, n, times[None].astype(float)) == pytest.approx(repeated, rel=1e-5)


def test_miss_and_posterior_are_scipys() -> None:
    a, b = np.array([0.4, 3.0]), np.array([2.0, 0.5])
    assert miss(a, b, 50) == pytest.approx(scipy.special.beta(a, b + 50) / scipy.special.beta(a, b))
    p, given, chance = posterior(12, 0.5, 1.5)
    for c in (0, 5, 12):
        exact = scipy.stats.beta(0.5 + c, 1.5 + 12 - c)
        assert given[c] @ p == pytest.approx(exact.mean(), abs=2e-3)
        assert chance[:, c] == pytest.approx(scipy.stats.binom.pmf(c, 12, p), abs=1e-9)


def test_extrapolation_hits_the_truth_when_the_model_holds(drawn: Callable[..., Samples]) -> None:
    held = 0
    for seed in range(25):
        found = extrapolate(drawn(150, 32, 0.3, 0.9, seed), [64, 256], resamples=400)
        for at, k in enumerate((64, 256)):
            held += bool(found.interval.low[at] <= truth(0.3, 0.9, k) <= found.interval.high[at])
        assert (found.interval.high > found.interval.low).all()
    assert held >= 0.9 * 50


def test_good_data_pass_the_check(drawn: Callable[..., Samples]) -> None:
    flags = [
        extrapolate(drawn(200, 64, 0.4, 0.8, seed), [256], resamples=400).unreliable
        for seed in range(10)
    ]
    assert sum(flags) <= 1


def test_a_second_kind_of_problem_fails_the_check_or_is_covered() -> None:
    # A third is never solved, the rest at 5 %: no Beta fits, and a naive curve would go on rising.
    rng = np.random.default_rng(0)
    chance = np.where(np.arange(300) % 3 == 0, 0.0, 0.05)
    run = samples((rng.random((300, 64)) < chance[:, None]).astype(float))
    found = extrapolate(run, [1024], resamples=400)
    assert found.unreliable
    assert any("the model predicts" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        (np.zeros((40, 16)), "too few to fit"),
        (np.ones((40, 16)), "too few to fit"),
        (np.tile([1.0, 0, 0, 0], (40, 1)), "too few to check"),
    ],
)
def test_thin_data_are_called_unreliable_and_still_have_an_interval(
    rewards: np.ndarray, reason: str
) -> None:
    found = extrapolate(samples(rewards), [64, 10_000], resamples=400)
    assert found.unreliable
    assert any(reason in each for each in found.reasons)
    assert (found.interval.high > found.interval.low).all()
    assert any("16 times n" in each for each in found.reasons)


def test_nothing_solved_leaves_room_above_and_all_solved_below() -> None:
    room = 1 - 0.025 ** (1 / 40)  # Clopper-Pearson for 40 problems, none or all of them solved
    none = extrapolate(samples(np.zeros((40, 16))), [32], resamples=2000)
    assert none.interval.high[0] >= 0.9 * room
    every = extrapolate(samples(np.ones((40, 16))), [32], resamples=2000)
    assert every.interval.low[0] <= 1 - 0.9 * room


def test_k_below_one_is_refused(drawn: Callable[..., Samples]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        extrapolate(drawn(20, 8, 1, 1, 0), [0])


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
        ({"width": 2.0}, "between 0 and 1"),
        ({"power": 0.8}, "--effect"),
        ({"width": 0.1, "n": [4]}, "at least 8 samples"),
        ({"width": 0.1, "problems": 1}, "at least two"),
        ({"width": 1e-6}, "ask for less"),
    ],
)
def test_plans_that_make_no_sense_are_refused(call: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(8, **call)  # type: ignore[arg-type]
