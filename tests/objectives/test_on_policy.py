"""On-policy advantages: brute force, exact unbiasedness, identities, and others' bugs."""

import warnings
from collections.abc import Callable
from fractions import Fraction
from math import comb
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bestofk import advantages, objective
from bestofk.objectives import ObjectiveWarning, max_at_k, signal
from oracles import Tabular, policies, q_value, subset_mean

BELOW = [(n, k) for n in range(2, 8) for k in range(1, n)]
UP_TO = [(n, k) for n in range(2, 8) for k in range(1, n + 1)]
real = st.floats(-10, 10, allow_nan=False, width=32)


def some_groups(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [
        rng.normal(size=n),
        rng.integers(0, 2, n) * 1.0,
        rng.integers(0, 3, n) / 2,
        np.full(n, 0.3),
    ]


def best(rewards: np.ndarray, k: int) -> float:
    return subset_mean(rewards, k, np.max)


def by_definition(
    rewards: np.ndarray, k: int, baseline: Callable[[np.ndarray], float]
) -> np.ndarray:
    others = [np.delete(rewards, i) for i in range(len(rewards))]
    return np.array(
        [k * (q_value(rewards, k, i) - baseline(others[i])) for i in range(len(rewards))]
    )


@pytest.mark.parametrize(("n", "k"), BELOW)
def test_canonical_and_loo_equal_their_definition_over_subsets(n, k):
    for rewards in some_groups(n):
        canonical = by_definition(rewards, k, lambda rest: best(rest, k))
        loo = by_definition(rewards, k, lambda rest: n / (n - 1) * best(rest, k))
        np.testing.assert_allclose(advantages(rewards, f"max@{k}"), canonical, atol=1e-12)
        np.testing.assert_allclose(advantages(rewards, f"max@{k}:loo"), loo, atol=1e-12)


@pytest.mark.parametrize(("n", "k"), UP_TO)
def test_loo_minus_one_and_none_equal_their_definition_over_subsets(n, k):
    for rewards in some_groups(n):
        none = by_definition(rewards, k, lambda rest: 0.0)
        np.testing.assert_allclose(advantages(rewards, f"max@{k}:none"), none, atol=1e-12)
        if k > 1:
            minus = by_definition(rewards, k, lambda rest: best(rest, k - 1))
            got = advantages(rewards, f"max@{k}:loo-1")
            np.testing.assert_allclose(got, minus, atol=1e-12)
            np.testing.assert_array_equal(got, advantages(rewards, f"pkpo@{k}"))
            assert got.min() >= 0


UNBIASED = ["max@{k}", "max@{k}:loo", "max@{k}:loo-1", "max@{k}:none"]


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("pattern", UNBIASED)
def test_max_at_k_estimators_are_unbiased_by_enumeration(pattern, n):
    for policy in policies():
        for k in range(1, n + 1):
            goal = objective(pattern.format(k=k))
            if n < goal.least_samples:
                continue
            got = policy.expected_update(goal, n)
            np.testing.assert_allclose(got, policy.max_gradient(k), atol=1e-9)


@pytest.mark.parametrize(("n", "k"), [(4, 2), (5, 3), (6, 4)])
def test_l_statistics_are_unbiased_by_enumeration(n, k):
    statistics = {
        f"top2@{k}": lambda r: np.sort(r, axis=-1)[..., -2:].mean(axis=-1),
        f"bottom2@{k}": lambda r: np.sort(r, axis=-1)[..., :2].mean(axis=-1),
        f"median@{k}": lambda r: np.median(r, axis=-1),
        f"min@{k}": lambda r: r.min(axis=-1),
        f"top1@{k}": lambda r: r.max(axis=-1),
    }
    for policy in policies():
        for name, statistic in statistics.items():
            got = policy.expected_update(objective(name), n)
            np.testing.assert_allclose(got, policy.gradient(k, statistic), atol=1e-9)
    alphas = (2.0, -1.0, 0.5, 0.25)[:k]
    goal = objective(f"lstat@{k}", coefficients=alphas)
    for policy in policies():
        truth = policy.gradient(k, lambda r: np.sort(r, axis=-1) @ np.array(alphas))
        np.testing.assert_allclose(policy.expected_update(goal, n), truth, atol=1e-9)


@pytest.mark.parametrize("name", ["mean", "rloo", "reinforce"])
def test_mean_objectives_are_unbiased_for_the_mean(name):
    for policy in policies():
        got = policy.expected_update(objective(name), 4)
        np.testing.assert_allclose(got, policy.max_gradient(1), atol=1e-9)


def test_maxrl_and_tailrl_are_unbiased_for_the_harmonic_sum():
    n = 5
    for policy in policies():
        truth = sum(policy.max_gradient(k) / k for k in range(1, n))
        np.testing.assert_allclose(policy.expected_update(objective("tailrl"), n), truth, atol=1e-9)
        if set(policy.rewards) <= {0.0, 1.0}:
            got = policy.expected_update(objective("maxrl"), n)
            np.testing.assert_allclose(got, truth, atol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_maxrl_and_tailrl_are_the_sum_of_the_family(n):
    for rewards in some_groups(n):
        family = sum(advantages(rewards, f"max@{k}") / k for k in range(1, n))
        np.testing.assert_allclose(advantages(rewards, "tailrl"), family, atol=1e-12)
        if set(rewards) <= {0.0, 1.0}:
            np.testing.assert_allclose(advantages(rewards, "maxrl"), family, atol=1e-12)


def test_mixtures_over_k_are_unbiased_for_the_mixture():
    for policy in policies():
        even = policy.expected_update(objective("max@1+3"), 5)
        truth = (policy.max_gradient(1) + policy.max_gradient(3)) / 2
        np.testing.assert_allclose(even, truth, atol=1e-9)
        uneven = policy.expected_update(objective("max@1+3:loo-1", weights=(0.2, 1.5)), 5)
        truth = 0.2 * policy.max_gradient(1) + 1.5 * policy.max_gradient(3)
        np.testing.assert_allclose(uneven, truth, atol=1e-9)


@pytest.mark.parametrize(("n", "k"), BELOW)
def test_the_two_closed_forms_agree(n, k):
    for rewards in some_groups(n):
        group = best(rewards, k)
        rest = np.array([best(np.delete(rewards, i), k) for i in range(n)])
        q = np.array([q_value(rewards, k, i) for i in range(n)])
        np.testing.assert_allclose(n * group, k * q + (n - k) * rest, atol=1e-12)
        got = advantages(rewards, f"max@{k}")
        np.testing.assert_allclose(got, k * n / (n - k) * (q - group), atol=1e-11)
        np.testing.assert_allclose(got, n * (group - rest), atol=1e-11)


@given(arrays(float, st.integers(2, 9), elements=real))
def test_k1_is_leave_one_out_reinforce(rewards):
    n = len(rewards)
    rloo = np.array([rewards[i] - np.delete(rewards, i).mean() for i in range(n)])
    for name in ("mean", "rloo", "max@1", "max@1:loo-1", "top1@1"):
        np.testing.assert_allclose(advantages(rewards, name), rloo, atol=1e-11)
    np.testing.assert_allclose(advantages(rewards, "dr-grpo"), rloo * (n - 1) / n, atol=1e-11)


@given(arrays(float, st.integers(2, 9), elements=real))
def test_k_equal_n_pays_only_the_best_its_lead(rewards):
    n = len(rewards)
    order = np.sort(rewards)
    expected = np.zeros(n)
    expected[rewards.argmax()] = order[-1] - order[-2]
    np.testing.assert_allclose(advantages(rewards, f"max@{n}:loo-1"), n * expected, atol=1e-11)
    np.testing.assert_allclose(advantages(rewards, "bon-max-second"), expected, atol=1e-11)


@given(arrays(float, st.integers(3, 9), elements=real), st.data())
def test_invariances(rewards, data):
    n = len(rewards)
    k = data.draw(st.integers(1, n - 1))
    shift = data.draw(st.floats(-5, 5))
    scale = data.draw(st.floats(0.1, 5))
    order = np.array(data.draw(st.permutations(range(n))))
    for name in (f"max@{k}", f"max@{k}:loo-1", f"min@{k}", "tailrl", "mean", f"median@{k}"):
        base = advantages(rewards, name)
        moved = advantages(scale * rewards + shift, name)
        np.testing.assert_allclose(moved, scale * base, atol=1e-9)
        np.testing.assert_allclose(advantages(rewards[order], name), base[order], atol=1e-12)
    for name in (
        f"max@{k}",
        "mean",
        "tailrl",
        f"min@{k}",
        "dr-grpo",
        "grpo",
        f"passk-training@{k}",
    ):
        assert abs(advantages(rewards, name).sum()) < 1e-9


@given(arrays(float, (3, 6), elements=st.sampled_from([0.0, 0.5, 1.0])))
def test_batches_equal_rows_and_ties_are_paid_alike(rewards):
    for name in ("max@3", "max@3:loo", "max@6:loo-1", "max@2:none", "passk-training@3", "tailrl",
                 "top2@4", "rs-grpo", "grpo", "bon-max-mean", "bon-max-second"):  # fmt: skip
        whole = advantages(rewards, name)
        for row, weights in zip(rewards, whole):
            np.testing.assert_allclose(advantages(row, name), weights, atol=1e-12)
            if name != "bon-max-second":
                for value in set(row):
                    assert np.ptp(weights[row == value]) < 1e-12


def test_a_tied_best_has_no_lead():
    assert not advantages([1.0, 1.0, 0.0], "bon-max-second").any()
    np.testing.assert_allclose(advantages([1.0, 0.0, 0.0, 1.0], "bon-max-mean"), [0.5, 0, 0, 0.5])


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3, -7.3])
def test_groups_that_agree_get_exact_zeros(value):
    rewards = np.full(12, value)
    for name in ("max@5", "max@5:loo-1", "max@5:zscore", "passk-training@5", "grpo", "mean",
                 "tailrl", "dr-grpo", "median@5", "min@5", "top2@5", "bottom2@5", "rs-grpo",
                 "bon-max-mean", "bon-max-second"):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ObjectiveWarning)
            got = advantages(rewards, name)
        assert not got.any(), name


