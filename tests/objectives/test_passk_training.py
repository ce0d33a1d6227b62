"""Pass@k Training: the analytical advantage from its subsets, its designs, its facts."""

from math import comb, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bestofk import advantages, objective
from oracles import q_value, subsets

SIZES = [(n, k) for n in range(2, 8) for k in range(1, n + 1)]
binary = st.sampled_from([0.0, 1.0])


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_analytical_is_the_z_score_over_all_subsets(n, k):
    rng = np.random.default_rng(n * 10 + k)
    for rewards in (rng.normal(size=n), rng.integers(0, 2, n) * 1.0, rng.integers(0, 3, n) / 2):
        bests = np.array([rewards[list(chosen)].max() for chosen in subsets(n, k)])
        q = np.array([q_value(rewards, k, i) for i in range(n)])
        expected = (q - bests.mean()) / bests.std() if np.ptp(bests) else np.zeros(n)
        got = advantages(rewards, f"passk-training@{k}")
        np.testing.assert_allclose(got, expected, atol=1e-10)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_analytical_equals_the_papers_closed_form(n, k):
    for c in range(n + 1):
        rewards = (np.arange(n) < c) * 1.0
        wrong = n - c
        mean = 1 - comb(wrong, k) / comb(n, k)
        sigma = np.sqrt(mean * (1 - mean))
        got = advantages(rewards, f"passk-training@{k}")
        if c == 0 or wrong < k:
            assert not got.any()
            continue
        positive = (1 - mean) / sigma
        negative = (1 - mean - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)) / sigma
        np.testing.assert_allclose(got, np.where(rewards > 0, positive, negative), atol=1e-12)
        # a third-party port has -mean/sigma for the negatives, which is right only for k = 1
        if k > 1:
            assert abs(negative + mean / sigma) > 1e-6


@given(arrays(float, 7, elements=st.floats(-3, 3, width=32)), st.floats(-4, 4), st.floats(0.1, 9))
def test_analytical_ignores_shift_and_scale(rewards, shift, scale):
    rewards = np.round(rewards, 2)
    base = advantages(rewards, "passk-training@3")
    moved = advantages(scale * rewards + shift, "passk-training@3")
    if np.ptp(np.sort(rewards)[2:]) > 1e-6:
        np.testing.assert_allclose(moved, base, atol=1e-6)


@given(arrays(float, 8, elements=binary))
def test_designs_follow_their_formulas(rewards):
    n, k = 8, 3
    passed = rewards.sum()
    at_k = advantages(rewards, f"passk-training@{k}")
    at_1 = advantages(rewards, "passk-training@1")
    np.testing.assert_allclose(at_1, advantages(rewards, "grpo"), atol=1e-12)
    exceeding = advantages(rewards, f"passk-training@{k}:exceeding")
    if passed:
        np.testing.assert_allclose(exceeding, 4 / (10 * log(passed + 0.5)) * at_k, atol=1e-12)
    else:
        assert not exceeding.any()
    combined = advantages(rewards, f"passk-training@{k}:combination")
    np.testing.assert_allclose(combined, passed / n * at_k + (1 - passed / n) * at_1, atol=1e-12)
    dropped = advantages(rewards, f"passk-training@{k}:drop-easy", accuracy_threshold=0.5)
    np.testing.assert_allclose(dropped, at_k if passed / n <= 0.5 else np.zeros(n), atol=1e-12)


def test_adaptive_splits_prompts_at_the_median_entropy():
    rewards = np.tile([1.0, 0, 0, 0, 0, 1.0], (4, 1))
    entropy = np.array([0.1, 0.9, 0.5, 0.5])
    goal = objective("passk-training@3:adaptive")
    got = goal(rewards, entropy=entropy)  # the median is .5: ties count as low
    at_k, at_1 = (advantages(rewards[0], f"passk-training@{k}") for k in (3, 1))
    for row, expected in zip(got, [at_k, at_1, at_k, at_k]):
        np.testing.assert_allclose(row, expected, atol=1e-12)
    moved = goal(rewards, entropy=entropy, entropy_threshold=0.0)
    np.testing.assert_allclose(moved, np.tile(at_1, (4, 1)), atol=1e-12)
    per_sample = goal(rewards, entropy=np.repeat(entropy[:, None], 6, axis=1))
    np.testing.assert_array_equal(per_sample, got)
    ids = np.repeat(["d", "a", "c", "b"], 6)
    order = np.array([1, 3, 2, 0])  # groups come in the order of their sorted ids
    ragged = goal(rewards.reshape(-1), groups=ids, entropy=entropy[order])
    np.testing.assert_allclose(ragged.reshape(4, 6), got, atol=1e-12)


def test_full_sampling_gives_every_set_its_score_and_the_rest_nothing():
    rewards = np.random.default_rng(0).random((5, 11))
    got = advantages(rewards, "passk-training@3:full", rng=7)
    for row, weights in zip(rewards, got):
        assert np.sum(weights == 0) == 2
        values, counts = np.unique(np.round(weights[weights != 0], 12), return_counts=True)
        assert (counts % 3 == 0).all()
        assert abs(weights.sum()) < 1e-9
        best_set = weights == weights.max()
        assert row[best_set].max() == row[weights != 0].max()
        assert abs(np.mean(np.repeat(values, counts) ** 2) - 1) < 1e-9


def test_bootstrap_sums_over_its_sets_and_centres_on_average():
    rewards = np.array([1.0, 0, 0, 0, 0, 0, 0, 0])
    many = advantages(np.tile(rewards, (4000, 1)), "passk-training@3:bootstrap", rng=0)
    # Σ_i A_i = Σ_sets k·z(set) = 0 in every group
    np.testing.assert_allclose(many.sum(axis=-1), 0.0, atol=1e-9)
    assert many[:, 0].mean() > 0 > many[:, 1:].mean()
    # The only success, in j of the 8 sets, gets j times the z-score √((8 - j)/j) of those sets
    squares = {round(float(value), 9) for value in many[:, 0] ** 2}
    assert len(squares) > 3
    assert squares <= {j * (8 - j) for j in range(8)}
    again = advantages(np.tile(rewards, (4000, 1)), "passk-training@3:bootstrap", rng=0)
    np.testing.assert_array_equal(many, again)


@pytest.mark.parametrize("design", ["full", "bootstrap"])
def test_random_designs_ask_for_their_rng_by_name(design):
    with pytest.raises(ValueError, match="rng="):
        advantages(np.ones((1, 8)), f"passk-training@3:{design}")


def test_eta_peaks_near_one_over_k_and_falls_with_k():
    correct = np.tril(np.ones((33, 32)), -1)  # row c has c ones
    eta = {k: np.abs(advantages(correct, f"passk-training@{k}")).sum(-1) for k in (1, 2, 4, 8, 16)}
    assert [eta[k].argmax() / 32 for k in (2, 4, 8, 16)] == [0.375, 0.25, 0.125, 0.0625]
    heights = [each.max() for each in eta.values()]
    np.testing.assert_allclose(heights, [32, 18.9, 10.4, 5.2, 2.3], atol=0.05)


def test_designs_that_count_passes_refuse_real_rewards():
    for design in ("exceeding", "combination"):
        with pytest.raises(ValueError, match="threshold="):
            advantages([0.2, 0.7, 0.1, 0.4], f"passk-training@2:{design}")
        got = advantages([0.2, 0.7, 0.1, 0.4], f"passk-training@2:{design}", threshold=0.5)
        np.testing.assert_allclose(got, advantages([0, 1, 0, 0], f"passk-training@2:{design}"))


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
