"""Off policy: J_k by its definition, exact unbiasedness, autograd, and the range of numbers."""

import itertools
import math
from math import comb
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from bestofk import advantages, objective
from bestofk.objectives import off_policy_max_at_k
from bestofk.objectives.off_policy import first_order
from oracles import Tabular, policies, subset_mean, weighted_best

SIZES = [(n, k) for n in range(1, 8) for k in range(1, n + 1)]
FORMS = ["max@{k}", "max@{k}:loo-1", "max@{k}:none"]


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_the_value_is_the_sum_over_subsets(n, k):
    rng = np.random.default_rng(n * 10 + k)
    for rewards in (rng.normal(size=n), rng.integers(0, 2, n) * 1.0):
        logs = rng.normal(size=n)
        expected = weighted_best(rewards, np.exp(logs), k)
        assert off_policy_max_at_k(rewards, logs, k) == pytest.approx(
            expected, abs=1e-12, rel=1e-12
        )
        share = weighted_best(np.ones(n), np.exp(logs), k)
        got = off_policy_max_at_k(rewards, logs, k, self_normalise=True)
        assert got == pytest.approx(expected / share, abs=1e-12, rel=1e-12)


@pytest.mark.parametrize(("n", "k"), [(n, k) for n, k in SIZES if n > 1])
def test_weights_equal_their_definition(n, k):
    rng = np.random.default_rng(n * 10 + k)
    rewards, logs = rng.normal(size=n), rng.normal(size=n)
    ratio = np.exp(logs)

    def slope(i: int) -> float:  # ∂J/∂log ρ_i: J is linear in ρ_i, so a difference is exact
        doubled = ratio.copy()
        doubled[i] *= 2
        return weighted_best(rewards, doubled, k) - weighted_best(rewards, ratio, k)

    def without(i: int, size: int) -> float:
        return weighted_best(np.delete(rewards, i), np.delete(ratio, i), size)

    none = np.array([n * slope(i) for i in range(n)])
    np.testing.assert_allclose(
        advantages(rewards, f"max@{k}:none", log_ratio=logs), none, atol=1e-11, rtol=1e-11
    )
    if k < n:
        ones = np.ones(n - 1)

        def product(i: int, size: int) -> float:  # mean product of ratios over sets of the others
            return weighted_best(ones, np.delete(ratio, i), size) if size else 1.0

        base = np.array(
            [k * ratio[i] * product(i, k - 1) * without(i, k) / product(i, k) for i in range(n)]
        )
        got = advantages(rewards, f"max@{k}", log_ratio=logs)
        np.testing.assert_allclose(got, none - base, atol=1e-11, rtol=1e-11)
        # n J_k(B) = n ∂J_k/∂log ρ_i + (n-k) J_k(B∖i)
        whole = np.array([slope(i) + (n - k) / n * without(i, k) for i in range(n)])
        np.testing.assert_allclose(whole, weighted_best(rewards, ratio, k), atol=1e-11)
    if k > 1:
        base = np.array([k * ratio[i] * without(i, k - 1) for i in range(n)])
        got = advantages(rewards, f"max@{k}:loo-1", log_ratio=logs)
        np.testing.assert_allclose(got, none - base, atol=1e-11, rtol=1e-11)
        assert got.min() >= -1e-12


def shifted(policy: Tabular) -> Tabular:
    return Tabular(policy.logits + np.array([0.5, -0.4, 0.2]), policy.rewards)


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("pattern", FORMS)
def test_exact_weights_are_unbiased_by_enumeration(pattern, n):
    for policy in policies():
        for k in range(1, n + 1):
            goal = objective(pattern.format(k=k))
            if n < goal.least_samples:
                continue
            got = policy.expected_update_from(
                shifted(policy), lambda r, logs, goal=goal: goal(r, log_ratio=logs), n
            )
            np.testing.assert_allclose(got, policy.max_gradient(k), atol=1e-9)


def test_mean_and_reinforce_are_unbiased_off_policy():
    for policy in policies():
        for name in ("mean", "reinforce"):
            got = policy.expected_update_from(
                shifted(policy), lambda r, logs, name=name: advantages(r, name, log_ratio=logs), 4
            )
            np.testing.assert_allclose(got, policy.max_gradient(1), atol=1e-9)