@pytest.mark.parametrize("name", ["max@4", "pass@4", "passk-training@4", "max@4:loo-1"])
@pytest.mark.parametrize("c", range(9))
def test_no_signal_exactly_when_none_passes_or_fewer_than_k_fail(name, c):
    rewards = (np.arange(8) < c) * 1.0
    wrong = 8 - c
    silent = c == 0 or (wrong < 4 if "loo-1" not in name else wrong < 3)
    assert (not advantages(rewards, name).any()) == silent


def test_zscore_is_grpo_on_binary_rewards_and_says_so():
    rewards = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    with pytest.warns(ObjectiveWarning, match="is GRPO"):
        got = advantages(rewards, "max@3:zscore")
    np.testing.assert_allclose(got, advantages(rewards, "grpo"), atol=1e-12)
    real_valued = np.array([0.1, 0.0, 0.7, 0.3, 1.0, 0.2])
    q = np.array([q_value(real_valued, 3, i) for i in range(6)])
    expected = (q - q.mean()) / q.std()
    np.testing.assert_allclose(advantages(real_valued, "max@3:zscore"), expected, atol=1e-12)


def test_usual_mean_forms():
    rewards = np.array([0.0, 1.0, 1.0, 0.5])
    np.testing.assert_allclose(
        advantages(rewards, "grpo"), (rewards - rewards.mean()) / rewards.std(), atol=1e-12
    )
    np.testing.assert_array_equal(advantages(rewards, "reinforce"), rewards)
    expected = (np.exp(2 * rewards) / np.exp(2 * rewards).mean() - 1) / 2
    np.testing.assert_allclose(advantages(rewards, "rs-grpo"), expected, atol=1e-12)
    tiny = advantages(rewards, "rs-grpo", beta=1e-6)
    np.testing.assert_allclose(tiny, rewards - rewards.mean(), atol=1e-5)
    assert np.isfinite(advantages(rewards * 1e4, "rs-grpo")).all()


