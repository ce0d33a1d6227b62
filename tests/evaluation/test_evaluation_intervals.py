"""Intervals against scipy, against what they must never do, and against simulated truth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bestofk.evaluation import Metric, Samples, curve, samples
from bestofk.evaluation.intervals import allowance, bounds_of_means, over_problems


@pytest.mark.parametrize(("hits", "problems"), [(0, 20), (1, 20), (7, 20), (20, 20), (90, 100)])
def test_bounded_bootstrap_of_zero_one_data_is_clopper_pearson(hits: int, problems: int) -> None:
    values = np.zeros((problems, 1))
    values[:hits] = 1.0
    low, high = bounds_of_means(values, (0.0, 1.0), 40_000, np.random.default_rng(0))
    exact = scipy.stats.binomtest(hits, problems).proportion_ci(0.95, "exact")
    assert np.quantile(low, 0.025) == pytest.approx(exact.low, abs=0.006)
    assert np.quantile(high, 0.975) == pytest.approx(exact.high, abs=0.006)


def test_few_informative_problems_are_said(drawn: Callable[..., Samples]) -> None:
    found = curve(drawn(30, 64, 8.0, 1.0, seed=0), "pass@k")
    assert found.informative[-1] < 10
    assert any("from the floor or from" in note for note in found.notes)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=3, max_size=3), min_size=1))
def test_no_interval_is_ever_of_zero_width_or_outside(groups: list[list[float]]) -> None:
    found = curve(samples(groups), "pass@k", resamples=400)
    for interval in (found.interval, found.band, found.fixed):
        assert (interval.high - interval.low > 1e-6).all()
        assert (interval.low >= 0).all()
        assert (interval.high <= 1).all()
        assert (interval.low <= found.estimate + 1e-6).all()
        assert (interval.high >= found.estimate - 1e-6).all()
    assert (found.band.low <= found.interval.low + 1e-6).all()
    assert (found.band.high >= found.interval.high - 1e-6).all()


def test_same_seed_same_interval_other_seed_another(drawn: Callable[..., Samples]) -> None:
    run = drawn(40, 8, 1.0, 1.0, seed=5)
    one, two, other = (curve(run, "pass@k", seed=s).interval.low for s in (1, 1, 2))
    assert (one == two).all()
    assert (one != other).any()


def test_rewards_outside_zero_one_are_noted_and_bounds_used() -> None:
    run = samples([[-3.0, 2.0, 5.0], [-3.0, 1.0, 4.0], [0.0, 1.0, None]])
    found = curve(run, "max@k", resamples=400)
    assert found.bounds == (-3.0, 9.0)  # two problems reach -3; 5 is 1 ahead of the next
    assert any("hold if none can lie outside [-3, 9]; state --bounds" in n for n in found.notes)
    stated = curve(run, "max@k", bounds=(-10, 10), resamples=400)
    assert stated.interval.high[0] > found.interval.high[0]
    signs = samples([[1.0, 1.0, 1.0, -1.0], [1.0] * 4, [1.0] * 4])  # -1 was seen once
    assert curve(signs, "max@k", resamples=400).bounds == (-1.0, 1.0)


def test_intervals_of_heavy_tailed_rewards_hold_at_eight_problems() -> None:
    """Lognormal rewards: the largest that can come is far above the largest that came."""
    rng = np.random.default_rng(0)
    truth = float(np.exp(rng.normal(size=(100_000, 1)) + 0.5 * rng.normal(size=(100_000, 16)))
                  .max(axis=1).mean())  # fmt: skip
    held = observed = 0
    for trial in range(100):
        rewards = np.exp(rng.normal(size=(8, 1)) + 0.5 * rng.normal(size=(8, 16)))
        found = curve(samples(rewards), "max@k", resamples=1000, seed=trial)
        held += bool(found.interval.low[-1] <= truth <= found.interval.high[-1])
        ends = float(rewards.min()), float(rewards.max())
        short = curve(samples(rewards), "max@k", bounds=ends, resamples=1000, seed=trial)
        observed += bool(short.interval.low[-1] <= truth <= short.interval.high[-1])
    assert held >= 95 - 3 * math.sqrt(100 * 0.05 * 0.95)
    assert held >= observed + 3


def test_clusters_of_equal_size_are_the_bounded_bootstrap_over_their_means() -> None:
    values = np.random.default_rng(0).random((12, 3))
    number = np.repeat(np.arange(4), 3)
    rng = [np.random.default_rng(1) for _ in range(2)]
    together = bounds_of_means(values, (0.0, 1.0), 500, rng[0], number)
    means = bounds_of_means(values.reshape(4, 3, 3).mean(axis=1), (0.0, 1.0), 500, rng[1])
    for one, other in zip(together, means):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_problems_alike_within_a_cluster_are_covered_only_if_clusters_are_known() -> None:
    rng = np.random.default_rng(3)
    held = {True: 0, False: 0}
    names = np.repeat(np.arange(10), 10)
    for trial in range(100):
        chance = rng.beta(1.0, 1.0, 10)[names]
        rewards = (rng.random((100, 4)) < chance[:, None]).astype(float)
        for known in held:
            run = samples(rewards, clusters=names.tolist() if known else None)
            ends = curve(run, k_max=1, resamples=1000, seed=trial).interval
            held[known] += bool(ends.low[0] <= 0.5 <= ends.high[0])
    assert held[True] >= 95 - 3 * math.sqrt(100 * 0.05 * 0.95)
    assert held[False] < 75


def covers(
    a: float, b: float, problems: int, n: int, ks: list[int], trials: int
) -> dict[str, float]:
    """Share of simulated runs whose interval (at each k), band (all k) and fixed interval hold."""
    rng = np.random.default_rng(0)
    at = np.array(ks) - 1
    hits = {"interval": np.zeros(len(ks)), "fixed": np.zeros(len(ks))}
    band = 0
    k = np.arange(1, n + 1)
    truth = 1 - np.exp(scipy.special.betaln(a, b + k) - scipy.special.betaln(a, b))
    for trial in range(trials):
        chance = rng.beta(a, b, problems)
        run = samples((rng.random((problems, n)) < chance[:, None]).astype(float))
        found = curve(run, "pass@k", resamples=1000, seed=trial)
        these = (1 - (1 - chance[:, None]) ** k).mean(axis=0)
        band += bool(((found.band.low <= truth) & (truth <= found.band.high)).all())
        for name, value in (("interval", truth), ("fixed", these)):
            interval = getattr(found, name)
            hits[name] += ((interval.low <= value) & (value <= interval.high))[at]
    return {**{name: found.min() / trials for name, found in hits.items()}, "band": band / trials}


@pytest.mark.parametrize(("a", "b"), [(2.0, 1.0), (0.1, 2.0), (0.3, 0.3)])
def test_coverage_at_thirty_problems(a: float, b: float) -> None:
    found = covers(a, b, problems=30, n=16, ks=[1, 4, 16], trials=120)
    slack = 3 * np.sqrt(0.93 * 0.07 / 120)  # three standard errors of 120 trials
    for name in ("interval", "band", "fixed"):
        assert found[name] >= 0.93 - slack, (name, found)


@pytest.mark.slow
@pytest.mark.parametrize("problems", [30, 100, 500])
@pytest.mark.parametrize(("a", "b"), [(8.0, 1.0), (2.0, 1.0), (0.1, 2.0), (0.3, 0.3), (2.0, 2.0)])
def test_coverage_in_full(a: float, b: float, problems: int) -> None:
    found = covers(a, b, problems, n=32, ks=[1, 4, 16, 32], trials=600)
    slack = 2 * np.sqrt(0.93 * 0.07 / 600)
    for name, share in found.items():
        assert share >= 0.93 - slack, (name, found)


def test_student_alone_would_fail_where_the_bounded_bootstrap_holds() -> None:
    rng = np.random.default_rng(2)
    held = {"t": 0, "bounded": 0}
    truth = 1 - np.exp(scipy.special.betaln(2, 1 + 32) - scipy.special.betaln(2, 1))
    for _ in range(150):
        passes = rng.binomial(64, rng.beta(2, 1, 30))
        values = (1 - scipy.special.comb(64 - passes, 32) / scipy.special.comb(64, 32))[:, None]
        half = 2.045 * values.std(ddof=1) / np.sqrt(30)
        held["t"] += abs(values.mean() - truth) <= half
        found = over_problems(values, (0, 1), confidence=0.95, resamples=800, rng=rng)
        held["bounded"] += found.interval.low[0] <= truth <= found.interval.high[0]
    assert held["t"] < 0.6 * 150
    assert held["bounded"] >= 0.93 * 150 - 7


def test_the_band_holds_resampled_curves_at_every_k_and_the_interval_does_not() -> None:
    values = np.random.default_rng(8).random((60, 20))  # twenty unrelated columns: the hard case
    seeds = {"confidence": 0.95, "resamples": 2000}
    found = over_problems(values, (0, 1), rng=np.random.default_rng(1), **seeds)  # type: ignore[arg-type]
    low, high = bounds_of_means(values, (0, 1), 2000, np.random.default_rng(1))
    for ends, outside in (
        (found.band, lambda draws, end: draws > end + 1e-7),
        (found.interval, lambda draws, end: draws > end + 1e-7),
    ):
        above = outside(high, ends.high).any(axis=1).mean()
        below = outside(-low, -ends.low).any(axis=1).mean()
        if ends is found.band:
            assert 0.005 <= above <= 0.025
            assert 0.005 <= below <= 0.025
        else:
            assert above > 0.1
            assert below > 0.1


@pytest.mark.parametrize("metric", ["max@k", "maj@k", "mean", "pass@k"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_samples_that_never_vary_still_leave_a_fixed_set_uncertain(
    metric: Metric, value: float
) -> None:
    run = samples(np.full((5, 4), value), answers=[["x"] * 4] * 5)
    found = curve(run, metric, resamples=400)
    assert (found.fixed.high - found.fixed.low > 0.05).all()


def test_fixed_set_interval_of_graded_rewards_holds() -> None:
    rng = np.random.default_rng(0)
    levels, ks, trials = np.array([0.0, 0.5, 1.0]), np.array([1, 4, 8, 16]), 120
    chances = rng.dirichlet([0.5, 0.5, 0.5], 40)
    below = np.cumsum(chances, axis=1)
    mass = below[:, :, None] ** ks - np.concatenate(
        [np.zeros((40, 1, len(ks))), below[:, :-1, None] ** ks], axis=1
    )
    truth = np.einsum("plk,l->k", mass, levels) / 40
    held = np.zeros(len(ks))
    for trial in range(trials):
        drawn = np.array([rng.choice(levels, 16, p=chance) for chance in chances])
        found = curve(samples(drawn), "max@k", resamples=400, seed=trial)
        held += (found.fixed.low[ks - 1] <= truth) & (truth <= found.fixed.high[ks - 1])
    assert (held / trials >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / trials)).all(), held / trials


def test_fixed_set_width_is_the_spread_of_repeated_sampling() -> None:
    rng = np.random.default_rng(6)
    chance = rng.beta(0.7, 1.0, 200)
    ks = np.array([1, 4, 12])
    estimates, halves = [], []
    for trial in range(150):
        run = samples((rng.random((200, 16)) < chance[:, None]).astype(float))
        found = curve(run, "pass@k", resamples=400, seed=trial)
        estimates.append(found.estimate[ks - 1])
        halves.append((found.fixed.high - found.fixed.low)[ks - 1] / 2 / 1.95996)
    spread = np.std(estimates, axis=0, ddof=1)
    assert np.mean(halves, axis=0) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("share", [0.18, 0.27, 0.4])
def test_intervals_hold_where_one_cluster_has_a_large_share_of_the_problems(share: float) -> None:
    """100 clusters of 5 problems but for one; a cluster's problems are all alike."""
    sizes = np.full(100, 5)
    sizes[0] = round(5 * 99 * share / (1 - share))
    clusters, held = np.repeat(np.arange(100), sizes), 0
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.beta(0.3, 0.3, 100)[clusters][:, None]
        ends = over_problems(
            values, (0.0, 1.0), confidence=0.95, resamples=400, rng=rng, clusters=clusters
        ).interval
        held += bool(ends.low[0] <= 0.5 <= ends.high[0])
    assert held / 200 >= 0.93


