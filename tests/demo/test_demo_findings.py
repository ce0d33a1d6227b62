"""The words follow the numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats

from bestofk.demo import KS, Results, Settings, conditions, rows, sentence
from bestofk.demo.conclusions import compare, interval


def doctored(at_1: list[float], at_64: list[float]) -> Results:
    """Results whose runs end at these values in every world (±0.1 points), straight in between."""
    settings = Settings(worlds=3)
    marks = len(settings.checkpoints)
    ends = np.linspace(at_1, at_64, len(KS)).T
    wobble = np.array([-0.001, 0.0, 0.001])[None, :, None, None]
    passes = np.broadcast_to(ends[:, None, None], (4, 3, marks, len(KS))) + wobble
    return Results(settings, passes, np.ones((4, 3, marks)))


def test_interval_is_the_t_interval() -> None:
    values = np.random.default_rng(0).normal(size=(7, 2))
    mean, half = interval(values)
    low, high = stats.t.interval(0.95, 6, loc=values.mean(0), scale=stats.sem(values))
    np.testing.assert_allclose(mean - half, low, rtol=1e-4)
    np.testing.assert_allclose(mean + half, high, rtol=1e-4)


def test_a_difference_is_one_only_outside_its_paired_interval() -> None:
    theirs = np.array([0.1, 0.5, 0.9])
    assert compare(theirs + [0.010, 0.011, 0.012], theirs) == "higher"  # small, but in every world
    assert compare(theirs - [0.010, 0.011, 0.012], theirs) == "lower"
    assert compare(theirs + [0.3, -0.1, 0.0], theirs) == "no different"
    assert compare(theirs + 0.0005, theirs) == "no different"  # too small to be seen
    assert compare(theirs, theirs) == "no different"


def test_the_sentence_says_what_the_numbers_show() -> None:
    text = sentence(doctored([0.1, 0.4, 0.2, 0.4], [0.9, 0.6, 0.88, 0.5]))
    assert text == (
        "Training for the mean raised pass@1 (10.0% → 40.0%) and lowered pass@64 (90.0% → 60.0%). "
        "With as many samples from the same start, max@8 reached 20.0% (lower) and 88.0% (higher), "
        "Pass@8 Training reached 40.0% (no different) and 50.0% (lower)."
    )
    level = sentence(doctored([0.1, 0.4, 0.2, 0.25], [0.9, 0.9, 0.95, 0.95]))
    assert "and did not measurably move pass@64 (90.0% → 90.0%)" in level


def test_every_number_of_the_sentence_is_in_the_table(small: Results) -> None:
    shown = {cell.split(" ± ")[0] for row in rows(small) for cell in row.cells}
    said = re.findall(r"([\d.]+)%", sentence(small))
    assert len(said) == 8
    assert set(said) <= shown


def test_the_table_has_every_k_and_entropy_and_marks_the_best(small: Results) -> None:
    table = rows(small)
    assert [row.label for row in table] == [f"pass@{k}" for k in KS] + ["entropy"]
    for place, row in enumerate(table[:-1]):
        values = small.pass_at_k[:, :, -1, place]
        assert row.means == pytest.approx(values.mean(axis=1).tolist())
        assert row.best[int(values.mean(axis=1).argmax())]
    assert table[-1].best == (False,) * 4
    assert table[-1].means == pytest.approx(small.entropy[:, :, -1].mean(axis=1).tolist())


def test_levels_share_the_mark() -> None:
    table = rows(doctored([0.1, 0.4, 0.4, 0.2], [0.9, 0.6, 0.8, 0.5]))
    assert table[0].best == (False, True, True, False)
    assert table[-2].best == (True, False, False, False)


def test_the_conditions_name_n_k_prompts_seed_and_interval(small: Results) -> None:
    text = conditions(small)
    for part in ("n = 16", "k = 8", "1,024 prompts", "61,440 samples", "95%", "3 worlds", "seed 0"):
        assert part in text
