"""The judge's own arithmetic against the references of oracles.py."""

import numpy as np
import pytest

from bestofk.estimator_checks.policies import (
    SPREADS,
    all_outcomes,
    off_policy_cases,
    on_policy_cases,
)
from oracles import Tabular


def _tabular(probabilities: np.ndarray, rewards: np.ndarray) -> Tabular:
    return Tabular(np.log(probabilities), rewards)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("answers", [3, 4])
def test_gradient_in_closed_form_is_the_enumerated_one(k: int, answers: int) -> None:
    for policy in on_policy_cases(k, answers, seed=0) + off_policy_cases(k, answers, seed=1):
        reference = _tabular(policy.probabilities, policy.rewards).max_gradient(k)
        np.testing.assert_allclose(policy.gradient(k), reference, rtol=1e-9, atol=1e-14)


def _uneven(rewards: np.ndarray, log_ratio: np.ndarray | None = None) -> np.ndarray:
    """Symmetric in the samples, and nothing else: no baseline, no structure to be lucky with."""
    weights = np.sin(3 * rewards) + rewards * np.sum(rewards**2, axis=-1, keepdims=True)
    if log_ratio is not None:
        weights = weights * np.exp(log_ratio) + np.prod(np.exp(log_ratio), axis=-1, keepdims=True)
    return weights


def test_expected_update_is_the_enumerated_one_on_and_off_policy() -> None:
    outcomes = all_outcomes(3, 4)
    for policy in on_policy_cases(2, 3, seed=0):
        update = outcomes.expected_update(policy, _uneven(policy.rewards[outcomes.draws]))
        reference = _tabular(policy.probabilities, policy.rewards).expected_update(_uneven, 4)
        np.testing.assert_allclose(update, reference, rtol=1e-10, atol=1e-14)
    for policy in off_policy_cases(2, 3, seed=0):
        weights = _uneven(policy.rewards[outcomes.draws], policy.log_ratio[outcomes.draws])
        update = outcomes.expected_update(policy, weights)
        new, old = (_tabular(p, policy.rewards) for p in (policy.probabilities, policy.old))
        reference = new.expected_update_from(old, _uneven, 4)
        np.testing.assert_allclose(update, reference, rtol=1e-10, atol=1e-14)


def test_outcomes_up_to_order_give_the_same_update() -> None:
    one_by_one, up_to_order = all_outcomes(3, 6), all_outcomes(3, 6, limit=100)
    assert (one_by_one.ordered, len(one_by_one.draws)) == (True, 729)
    assert (up_to_order.ordered, len(up_to_order.draws)) == (False, 28)
    for policy in on_policy_cases(3, 3, seed=0):
        assert one_by_one.chance(policy.old).sum() == pytest.approx(1, abs=1e-12)
        assert up_to_order.chance(policy.old).sum() == pytest.approx(1, abs=1e-12)
        updates = [
            o.expected_update(policy, _uneven(policy.rewards[o.draws]))
            for o in (one_by_one, up_to_order)
        ]
        np.testing.assert_allclose(updates[0], updates[1], rtol=1e-10, atol=1e-14)


def test_outcomes_up_to_order_are_not_sorted() -> None:
    draws = all_outcomes(3, 12, limit=1000).draws
    assert (np.diff(draws, axis=-1) < 0).any(axis=-1).mean() > 0.8


def test_too_many_outcomes_are_refused_by_number() -> None:
    with pytest.raises(ValueError, match=r"n = 500 has 125,751 outcomes.*smaller n"):
        all_outcomes(3, 500)


def test_off_policy_cases_have_the_spread_they_say() -> None:
    spreads = []
    for policy in off_policy_cases(4, 3, seed=2):
        mean = policy.old @ policy.log_ratio
        sd = np.sqrt(policy.old @ (policy.log_ratio - mean) ** 2)
        assert sd == pytest.approx(policy.spread, abs=1e-12)
        assert policy.probabilities.sum() == pytest.approx(1)
        spreads.append(policy.spread)
    assert set(spreads) == set(SPREADS)


@pytest.mark.parametrize("k", [1, 8, 64])
def test_no_case_has_a_gradient_too_small_to_compare_with(k: int) -> None:
    cases = on_policy_cases(k, 3, seed=0)
    assert {case.kind for case in cases} == {"0/1", "real"}
    assert min(np.linalg.norm(case.gradient(k)) for case in cases) > 1e-6
