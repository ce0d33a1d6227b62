"""The mask, truncation, the distance between policies, and the clipped form to compare with."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bestofk import advantages, objective
from bestofk.objectives import (
    clipped_advantages,
    effective_share,
    off_policy_max_at_k,
    ratio_divergence,
    trust_region_mask,
)

PAGE = Path(__file__).parents[2] / "docs/off-policy.md"
REWARDS = np.array([[0.0, 1.0, 0.3, 0.8, 0.1], [1.0, 1.0, 0.0, 0.0, 0.5]])
LOGS = np.array([[-0.4, 0.5, 0.1, -0.3, 0.4], [0.6, -0.6, 0.6, -0.6, 0.0]])


def test_the_mask_stops_only_pushes_outward():
    for weight in (-2.0, 0.0, 2.0):
        for ratio in (-0.31, -0.3, 0.0, 0.1, 0.11):
            outward = (weight > 0 and ratio > 0.1) or (weight < 0 and ratio < -0.3)
            assert bool(trust_region_mask([weight], [ratio], 0.3, 0.1)[0]) == (not outward)


@pytest.mark.parametrize("text", ["max@2", "max@3:loo-1", "max@1+3", "mean", "max@2:none"])
@pytest.mark.parametrize("options", [{}, {"truncate": 0.2}, {"off_policy": "own-ratio"}])
def test_masked_weights_are_finished_weights_of_all_siblings_times_the_mask(text, options):
    whole = advantages(REWARDS, text, log_ratio=LOGS, **options)
    mask = trust_region_mask(whole, LOGS, 0.2, 0.3)
    got = advantages(REWARDS, text, log_ratio=LOGS, trust_region=(0.2, 0.3), **options)
    np.testing.assert_array_equal(got, np.where(mask, whole, 0.0))
    assert not mask.all()
    wide = advantages(REWARDS, text, log_ratio=LOGS, trust_region=5, **options)
    np.testing.assert_array_equal(wide, whole)


def test_one_number_is_both_sides_and_an_open_side_masks_nothing():
    both = advantages(REWARDS, "max@2", log_ratio=LOGS, trust_region=0.2)
    pair = advantages(REWARDS, "max@2", log_ratio=LOGS, trust_region=(0.2, 0.2))
    np.testing.assert_array_equal(both, pair)
    whole = advantages(REWARDS, "max@2", log_ratio=LOGS)
    upper = advantages(REWARDS, "max@2", log_ratio=LOGS, trust_region=(math.inf, 0.2))
    np.testing.assert_array_equal(upper != whole, (whole > 0) & (LOGS > 0.2))


def test_a_region_changes_nothing_on_policy_and_spares_dead_samples():
    goal = objective("max@2", trust_region=0.1)
    np.testing.assert_array_equal(goal(REWARDS), advantages(REWARDS, "max@2"))
    rewards = np.where(np.arange(5) == 3, np.nan, REWARDS[:1])
    got = goal(rewards, log_ratio=LOGS[:1])
    keep = [0, 1, 2, 4]
    np.testing.assert_allclose(got[:, keep], goal(rewards[:, keep], log_ratio=LOGS[:1, keep]))
    assert got[0, 3] == 0


@pytest.mark.parametrize("bad", [-0.1, (0.2, -1), math.nan, (0.1,), (1, 2, 3), "wide", True])
def test_a_region_that_is_none_is_an_error_that_says_what_to_write(bad):
    with pytest.raises(ValueError, match=r"trust_region is \(low, high\)"):
        objective("max@2", trust_region=bad)


def inner_steps(counts: list[int], optimizer: str, answers: int, **options: Any) -> list[float]:
    """The winner's log-ratio while one group is trained on again and again."""
    logits = torch.zeros(answers, dtype=torch.float64, requires_grad=True)
    step = {"sgd": torch.optim.SGD([logits], 0.1), "adam": torch.optim.Adam([logits], 0.03)}
    rewards = torch.tensor([0.0, 0.0, 1.0, 0.3], dtype=torch.float64)
    old = torch.log_softmax(logits, 0).detach()[:4]
    found = []
    for number in range(1, max(counts) + 1):
        logs = torch.log_softmax(logits, 0)[:4]
        weights = advantages(rewards, "max@2", log_ratio=logs.detach() - old, **options)
        step[optimizer].zero_grad()
        (-(weights * logs).mean()).backward()
        step[optimizer].step()
        if number in counts:
            found.append(float((torch.log_softmax(logits, 0)[:4].detach() - old)[2]))
    return found


