"""Noise in rewards, distinct wrong answers, the signed-rank test, and the number of random sets."""

import numpy as np
import pytest
import scipy.stats

from bestofk import advantages
from bestofk.objectives import distinct_wrong_share, flip_rewards, signed_rank_test


def test_flips_come_in_the_share_asked_for_and_leave_nan_alone():
    rewards = np.tile([0.0, 1.0, np.nan], 20_000)
    for share in (0.0, 0.1, 0.3, 0.5, 1.0):
        flipped = flip_rewards(rewards, share, 3)
        scored = ~np.isnan(rewards)
        np.testing.assert_array_equal(np.isnan(flipped), ~scored)
        assert (flipped != rewards)[scored].mean() == pytest.approx(share, abs=0.01)
    with pytest.raises(ValueError, match="got 50"):
        flip_rewards([0, 1], 50, 0)
    with pytest.raises(ValueError, match="0, 1 or NaN"):
        flip_rewards([0.5], 0.1, 0)


def test_distinct_wrong_answers_do_not_move_with_accuracy():
    wrong = ["a", "b", "b", "c"]
    for right in range(4):
        answers = ["x"] * right + wrong
        correct = [1] * right + [0] * 4
        assert distinct_wrong_share(answers, correct) == pytest.approx(3 / 4)
    both = distinct_wrong_share([["a", "b"], ["a", "a"]], [[0, 0], [1, 1]])
    assert both[0] == 1.0
    assert np.isnan(both[1])


@pytest.mark.parametrize("m", [5, 12, 50])
def test_the_signed_rank_test_is_exact_without_ties(m):
    rng = np.random.default_rng(m)
    for shift in (0.0, 0.3):
        a, b = rng.normal(size=m) + shift, rng.normal(size=m)
        for side in ("two-sided", "greater"):
            expected = scipy.stats.wilcoxon(a, b, alternative=side, mode="exact").pvalue
            assert signed_rank_test(a, b, alternative=side) == pytest.approx(expected, rel=1e-9)


def test_the_signed_rank_test_enumerates_signs_with_ties():
    differences = np.array([1.0, 1.0, -2.0, 3.0, 3.0, 0.0])
    ranks = np.array([1.5, 1.5, 3.0, 4.5, 4.5])
    signs = np.array([[int(bit) for bit in f"{i:05b}"] for i in range(32)])
    sums = signs @ ranks
    observed = 1.5 + 1.5 + 4.5 + 4.5
    expected = 2 * (sums >= observed).mean()
    assert signed_rank_test(differences, np.zeros(6)) == pytest.approx(expected)
    assert signed_rank_test([1.0, 2.0], [1.0, 2.0]) == 1.0


def test_the_signed_rank_test_of_many_pairs_is_the_normal_approximation():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=400) + 0.1, rng.normal(size=400)
    expected = scipy.stats.wilcoxon(a, b, mode="approx", correction=False).pvalue
    assert signed_rank_test(a, b) == pytest.approx(expected, rel=1e-6)


def test_the_number_of_bootstrap_sets_is_an_option():
    """Every set's members get its z-score: the sum over samples is k times the sum of z-scores."""
    rewards = np.random.default_rng(1).random((2, 6))
    name = "passk-training@2:bootstrap"
    default = advantages(rewards, name, rng=3)
    np.testing.assert_array_equal(advantages(rewards, name, rng=3, sets=6), default)
    many = advantages(rewards, name, rng=3, sets=40)
    np.testing.assert_allclose(many.sum(axis=-1), 0, atol=1e-9)
    assert np.abs(many).max() > np.abs(default).max()
    two = advantages(rewards, name, rng=3, sets=2)  # two z-scores: 1 and -1, or no contrast
    assert set(np.round(two.reshape(-1), 9)) <= {-2.0, -1.0, 0.0, 1.0, 2.0}
    with pytest.raises(ValueError, match="sets must be a whole number"):
        advantages(rewards, name, rng=3, sets=0)
