"""Diversity, against brute force."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

from bestofk.evaluation import diversity, samples
from bestofk.evaluation.diversity import expected_distinct


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
    assert np.isnan(found.distinct_among_wrong.value)  # no problem has four wrong answers
    assert found.effective.value == pytest.approx((16 / 6 + 1) / 2)
    assert found.entropy.value == pytest.approx((2 + 3) / 2)
    assert found.entropy_per_token.value == pytest.approx((1 + 1) / 2)
    assert found.no_answer == pytest.approx(1 / 8)
    assert found.distinct.low < found.distinct.value < found.distinct.high
    assert diversity(run, m=1).distinct.value == pytest.approx((1 + 3 / 4) / 2)


def test_distinct_wrong_answers_do_not_move_with_accuracy() -> None:
    """One law of wrong answers at three accuracies: .34, .53, .91 as distinct over wrong."""
    law = np.array([0.5, 0.25, 0.15, 0.1])
    truth = (1 - (1 - law) ** 4).sum()
    rng = np.random.default_rng(0)
    for accuracy in (0.1, 0.5, 0.8):
        right = rng.random((400, 32)) < accuracy
        answers = np.where(right, -1, rng.choice(4, right.shape, p=law)).tolist()
        found = diversity(samples(right.astype(float), answers=answers)).distinct_among_wrong
        assert found.low < truth < found.high
        assert found.high - found.low < 0.2
    six = ["5", "5", "6", "7", "5", "4"]
    one = diversity(samples([[0, 0, 0, 0, 0, 1]], answers=[six])).distinct_among_wrong
    draws = [len(set(some)) for some in itertools.combinations(six[:5], 4)]
    assert one.problems == 1
    assert one.value == pytest.approx(np.mean(draws))


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


def test_an_entropy_is_not_negative_nor_is_its_interval():
    sure = [[-0.001, -0.002], [-0.001, -0.003], [-3.0, -2.0]]
    table = samples([[0.0, 1.0]] * 3, logprobs=sure, tokens=[[4, 4]] * 3)
    found = diversity(table)
    assert found.entropy_per_token.low == found.entropy.low == 0.0
    assert found.entropy.high > 1.0
