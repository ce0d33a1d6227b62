"""What hosts log beside their own metrics: the figures and intervals that `bestofk eval` prints."""

import math

import numpy as np
import pytest

from bestofk.adapters import best_of_k_metrics
from bestofk.evaluation import curve, samples


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_pass_and_max_have_the_intervals_of_an_evaluation(scale):
    rng = np.random.default_rng(4)
    rewards = rng.choice([0.0, 0.5, 1.0], size=(11, 8), p=[0.6, 0.2, 0.2]) * scale
    ids = np.repeat(np.arange(11), 8)
    order = rng.permutation(88)
    figures = best_of_k_metrics(rewards.ravel()[order], ids[order], k=3, passing=scale)
    table = samples([rewards.ravel()[order][ids[order] == p] for p in dict.fromkeys(ids[order])])
    assert set(figures) == {
        f"{name}@{k}{end}" for name in ("pass", "max") for k in (1, 2, 3, 4, 8)
        for end in ("", "/low", "/high")
    }  # fmt: skip
    for metric in ("pass@k", "max@k"):
        line = curve(table, metric, threshold=scale if metric == "pass@k" else None)
        for k in (1, 2, 3, 4, 8):
            expected = (line.estimate, line.interval.low, line.interval.high)
            name = f"{metric[:-1]}{k}"
            logged = [figures[name], figures[f"{name}/low"], figures[f"{name}/high"]]
            assert logged == pytest.approx([each[k - 1] for each in expected], abs=1e-6 * scale)


def test_intervals_of_few_prompts_stay_in_the_range_of_the_rewards_and_do_not_close():
    """Two prompts with rewards of 0 and 1: max@1 is pass@1, and so is its interval."""
    figures = best_of_k_metrics([1, 0, 0, 0, 0, 0, 0, 0], list("aaaabbbb"))
    for end in ("", "/low", "/high"):
        assert figures[f"max@1{end}"] == figures[f"pass@1{end}"]
    assert 0.0 <= figures["max@1/low"] < 0.125 < figures["max@1/high"] <= 1.0
    same = best_of_k_metrics([1.0, 1.0], ["a", "a"])
    assert 0.0 < same["max@2/low"] < 0.2
    assert same["max@2"] == same["max@2/high"] == 1.0


def test_a_prompt_with_too_few_scored_samples_is_left_out_of_a_size():
    figures = best_of_k_metrics([1.0, None, math.nan, 0.0, 0.0, 1.0], list("aaabbb"), k=3)
    assert figures["pass@1"] == pytest.approx((1 + 1 / 3) / 2)
    assert figures["pass@2"] == pytest.approx(2 / 3)  # of b alone
    assert figures["max@3"] == 1.0
    assert best_of_k_metrics([None, math.nan], ["a", "b"]) == {}