def test_large_groups_agree_with_rational_arithmetic():
    n, k = 4096, 1024
    rewards = np.random.default_rng(0).random(n)
    order = np.argsort(rewards)
    ordered = [Fraction(float(value)) for value in rewards[order]]
    inside, total = comb(n - 1, k - 1), comb(n, k)
    # q_i = Σ_{j>i} C(j-2,k-2) r_(j) + C(i-1,k-1) r_(i), over C(n-1,k-1); summed from the top
    tail, exact = Fraction(0), {}
    group = sum(comb(j, k - 1) * ordered[j] for j in range(k - 1, n)) / total
    for i in range(n - 1, -1, -1):
        if i in (0, 1, 100, 2048, 3000, 4000, 4094, 4095):
            q = (tail + comb(i, k - 1) * ordered[i]) / Fraction(inside)
            exact[i] = float(Fraction(k * n, n - k) * (q - group))
        tail += comb(i - 1, k - 2) * ordered[i] if i >= 1 else 0
    got = advantages(rewards, f"max@{k}")[order]
    largest = np.abs(got).max()
    for i, value in exact.items():
        assert abs(got[i] - value) < 1e-9 * largest
    for name in (f"max@{k}:loo", f"max@{n}:loo-1", f"passk-training@{k}", f"top8@{k}"):
        assert np.isfinite(advantages(rewards, name)).all()


# What went wrong elsewhere.


def test_losers_do_not_keep_their_raw_reward():  # EasyR1 #585
    weights = advantages([0.2, 0.9, 0.4, 0.3], "bon-max-second")
    np.testing.assert_allclose(weights, [0.0, 0.5, 0.0, 0.0])
    assert (advantages([0.5, 0.9, 0.4, 0.3, 0.1], "max@2")[2:] < 0).all()


@pytest.mark.parametrize("odd", [-1.0, 0.5])
def test_odd_rewards_are_never_emitted_raw(odd):  # RUCAIBox passk_adv
    rewards = np.array([odd, 0.0, 1.0, 0.0, 1.0, 0.0])
    weights = advantages(rewards, "passk-training@2")
    assert abs(weights.sum()) < 1e-12
    assert weights[0] != odd