def test_pass_at_k_and_mixtures_are_unbiased_off_policy():
    policy = policies()[0]
    old = shifted(policy)
    got = policy.expected_update_from(old, lambda r, g: advantages(r, "pass@2", log_ratio=g), 4)
    np.testing.assert_allclose(got, policy.max_gradient(2), atol=1e-9)
    got = policy.expected_update_from(old, lambda r, g: advantages(r, "max@1+3", log_ratio=g), 4)
    truth = (policy.max_gradient(1) + policy.max_gradient(3)) / 2
    np.testing.assert_allclose(got, truth, atol=1e-9)


@pytest.mark.parametrize(("text", "k"), [("max@3", 3), ("max@3:loo-1", 3), ("mean", 1),
                         ("max@4:loo-1", 4), ("max@4:none", 4), ("pass@3", 3)])  # fmt: skip
def test_samples_of_several_policies_are_unbiased_by_enumeration(text, k):
    """Two fresh samples and two of older policies, weighed by age: k exceeds the fresh ones."""
    rewards = np.array([0.0, 1.0, 1.0]) if text == "pass@3" else np.array([0.0, 0.4, 1.0])
    policy = Tabular(np.array([0.2, -0.3, 0.1]), rewards)
    older = Tabular(policy.logits + np.array([0.5, -0.4, 0.2]), rewards)
    oldest = Tabular(policy.logits + np.array([-0.3, 0.6, 0.1]), rewards)
    drawn, alpha = [policy, policy, older, oldest], np.array([1.0, 1.0, 0.5, 0.2])
    draws = np.array(list(itertools.product(range(3), repeat=4)))
    chances = np.stack([mu.probabilities for mu in drawn])
    likely = np.prod(chances[np.arange(4), draws], axis=1)
    logs = np.log(policy.probabilities[draws] / chances[np.arange(4), draws])
    found = advantages(rewards[draws], text, log_ratio=logs, sample_weights=alpha)
    scores = np.eye(3) - policy.probabilities
    update = np.einsum("o,oi,oid->d", likely, found, scores[draws]) / 4
    np.testing.assert_allclose(update, policy.max_gradient(k), atol=1e-14)
    value = likely @ off_policy_max_at_k(rewards[draws], logs, k, sample_weights=alpha)
    best = np.array(list(itertools.product(range(3), repeat=k)))
    truth = np.prod(policy.probabilities[best], axis=1) @ rewards[best].max(axis=1)
    assert value == pytest.approx(truth, abs=1e-14)
    # only the proportions of the weights matter, and equal ones change nothing
    same = advantages(rewards[draws], text, log_ratio=logs, sample_weights=7 * alpha)
    np.testing.assert_allclose(same, found, atol=1e-12)
    plain = advantages(rewards[draws], text, log_ratio=logs)
    equal = advantages(rewards[draws], text, log_ratio=logs, sample_weights=np.full((81, 4), 0.3))
    np.testing.assert_allclose(equal, plain, atol=1e-12)


