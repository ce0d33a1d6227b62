"""Comparisons: exact on small cases, calibrated under the null, powerful when paired."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.stats

from bestofk.evaluation import Estimate, Samples, compare, curve, samples
from bestofk.evaluation.comparison import crossings, find_crossing
from bestofk.evaluation.rare_losses import least_gain, rare_loss_test
from bestofk.evaluation.sign_flips import sign_flip_tests
from bestofk.evaluation.verdict_words import ASSUMED, effects, p_text, percent, verdict


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
    together = (every.max(axis=1)[:, None] >= observed - 1e-9).mean(axis=0)
    found = sign_flip_tests(gaps, 0.95, 40_000, rng)
    assert found.p_value == pytest.approx(together, abs=0.01)
    single = (every >= observed - 1e-9).mean(axis=0)
    assert sign_flip_tests(gaps[:, :1], 0.95, 40_000, rng).p_value == pytest.approx(
        single[:1], abs=0.01
    )


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
    one = compare(runs, at=1, resamples=1000)[0].band
    assert one.high[0] - one.low[0] == pytest.approx(2 * 2.0227 * error, rel=0.1)
    assert found.band.low[0] <= one.low[0]
    solved = [np.array([(run.rewards[run.of(p)] > 0).any() for p in range(40)]) for run in runs]
    assert len(found.solved_only_b) == int((solved[1] & ~solved[0]).sum())


@pytest.mark.parametrize("problems", [5, 7, 12, 30])
def test_intervals_exclude_zero_exactly_where_their_p_value_is_small(problems: int) -> None:
    significant = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        chance = rng.beta(0.3, 3.0, problems)
        gains = [0.4, 1.0] if problems < 30 else [0.0, 0.25]  # few problems show large gains only
        other = np.clip(chance + rng.choice(gains, problems), 0, 1)
        found = compare(pair(chance, other, 16, seed), resamples=1000)[0]
        ends = found.band
        outside = (ends.low > 0) | (ends.high < 0)
        assert (outside == (found.p_value <= 0.05)).all()
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
    flips = sign_flip_tests(gaps, 0.95, 1000, rng).p_value
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


@pytest.mark.parametrize("problems", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_equal_runs_are_told_apart_at_any_k_in_at_most_five_percent(problems: int) -> None:
    rng = np.random.default_rng(7)
    trials, wrong = 150, 0
    for trial in range(trials):
        chance = rng.beta(0.5, 0.8, problems)
        found = compare(pair(chance, chance, 16, trial), resamples=500, seed=trial)[0]
        wrong += bool((found.p_value <= 0.05).any())
    assert wrong / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_equal_runs_with_clusters_are_told_apart_in_at_most_five_percent() -> None:
    """Ten sources of ten problems; each source gains or loses as a whole."""
    rng = np.random.default_rng(5)
    trials, names = 100, np.repeat(np.arange(10), 10).tolist()
    wrong = {True: 0, False: 0}
    for trial in range(trials):
        shift = np.repeat(rng.normal(0.0, 0.15, 10), 10)
        drawn = [rng.random((100, 16)) < (0.5 + each)[:, None] for each in (0 * shift, shift)]
        for known in wrong:
            runs = [
                samples(each.astype(float), name=name, clusters=names if known else None)
                for name, each in zip("AB", drawn)
            ]
            found = compare(runs, at=[1], resamples=500, seed=trial)[0]
            wrong[known] += bool(found.p_value[0] <= 0.05)
            ends = found.band
            assert ((ends.low[0] > 0) | (ends.high[0] < 0)) == (found.p_value[0] <= 0.05)
    assert wrong[True] / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    assert wrong[False] / trials > 0.25


def test_a_cluster_for_every_problem_changes_nothing_and_runs_must_agree() -> None:
    rng = np.random.default_rng(1)
    rewards = [(rng.random((12, 8)) < p).astype(float) for p in (0.3, 0.7)]
    plain = compare([samples(r, name=n) for r, n in zip(rewards, "AB")])[0]
    own = [samples(r, name=n, clusters=range(12)) for r, n in zip(rewards, "AB")]
    alone = compare(own)[0]
    np.testing.assert_allclose(alone.p_value, plain.p_value)
    np.testing.assert_allclose(alone.band.low, plain.band.low)
    assert alone.clusters == 12
    other = samples(rewards[1], name="B", clusters=[0] * 11 + [1])
    with pytest.raises(ValueError, match="in cluster '1' in A and in '0' in B"):
        compare([own[0], other])


def test_the_sentence_to_quote_the_paragraph_and_the_table() -> None:
    base = np.zeros((60, 16))
    base[:, :4] = 1.0
    better = base.copy()
    better[:, 4:8] = 1.0
    a, b = samples(base, name="a_1"), samples(better, name="b")
    found = compare([a, b])[0]
    one = found.at(1)
    assert found.quote() == (
        f"pass@1: +0.250 [{one.low:.3f}, {one.high:.3f}], p < .0001, paired, "
        "60 problems × 16 samples"
    )
    clustered = samples(base, name="a", clusters=np.repeat(range(6), 10).tolist())
    assert (
        curve(clustered)
        .quote(2)
        .endswith("(95% over clusters of problems), 60 problems in 6 clusters × 16 samples")
    )
    text = found.methods()
    assert text.startswith("We compare b with a_1 in pass@k, the chance that at least one of k")
    assert "paired by problem on 60 problems with 16 samples each" in text
    assert "over every k ≤ 16" in text
    assert "on 60 problems with 16 samples each" in curve(a).methods()
    table = found.to_latex()
    assert r"\caption{b minus a\_1: pass@k, 60 problems, paired.}" in table
    assert rf"pass@1 & $+0.250$ & $[{one.low:.3f}, {one.high:.3f}]$ & $< .0001$ \\" in table


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


def test_crossing_is_found_with_its_interval_and_both_ends_are_named() -> None:
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
    text = effects(found)
    assert text.startswith(f"B against A: {found.difference[0]:+.3f} at pass@1, ")
    assert "at pass@64; crossing at k ≈ " in text
    assert "not significant" not in text


def test_crossings_interpolate_and_mark_the_ends() -> None:
    k = np.array([1.0, 2.0, 4.0])
    rows = np.array([[1.0, 1.0, -1.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    found = crossings(rows, k, 1.0)
    assert found[0] == pytest.approx(math.exp((math.log(2) + math.log(4)) / 2))
    assert found[1] == math.inf
    assert found[2] == 0.0
    same = np.zeros((5, 3))
    assert find_crossing(same, ("A", "B"), 0.95, 400, np.random.default_rng(0)) is None


def test_only_common_problems_count_and_the_rest_is_named() -> None:
    a = samples([[1, 0], [0, 0], [1, 1]], problems=["x", "y", "z"], name="A")
    b = samples([[1, 1], [0, 1]], problems=["y", "w"], name="B")
    found = compare([a, b], resamples=400)[0]
    assert found.problems == ("y",)
    assert (found.only_a, found.only_b) == (("x", "z"), ("w",))
    assert (found.band.high - found.band.low > 0).all()
    assert any("2 problems of A" in note for note in found.notes)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([samples([[1]], name="A")], "at least two runs"),
        (
            [samples([[1]], problems=["p"]), samples([[1]], problems=["q"], name="B")],
            "no problem in common",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(runs: list[Samples], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(runs)


def test_verdicts_in_words() -> None:
    k, gap = np.arange(1, 5), np.array([-0.1, 0.0, 0.1, 0.2])
    rest = (np.full(4, 0.028), 0.05, "30 problems")
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
    assert same.verdict == "A and B are identical on each of their 12 problems."
    assert (same.ties == 12).all()
    assert (same.p_value == 1.0).all()
    assert (same.band.high > same.band.low).all()  # no interval is of zero width
    assert same.crossing is None
    few = [samples(np.eye(5)[:, :3], name="A"), samples(np.ones((5, 3)), name="B")]
    found = compare(few)[0]
    assert "too few" in found.verdict
    assert (found.band.low == -1).all()


def false_alarms(problems: int, share: float, loss: float, trials: int) -> tuple[float, float]:
    """Two runs that are equally good at k = 1: how often `compare`, and sign flips alone, differ.

    A share of the problems falls from .1 + loss to .1, and the others gain what makes up for it.
    """
    rng = np.random.default_rng(problems)
    wrong = flips = 0
    for trial in range(trials):
        lost = rng.random(problems) < share
        chance = np.where(lost, 0.1 + loss, 0.1)
        other = np.where(lost, 0.1, 0.1 + loss * share / (1 - share))
        found = compare(pair(chance, other, 64, trial), at=[1], resamples=500)[0]
        gaps = found.values_b - found.values_a
        wrong += bool(found.p_value[0] <= 0.05)
        flips += bool(sign_flip_tests(gaps, 0.95, 500, rng).p_value[0] <= 0.05)
    return wrong / trials, flips / trials


@pytest.mark.parametrize("problems", [12, 60])
def test_rare_large_losses_are_no_false_alarm(problems: int) -> None:
    ours, flips = false_alarms(problems, 1 / 12, 0.8, 150)
    assert ours <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)
    assert flips > (0.2 if problems == 12 else 0.05)  # what sign flips alone would have called


@pytest.mark.slow
@pytest.mark.parametrize("share", [1 / 4, 1 / 12, 1 / 24, 1 / 50])
@pytest.mark.parametrize("problems", [8, 15, 30, 45, 60, 100])
def test_rare_large_losses_in_full(problems: int, share: float) -> None:
    ours, _ = false_alarms(problems, share, 0.8, 600)
    assert ours <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 600)


def found_by(problems: int, trials: int) -> tuple[float, float]:
    """How often a gain of .06 on every problem is found at pass@8: by `compare`, and by t."""
    rng = np.random.default_rng(problems)
    ours = student = 0
    for trial in range(trials):
        chance = rng.beta(0.4, 0.6, problems)
        runs = pair(chance, np.minimum(chance + 0.06, 1), 64, trial)
        one = compare(runs, at=[8], resamples=500)[0]
        gap = (one.values_b - one.values_a)[:, 0]
        t = abs(gap.mean()) / (gap.std(ddof=1) / math.sqrt(problems))
        ours += bool(one.p_value[0] <= 0.05)
        student += bool(t > scipy.stats.t.ppf(0.975, problems - 1))
    return ours / trials, student / trials


def test_power_has_no_cliff_at_any_number_of_problems() -> None:
    """29 problems find almost what 30 find, and 15 (one AIME paper) find something."""
    ours = {problems: found_by(problems, 100) for problems in (15, 29, 30)}
    assert ours[15][0] > 0.1
    assert ours[29][0] > 0.7
    assert abs(ours[29][0] - ours[30][0]) < 0.15
    assert ours[30][1] > 0.9


def test_a_verdict_is_held_back_with_the_reason_where_rare_losses_may_be_missed() -> None:
    rewards = np.zeros((12, 64))
    rewards[:, :6] = 1.0
    better = rewards.copy()
    better[:, 6:12] = 1.0
    runs = [samples(rewards, name="A"), samples(better, name="B")]
    found = compare(runs, at=[1])[0]
    assert found.p_value[0] == pytest.approx((1 + 6 / 64) ** -12, rel=1e-4)
    assert found.band.low[0] < 0 < found.band.high[0]
    assert found.verdict.startswith("No significant difference between A and B at k = 1")
    assert "12 problems can miss rare large losses" in found.notes[0].replace(
        "problems with differences like these", "problems"
    )
    many = compare(
        [samples(np.tile(run.rewards.reshape(12, 64), (4, 1)), name=run.name) for run in runs],
        at=[1],
    )[0]
    assert many.p_value[0] <= 0.05
    assert not many.notes


def test_equal_gains_are_as_sure_as_no_loss_was_missed() -> None:
    """A share q of lost problems is missed with (1 - q)^P; equal worth makes q = g / (1 + g)."""
    for gain, problems, size in ((0.2, 12, 1.0), (0.1, 12, 0.5), (0.05, 60, 1.0)):
        missed = 1 - (gain / size) / (1 + gain / size)
        found = rare_loss_test(np.full((problems, 1), gain), size, 0.95)
        assert found.p_value[0] == pytest.approx(missed**problems, rel=1e-4)
        assert found.smallest_gain[0] == pytest.approx(
            size * (0.05 ** (-1 / problems) - 1), rel=1e-4
        )
    assert least_gain(0.0, 12, 1.0, 1.2**-12) == pytest.approx(0.2, rel=1e-4)


def test_without_a_tail_many_problems_are_students_t() -> None:
    rng = np.random.default_rng(5)
    half = rng.normal(0.0, 0.2, (200, 1))
    gaps = np.concatenate([half, -half]) + 0.025
    found = rare_loss_test(gaps, 1.0, 0.95)
    t = scipy.stats.ttest_1samp(gaps[:, 0], 0.0)
    assert found.p_value[0] == pytest.approx(t.pvalue, rel=1e-6)
    ends = t.confidence_interval(0.95)
    assert (found.interval.low[0], found.interval.high[0]) == pytest.approx(tuple(ends), rel=1e-6)


def test_a_tail_counts_where_it_is_on_the_other_side_of_the_mean() -> None:
    gaps = np.full((400, 1), 0.1)
    gaps[:8] = -1.0
    t = scipy.stats.ttest_1samp(gaps[:, 0], 0.0).pvalue
    for sign in (1, -1):
        assert rare_loss_test(sign * gaps, 1.0, 0.95).p_value[0] > 100 * t
    gaps[:8] = 3.0
    assert rare_loss_test(gaps, 3.0, 0.95).p_value[0] < 1e-6


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


def graded(size: float, gain: float) -> list[Samples]:
    """Two runs with rewards from 0 to `size`; the second gains a share of it."""
    rng = np.random.default_rng(3)
    base = rng.uniform(0.1, 0.8, (80, 1))
    tables = [np.clip(base + shift + 0.1 * rng.normal(size=(80, 8)), 0, 1) for shift in (0, gain)]
    for table in tables:
        table[:2, :2] = 0.0, 1.0  # two problems reach both ends
    return [samples(size * table, name=name) for table, name in zip(tables, "ab")]


def test_verdicts_do_not_depend_on_the_scale_of_rewards() -> None:
    one = compare(graded(1.0, 0.003), "max@k", bounds=(0.0, 1.0))[0]
    assert "would have shown one of about 0.0" in one.verdict
    for size in (1e-6, 100.0, 1e9):
        other = compare(graded(size, 0.003), "max@k", bounds=(0.0, size))[0]
        np.testing.assert_allclose(other.p_value, one.p_value, rtol=1e-3)
        np.testing.assert_allclose(other.band.low, size * one.band.low, rtol=1e-3)
        for count in ("wins", "losses", "ties"):
            assert (getattr(other, count) == getattr(one, count)).all()
        assert "too few" not in other.verdict
        quoted = [float(run.verdict.split("about ")[1].rstrip(".")) for run in (one, other)]
        assert quoted[1] == pytest.approx(size * quoted[0], rel=0.05)


def test_only_a_change_of_the_whole_range_is_a_complete_change() -> None:
    arrays = (np.array([1]), np.array([3.0]), np.array([0.3]))
    for size, visible, end in (
        (100.0, 40.0, "7 problems would have shown one of about 40.000."),
        (100.0, 140.0, "7 problems are too few to show any but a complete change."),
        (0.01, 0.02, "7 problems are too few to show any but a complete change."),
    ):
        text = verdict(("a", "b"), *arrays, np.array([visible]), 0.05, "7 problems", size=size)
        assert text.endswith(end)


def test_a_range_that_is_assumed_is_said_and_is_that_of_both_runs() -> None:
    runs = graded(100.0, 0.05)
    runs[1] = samples(runs[1].rewards.reshape(80, 8) + 40.0, name="b")
    found = compare(runs, "max@k")[0]
    note = next(note for note in found.notes if ASSUMED in note)
    assert "rewards reach from 0 to 140" in note
    assert "[0, 140]" in note
    assert "--bounds" in note
    assert "rewards reach from 0 to 140" in found.methods()
    stated = compare(runs, "max@k", bounds=(0.0, 140.0))[0]
    np.testing.assert_array_equal(found.p_value, stated.p_value)
    assert not any(ASSUMED in note for note in stated.notes)
    assert ASSUMED not in stated.methods()
    assert ASSUMED in curve(runs[0], "max@k").methods()


@pytest.mark.parametrize("confidence", [0.95, 0.9, 0.975])
def test_a_p_value_is_never_printed_on_the_wrong_side_of_the_level(confidence: float) -> None:
    level = 1 - confidence
    for p in level * (1 + np.array([1e-6, 1e-4, 0.002, 0.04, 0.3])):
        assert level < float(p_text(p, level=level, bare=True)) == pytest.approx(p, rel=0.05)
    for p in level * (1 - np.array([1e-6, 1e-4, 0.002, 0.04, 0.3])):
        assert float(p_text(p, level=level, bare=True)) <= level + 1e-12
    assert percent(confidence) == {0.95: "95%", 0.9: "90%", 0.975: "97.5%"}[confidence]


def test_ends_near_zero_and_narrow_intervals_keep_their_digits() -> None:
    assert Estimate(0.035, 0.0004, 0.072).text("+") == "+0.0350 [0.0004, 0.0720]"
    assert Estimate(-0.035, -0.072, -0.0002).text() == "-0.0350 [-0.0720, -0.0002]"
    assert Estimate(2e-6, 1e-6, 3e-6).text() == "0.0000020 [0.0000010, 0.0000030]"
    assert Estimate(0.035, 0.0, 0.072).text() == "0.035 [0.000, 0.072]"


def test_words_made_from_counts_agree_with_them() -> None:
    one = [samples([[0, 1, 1, 0]], problems=["p"], name=name) for name in "ab"]
    other = samples([[1, 1, 1, 0]], problems=["p"], name="c")
    assert compare(one)[0].verdict == "a and b are identical on each of their 1 problem."
    assert "1 problem is too few for this test" in compare([one[0], other])[0].verdict
    assert "A reward of 0 or more passes." in curve(one[0], threshold=0.0).methods()
    assert "A reward of 0 or more passes." in compare([one[0], other], threshold=0.0)[0].methods()
    ragged = samples([[1, 0], [1, 0], [float("nan"), float("nan")]], problems=["p", "q", "r"])
    assert "1 problem has no scored sample: left out" in curve(ragged).notes
    apart = samples([[1, 0], [1, 1]], problems=["p", "s"])
    notes = compare([apart, ragged])[0].notes
    assert "1 problem of samples not in samples: not compared" in notes


def test_a_threshold_of_zero_is_said() -> None:
    run = samples([[-1.0, 0.0, 0.5, -0.2]] * 30)
    assert "A reward of 0 or more passes." in curve(run, "pass@k", threshold=0.0).methods()
