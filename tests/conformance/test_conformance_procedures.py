"""Estimators of procedures beyond the maximum: right ones are exact, wrong ones are caught."""

import re
from typing import Any

import numpy as np
import pytest

import bestofk


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("select@2", {}),
        ("select@2:loo-1", {}),
        ("maj@3:ties-count", {}),
        ("maj@2:weighted:ties-wrong:none", {}),
        ("retry@2", {"price": 0.1}),
        ("pass^2", {}),
        ("atleast2@3", {}),
        ("retry@3:tokens", {"price": 0.01}),
        ("subsets@2", {"value": lambda rewards, scores, answers: rewards.min() + scores.max()}),
    ],
)
def test_our_own_are_exact_by_definitions_that_share_no_formula(text, options, off_policy):
    k = int(re.split("[@^]", text)[1][0])
    if off_policy and not bestofk.objective(text, **options).takes_log_ratio:
        pytest.skip("it has no exact off-policy form")
    result = bestofk.conformance(text, k, n=k + 1, off_policy=off_policy, quiet=True, **options)
    assert result.verdict == "exact"
    assert result.bias < 1e-10
    assert f"unbiased for the gradient of {text.partition(':')[0]}" in result.summary
    assert not result.defects


def test_a_choice_with_noise_is_unbiased_within_the_noise_of_its_seeds():
    result = bestofk.conformance("select@2:soft", 2, n=3, quiet=True)
    assert result.verdict == "exact"
    assert "to within" in result.summary
    assert 0 < result.bias < 0.03


def best_of_the_score(rewards, scores, log_ratio=None):
    return bestofk.advantages(scores, "max@2", log_ratio=log_ratio)


def truth_without_the_score(rewards, scores):
    return bestofk.advantages(rewards, "max@2")


def ratios_left_out(rewards, scores, log_ratio):
    return bestofk.advantages(rewards, "select@2", scores=scores)


def halved(rewards, answers):
    return bestofk.advantages(rewards, "maj@3", answers=answers) / 2


def one_group_at_a_time(rewards, answers):
    assert rewards.ndim == 1
    return bestofk.advantages(rewards, "maj@3", answers=answers)


def ties_shared(rewards, answers):
    return bestofk.advantages(rewards, "maj@3", answers=answers)


def any_size(rewards, scores):
    k = min(2, rewards.shape[-1] - 1)
    return bestofk.advantages(rewards, f"select@{k}", scores=scores) if k else 0.0 * rewards


@pytest.mark.parametrize(
    ("fn", "k", "procedure", "off_policy", "verdict"),
    [
        (best_of_the_score, 2, "select@k", False, "biased"),
        (best_of_the_score, 2, "select@k", True, "biased"),
        (truth_without_the_score, 2, "select@k", False, "biased"),
        (ratios_left_out, 2, "select@k", True, "on policy only"),
        (halved, 3, "maj@k", False, "scaled"),
        (one_group_at_a_time, 3, "maj@k", False, "exact"),
        (ties_shared, 3, "maj@k:ties-wrong", False, "biased"),
        (any_size, 2, "select@k", False, "in part"),
        (lambda rewards: np.nan * rewards, 2, "retry@k", False, "unusable"),
    ],
)
def test_wrong_ones_are_caught(fn, k, procedure, off_policy, verdict):
    price: dict[str, Any] = {"price": 0.1} if procedure == "retry@k" else {}
    result = bestofk.conformance(
        fn, k, n=k + 1, off_policy=off_policy, procedure=procedure, quiet=True, **price
    )
    assert result.verdict == verdict
    assert str(result).startswith(result.name)


def test_what_is_judged_must_be_known():
    for procedure, message in (
        ("vote@k", "unknown procedure 'vote@k'"),
        ("retry@k", "to judge retry@k, state price="),
        ("subsets@k", "to judge subsets@k, state value="),
    ):
        with pytest.raises(ValueError, match=message):
            bestofk.conformance(halved, 2, quiet=True, procedure=procedure)
    with pytest.raises(ValueError, match="ordered draws of 4 answers: judge a smaller k"):
        bestofk.conformance("select@12", 12, n=13, quiet=True)
