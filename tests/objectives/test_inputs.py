"""Inputs that would give silent nonsense, mixtures across families, weights per prompt, signal."""

import math

import numpy as np
import pytest
import torch

from bestofk import advantages, max_at_k, objective, pass_at_k
from bestofk.objectives import (
    l_statistic_at_k,
    off_policy_max_at_k,
    ratio_divergence,
    trust_region_mask,
)
from oracles import Tabular, policies

ROW = np.array([1.0, 0.0, 0.5, 0.2])
PAIR = np.array([1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: objective("lstat@2", coefficients=(math.nan, 1.0)), "list of finite numbers"),
        (lambda: l_statistic_at_k(ROW, 2, (math.nan, 1)), "finite numbers"),
        (lambda: advantages(ROW, "max@2", live=["yes", "no", "yes", "yes"]), "got 'yes'"),
        (lambda: advantages(ROW, "max@2", live=[1.0, math.nan, 1.0, 1.0]), "got nan"),
        (lambda: max_at_k(ROW, 2, live=[2, 1, 1, 1]), "got 2"),
        (lambda: ratio_divergence([0.0], live=["no"]), "got 'no'"),
        (lambda: advantages(np.ma.masked_less(ROW, 0.1), "max@2"), "live=~mask"),
        (lambda: pass_at_k(np.ma.masked_less(PAIR, 0.1), 2), "masked array"),
        (lambda: advantages(ROW, "mean", groups=[0, 0, math.nan, math.nan]), "got nan"),
        (lambda: advantages(ROW, "mean", groups=["a", "a", None, None]), "got None"),
        (lambda: advantages(ROW, "mean", groups=[None, None, "None", "None"]), "got None"),
        (lambda: advantages(ROW, "mean", groups=[1, 1, "1", "1"]), "kind, got number and str"),
        (lambda: advantages(ROW, "mean", groups=np.array([1, 1, "1", "1"], object)), "one kind"),
        (
            lambda: advantages(
                ROW, "passk-training@2:adaptive", entropy=[1.0], entropy_threshold=math.nan
            ),
            "entropy_threshold is a finite number",
        ),
        (
            lambda: objective("passk-training@2:drop-easy", accuracy_threshold=50),
            r"in \[0, 1\], got 50",
        ),
        (lambda: off_policy_max_at_k(ROW, ROW, True), "whole number of at least 1, got True"),
        (lambda: pass_at_k(PAIR, True), "got True"),
        (lambda: off_policy_max_at_k([0.0, 1.0], [0.0, 1.0], 3), "needs at least 3 samples"),
        (lambda: l_statistic_at_k(ROW, 2, "mode"), "is min, median, top<m> or bottom<m>, got"),
        (lambda: trust_region_mask([1.0, 1.0], [math.nan, 0.0], 0.2, 0.2), "must not be nan"),
        (lambda: advantages([1e155, 0.0, 1.0], "grpo"), "at most 1e.150 in size, got 1e.155"),
        (lambda: max_at_k([2**53 + 1, 0], 1), "integers above 2.53"),
        (lambda: advantages([1.0], "max@1:loo-1"), "with 1 sample use max@1:none, or draw more$"),
        (lambda: objective("max@2", clamp=0.5), "clamp belongs to off_policy='first-order'"),
        (lambda: pass_at_k([0, 1 - 1e-12], 1), "got 0.999999999999:"),
        (lambda: pass_at_k([0, 1], 3), r"^pass@3 needs at least 3 .*, got 2: draw more samples"),
        (lambda: advantages(ROW, "max@2", log_ratios=ROW), r"'log_ratio'\?.*live, groups"),
        (lambda: advantages(ROW, "max@8"), "with 4 samples use max@3 or max@4:loo-1, or draw more"),
        (lambda: advantages(ROW, "max@4"), "with 4 samples use max@4:loo-1 or max@4:none"),
        (lambda: advantages(ROW, "top2@9"), "draw at least 10, or use a k of at most 3"),
        (lambda: advantages(ROW, "max@6:loo-1"), "draw at least 6, or use a k of at most 4"),
        (lambda: objective("grpo", trust_region=0.2), "trust_region is about log_ratio=.*grpo"),
        (lambda: objective("max@2:zscore", self_normalise=True), "self_normalise is about log"),
        (lambda: advantages(ROW, "max@2", log_ratio=[0, math.nan, 0, 0]), "got nan: .*live=False"),
        (
            lambda: advantages(ROW, "max@2", log_ratio=np.ma.masked_less(ROW, 0.1)),
            "would be lost: pass the data and live=~mask",
        ),
        (lambda: advantages([], "max@2"), "got 0.*; draw more$"),
        (
            lambda: advantages(ROW, "passk-training@2:adaptive", entropy=[math.nan]),
            "got nan: leave that group out",
        ),
    ],
)  # fmt: skip
def test_nonsense_is_an_error_that_names_the_value_or_the_way_out(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_weights_that_leave_float16_are_an_error_in_every_library():
    rewards = np.array([60000.0, 0.0, 0.0, 0.0], np.float16)
    for given in (rewards, torch.tensor(rewards)):
        with pytest.raises(
            ValueError, match=r"do not fit into .*float16: pass the rewards as float32"
        ):
            advantages(given, "max@2")
    assert np.isfinite(advantages(rewards.astype(np.float32), "max@2")).all()


def test_group_ids_of_any_one_kind_work():
    expected = advantages(ROW, "mean", groups=[0, 1, 0, 1])
    for ids in (["b", "c", "b", "c"], [1.5, 2.5, 1.5, 2.5], [True, False, True, False],
                np.array(["x", "y", "x", "y"]), torch.tensor([3, 4, 3, 4])):  # fmt: skip
        np.testing.assert_array_equal(advantages(ROW, "mean", groups=ids), expected)


def test_live_may_be_zeros_and_ones():
    for live in ([1, 0, 1, 1], [1.0, 0.0, 1.0, 1.0], np.array([True, False, True, True])):
        got = advantages(ROW, "mean", live=live)
        np.testing.assert_allclose(got, [*_mean(ROW[[0, 2, 3]])[:1], 0, *_mean(ROW[[0, 2, 3]])[1:]])


def _mean(values: np.ndarray) -> list[float]:
    return [v - (values.sum() - v) / (len(values) - 1) for v in values]


def test_mixtures_across_families_are_weighted_sums():
    goal = objective("max@2+grpo")
    expected = (advantages(ROW, "max@2") + advantages(ROW, "grpo")) / 2
    np.testing.assert_allclose(goal(ROW), expected)
    assert goal.claim == "biased"
    three = objective("max@1+3:loo-1+tailrl", weights=(0.2, 0.3, 0.5))
    assert [term.text for term in three.terms] == ["max@1:loo-1", "max@3:loo-1", "tailrl"]
    parts = [advantages(ROW, term.text) for term in three.terms]
    np.testing.assert_allclose(three(ROW), 0.2 * parts[0] + 0.3 * parts[1] + 0.5 * parts[2])
    assert objective("max@8/50%/max@2+mean").at(0.7)[1].text == "mean"
    with pytest.raises(ValueError, match="names each objective once"):
        objective("grpo+grpo")
    with pytest.raises(ValueError, match="grpo has no exact off-policy form"):
        goal(ROW, log_ratio=np.zeros(4))


def test_a_mixture_of_max_and_mean_is_unbiased_on_and_off_policy():
    for policy in policies():
        truth = (policy.max_gradient(2) + policy.max_gradient(1)) / 2
        got = policy.expected_update(lambda r: advantages(r, "max@2:loo-1+mean"), 4)
        np.testing.assert_allclose(got, truth, atol=1e-9)
        old = Tabular(policy.logits + np.array([0.3, -0.2, 0.1]), policy.rewards)
        got = policy.expected_update_from(
            old, lambda r, g: advantages(r, "max@2:loo-1+mean", log_ratio=g), 4
        )
        np.testing.assert_allclose(got, truth, atol=1e-9)


def test_the_entropy_of_a_group_stays_its_own_in_groups_of_several_sizes():
    rewards = np.random.default_rng(0).random((4, 6))
    rewards[1, :2] = rewards[3, 0] = math.nan
    name, entropy = "passk-training@2:adaptive", np.array([0.9, 0.1, 0.2, 0.8])
    got = advantages(rewards, name, entropy=entropy, entropy_threshold=0.5)
    for row, own, found in zip(rewards, entropy, got):
        alone = advantages(row, name, entropy=[own], entropy_threshold=0.5)
        np.testing.assert_allclose(found, alone)


@pytest.mark.parametrize(
    ("text", "claim"),
    [("max@2", "exact"), ("dr-grpo", "scaled"), ("bon-max-second", "scaled"), ("grpo", "biased"),
     ("maxrl", "exact"), ("max@2:canonical", "exact"), ("max@2+dr-grpo", "biased"),
     ("max@2+grpo", "biased"), ("max@1+2", "exact"), ("max@2/50%/dr-grpo", "scaled")],
)  # fmt: skip
def test_claims_are_exact_scaled_or_biased(text, claim):
    assert objective(text).claim == claim


def test_a_mixture_with_a_scaled_term_points_elsewhere():
    """By enumeration: neither the stated mean of both gradients nor a multiple of it."""
    policy = Tabular(np.log([0.1, 0.85, 0.05]), np.array([0.0, 0.5, 1.0]))
    stated = (policy.max_gradient(4) + policy.max_gradient(1)) / 2
    cosines = {}
    for text in ("max@4:loo-1+mean", "max@4:loo-1+dr-grpo", "bon-max-second+mean"):
        update = policy.expected_update(objective(text), 4)
        cosines[text] = update @ stated / np.linalg.norm(update) / np.linalg.norm(stated)
    assert cosines["max@4:loo-1+mean"] == pytest.approx(1, abs=1e-12)
    assert cosines["max@4:loo-1+dr-grpo"] < 0.996
    assert cosines["bon-max-second+mean"] < 0.86


def test_off_policy_claims_know_what_bounds_the_weights():
    assert objective("max@2").off_policy_claim == "exact"
    for option in ({"truncate": 0.3}, {"trust_region": 0.2}, {"self_normalise": True},
                   {"off_policy": "first-order"}):  # fmt: skip
        assert objective("max@2", **option).off_policy_claim == "biased"
    assert objective("maxrl").off_policy_claim == "biased"


def test_the_default_has_a_name():
    np.testing.assert_array_equal(advantages(ROW, "max@2:canonical"), advantages(ROW, "max@2"))