def test_sample_weights_need_the_exact_form_and_positive_numbers():
    rewards, live = np.array([[0.0, 1.0, 0.5, 0.2]]), np.array([[True, True, True, False]])
    with pytest.raises(ValueError, match="above 0: give samples"):
        advantages(rewards, "max@2", sample_weights=[1.0, 1.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="one row for all groups"):
        advantages(rewards, "max@2", sample_weights=[1.0, 1.0])
    with pytest.raises(ValueError, match="belong to off_policy='exact'"):
        advantages(rewards, "max@2", off_policy="own-ratio", sample_weights=np.ones(4))
    with pytest.raises(ValueError, match="grpo has no exact off-policy form"):
        advantages(rewards, "grpo", sample_weights=np.ones(4))
    for dead in (9.0, 0.0, np.nan, np.inf):  # the weights of live samples alone count
        weights = np.array([1.0, 0.5, 0.25, dead])
        found = advantages(rewards, "max@2", sample_weights=weights, live=live)
        alone = advantages(rewards[:, :3], "max@2", sample_weights=weights[:3])
        np.testing.assert_allclose(found[:, :3], alone)
        assert found[0, 3] == 0


def test_the_forms_rank_as_they_should():
    policy = Tabular(np.array([0.2, -0.3, 0.1]), np.array([0.0, 0.4, 1.0]))
    old = Tabular(np.array([0.3, -0.15, -0.05]), policy.rewards)
    truth = policy.max_gradient(3)

    def error(form: str) -> float:
        got = policy.expected_update_from(
            old, lambda r, g: advantages(r, "max@3:none", log_ratio=g, off_policy=form), 5
        )
        return float(np.linalg.norm(got - truth) / np.linalg.norm(truth))

    exact, first, own, none = map(error, ("exact", "first-order", "own-ratio", "none"))
    assert exact < 1e-12
    assert 1e-4 < first < own < none


@pytest.mark.parametrize(("n", "k"), [(n, k) for n, k in SIZES if n > 1])
def test_at_ratio_one_every_form_is_the_on_policy_weight(n, k):
    rewards = np.random.default_rng(n + k).normal(size=(3, n))
    zero = np.zeros((3, n))
    for pattern in FORMS:
        goal = objective(pattern.format(k=k))
        if n < goal.least_samples:
            continue
        expected = advantages(rewards, str(goal))
        for form in ("exact", "first-order", "own-ratio", "none"):
            got = advantages(rewards, str(goal), log_ratio=zero, off_policy=form)
            np.testing.assert_allclose(got, expected, atol=1e-11)


def test_first_order_is_the_derivative_of_the_exact_weights():
    rng = np.random.default_rng(2)
    for n, k in [(4, 2), (6, 3), (6, 6), (7, 1), (5, 4)]:
        rewards, direction = rng.normal(size=n), rng.normal(size=n)
        step = 1e-5
        exact = advantages(rewards, f"max@{k}:none", log_ratio=np.log1p(step * direction))
        first = first_order(rewards, np.log1p(step * direction), k, baseline="none")
        on = advantages(rewards, f"max@{k}:none")
        # both differ from on-policy by O(step) and from each other by O(step²)
        assert np.abs(exact - first).max() < 1e-7
        assert np.abs(exact - on).max() > 1e-7


def test_first_order_equals_the_papers_double_sum():
    rng = np.random.default_rng(4)
    for n, k in [(5, 2), (6, 3), (7, 5), (4, 4), (5, 1)]:
        rewards = np.sort(rng.normal(size=n))
        logs = rng.normal(size=n) * 0.1
        delta = np.expm1(logs)

        def choose(a: int, b: int) -> int:
            return comb(a, b) if a >= 0 and b >= 0 else 0

        expected = np.zeros(n)
        for i in range(1, n + 1):
            total = 0.0
            if i >= k:
                own = choose(i - 1, k - 1) * (1 + delta[i - 1])
                total += rewards[i - 1] * (own + choose(i - 2, k - 2) * delta[: i - 1].sum())
            for j in range(max(i + 1, k), n + 1):
                pair = choose(j - 2, k - 2) * (1 + delta[i - 1] + delta[j - 1])
                rest = delta[: j - 1].sum() - delta[i - 1]
                total += rewards[j - 1] * (pair + choose(j - 3, k - 3) * rest)
            expected[i - 1] = n / comb(n, k) * total
        np.testing.assert_allclose(
            first_order(rewards, logs, k, baseline="none"), expected, atol=1e-12
        )


@pytest.mark.parametrize("form", ["first-order", "own-ratio"])
def test_baselines_leave_the_expectation_of_the_other_forms_alone(form):
    clamp: dict[str, Any] = {"clamp": 9} if form == "first-order" else {}
    for policy in policies():
        updates = [
            policy.expected_update_from(
                shifted(policy),
                lambda r, g, name=name: advantages(r, name, log_ratio=g, off_policy=form, **clamp),
                4,
            )
            for name in ("max@2:none", "max@2", "max@2:loo-1")
        ]
        np.testing.assert_allclose(updates[1], updates[0], atol=1e-9)
        np.testing.assert_allclose(updates[2], updates[0], atol=1e-9)


def test_first_order_baselines_are_what_the_others_are_worth():
    rng = np.random.default_rng(9)
    rewards, delta = rng.normal(size=5), rng.normal(size=5) * 0.2
    logs = np.log1p(delta)
    none = first_order(rewards, logs, 3, baseline="none")
    for name, size in (("canonical", 3), ("loo-1", 2)):
        worth = [subset_mean(np.delete(rewards, i), size, np.max) for i in range(5)]
        share = [(1 + delta[i]) * (1 + 2 * np.delete(delta, i).mean()) for i in range(5)]
        got = first_order(rewards, logs, 3, baseline=name)
        np.testing.assert_allclose(none - got, 3 * np.multiply(share, worth), atol=1e-12)
    noise = [
        np.abs(first_order(np.ones(5), np.log1p(step * delta), 3)).max() for step in (1, 0.1, 0.01)
    ]
    assert noise[1] < noise[0] / 50  # of second order where nothing differs
    assert noise[2] < noise[1] / 50


@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 3), (6, 6), (16, 8), (7, 4)])
def test_autograd_of_the_value_is_the_explicit_weight(n, k):
    rng = np.random.default_rng(n * k)
    for scale in (0.0, 0.3, 3.0):
        rewards = torch.tensor(rng.normal(size=(3, n)))
        logs = torch.tensor(rng.normal(size=(3, n)) * scale, requires_grad=True)
        off_policy_max_at_k(rewards, logs, k).sum().backward()
        weights = advantages(rewards, f"max@{k}:none", log_ratio=logs)
        assert logs.grad is not None
        assert torch.isfinite(logs.grad).all()
        torch.testing.assert_close(n * logs.grad, weights, rtol=1e-9, atol=1e-12)
        if scale == 0.0:
            on = advantages(rewards, f"max@{k}:none")
            torch.testing.assert_close(n * logs.grad, on, rtol=1e-12, atol=1e-12)
        logs.grad = None
        off_policy_max_at_k(rewards, logs, k, self_normalise=True).sum().backward()
        if k < n:
            goal = objective(f"max@{k}", self_normalise=True)
            expected = goal(rewards, log_ratio=logs)
            torch.testing.assert_close(n * n / (n - k) * logs.grad, expected, rtol=1e-9, atol=1e-11)
            assert not expected.requires_grad


