"""Group semantics: ids in any order, dead samples, groups that are too small."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bestofk
from bestofk import advantages, objective
from bestofk.objectives import DroppedGroups, signal

NAMES = ["max@2", "max@2:loo-1", "pass@2", "mean", "grpo", "passk-training@2", "tailrl", "top2@2"]


@st.composite
def ragged(draw):
    sizes = draw(st.lists(st.integers(3, 7), min_size=1, max_size=5))
    ids = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    order = rng.permutation(len(ids))
    return ids[order], rng.integers(0, 2, len(ids)).astype(float), rng


@given(ragged(), st.sampled_from(NAMES))
def test_ragged_rows_in_any_order_equal_each_group_alone(batch, name):
    ids, rewards, _ = batch
    got = advantages(rewards, name, groups=ids)
    for group in np.unique(ids):
        alone = advantages(rewards[ids == group], name)
        np.testing.assert_allclose(got[ids == group], alone, atol=1e-12)


@given(ragged(), st.sampled_from(NAMES))
def test_dead_samples_change_nothing_but_n(batch, name):
    ids, rewards, rng = batch
    expected = advantages(rewards, name, groups=ids)
    # pad rows join the groups: some NaN, some masked out with a nonsense reward
    pads = rng.integers(0, ids.max() + 1, 6)
    values = np.concatenate([rewards, [np.nan, 123.0, np.nan, -5.0, 0.0, np.inf]])
    live = np.concatenate([np.ones(len(ids), bool), [True, False, False, False, False, False]])
    got = advantages(values, name, groups=np.concatenate([ids, pads]), live=live)
    np.testing.assert_allclose(got[: len(ids)], expected, atol=1e-12)
    assert not got[len(ids) :].any()


def test_ids_may_be_strings_and_interleaved():
    uid = np.array(["b", "a", "b", "a", "b", "a"], dtype=object)
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    got = advantages(rewards, "max@2", groups=uid)
    np.testing.assert_allclose(got[uid == "a"], advantages([0, 1, 0], "max@2"))
    np.testing.assert_allclose(got[uid == "b"], advantages([1, 0, 0], "max@2"))
    np.testing.assert_allclose(got, advantages(rewards, "max@2", groups=uid.tolist()))


def test_dense_with_nan_equals_the_live_samples_alone():
    rewards = np.array([[1.0, 0.0, np.nan, 0.0], [0.0, 1.0, 1.0, 0.0]])
    got = advantages(rewards, "max@2")
    assert got[0, 2] == 0
    np.testing.assert_allclose(got[0, [0, 1, 3]], advantages([1, 0, 0], "max@2"))
    np.testing.assert_allclose(got[1], advantages(rewards[1], "max@2"))


def test_off_policy_ratios_follow_their_samples():
    rng = np.random.default_rng(0)
    rewards, logs = rng.random(12), rng.normal(size=12)
    ids = rng.permutation(np.repeat([0, 1], [5, 7]))
    got = advantages(rewards, "max@3", groups=ids, log_ratio=logs)
    for group in (0, 1):
        mine = ids == group
        alone = advantages(rewards[mine], "max@3", log_ratio=logs[mine])
        np.testing.assert_allclose(got[mine], alone, atol=1e-12)


def test_groups_that_lost_samples_are_dropped_with_a_report_or_refused():
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [1.0, np.nan, np.nan, 0.0]])
    with pytest.warns(DroppedGroups, match=r"1 of 2 groups.*group 1, has 2 of 4"):
        got = advantages(rewards, "max@2")
    assert not got[1].any()
    np.testing.assert_allclose(got[0], advantages(rewards[0], "max@2"))
    with pytest.raises(ValueError, match=r"1 of 2 groups.*small_groups='drop'"):
        advantages(rewards, "max@2", small_groups="error")
    report = signal(rewards, "max@2")
    assert (report.groups, report.dropped, report.silent, report.unscored) == (2, 1, 0, 2)


def test_a_batch_that_could_never_do_is_an_error_even_when_dropping():
    for kwargs in ({}, {"groups": [0, 0, 0]}, {"live": [True, True, False]}):
        with pytest.raises(ValueError, match=r"more than 4 samples per prompt, got 3"):
            advantages([1.0, 0.0, 1.0], "max@4", small_groups="drop", **kwargs)


def test_pad_rows_are_not_counted_in_n():
    # n = 3 live of 8 rows: with the pads counted the weights would be those of n = 8
    rewards = np.array([1.0, 0.0, 0.0, 0, 0, 0, 0, 0])
    live = np.arange(8) < 3
    got = advantages(rewards, "max@2", groups=np.zeros(8, int), live=live)
    np.testing.assert_allclose(got[:3], advantages([1, 0, 0], "max@2"))
    assert not got[3:].any()


def test_masks_and_ids_may_be_tensors():
    rewards = torch.tensor([1.0, 0.0, 0.0, 5.0], dtype=torch.float32)
    ids = torch.tensor([0, 0, 0, 0])
    live = torch.tensor([True, True, True, False])
    got = advantages(rewards, "max@2", groups=ids, live=live)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, torch.tensor([2.0, -1.0, -1.0, 0.0]))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rewards": 1.0}, "sample axis"),
        ({"rewards": [[1.0, 0.0], [1.0]]}, "rectangular"),
        ({"rewards": [1.0, np.inf, 0.0]}, "finite"),
        ({"rewards": [1.0, None, 0.0]}, "real numbers"),
        ({"rewards": ["1", "0", "1"]}, "real numbers"),
        ({"rewards": [1j, 0, 1]}, "real numbers"),
        ({"rewards": [[1.0, 0.0, 0.0]], "groups": [0, 0, 0]}, "one row"),
        ({"rewards": [1.0, 0.0, 0.0], "groups": [0, 0]}, "one group per sample"),
        ({"rewards": [1.0, 0.0, 0.0], "live": [True, True]}, "shape of rewards"),
        ({"rewards": [1.0, 0.0, 0.5], "name": "pass@2"}, "threshold="),
    ],
)
def test_bad_input_is_refused_with_the_reason(kwargs, message):
    name = kwargs.pop("name", "max@2")
    with pytest.raises(ValueError, match=message):
        advantages(kwargs.pop("rewards"), name, **kwargs)


def test_an_empty_batch_is_an_empty_answer():
    assert advantages(np.zeros((0, 8)), "max@4").shape == (0, 8)
    assert bestofk.max_at_k(np.zeros((0, 8)), 4).shape == (0,)
    assert advantages(np.zeros((0, 8)), "max@4", log_ratio=np.zeros((0, 8))).shape == (0, 8)


def test_leading_axes_are_free():
    rewards = np.random.default_rng(0).random((2, 3, 4, 6))
    got = objective("max@3")(rewards)
    assert got.shape == rewards.shape
    np.testing.assert_allclose(got[1, 2, 3], advantages(rewards[1, 2, 3], "max@3"), atol=1e-12)


def test_signal_counts_groups_that_teach_nothing():
    rewards = np.array([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1.0]])
    assert signal(rewards, "pass@2").silent == 3
    assert signal(rewards, "grpo").silent == 2
    assert signal(rewards, "pass@2").silent_share == 0.75
    assert signal(rewards, "pass@2").largest_k == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert signal(np.full((1, 4), 1.0), "mean").silent == 1


@pytest.mark.parametrize(
    ("n", "k", "p", "ours", "grpo"),
    [
        (8, 4, 0.5, 0.37, 0.01),
        (8, 4, 0.7, 0.81, 0.06),
        (32, 8, 0.7, 0.21, 0.0),
        (32, 8, 0.9, 0.99, 0.03),
    ],
)
def test_the_chance_of_no_signal_is_what_the_theory_says(n, k, p, ours, grpo):
    from math import comb

    chance = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    groups = np.tril(np.ones((n + 1, n)), -1)  # row c has c successes
    for name, expected in ((f"pass@{k}", ours), ("grpo", grpo)):
        silent = ~advantages(groups, name).any(axis=-1)
        assert chance @ silent == pytest.approx(expected, abs=0.01)