@pytest.mark.parametrize(("optimizer", "answers"), [("sgd", 4), ("adam", 12)])
def test_the_region_levels_off_where_truncation_runs_away(optimizer, answers):
    counts = [5, 20, 50, 200, 400]
    cut = inner_steps(counts, optimizer, answers, truncate=0.2)
    held = inner_steps(counts, optimizer, answers, trust_region=0.2)
    assert cut[3] > 1.2
    assert cut[3] > cut[2] + 0.1
    assert max(held) < 0.7
    assert abs(held[4] - held[3]) < 1e-3
    assert abs(held[3] - held[2]) < 0.02


@pytest.mark.parametrize(
    ("option", "row"),
    [
        ({"truncate": 0.2}, "`truncate=0.2`: log-ratio of the winner"),
        ({"trust_region": 0.2}, "`trust_region=0.2`"),
    ],
)
def test_the_page_shows_the_log_ratios_as_they_come_out(option, row):
    values = inner_steps([5, 20, 50, 200], "sgd", 4, **option)
    shown = " | ".join(f"{value:.2f}".removeprefix("0") for value in values)
    assert f"| {row} | {shown} |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("limit", [-0.2, 0.2, 0.45, 3.0])
def test_truncation_means_the_same_in_the_value_and_in_the_weights(limit):
    logs = torch.tensor(LOGS, requires_grad=True)
    value = off_policy_max_at_k(torch.tensor(REWARDS), logs, 3, truncate=limit)
    cut = np.minimum(LOGS, limit)
    np.testing.assert_allclose(
        value.detach().numpy(), off_policy_max_at_k(REWARDS, cut, 3), rtol=1e-12
    )
    value.sum().backward()
    assert logs.grad is not None
    weights = advantages(REWARDS, "max@3:none", log_ratio=LOGS, truncate=limit)
    np.testing.assert_allclose(5 * logs.grad.numpy(), weights, rtol=1e-10, atol=1e-12)
    assert (weights[limit < LOGS] > 0).all()  # a cut sample is still pushed


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_truncation_that_is_no_number_is_an_error(bad):
    with pytest.raises(ValueError, match="truncate is the largest log-ratio"):
        objective("max@2", truncate=bad)
    with pytest.raises(ValueError, match="truncate is the largest log-ratio"):
        off_policy_max_at_k(REWARDS, LOGS, 2, truncate=bad)


def test_the_divergence_is_the_kl_of_the_policies_in_expectation():
    old = np.array([0.5, 0.3, 0.2])
    new = np.array([0.3, 0.3, 0.4])
    logs = np.log(new / old)
    expected = float(old @ np.log(old / new))
    assert sum(p * ratio_divergence([x]) for p, x in zip(old, logs)) == pytest.approx(expected)
    assert ratio_divergence(LOGS) == pytest.approx(np.mean(np.exp(LOGS) - 1 - LOGS))
    live = LOGS > 0
    assert ratio_divergence(LOGS, live) == pytest.approx(ratio_divergence(LOGS[live]))
    assert ratio_divergence(torch.tensor(LOGS), torch.tensor(live)) == pytest.approx(
        ratio_divergence(LOGS[live])
    )


def test_a_common_shift_and_a_wide_spread_both_lower_the_share():
    wide = np.random.default_rng(0).normal(size=(3, 8))
    assert effective_share(ratio_divergence(np.full((3, 8), 0.7)), 4, 8) < 0.25
    assert effective_share(ratio_divergence(wide), 8, 8) < 0.1