def in_high_precision(rewards, logs, k, baseline):
    """The weights in 400-digit arithmetic, by e_k recurrences with each sample left out."""
    with mpmath.workdps(400):
        n = len(rewards)
        order = np.argsort(rewards, kind="stable")
        ratio = [mpmath.exp(mpmath.mpf(float(logs[i]))) for i in order]
        reward = [mpmath.mpf(float(rewards[i])) for i in order]

        def total(members, size):
            sums = [mpmath.mpf(1)] + [mpmath.mpf(0)] * size
            found = mpmath.mpf(0)
            for j in members:
                found += reward[j] * ratio[j] * sums[size - 1]
                for m in range(size, 0, -1):
                    sums[m] += ratio[j] * sums[m - 1]
            return found

        def products(members, size):
            sums = [mpmath.mpf(1)] + [mpmath.mpf(0)] * size
            for j in members:
                for m in range(size, 0, -1):
                    sums[m] += ratio[j] * sums[m - 1]
            return sums[size]

        everyone = total(range(n), k)
        result = [mpmath.mpf(0)] * n
        for i in range(n):
            rest = [j for j in range(n) if j != i]
            out = total(rest, k)
            weight = n * (everyone - out) / mpmath.binomial(n, k)
            if baseline == "canonical":
                share = products(rest, k - 1) / mpmath.binomial(n - 1, k - 1)
                weight -= k * ratio[i] * share * out / products(rest, k)
            if baseline == "loo-1":
                weight -= k * ratio[i] * total(rest, k - 1) / mpmath.binomial(n - 1, k - 1)
            result[order[i]] = weight
        return result


