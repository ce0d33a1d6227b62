"""Comparisons: exact on small cases, calibrated under the null, powerful when paired."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from bestofk.evaluation import Samples, compare, curve, samples
from bestofk.evaluation.comparison import crossings, find_crossing
from bestofk.evaluation.max_t import sign_flip_tests
from bestofk.evaluation.rare_losses import bounded_test, least_gain, skewed
from bestofk.evaluation.words import effects, verdict


def pair(chance: np.ndarray, other: np.ndarray, n: int, seed: int) -> list[Samples]:
    rng = np.random.default_rng(seed)
    return [
        samples((rng.random((len(p), n)) < p[:, None]).astype(float), name=name)
        for name, p in (("A", chance), ("B", other))
    ]


def test_p_value_is_the_share_of_all_sign_flips() -> None:
    rng = np.random.default_rng(0)
    gaps = rng.normal(0.4, 1.0, (8, 6))
    gaps[:, 5] = gaps[:, 1] * 2

    def statistic(values: np.ndarray) -> np.ndarray:
        return np.abs(values.mean(axis=0)) / (values.std(axis=0, ddof=1) / np.sqrt(8))

    flips = np.array(list(itertools.product([-1, 1], repeat=8)))
    every = np.array([statistic(gaps * flip[:, None]) for flip in flips])
    observed = statistic(gaps)
    single = (every >= observed - 1e-9).mean(axis=0)
    together = (every.max(axis=1)[:, None] >= observed - 1e-9).mean(axis=0)
    found = sign_flip_tests(gaps, 0.95, 40_000, rng)
    assert found.single == pytest.approx(single, abs=0.01)
    assert found.corrected == pytest.approx(together, abs=0.01)
    assert (found.corrected >= found.single).all()
    assert (found.corrected > found.single + 0.05).any()


def test_difference_interval_counts_and_values_are_those_of_the_problems() -> None:
    rng = np.random.default_rng(1)
    runs = pair(rng.beta(1, 1, 40), rng.beta(1, 1, 40), 8, 2)
    found = compare(runs, resamples=1000)[0]
    a, b = (curve(run, "pass@k", resamples=400) for run in runs)
    assert found.difference == pytest.approx(b.estimate - a.estimate)
    gap = b.values - a.values
    assert found.wins.tolist() == (gap > 1e-9).sum(axis=0).tolist()
    assert (found.wins + found.losses + found.ties == 40).all()
    error = gap[:, 0].std(ddof=1) / np.sqrt(40)
    assert found.interval.high[0] - found.interval.low[0] == pytest.approx(
        2 * 2.0227 * error, rel=0.05
    )
    assert (found.band.low <= found.interval.low).all()
    solved = [np.array([(run.rewards[run.of(p)] > 0).any() for p in range(40)]) for run in runs]
    assert len(found.solved_only_b) == int((solved[1] & ~solved[0]).sum())


@pytest.mark.parametrize("problems", [5, 7, 12, 30, 120])
def test_intervals_exclude_zero_exactly_where_their_p_value_is_small(problems: int) -> None:
    significant = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        chance = rng.beta(0.3, 3.0, problems)
        gains = [0.4, 1.0] if problems < 30 else [0.0, 0.25]  # few problems show large gains only
        other = np.clip(chance + rng.choice(gains, problems), 0, 1)
        found = compare(pair(chance, other, 16, seed), resamples=1000)[0]
        for ends, p in ((found.band, found.p_value), (found.interval, found.p_value_single)):
            outside = (ends.low > 0) | (ends.high < 0)
            assert (outside == (p <= 0.05)).all()
            assert (ends.low <= found.difference + 1e-12).all()
            assert (ends.high >= found.difference - 1e-12).all()
            assert (ends.high - ends.low > 1e-3).all()
        significant += bool((found.p_value <= 0.05).any())
    assert (significant > 0) == (problems > 5)  # five problems have 16 sign flips: p ≥ 1/16


def test_few_problems_are_enumerated_and_seeds_change_nothing() -> None:
    rng = np.random.default_rng(2)
    runs = pair(rng.beta(1, 1, 10), rng.beta(2, 1, 10), 8, 1)
    first, second = (compare(runs, seed=seed)[0] for seed in (0, 1))
    assert first.p_value.tolist() == second.p_value.tolist()
    gaps = first.values_b - first.values_a
    flips = sign_flip_tests(gaps, 0.95, 1000, rng).corrected
    assert np.allclose(flips * 2**9, np.round(flips * 2**9))
    assert (first.p_value >= flips).all()


def test_ends_keep_their_third_digit_over_seeds() -> None:
    rng = np.random.default_rng(3)
    runs = pair(rng.beta(0.5, 0.5, 30), rng.beta(0.7, 0.5, 30), 16, 1)
    bands = [compare(runs, seed=seed)[0].band for seed in range(4)]
    curves = [curve(runs[0], seed=seed).interval for seed in range(4)]
    for ends in (bands, curves):
        for side in ("low", "high"):
            assert np.ptp([getattr(each, side) for each in ends], axis=0).max() < 0.008


def test_a_k_chosen_beforehand_finds_more_than_the_test_over_all_k() -> None:
    rng = np.random.default_rng(4)
    over_all = chosen = agree = 0
    for trial in range(60):
        chance = rng.beta(0.4, 0.6, 40)
        runs = pair(chance, np.clip(chance + 0.05, 0, 1), 32, trial)
        every = compare(runs, k_max=16, resamples=1000)[0]
        one = compare(runs, at=[16], resamples=1000)[0]
        assert (one.k.tolist(), one.difference.shape) == ([16], (1,))
        assert one.difference[0] == pytest.approx(every.difference[15])
        over_all += bool(every.p_value[15] <= 0.05)
        chosen += bool(one.p_value[0] <= 0.05)
        t = abs(one.difference[0]) / (
            (one.values_b - one.values_a).std(ddof=1) / math.sqrt(len(one.problems))
        )
        agree += bool((one.p_value[0] <= 0.05) == (t > 2.0227))
    assert chosen >= over_all + 5
    assert agree >= 57  # the paired t test, but for what lies at the border


def test_all_pairs_are_compared_and_corrected_together() -> None:
    rng = np.random.default_rng(0)
    chance = rng.beta(1, 1, 50)
    first, second = pair(chance, np.clip(chance + 0.1, 0, 1), 8, 1)
    third = samples(pair(chance, chance, 8, 2)[0].rewards.reshape(50, 8), name="C")
    every = compare([first, second, third], pairs="all", resamples=1000)
    assert [(c.a, c.b) for c in every] == [("A", "B"), ("A", "C"), ("B", "C")]
    assert every[2].difference == pytest.approx(every[1].difference - every[0].difference)
    some = compare([first, second, third], resamples=1000)
    assert (every[0].p_value >= some[0].p_value - 0.02).all()
    assert (every[0].band.high - every[0].band.low).sum() > (
        some[0].band.high - some[0].band.low
    ).sum()


@pytest.mark.parametrize("problems", [20, 60])
def test_equal_runs_are_told_apart_at_any_k_in_at_most_five_percent(problems: int) -> None:
    rng = np.random.default_rng(7)
    trials, wrong = 150, 0
    for trial in range(trials):
        chance = rng.beta(0.5, 0.8, problems)
        found = compare(pair(chance, chance, 16, trial), resamples=500, seed=trial)[0]
        wrong += bool((found.p_value <= 0.05).any())
    assert wrong / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_pairing_finds_what_two_separate_intervals_cannot() -> None:
    rng = np.random.default_rng(11)
    paired = apart = 0
    for trial in range(40):
        chance = rng.beta(0.4, 0.6, 30)
        runs = pair(chance, np.clip(chance + 0.06, 0, 1), 64, trial)
        paired += bool(compare(runs, k_max=8, resamples=500)[0].p_value[7] <= 0.05)
        a, b = (curve(run, "pass@k", k_max=8, resamples=400) for run in runs)
        apart += bool(a.interval.high[7] < b.interval.low[7])
    assert paired >= 20
    assert apart <= 2


def test_crossing_is_found_with_its_interval_and_named() -> None:
    # B is surer where it succeeds, and gives up on a third of the problems
    chance = np.full(200, 0.2)
    other = np.where(np.arange(200) % 3 == 0, 0.0, 0.45)
    found = compare(pair(chance, other, 64, 0), resamples=1000)[0]
    truth = next(
        k
        for k in range(1, 64)
        if np.mean(1 - (1 - other) ** k) > np.mean(1 - (1 - chance) ** k)
        and np.mean(1 - (1 - other) ** (k + 1)) <= np.mean(1 - (1 - chance) ** (k + 1))
    )
    assert found.crossing is not None
    assert abs(found.crossing.k - truth) < 1.5
    assert found.crossing.low <= truth + 1
    assert found.crossing.high >= truth
    assert found.crossing.better_after == "A"
    assert "B is better at k ≤" in found.verdict
    assert "worse at k ≥" in found.verdict


def test_crossings_interpolate_and_mark_the_ends() -> None:
    k = np.array([1.0, 2.0, 4.0])
    rows = np.array([[1.0, 1.0, -1.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    found = crossings(rows, k, 1.0)
    assert found[0] == pytest.approx(math.exp((math.log(2) + math.log(4)) / 2))
    assert found[1] == math.inf
    assert found[2] == 0.0
    same = np.zeros((5, 3))
    assert find_crossing(same, ("A", "B"), 0.95, 400, np.random.default_rng(0)) is None


def test_three_runs_are_corrected_together() -> None:
    rng = np.random.default_rng(0)
    chance = rng.beta(1, 1, 50)
    first, second = pair(chance, np.clip(chance + 0.1, 0, 1), 8, 1)
    third = pair(chance, chance, 8, 2)[0]
    third = samples(third.rewards.reshape(50, 8), name="C")
    both = compare([first, second, third], resamples=1000)
    assert [(c.a, c.b) for c in both] == [("A", "B"), ("A", "C")]
    alone = compare([first, second], resamples=1000)[0]
    assert both[0].difference == pytest.approx(alone.difference)
    assert (both[0].p_value >= alone.p_value - 0.02).all()


def test_only_common_problems_count_and_the_rest_is_named() -> None:
    a = samples([[1, 0], [0, 0], [1, 1]], problems=["x", "y", "z"], name="A")
    b = samples([[1, 1], [0, 1]], problems=["y", "w"], name="B")
    found = compare([a, b], resamples=400)[0]
    assert found.problems == ("y",)
    assert (found.only_a, found.only_b) == (("x", "z"), ("w",))
    assert (found.interval.high - found.interval.low > 0).all()
    assert any("2 problems of A" in note for note in found.notes)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([samples([[1]], name="A")], "at least two runs"),
        ([samples([[1]], name="A"), samples([[1]], name="A")], "two runs are called 'A'"),
        (
            [samples([[1]], problems=["p"]), samples([[1]], problems=["q"], name="B")],
            "no problem in common",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(runs: list[Samples], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(runs)


def test_identical_runs_tie_everywhere_and_the_interval_is_not_of_zero_width() -> None:
    rewards = [[1, 0, 0], [0, 0, 0], [1, 1, 1]]
    found = compare([samples(rewards, name="A"), samples(rewards, name="B")], resamples=400)[0]
    assert (found.ties == 3).all()
    assert (found.p_value == 1.0).all()
    assert (found.interval.high > found.interval.low).all()
    assert found.crossing is None


def test_verdicts_in_words() -> None:
    k, gap = np.arange(1, 5), np.array([-0.1, 0.0, 0.1, 0.2])
    rest = (np.full(4, 0.028), 0.05, 30)
    text = verdict(("A", "B"), k, gap, np.array([0.01, 0.5, 0.01, 0.01]), *rest)
    assert text.startswith(
        "B is better at k ≥ 3 (+0.200 at k = 4), worse at k = 1 (-0.100 at k = 1) than A"
    )
    assert "no significant difference at k = 2" in text
    nothing = verdict(("A", "B"), k, gap, np.ones(4), *rest)
    assert nothing.startswith("No significant difference between A and B at any k ≤ 4")
    assert "about 0.028" in nothing
    every = verdict(("A", "B"), k, np.abs(gap) + 1, np.zeros(4), *rest)
    assert every.startswith("B is better at every k ≤ 4")


def test_identical_runs_are_called_identical_and_five_problems_too_few() -> None:
    rewards = [[1, 0, 0], [0, 0, 0], [1, 1, 1]] * 4
    same = compare([samples(rewards, name="A"), samples(rewards, name="B")])[0]
    assert same.verdict == "A and B are identical on every one of the 12 common problems."
    few = [samples(np.eye(5)[:, :3], name="A"), samples(np.ones((5, 3)), name="B")]
    found = compare(few)[0]
    assert "too few" in found.verdict
    assert (found.band.low == -1).all()


@pytest.mark.parametrize("problems", [12, 30, 60])
def test_rare_large_losses_are_no_false_alarm(problems: int) -> None:
    rng = np.random.default_rng(problems)
    trials, wrong, flips = 200, 0, 0
    for trial in range(trials):
        lost = rng.random(problems) < 1 / 12  # equally good: 1/12 · .8 = 11/12 · .8/11
        chance, other = np.where(lost, 0.9, 0.1), np.where(lost, 0.1, 0.1 + 0.8 / 11)
        found = compare(pair(chance, other, 64, trial), at=[1], resamples=500)[0]
        gaps = found.values_b - found.values_a
        wrong += bool(found.p_value[0] <= 0.05)
        flips += bool(sign_flip_tests(gaps, 0.95, 500, rng).single[0] <= 0.05)
    assert wrong / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    assert flips >= wrong
    assert problems > 12 or flips / trials > 0.2  # what sign flips alone would have called


def test_a_verdict_is_held_back_with_the_reason_where_rare_losses_may_be_missed() -> None:
    rewards = np.zeros((12, 64))
    rewards[:, :6] = 1.0
    better = rewards.copy()
    better[:, 6:12] = 1.0
    runs = [samples(rewards, name="A"), samples(better, name="B")]
    found = compare(runs, at=[1])[0]
    assert found.p_value[0] > 0.05
    assert found.band.low[0] < 0 < found.band.high[0]
    assert found.verdict.startswith("No significant difference between A and B at k = 1")
    assert "12 problems would have shown one of about 0.360" in found.verdict
    assert any("12 problems can miss a rare large loss" in note for note in found.notes)
    many = compare(
        [samples(np.tile(run.rewards.reshape(12, 64), (4, 1)), name=run.name) for run in runs],
        at=[1],
    )[0]
    assert many.p_value[0] <= 0.05
    assert not many.notes


def test_the_bounded_test_is_the_sign_test_on_wins_and_the_power_law_on_equal_gains() -> None:
    wins = np.zeros((20, 1))
    wins[:8] = 1.0
    assert bounded_test(wins, 1.0, 0.95).p_value[0] == pytest.approx(2 / 2**8, abs=2e-3)
    equal = bounded_test(np.full((12, 1), 0.2), 1.0, 0.95)
    assert equal.p_value[0] == pytest.approx(2 * 1.2**-12, abs=0.02)
    half = bounded_test(np.full((12, 1), 0.1), 0.5, 0.95)
    assert half.p_value[0] == pytest.approx(equal.p_value[0], abs=1e-6)
    assert least_gain(12, 1.0, 2 * 1.2**-12) == pytest.approx(0.2)


def test_a_long_tail_counts_where_it_is_on_the_other_side_of_the_mean() -> None:
    gaps = np.full((100, 1), 0.1)
    gaps[:2] = -1.0
    assert skewed(gaps).tolist() == [True]
    assert skewed(-gaps).tolist() == [True]
    gaps[:2] = 3.0
    assert skewed(gaps).tolist() == [False]


def test_effects_name_both_ends_and_the_crossing() -> None:
    chance = np.full(200, 0.2)
    other = np.where(np.arange(200) % 3 == 0, 0.0, 0.45)
    found = compare(pair(chance, other, 64, 0), resamples=1000)[0]
    text = effects(found)
    assert text.startswith(f"B against A: {found.difference[0]:+.3f} at pass@1, ")
    assert "at pass@64; crossing at k ≈ " in text
    assert "not significant" not in text


def test_effects_name_the_k_between_where_neither_end_is_significant() -> None:
    """At k = 1 the runs are about equal, at k = 64 both solve all: they differ between only."""
    chance = np.where(np.arange(200) % 2 == 0, 0.44, 0.02)
    found = compare(pair(chance, np.full(200, 0.24), 64, 3), resamples=1000)[0]
    sure = found.p_value <= 0.05
    assert sure.any()
    assert not sure[0]
    found = dataclasses.replace(found, p_value=np.where(np.arange(64) == 63, 1.0, found.p_value))
    top = int(np.where(found.p_value <= 0.05, np.abs(found.difference), 0).argmax())
    text = effects(found)
    assert f"at pass@1 (not significant), {found.difference[top]:+.3f} at pass@{top + 1}, " in text
    assert text.count("not significant") == 2
