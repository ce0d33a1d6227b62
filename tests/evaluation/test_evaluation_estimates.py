"""Curves against brute force over subsets."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestofk.evaluation import Metric, curve, samples
from bestofk.evaluation.per_problem import MetricRules, values_by_k
from bestofk.evaluation.voting import MOST_ORDERS, walk
from bestofk.objectives import maj_at_k

GROUPS = st.lists(
    st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=7), min_size=1, max_size=5
)
GRADED = st.lists(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=6),
    min_size=1,
    max_size=4,
)
FEW: dict[str, Any] = {"resamples": 400}


@pytest.mark.parametrize(
    ("metric", "groups", "best"),
    [("pass@k", GROUPS, max), ("pass^k", GROUPS, min), ("max@k", GRADED, max)],
)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_estimates_are_means_over_all_subsets(
    metric: Metric, groups: st.SearchStrategy[list[list[float]]], best: Any, data: st.DataObject
) -> None:
    drawn = data.draw(groups)
    found = curve(samples(drawn), metric, **FEW)
    for k in found.k:
        truth = np.mean([np.mean([best(s) for s in combinations(g, int(k))]) for g in drawn])
        assert found.estimate[k - 1] == pytest.approx(truth, abs=1e-12)
    mean = curve(samples(drawn), "mean", **FEW)
    assert mean.estimate[0] == pytest.approx(np.mean([np.mean(g) for g in drawn]))
    assert mean.k.tolist() == [1]


def test_voting_along_every_order_is_the_mean_over_subsets(vote: Callable[..., float]) -> None:
    answers = ["a", "b", "b", None, "c"]
    correct = [1.0, 0.0, 0.0, 0.0, 1.0]
    numbers = {"a": 0, "b": 1, "c": 2, None: -1}
    orders = np.array(list(permutations(range(5)))).T
    labels = np.array([numbers[a] for a in answers])[orders]
    along = walk(labels, np.array(correct)[orders]).mean(axis=1)
    for k in range(1, 6):
        chosen = list(combinations(range(5), k))
        truth = np.mean([vote([answers[i] for i in s], [correct[i] for i in s]) for s in chosen])
        assert along[k - 1] == pytest.approx(truth, abs=1e-12)


def test_majority_curve_is_the_mean_over_all_subsets(vote: Callable[..., float]) -> None:
    rng = np.random.default_rng(3)
    answers = rng.integers(-1, 4, (6, 8))
    correct = (answers == 1).astype(float)
    names = [[None if a < 0 else int(a) for a in row] for row in answers]
    run = samples(correct, answers=names, problems=[f"{i}" for i in range(6)])
    table = values_by_k(run, "maj@k", np.arange(6), np.arange(1, 9), MetricRules())
    for k in range(1, 9):
        for row, labels, right in zip(table, names, correct):
            subsets = list(combinations(range(8), k))
            truth = np.mean([vote([labels[i] for i in s], [right[i] for i in s]) for s in subsets])
            assert row[k - 1] == pytest.approx(truth, abs=1e-12)


def test_majority_in_random_orders_agrees_with_the_exact_vote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    answers = rng.integers(0, 4, (6, 12))
    correct = (answers == 1).astype(float)
    run = samples(correct, answers=answers.tolist())
    monkeypatch.setattr("bestofk.evaluation.voting.EXACT_WORK", 0)
    table = values_by_k(run, "maj@k", np.arange(6), np.arange(1, 13), MetricRules())
    assert not np.allclose(table[:, 4], maj_at_k(answers, correct, 5))  # orders were drawn
    for k in (1, 2, 3, 5, 8, 12):
        exact = maj_at_k(answers, correct, k)
        tolerance = 1e-12 if k in (1, 12) else 4 * 0.5 / np.sqrt(MOST_ORDERS)
        assert np.abs(table[:, k - 1] - exact).max() <= tolerance


def test_an_answer_judged_both_ways_counts_by_its_mean() -> None:
    run = samples([[1.0, 0.0]], answers=[["x", "x"]])
    assert curve(run, "maj@k", **FEW).estimate.tolist() == [0.5, 0.5]


def test_unscored_samples_are_counted_and_not_in_n() -> None:
    found = curve(samples([[1, None, 0, 0], [np.nan, 1, 1, 1]]), "pass@k", **FEW)
    assert found.unscored == 2
    assert found.n == (3, 3)
    assert found.estimate[0] == pytest.approx((1 / 3 + 1) / 2)
    assert any("2 samples could not be scored" in note for note in found.notes)


def test_ragged_runs_end_at_the_smallest_n_or_leave_problems_out() -> None:
    run = samples([[1, 0], [1, 0, 0, 1]], problems=["short", "long"])
    whole = curve(run, "pass@k", **FEW)
    assert whole.k.tolist() == [1, 2]
    assert any("'short'" in note for note in whole.notes)
    with pytest.raises(ValueError, match=r"pass@3 needs at least 3 scored samples.*'short' has 2"):
        curve(run, "pass@k", k_max=3, **FEW)
    part = curve(run, "pass@k", k_max=3, small="drop", **FEW)
    assert part.left_out == ("short",)
    assert part.problems == ("long",)
    with pytest.raises(ValueError, match="needs at least 9"):
        curve(run, "pass@k", k_max=9, small="drop", **FEW)


def test_pass_needs_a_definition_when_rewards_are_graded() -> None:
    run = samples([[0.2, 0.9, 1.0]], name="graded")
    with pytest.raises(ValueError, match=r"reward of 0\.2.*--threshold"):
        curve(run, "pass@k", **FEW)
    assert curve(run, "pass@k", threshold=0.9, **FEW).estimate[0] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"metric": "pas@k"}, "did you mean 'pass@k'"),
        ({"confidence": 95}, "confidence lies in"),
        ({"resamples": 10}, "at least 400 resamples"),
        ({"k_max": 0}, "k must be at least 1"),
        ({"metric": "maj@k"}, "--map answer="),
        ({"metric": "max@k", "bounds": (0.5, 1.0)}, "outside the stated bounds"),
    ],
)
def test_mistakes_are_named(call: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        curve(samples([[1, 0], [0, 0]]), **call)  # type: ignore[arg-type]


def test_nothing_scored_is_refused() -> None:
    with pytest.raises(ValueError, match="no sample is scored"):
        curve(samples([[None, None]]), "pass@k")


def test_curve_of_a_thousand_samples_is_finite_and_rises() -> None:
    rng = np.random.default_rng(0)
    found = curve(samples((rng.random((4, 4096)) < 0.01).astype(float)), "pass@k", **FEW)
    assert np.isfinite(found.estimate).all()
    assert (np.diff(found.estimate) >= -1e-12).all()
    assert found.estimate[-1] == 1.0


@pytest.mark.parametrize("k", [1, 3, 8, 20])
def test_scorio_agrees_where_it_is_unbiased(k: int) -> None:
    scorio = pytest.importorskip("scorio.eval")
    rng = np.random.default_rng(4)
    correct = (rng.random((30, 20)) < rng.beta(0.5, 1.0, 30)[:, None]).astype(int)
    run = samples(correct)
    for metric, peer in (("pass@k", scorio.pass_at_k), ("pass^k", scorio.pass_hat_k)):
        found = curve(run, metric, **FEW)  # type: ignore[arg-type]
        assert found.estimate[k - 1] == pytest.approx(peer(correct, k), abs=1e-9)


def test_problems_without_samples_are_counted_as_such() -> None:
    run = samples([[], [1, 0], [], [1, None, 1], []])
    assert run.live.tolist() == [0, 2, 0, 2, 0]
    found = curve(run, "pass@k", **FEW)
    assert found.estimate[0] == pytest.approx(0.75)
    assert found.left_out == ("0", "2", "4")