def test_the_baseline_does_not_see_its_own_sample():
    # tajwarfahim/maxrl's "leave-one-out" baseline does, which inflates the gradient 1.4× at p = .5
    policy = Tabular(np.array([0.0, 0.0]), np.array([1.0, 0.0]))
    got = policy.expected_update(objective("max@2"), 4)
    np.testing.assert_allclose(got, policy.max_gradient(2), atol=1e-12)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.uint8])
def test_integer_rewards_do_not_give_zeros(dtype):
    weights = advantages(np.array([1, 0, 0, 0], dtype=dtype), "max@2")
    assert weights.dtype == np.float64
    np.testing.assert_allclose(weights, advantages([1.0, 0, 0, 0], "max@2"))


@pytest.mark.parametrize("n", [1, 3, 7, 8])
def test_too_few_samples_raise_and_name_the_way_out(n):
    with pytest.raises(
        ValueError, match=rf"more than 8 samples per prompt, got {n}.*leave-one-out"
    ):
        advantages(np.ones((2, n)), "max@8")
    if n == 8:
        with pytest.raises(ValueError, match=r"max@8:loo-1 or max@8:none"):
            advantages(np.ones(8), "max@8")
        assert advantages(np.ones(8), "max@8:loo-1").shape == (8,)
    else:
        with pytest.raises(ValueError, match=rf"at least 8 samples per prompt, got {n}"):
            advantages(np.ones(n), "max@8:none")


def test_max_at_k_canonical_is_what_the_estimate_owes_to_each_sample():
    rewards = np.random.default_rng(3).random((4, 9))
    for k in (1, 4, 8):
        rest = np.stack([max_at_k(np.delete(rewards, i, axis=-1), k) for i in range(9)], axis=-1)
        expected = 9 * (max_at_k(rewards, k)[:, None] - rest)
        np.testing.assert_allclose(advantages(rewards, f"max@{k}"), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["min@8", "top2@8", "bottom3@8", "median@7", "lstat@8"])
def test_groups_whose_subsets_all_have_one_l_statistic_get_exact_zeros(name):
    options: dict[str, Any] = (
        {"coefficients": [0, 0, 0.3, 0, 0.1, 0.6, 0, 0]} if name == "lstat@8" else {}
    )
    chosen = objective(name, **options)
    alphas = np.array(options.get("coefficients") or chosen.terms[0].coefficients)
    first, last = np.flatnonzero(alphas)[[0, -1]]
    rng, n = np.random.default_rng(0), 16
    for size in 10.0 ** np.arange(-9, 10, 3):
        rewards = np.sort(rng.normal(size=n)) * size
        # the j-th of k is one of the ranks j … n - k + j: where those agree, no subset differs
        rewards[first : n - chosen.k + last + 1] = rewards[first]
        group = rng.permutation(rewards)
        assert signal([group], chosen).silent == 1, (size, chosen(group))
        assert len(set(rewards)) > 1


def test_min_at_k_of_zero_one_rewards_is_silent_exactly_when_fewer_than_k_pass():
    rewards = np.random.default_rng(1).integers(0, 2, (200, 16)) * 0.7
    passes = (rewards > 0).sum(axis=1)
    truth = int(((passes < 8) | (passes == 16)).sum())
    assert signal(rewards, "min@8").silent == truth > 0


def test_l_statistics_of_large_and_shifted_rewards_keep_their_digits():
    rewards = np.random.default_rng(2).integers(0, 100, 12).astype(float)
    for name in ("min@5", "median@5", "top2@5"):
        plain = advantages(rewards, name)
        np.testing.assert_array_equal(advantages(rewards + 2.0**40, name), plain)
        np.testing.assert_allclose(advantages(rewards * 1e-12, name), plain * 1e-12, rtol=1e-12)


def test_risk_sensitive_grpo_is_right_at_small_beta_and_at_large_rewards():
    rewards = np.array([0.0, 1.0, 3.0, 3.0])
    for beta in (1e-300, 1e-12, 1e-6):
        found = advantages(rewards, "rs-grpo", beta=beta)
        np.testing.assert_allclose(found, advantages(rewards, "dr-grpo"), rtol=1e-5, atol=1e-12)
    with mpmath.workdps(60):
        for beta in (0.01, 2.0):
            tilted = [mpmath.exp(mpmath.mpf(beta) * int(r)) for r in rewards]
            exact = [float((t / (sum(tilted) / 4) - 1) / mpmath.mpf(beta)) for t in tilted]
            found = advantages(rewards + 1e9, "rs-grpo", beta=beta)
            np.testing.assert_allclose(found, exact, rtol=1e-12)