CASES = [(8, 4, 1), (16, 8, 5), (16, 8, 20), (12, 3, 50), (32, 8, 10), (24, 23, 20), (40, 2, 40),
         (16, 1, 200), (6, 6, 60), (20, 10, 0.01)]  # fmt: skip


@pytest.mark.parametrize(
    ("n", "k", "spread", "baseline"),
    [(*case, "none") for case in CASES]
    + [(*case, "canonical") for case in CASES if case[1] < case[0]]
    + [(*case, "loo-1") for case in CASES if case[1] > 1],
)
def test_weights_are_right_wherever_float64_holds_them(n, k, spread, baseline):
    rng = np.random.default_rng(n + k)
    name = f"max@{k}" if baseline == "canonical" else f"max@{k}:{baseline}"
    for rewards in (rng.normal(size=n), rng.integers(0, 2, n) * 1.0, 1e3 + rng.random(n)):
        logs = rng.normal(size=n) * spread
        expected = in_high_precision(rewards, logs, k, baseline)
        largest = max(abs(weight) for weight in expected)
        if largest > mpmath.mpf("1e307"):
            with pytest.raises(ValueError, match=r"truncate=.*self_normalise"):
                advantages(rewards, name, log_ratio=logs)
            continue
        got = advantages(rewards, name, log_ratio=logs)
        for mine, true in zip(got, expected):
            assert abs(mpmath.mpf(float(mine)) - true) <= 1e-9 * largest + mpmath.mpf("1e-320")


@pytest.mark.parametrize(
    ("n", "k"), [(1024, 1024), (1024, 512), (1024, 1), (1024, 1023), (64, 8), (2, 2), (1024, 1000)]
)
def test_truncated_and_self_normalised_weights_are_always_finite(n, k):
    """Log-ratios all over the range, at its ends, one high, one low, all high, all low."""
    rng = np.random.default_rng(n + k)
    first = np.arange(n) == 0
    logs = np.stack(
        [
            rng.uniform(-50, 50, n), rng.choice([-50.0, 50.0], n), np.where(first, 50.0, -50.0),
            np.where(first, -50.0, 50.0), np.full(n, 50.0), np.full(n, -50.0),
        ]
    )  # fmt: skip
    rewards = rng.random(logs.shape)
    if k < n:
        normal = advantages(rewards, f"max@{k}", log_ratio=logs, self_normalise=True)
        assert np.isfinite(normal).all()
        assert (abs(normal.sum(axis=1)) <= 1e-6 * np.maximum(1, abs(normal).max(axis=1))).all()
    value = off_policy_max_at_k(rewards, logs, k, self_normalise=True)
    assert (rewards.min(axis=1) - 1e-9 <= value).all()
    assert (value <= rewards.max(axis=1) + 1e-9).all()
    for variant in ("", ":loo-1", ":none"):
        goal = objective(f"max@{k}{variant}", truncate=min(2.0, 600 / k))
        if n >= goal.least_samples:
            assert np.isfinite(goal(rewards, log_ratio=logs)).all()


def test_truncation_cuts_only_what_is_above():
    rewards = np.array([0.0, 1.0, 0.3, 0.8])
    logs = np.array([-3.0, 2.0, 0.1, 0.6])
    cut = advantages(rewards, "max@2", log_ratio=logs, truncate=0.5)
    same = advantages(rewards, "max@2", log_ratio=np.minimum(logs, 0.5))
    np.testing.assert_array_equal(cut, same)


@pytest.mark.parametrize(("n", "k"), [(4, 1), (6, 3), (5, 4)])
def test_self_normalised_at_ratio_one_is_the_canonical_weight(n, k):
    rewards = np.random.default_rng(n).normal(size=n)
    goal = objective(f"max@{k}", self_normalise=True)
    np.testing.assert_allclose(goal(rewards, log_ratio=np.zeros(n)), goal(rewards), atol=1e-12)


def test_self_normalised_weights_that_would_be_zero_or_jump_in_scale_are_errors():
    with pytest.raises(ValueError, match="more than 3 samples"):
        advantages(np.arange(3.0), "max@3", log_ratio=np.zeros(3), self_normalise=True)
    for text, way_out in (("max@3:none", "write max@3 "), ("reinforce", "write mean ")):
        with pytest.raises(ValueError, match=way_out):
            objective(text, self_normalise=True)


