"""Estimates against brute force over subsets, against identities, and at their edges."""

from fractions import Fraction
from functools import partial
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import bestofk
from bestofk.objectives import (
    l_statistic_at_k,
    maj_at_k,
    max_at_k,
    max_at_k_curve,
    pass_at_k,
)
from oracles import policies, subset_mean

SIZES = [(n, k) for n in range(1, 8) for k in range(1, n + 1)]
real = st.floats(-100, 100, allow_nan=False, width=32)


def groups_of(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [
        rng.normal(size=n),
        rng.integers(0, 2, n) * 1.0,
        rng.integers(0, 3, n) / 2.0,
        np.full(n, 0.1),
    ]


def mean_of_top(m: int, chosen: np.ndarray) -> float:
    return float(np.sort(chosen)[-m:].mean())


def combination(alphas: np.ndarray, chosen: np.ndarray) -> float:
    return float(np.sort(chosen) @ alphas)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_every_estimate_is_the_mean_over_all_subsets(n, k):
    for rewards in groups_of(n):
        for m in range(1, k + 1):
            top = subset_mean(rewards, k, partial(mean_of_top, m))
            bottom = -subset_mean(-rewards, k, partial(mean_of_top, m))
            assert l_statistic_at_k(rewards, k, f"top{m}") == pytest.approx(top, abs=1e-12)
            assert l_statistic_at_k(rewards, k, f"bottom{m}") == pytest.approx(bottom, abs=1e-12)
        assert max_at_k(rewards, k) == pytest.approx(subset_mean(rewards, k, np.max), abs=1e-12)
        lowest, middle = (subset_mean(rewards, k, of) for of in (np.min, np.median))
        assert l_statistic_at_k(rewards, k, "min") == pytest.approx(lowest, abs=1e-12)
        assert l_statistic_at_k(rewards, k, "median") == pytest.approx(middle, abs=1e-12)
        alphas = np.random.default_rng(k).normal(size=k)
        expected = subset_mean(rewards, k, partial(combination, alphas))
        assert l_statistic_at_k(rewards, k, alphas) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_pass_at_k_is_chens_formula(n, k):
    for c in range(n + 1):
        correct = np.arange(n) < c
        assert pass_at_k(correct, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-14)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_estimates_are_unbiased_under_exact_enumeration(k):
    for policy in policies():
        draws, chance = policy.outcomes(5)
        truth_draws, truth_chance = policy.outcomes(k)
        truth = truth_chance @ policy.rewards[truth_draws].max(axis=-1)
        assert chance @ max_at_k(policy.rewards[draws], k) == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_majority_vote_is_the_mean_over_all_subsets(n, k):
    def vote(chosen: np.ndarray) -> float:
        labels, counts = np.unique(chosen[chosen >= 0], return_counts=True)
        if not len(labels):
            return 0.0
        winners = labels[counts == counts.max()]
        return float(np.mean(np.isin(winners, [1, 4])))  # answers 1 and 4 are right

    rng = np.random.default_rng(10 * n + k)
    for _ in range(6):
        answers = rng.integers(-1, 5, n)  # -1 abstains
        labels = [None if a < 0 else int(a) for a in answers]
        got = maj_at_k(labels, np.isin(answers, [1, 4]), k)
        assert got == pytest.approx(subset_mean(answers, k, vote), abs=1e-12)


def test_majority_vote_of_many_samples_is_finite_and_saturates():
    answers = np.array(["a"] * 600 + ["b"] * 424)
    curve = [float(maj_at_k(answers, answers == "a", k)) for k in (1, 101, 1024)]
    assert curve[0] == pytest.approx(600 / 1024)
    assert curve[1] > 0.95
    assert curve[2] == pytest.approx(1.0)


def test_majority_refuses_one_answer_with_two_verdicts():
    with pytest.raises(ValueError, match="both correct and wrong"):
        maj_at_k(["a", "a", "b"], [1, 0, 0], 2)


@given(arrays(float, st.integers(1, 40), elements=real))
def test_the_curve_is_every_k_at_once_and_rises_to_the_maximum(rewards):
    curve = max_at_k_curve(rewards)
    singles = [float(max_at_k(rewards, k)) for k in range(1, len(rewards) + 1)]
    np.testing.assert_allclose(curve, singles, atol=1e-11)
    assert np.all(np.diff(curve) >= -1e-11)
    assert curve[0] == pytest.approx(rewards.mean(), abs=1e-11)
    assert curve[-1] == rewards.max()


def test_the_curve_of_passes_matches_single_values_for_ragged_groups():
    correct = np.array([1, 0, 0, 1, 0, 0, 0, np.nan, 0.0])
    ids = np.array([7, 7, 7, 3, 3, 3, 3, 3, 7])
    curve = max_at_k_curve(correct, groups=ids)
    assert curve.shape == (2, 4)
    for k in range(1, 5):
        np.testing.assert_allclose(curve[:, k - 1], pass_at_k(correct, k, groups=ids), atol=1e-14)


def test_large_groups_agree_with_rational_arithmetic():
    n, k = 4096, 1024
    rewards = np.random.default_rng(0).random(n)
    total = comb(n, k)
    exact = Fraction(0)
    for rank, reward in enumerate(np.sort(rewards), start=1):
        if rank >= k:
            exact += Fraction(comb(rank - 1, k - 1), total) * Fraction(float(reward))
    assert abs(float(max_at_k(rewards, k)) - float(exact)) < 1e-12
    half = np.arange(n) % 2
    expected = 1 - Fraction(comb(n // 2, 3), comb(n, 3))
    assert float(pass_at_k(half, 3)) == pytest.approx(float(expected), abs=1e-12)


def test_saturated_groups_are_exactly_one_and_empty_ones_exactly_zero():
    assert pass_at_k([1, 1, 1, 1, 0, 0], 3) == 1.0
    assert pass_at_k([0] * 64, 16) == 0.0
    assert max_at_k(np.full(10, 0.1), 7) == 0.1


def test_fewer_samples_than_k_is_an_error_that_names_both():
    for call in (
        lambda: bestofk.pass_at_k([1, 0, 1], 4),
        lambda: bestofk.max_at_k([[1.0, 0.0, 1.0]], 4),
        lambda: maj_at_k(["a", "b", "a"], [1, 0, 1], 4),
        lambda: max_at_k_curve([0.0, 1.0, 0.0], k_max=4),
    ):
        with pytest.raises(ValueError, match=r"4 samples per prompt, got 3"):
            call()


def test_pass_at_k_refuses_real_rewards_and_names_the_threshold():
    with pytest.raises(ValueError, match=r"0\.5.*threshold="):
        pass_at_k([0.0, 0.5, 1.0], 2)
    assert pass_at_k([0.0, 0.5, 1.0], 2, threshold=0.5) == 1.0
    assert pass_at_k([0.0, 0.5, 1.0], 1, threshold=1.0) == pytest.approx(1 / 3)
    assert pass_at_k([0.0, sum([0.1] * 10)], 1, threshold=1.0) == 0.5  # 0.9999999999999999
    assert pass_at_k([0.0, 1 - 1e-6], 1, threshold=1.0) == 0.0


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3", None])
def test_k_must_be_a_positive_whole_number(k):
    with pytest.raises(ValueError, match="k must be a whole number"):
        max_at_k([0.0, 1.0, 0.5], k)


def test_unscored_samples_leave_n_and_small_groups_need_a_policy():
    rewards = np.array([[1.0, np.nan, 0.0, 0.0], [0.0, np.nan, np.nan, 1.0]])
    np.testing.assert_allclose(max_at_k(rewards, 2), [2 / 3, 1.0], atol=1e-15)
    with pytest.raises(ValueError, match=r"small_groups='drop'"):
        max_at_k(rewards, 3)
    with pytest.warns(bestofk.objectives.DroppedGroups, match="1 of 2 groups"):
        kept = max_at_k(rewards, 3, small_groups="drop")
    assert kept[0] == 1.0
    assert np.isnan(kept[1])


def test_batches_equal_rows_and_integers_count():
    rewards = np.random.default_rng(1).integers(0, 4, (2, 3, 9))
    whole = max_at_k(rewards, 4)
    assert whole.shape == (2, 3)
    assert whole.dtype == np.float64
    for i in range(2):
        for j in range(3):
            assert whole[i, j] == pytest.approx(float(max_at_k(rewards[i, j], 4)), abs=1e-14)
    assert max_at_k(np.array([0, 1, 0]), 1) == pytest.approx(1 / 3)


def test_best_of_k_is_drawn_without_replacement():
    # verl's best@k bootstraps with replacement: .656 for one success in 8 at k = 8; truly 1.
    assert pass_at_k([1, 0, 0, 0, 0, 0, 0, 0], 8) == 1.0


@given(
    arrays(float, st.integers(2, 12), elements=real),
    st.floats(-50, 50),
    st.floats(0.01, 20),
    st.randoms(use_true_random=False),
)
def test_estimates_move_with_shift_and_scale_and_ignore_order(rewards, shift, scale, random):
    k = random.randint(1, len(rewards))
    shuffled = list(rewards)
    random.shuffle(shuffled)
    expected = scale * float(max_at_k(rewards, k)) + shift
    got = float(max_at_k(scale * np.array(shuffled) + shift, k))
    assert got == pytest.approx(expected, abs=1e-9 * (1 + abs(expected) + scale * 100))
