"""Diversity and off-policy estimates, against brute force."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

from bestofk.evaluation import curve, diversity, off_policy, samples
from bestofk.evaluation.diversity import expected_distinct
from bestofk.evaluation.reweighting import effective_share
from oracles import weighted_best


def test_distinct_answers_are_those_of_a_random_draw() -> None:
    answers = ["a", "a", "b", "c", "c", "c"]
    counts = np.array([2, 1, 3])
    for m in range(1, 7):
        draws = [len(set(s)) for s in itertools.combinations(answers, m)]
        assert expected_distinct(counts, 6, m) == pytest.approx(np.mean(draws))


def test_measures_of_a_small_run() -> None:
    run = samples(
        [[1, 1, 0, 0], [0, 0, 0, 0]],
        answers=[["4", "4", "5", "6"], ["1", None, "1", "1"]],
        logprobs=[[-1, -1, -2, -4], [-3, -3, -3, -3]],
        tokens=[[2, 2, 2, 2], [3, 3, 3, 3]],
    )
    found = diversity(run)
    assert found.m == 4
    assert found.distinct.value == pytest.approx((3 + 1) / 2)
    assert found.distinct_wrong.value == pytest.approx((2 + 1) / 2)
    assert found.distinct_correct.value == pytest.approx((1 + 0) / 2)
    assert found.wrong_share.value == pytest.approx((2 / 2 + 1 / 3) / 2)
    assert found.effective.value == pytest.approx((16 / 6 + 1) / 2)
    assert found.entropy.value == pytest.approx((2 + 3) / 2)
    assert found.entropy_per_token.value == pytest.approx((1 + 1) / 2)
    assert found.no_answer == pytest.approx(1 / 8)
    assert found.distinct.low < found.distinct.value < found.distinct.high
    assert diversity(run, m=1).distinct.value == pytest.approx((1 + 3 / 4) / 2)


def test_the_share_of_distinct_wrong_answers_does_not_see_the_right_ones() -> None:
    """Unlike the count, it is the same whether two or no right samples stand beside the wrong."""
    few = diversity(samples([[0, 0, 0]], answers=[["5", "5", "6"]]))
    many = diversity(samples([[0, 0, 0, 1, 1]], answers=[["5", "5", "6", "4", "4"]]), m=3)
    assert few.wrong_share.value == many.wrong_share.value == pytest.approx(2 / 3)
    assert few.distinct_wrong.value > many.distinct_wrong.value
    assert diversity(samples([[1, 1]], answers=[["4", "4"]])).wrong_share.problems == 0


def test_repetitive_texts_compress_more() -> None:
    rng = np.random.default_rng(0)
    same = tuple("to be or not to be " * 3 for _ in range(8))
    varied = tuple("".join(map(chr, rng.integers(97, 123, 57))) for _ in range(8))
    runs = [samples([[1, 0]]), samples([[1, 0]])]
    ratios = []
    for run, texts in zip(runs, (same, varied)):
        held = type(run)(**{**run.__dict__, "texts": {0: texts}})
        data = "\n".join(texts).encode()
        ratio = diversity(held).compression.value
        assert ratio == pytest.approx(len(data) / len(zlib.compress(data, 6)))
        ratios.append(ratio)
    assert ratios[0] > 3 * ratios[1]


def test_unknown_is_not_a_number_and_alike_is_not_certain() -> None:
    without = diversity(samples([[1, 0]]))
    assert np.isnan(without.distinct.value)
    assert without.notes
    alike = diversity(samples([[0, 0]] * 5, answers=[["x", "x"]] * 5))
    assert alike.distinct.value == 1.0
    assert alike.distinct.high - alike.distinct.low > 0.01
    with pytest.raises(ValueError, match=r"1 ≤ m ≤ 2"):
        diversity(samples([[1, 0], [0, 0, 1]]), m=3)


def run_with_ratio(spread: float, problems: int = 40, n: int = 16, seed: int = 0):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    rewards = rng.random((problems, n))
    old = rng.normal(-20, 3, (problems, n))
    new = old + rng.normal(-(spread**2) / 2, spread, (problems, n))
    return samples(rewards, logprobs=old, new_logprobs=new), rewards, new - old


def test_off_policy_is_the_weighted_mean_over_subsets() -> None:
    run, rewards, ratio = run_with_ratio(0.3, problems=5, n=6)
    for k in (1, 2, 4):
        truth = np.mean([weighted_best(r, np.exp(x), k) for r, x in zip(rewards, ratio)])
        found = off_policy(run, k, self_normalise=False)
        assert found.estimate == pytest.approx(truth, rel=1e-9)
        assert found.low < found.estimate < found.high


def test_off_policy_at_ratio_one_is_max_at_k() -> None:
    run, _, _ = run_with_ratio(0.0)
    found = off_policy(run, 4)
    assert found.estimate == pytest.approx(curve(run, "max@k").estimate[3])
    assert found.ess == pytest.approx(1.0)


def test_the_new_policy_is_estimated_and_self_normalising_falls_short() -> None:
    # Two answers, worth 0 and 1; the new policy draws the good one with .6 instead of .3.
    rng = np.random.default_rng(0)
    good = rng.random((400, 32)) < 0.3
    old = np.where(good, np.log(0.3), np.log(0.7))
    new = np.where(good, np.log(0.6), np.log(0.4))
    run = samples(good.astype(float), logprobs=old, new_logprobs=new)
    found = off_policy(run, 2)
    assert found.low <= 1 - 0.4**2 <= found.high
    assert off_policy(run, 2, self_normalise=True).high < 1 - 0.4**2
    assert not curve(run, "pass@k").interval.high[1] > 1 - 0.4**2


def test_policies_too_far_apart_are_refused_with_a_k_that_works() -> None:
    run, _, _ = run_with_ratio(0.8, problems=200)
    for k in (12, 16):  # at k = n a problem has one subset, which fools a share per problem
        with pytest.raises(ValueError, match=r"effectively count.*k ≤ \d would do"):
            off_policy(run, k)
    assert off_policy(run, 2).effective > 0.1
    for far in (6.0, 300.0):
        with pytest.raises(ValueError, match="not even k = 1 would do"):
            off_policy(run_with_ratio(far)[0], 8)


def test_effective_share_is_that_of_all_subsets() -> None:
    _, _, ratio = run_with_ratio(0.7, problems=3, n=5)
    for k in (1, 3, 5):
        weights = np.array(
            [np.exp(x[list(s)].sum()) for x in ratio for s in itertools.combinations(range(5), k)]
        )
        truth = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
        assert effective_share(list(ratio), k)[0] == pytest.approx(truth, rel=1e-9)


def test_missing_log_probabilities_are_named() -> None:
    with pytest.raises(ValueError, match="no logprob_sum"):
        off_policy(samples([[1, 0]]), 1)
    half = samples([[1, 0]], logprobs=[[-1, -1]])
    with pytest.raises(ValueError, match="no new_logprob_sum"):
        off_policy(half, 1)