def test_a_truncation_that_cannot_help_is_refused_when_it_is_set():
    with pytest.raises(ValueError, match=r"truncate=2 with k = 512.*at most 1\.37"):
        objective("max@512", truncate=2.0)


@pytest.mark.parametrize(
    "name", ["grpo", "passk-training@2", "max@2:zscore", "maxrl", "top2@2", "dr-grpo", "max@2:loo"]
)
def test_objectives_without_an_exact_form_refuse_ratios(name):
    with pytest.raises(ValueError, match="clipped loss"):
        advantages(np.array([1.0, 0, 0, 1.0]), name, log_ratio=np.zeros(4))
    assert not objective(name).takes_log_ratio


def test_bad_ratios_are_refused():
    rewards = np.array([1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="shape of rewards"):
        advantages(rewards, "max@2", log_ratio=np.zeros((3, 5)))
    with pytest.raises(ValueError, match="finite for every live sample"):
        advantages(rewards, "max@2", log_ratio=[0.0, math.nan, 0.0])
    dead = advantages([1.0, math.nan, 0.0, 0.5], "max@2", log_ratio=[0.0, math.nan, 0.0, 0.1])
    assert dead[1] == 0
    with pytest.raises(ValueError, match="one library"):
        advantages(rewards, "max@2", log_ratio=torch.zeros(3))


def test_chunks_of_groups_change_nothing(monkeypatch):
    from bestofk.procedures import importance

    rng = np.random.default_rng(1)
    rewards, logs = rng.random((37, 8)), rng.normal(size=(37, 8))
    whole = advantages(rewards, "max@3", log_ratio=logs)
    monkeypatch.setattr(importance, "CACHED_CELLS", 5 * 8 * 3)
    np.testing.assert_allclose(advantages(rewards, "max@3", log_ratio=logs), whole, rtol=1e-12)


def test_baselines_cut_the_variance():
    policy = Tabular(np.array([0.2, -0.3, 0.1]), np.array([0.0, 0.4, 1.0]))
    old = Tabular(np.array([0.3, -0.15, -0.05]), policy.rewards)
    draws, chance = old.outcomes(5)
    logs = np.log(policy.probabilities / old.probabilities)[draws]

    def variance(name: str) -> float:
        weights = advantages(policy.rewards[draws], name, log_ratio=logs)
        update = np.einsum("on,ond->od", weights, policy.scores()[draws]) / 5
        mean = chance @ update
        return float(chance @ ((update - mean) ** 2).sum(axis=-1))

    assert variance("max@3") < variance("max@3:none") / 3
    assert variance("max@3:loo-1") < variance("max@3:none") / 3


@pytest.mark.parametrize(
    "text", ["max@2", "max@4", "mean", "max@1:loo-1", "max@4:loo-1", "max@1+3"]
)
@pytest.mark.parametrize("options", [{}, {"truncate": 0.3}, {"off_policy": "own-ratio"}])
def test_a_shift_of_the_rewards_changes_no_weight(text, options):
    rng = np.random.default_rng(3)
    rewards, logs = rng.normal(size=(20, 6)), rng.normal(size=(20, 6))
    plain = advantages(rewards, text, log_ratio=logs, **options)
    for shift in (-3.0, 10.0, 1000.0):
        moved = advantages(rewards + shift, text, log_ratio=logs, **options)
        np.testing.assert_allclose(moved, plain, rtol=1e-9, atol=1e-10 * abs(shift))


@pytest.mark.parametrize("form", ["exact", "own-ratio", "none", "self-normalised"])
@pytest.mark.parametrize("text", ["max@1", "max@3", "max@5", "mean", "pass@4", "max@3:loo-1"])
def test_groups_without_signal_get_exact_zeros(text, form):
    options = {"off_policy": form} if form != "self-normalised" else {"self_normalise": True}
    if form == "self-normalised" and ":" in text:
        return
    logs = np.random.default_rng(4).normal(size=(2, 6)) * 2
    agreed = np.array([np.ones(6), np.zeros(6)])
    assert not np.any(advantages(agreed, text, log_ratio=logs, **options))
    k = objective(text).k
    if k > 1:
        wrong = k - 1 - (":" in text)  # every k-set has a success; loo-1 compares with k - 1
        rewards = np.array([[0.0] * wrong + [1.0] * (6 - wrong)])
        assert not np.any(advantages(rewards, text, log_ratio=logs[:1], **options))


def test_the_shift_invariant_baseline_is_what_variance_asks_for():
    """Exact variances of the gradient estimate, as the rewards move away from 0."""
    rng = np.random.default_rng(7)
    policy = Tabular(rng.normal(size=4) * 0.5, np.array([0.0, 0.2, 0.2, 1.0]))
    old = Tabular(policy.logits + 0.6 * rng.normal(size=4), policy.rewards)
    draws, chance = old.outcomes(5)
    logs = np.log(policy.probabilities / old.probabilities)[draws]

    def variance(name: str, shift: float) -> float:
        weights = advantages(policy.rewards[draws] + shift, name, log_ratio=logs)
        update = np.einsum("on,ond->od", weights, policy.scores()[draws]) / 5
        return float(chance @ (update**2).sum(axis=-1) - ((chance @ update) ** 2).sum())

    for name in ("max@3", "max@3:loo-1"):
        assert variance(name, 10.0) == pytest.approx(variance(name, 0.0), rel=1e-9)
        assert variance(name, 0.0) < variance("max@3:none", 0.0)
    assert variance("max@3:none", 10.0) > 100 * variance("max@3:none", 0.0)


def test_ratios_so_far_apart_that_the_others_underflow_still_have_a_baseline():
    """k-sets without the sample weigh e^-1500 of those with it; their mean still exists."""
    rewards = np.array([1.0, 0.0, 0.5, 0.2])
    logs = np.array([0.0, -1500.0, -1501.0, -3000.0])
    got = advantages(rewards, "mean", log_ratio=logs)
    others = (0.0 + 0.5 * math.exp(-1)) / (1 + math.exp(-1))
    assert got[0] == pytest.approx(1.0 - others, rel=1e-12)


@pytest.mark.parametrize("variant", ["", ":loo-1", ":none"])
def test_weights_that_leave_float64_are_an_error_that_names_the_two_ways_out(variant):
    rewards, logs = np.array([0.0, 1.0, 0.5, 0.2]), np.array([400.0, 401.0, 399.0, 0.0])
    with pytest.raises(ValueError, match=r"weighs e\^80.*truncate=.*self_normalise"):
        advantages(rewards, f"max@2{variant}", log_ratio=logs)
    with pytest.raises(ValueError, match="do not fit into float64"):
        off_policy_max_at_k(rewards, logs, 2)
    assert np.isfinite(advantages(rewards, "max@2", log_ratio=logs, self_normalise=True)).all()


@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_loo_minus_one_has_no_negative_weight_and_pays_the_lowest_exactly_nothing(k):
    rng = np.random.default_rng(k)
    rewards = rng.choice([0.1, 0.3, 0.7, 1.1], (400, 8)) + rng.choice([0.0, 5.3], (400, 1))
    weights = advantages(rewards, f"max@{k}:loo-1", log_ratio=rng.normal(size=(400, 8)))
    assert weights.min() == 0
    lowest = rewards == rewards.min(axis=1, keepdims=True)
    assert (weights[lowest] == 0).all()
    assert (weights > 0).any()


def test_the_weight_of_a_dead_sample_may_be_nan():
    rewards, logs = np.array([0.1, 0.7, np.nan, 0.4, 0.9]), np.array([0.1, -0.2, 0.0, 0.3, -0.1])
    alpha = np.array([1.0, 2.0, np.nan, 1.0, 2.0])
    found = advantages(rewards, "max@2", log_ratio=logs, sample_weights=alpha)
    live = np.array([0, 1, 3, 4])
    alone = advantages(rewards[live], "max@2", log_ratio=logs[live], sample_weights=alpha[live])
    assert found[2] == 0
    np.testing.assert_allclose(found[live] / found[0], alone / alone[0], atol=1e-12)