def test_clusters_of_one_size_widen_nothing_and_a_lone_giant_leaves_nothing_to_tell() -> None:
    rng = np.random.default_rng(1)
    values = rng.random((60, 3))
    assert allowance(values - values.mean(axis=0), None, 0.95).tolist() == [1.0] * 3
    equal = allowance(values - values.mean(axis=0), np.arange(60) % 12, 0.95)
    np.testing.assert_allclose(equal, 1.0, rtol=1e-12)
    giant = np.repeat([0, 1], [59, 1])
    found = over_problems(
        values, (0.0, 1.0), confidence=0.95, resamples=400, rng=rng, clusters=giant
    )
    assert found.interval.low.tolist() == [0.0] * 3
    assert found.interval.high.tolist() == [1.0] * 3


def test_intervals_of_large_rewards_keep_the_digits_of_their_range() -> None:
    rng = np.random.default_rng(2)
    values = rng.random((50, 1))
    plain, moved = (
        over_problems(
            values + shift, (shift, shift + 1.0), confidence=0.95, resamples=2000,
            rng=np.random.default_rng(3),
        ).interval
        for shift in (0.0, 1e9)
    )  # fmt: skip
    assert moved.low[0] - 1e9 == pytest.approx(plain.low[0], abs=1e-5)
    assert moved.high[0] - 1e9 == pytest.approx(plain.high[0], abs=1e-5)