@pytest.mark.parametrize(("k", "n"), [(1, 8), (4, 4), (2, 6), (4, 8), (7, 8)])
def test_the_effective_share_is_one_over_the_second_moment_of_a_weight(k, n):
    """E[(ρ_1 · mean over subsets S of k - 1 siblings of Π ρ_j)²] for lognormal ratios of mean 1,
    by listing all pairs of subsets: a ratio in both counts e^{σ²}, one in a single one 1."""
    for sigma in (0.05, 0.4, 1.0):
        subsets = [set(s) for s in itertools.combinations(range(n - 1), k - 1)]
        shared = [len(s & t) for s in subsets for t in subsets]
        moment = math.exp(sigma**2) * np.mean(np.exp(sigma**2 * np.array(shared)))
        assert effective_share(sigma**2 / 2, k, n) == pytest.approx(1 / moment, rel=1e-12)


def test_the_effective_share_is_that_of_drawn_weights():
    """Σ A² shrinks to its share: measured on 40,000 groups of lognormal ratios."""
    sigma, k, n = 0.4, 4, 8
    logs = np.random.default_rng(1).normal(size=(40_000, n)) * sigma - sigma**2 / 2
    ones = np.ones((1, n))
    weights = advantages(np.repeat(ones, len(logs), 0), f"max@{k}:none", log_ratio=logs) / k
    share = effective_share(ratio_divergence(logs), k, n)
    assert 1 / np.mean(weights**2) == pytest.approx(share, rel=0.03)
    assert share == pytest.approx(effective_share(sigma**2 / 2, k, n), rel=0.02)
    assert effective_share(0.1, 8, 8) == pytest.approx(math.exp(-1.6))
    assert effective_share(0.1, 8, 4096) == pytest.approx(math.exp(-0.2), rel=0.01)


def test_distances_without_meaning_are_errors_or_zero():
    assert ratio_divergence([0.1, 0.2], [False, False]) == 0.0
    assert ratio_divergence([math.nan, 0.0], [False, True]) == 0.0
    assert ratio_divergence([5000.0]) == ratio_divergence([0.0, math.inf]) == math.inf
    assert effective_share(math.inf, 2, 4) == 0.0
    with pytest.raises(ValueError, match="pass live="):
        ratio_divergence([math.nan, 0.0])
    with pytest.raises(ValueError, match="at least 0, got -1"):
        effective_share(-1, 2, 4)
    with pytest.raises(ValueError, match="k must be"):
        effective_share(0.1, 0, 4)
    with pytest.raises(ValueError, match="need at least 8 samples per prompt, got 4"):
        effective_share(0.1, 8, 4)


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_clipped_advantages_are_the_gradient_of_the_clipped_loss(kl):
    rng = np.random.default_rng(5)
    weights = torch.tensor(rng.normal(size=200))
    logs = torch.tensor(rng.normal(size=200) * 0.4, requires_grad=True)
    shift = torch.tensor(rng.normal(size=200) * 0.3)  # log π_old - log π_reference
    ratio = logs.exp()
    loss = torch.minimum(ratio * weights, ratio.clamp(1 - 0.2, 1 + 0.28) * weights)
    reference = logs + shift
    loss = loss - kl * (torch.exp(-reference) - 1 + reference)
    loss.sum().backward()
    got = clipped_advantages(
        weights, logs.detach(), 0.2, 0.28, reference_log_ratio=reference.detach(), kl=kl
    )
    torch.testing.assert_close(got, logs.grad, rtol=1e-12, atol=1e-12)
    assert 0.1 < float((got == kl * torch.expm1(-reference.detach())).double().mean()) < 0.9


def test_clipped_advantages_need_what_they_use():
    with pytest.raises(ValueError, match="needs reference_log_ratio="):
        clipped_advantages([1.0], [0.0], kl=0.1)
    with pytest.raises(ValueError, match="got -1"):
        clipped_advantages([1.0], [0.0], kl=-1)
    np.testing.assert_allclose(clipped_advantages([1.0, -3.0], [0.0, 0.0]), [1.0, -3.0])
