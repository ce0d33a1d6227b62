"""The beta-binomial, extrapolation, planning: against scipy and against simulated truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from bestofk.evaluation import Samples, compare, curve, extrapolate, plan, population, samples
from bestofk.evaluation.difficulty import counts_of, fit, likeliest, profile, sampling_variance


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


def spread(kind: str, problems: int, rng: np.random.Generator) -> np.ndarray:
    """Success probabilities of problems."""
    if kind == "beta":
        return rng.beta(0.3, 1.5, problems)
    if kind == "logit-normal":
        return 1 / (1 + np.exp(3.0 - 2.0 * rng.normal(size=problems)))
    if kind == "two kinds":
        return np.where(rng.random(problems) < 0.5, 0.02, 0.5)
    return np.where(rng.random(problems) < 0.3, 0.0, rng.beta(0.8, 2.0, problems))


@pytest.mark.parametrize(
    "kind",
    [
        "two kinds",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("beta", "logit-normal", "a mass at zero")
        ),
    ],
)
def test_extrapolation_covers_the_truth_whatever_its_shape(kind: str) -> None:
    rng = np.random.default_rng(0)
    many = spread(kind, 200_000, rng)
    held = given = estimates = 0
    for _ in range(8):
        chance = spread(kind, 100, rng)
        run = samples((rng.random((100, 32)) < chance[:, None]).astype(float))
        found = extrapolate(run, [128, 512])
        for at, k in enumerate((128, 512)):
            if np.isnan(found.interval.low[at]):
                assert found.flags[at].startswith("no number: ")
                continue
            truth_k = float(np.mean(1 - (1 - many) ** k))
            given += 1
            held += bool(found.interval.low[at] <= truth_k <= found.interval.high[at])
            if found.flags[at]:
                assert np.isnan(found.estimate[at])
                continue
            estimates += abs(found.estimate[at] - truth_k) > 0.15
            assert found.interval.low[at] <= found.estimate[at] <= found.interval.high[at]
    assert given >= 8
    assert held >= given - 2
    assert estimates == 0  # a point that is far off is not given


def test_the_prediction_continues_the_curve_and_never_falls(drawn: Callable[..., Samples]) -> None:
    run = drawn(120, 32, 0.3, 0.9, 0)
    found = extrapolate(run, [32, 33, 40, 64, 128, 256])
    assert found.estimate[0] == pytest.approx(curve(run, "pass@k", resamples=400).estimate[-1])
    given = found.estimate[~np.isnan(found.estimate)]
    assert len(given) >= 3
    assert (np.diff(given) >= -1e-12).all()
    assert given[1] - given[0] < 0.01
    assert (np.diff(found.interval.high) >= -0.02).all()


def test_the_likeliest_distribution_beats_every_beta(drawn: Callable[..., Samples]) -> None:
    run = drawn(120, 16, 0.5, 0.9, 1)
    passes = run.count(run.rewards == 1)
    counts = counts_of(passes, run.live, 64)
    best = counts.likelihood(likeliest(counts))
    assert scipy.stats.betabinom.logpmf(passes, 16, *fit(passes, run.live)).sum() <= best + 0.1
    solved = 1 - (1 - counts.p) ** np.array([[1], [64]])
    low, high = profile(counts, solved, 0.95, likeliest(counts))
    assert (low < solved @ likeliest(counts)).all()
    assert (solved @ likeliest(counts) < high).all()
    # at k = 1 the interval is about that of the mean
    error = 1.96 * (passes / 16).std(ddof=1) / np.sqrt(120)
    assert high[0] - low[0] == pytest.approx(2 * error, rel=0.25)


def test_good_data_pass_the_check(drawn: Callable[..., Samples]) -> None:
    flags = [extrapolate(drawn(200, 64, 0.4, 0.8, seed), [256]).unreliable for seed in range(6)]
    assert sum(flags) <= 1


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        (np.zeros((40, 16)), "too few to fit"),
        (np.ones((40, 16)), "too few to fit"),
        (np.tile([1.0, 0, 0, 0], (40, 1)), "too few to check"),
    ],
)
def test_thin_data_are_called_unreliable_and_far_k_get_no_number(
    rewards: np.ndarray, reason: str
) -> None:
    found = extrapolate(samples(rewards), [64, 10_000])
    assert found.unreliable
    assert any(reason in each for each in found.reasons)
    assert "16 times n" in found.flags[1]
    assert np.isnan(found.estimate[1])
    assert found.interval.high[0] > found.interval.low[0]


def test_nothing_solved_leaves_room_above_and_all_solved_below() -> None:
    none = extrapolate(samples(np.zeros((40, 16))), [17])
    assert none.interval.high[0] >= 0.04
    every = extrapolate(samples(np.ones((40, 16))), [17])
    assert 0.9 < every.interval.low[0] <= 0.97  # exp(-1.92 / 40) = 0.953


def test_clusters_widen_predictions_and_plans(drawn: Callable[..., Samples]) -> None:
    rng = np.random.default_rng(0)
    names = np.repeat(np.arange(12), 10)
    rewards = (rng.random((120, 16)) < rng.beta(0.5, 1.0, 12)[names][:, None]).astype(float)
    alone, together = (samples(rewards, clusters=each) for each in (None, names.tolist()))
    widths = []
    for run in (alone, together):
        ends = extrapolate(run, [32]).interval
        widths.append(ends.high[0] - ends.low[0])
    assert widths[1] > 1.5 * widths[0]
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
