"""The objective strings: what they mean, and what a mistyped one says."""

import itertools
import pickle
from datetime import date
from typing import Any

import numpy as np
import pytest

from bestofk import advantages, objective
from bestofk.objectives.catalog import CATALOG

REWARDS = np.random.default_rng(0).random((3, 12))
PASSED = (REWARDS > 0.6) * 1.0


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("pkpo@4", "max@4:loo-1"),
        ("rloo", "mean"),
        ("MAX@4", "max@4"),
        (" max@4 ", "max@4"),
        ("top1@4", "max@4"),
        ("max@4+4", None),
        ("max@1", "mean"),
    ],
)
def test_names_that_mean_the_same(text, same):
    if same is None:
        with pytest.raises(ValueError, match="names each objective once"):
            objective(text)
        return
    np.testing.assert_allclose(advantages(REWARDS, text), advantages(REWARDS, same), atol=1e-12)


def test_the_weights_of_a_mixture_stand_behind_it():
    written = objective("max@1+2+4 1:2:4/50%/mean")
    assert [term.weight for term in written.terms] == [1.0, 2.0, 4.0, 1.0]
    same = objective("max@1+2+4", weights=[1, 2, 4])
    assert objective("max@1+2+4 1:2:4").stages == same.stages


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max@1+2 1:2:3", r"has 2 terms and 3 shares"),
        ("mx@8", r"unknown objective 'mx'; did you mean 'max'"),
        ("gpro", r"did you mean 'grpo'"),
        ("passk-trainig@8", r"did you mean 'passk-training'"),
        (
            "max@8:lo-1",
            r"no variant 'lo-1'; did you mean 'loo-1'\? have canonical, loo, loo-1, none, zscore",
        ),
        ("max", r"needs its k: write max@8"),
        ("max@", r"cannot read k"),
        ("max@eight", r"cannot read k"),
        ("max@0", r"at least 1"),
        ("max@-3", r"cannot read k"),
        ("max@2.5", r"cannot read k"),
        ("grpo@8", r"grpo takes no k"),
        ("grpo:loo", r"grpo has no variants"),
        ("pkpo@8:none", r"pkpo is max with variant 'loo-1'"),
        ("", r"an objective is a string such as 'max@8'"),
        (None, r"an objective is a string such as 'max@8'"),
        ("max@8 mean", r"cannot read"),
        ("max@8/mean", r"a switch is written max@8/60%/mean"),
        ("max@8/sixty%/mean", r"percentage"),
        ("max@8/0%/mean", r"between 0% and 100%"),
        ("max@8/120%/mean", r"between 0% and 100%"),
        ("max@8/60%/mean/50%/grpo", r"increasing order"),
        ("top9@8", r"cannot take 9 of 8"),
        ("lstat@3", r"needs coefficients="),
        ("passk-training@4:drop-easy", r"needs accuracy_threshold="),
    ],
)
def test_mistyped_objectives_say_what_to_type(text, message):
    with pytest.raises(ValueError, match=message):
        objective(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresold": 0.5}, r"no option or input 'thresold'; did you mean 'threshold'"),
        ({"beta": 1.0}, r"no option or input 'beta'"),
        ({"off_policy": "exakt"}, r"did you mean 'exact'"),
        ({"truncate": float("nan")}, r"truncate"),
        ({"clamp": 0.0}, r"clamp"),
        ({"weights": (1, 2)}, r"weights="),
        ({"small_groups": "ignore"}, r"have error, drop"),
        ({"variant": "loo"}, r"no option or input 'variant'"),
        ({"self_normalise": True, "off_policy": "own-ratio"}, r"belongs to off_policy='exact'"),
        ({"threshold": float("inf")}, r"finite"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        objective("max@4", **options)


ODD = [[], [1], [None], ["a"], {}, {"a": 1}, "x", "0.5", "false", date(2020, 1, 1), 10**400]
OPTIONS = {
    "weights": "max@1+8",
    "truncate": "max@8",
    "self_normalise": "max@8",
    "clamp": "max@8",
    "threshold": "max@8",
    "trust_region": "max@8",
    "beta": "rs-grpo",
    "accuracy_threshold": "passk-training@4:drop-easy",
    "coefficients": "lstat@2",
}


@pytest.mark.parametrize(("name", "value"), list(itertools.product(OPTIONS, ODD)))
def test_an_option_of_the_wrong_kind_is_an_error_that_names_it(name, value):
    text = OPTIONS[name]
    with pytest.raises(ValueError, match=name):
        objective(text, **{name: value})


def test_options_of_the_objective_itself_are_checked():
    with pytest.raises(ValueError, match="beta is a positive number, got -1"):
        objective("rs-grpo", beta=-1)
    with pytest.raises(ValueError, match="takes 3 coefficients"):
        objective("lstat@3", coefficients=(1, 2))
    with pytest.raises(ValueError, match="cannot change an Objective"):
        advantages(REWARDS, objective("max@4"), threshold=0.5)


def test_a_switch_changes_at_its_share_of_the_run():
    goal = objective("max@4/60%/mean")
    assert goal.needs == {"progress"}
    before, after = advantages(REWARDS, "max@4"), advantages(REWARDS, "mean")
    for progress, expected in [(0.0, before), (0.59, before), (0.6, after), (1.0, after)]:
        np.testing.assert_array_equal(goal(REWARDS, progress=progress), expected)
    with pytest.raises(ValueError, match="progress= is needed"):
        goal(REWARDS)
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        goal(REWARDS, progress=60)


def test_transfer_may_be_repeated():
    goal = objective("passk-training@4/25%/grpo/50%/passk-training@4/75%/grpo")
    texts = [goal.at(progress)[0].text for progress in (0.1, 0.3, 0.6, 0.9)]
    assert texts == ["passk-training@4", "grpo", "passk-training@4", "grpo"]


def test_an_annealing_gives_every_k_an_equal_share():
    goal = objective("max@4..1:loo-1")
    ks = [goal.at(progress)[0].k for progress in np.arange(0, 1, 0.05)]
    assert ks == [4] * 5 + [3] * 5 + [2] * 5 + [1] * 5
    assert goal.at(1.0)[0].text == "max@1:loo-1"
    assert objective("max@1..4").at(1.0)[0].k == 4
    inside = objective("max@3..2/50%/mean")
    assert [inside.at(p)[0].text for p in (0.1, 0.3, 0.5)] == ["max@3", "max@2", "mean"]


def test_an_objective_knows_what_it_needs():
    assert objective("passk-training@4:adaptive").needs == {"entropy"}
    assert objective("passk-training@4:full").needs == {"rng"}
    assert objective("passk-training@4:full").least_samples == 8
    assert objective("max@8..1").least_samples == 9
    assert objective("max@8/50%/mean").k == 8
    assert objective("max@8/50%/grpo").claim == "biased"
    with pytest.raises(ValueError, match="entropy= is needed"):
        objective("passk-training@4:adaptive")(REWARDS)
    with pytest.raises(ValueError, match=r"max@8 needs more than 8 samples per prompt, got 8"):
        objective("mean/50%/max@8").require_samples(8)


def spread(rewards, scores, answers):
    """What three samples are worth to somebody."""
    return float(np.ptp(rewards)) + len(set(answers.tolist())) + scores.max()


@pytest.mark.filterwarnings("ignore::bestofk.objectives.ObjectiveWarning")
def test_every_row_of_the_catalog_runs_and_is_documented():
    special: dict[str, dict[str, Any]] = {
        "drop-easy": {"accuracy_threshold": 0.9},
        "retry": {"price": 0.1},
        "subsets": {"value": spread},
        "lstat": {"coefficients": (0.5, 0.5, 1.0)},
    }
    for name, variants in CATALOG.items():
        for variant, entry in variants.items():
            text = name.replace("M", "2") + ("@3" if entry.takes_k else "")
            text += f":{variant}" if variant else ""
            options = special.get(variant) or special.get(name) or {}
            rewards = PASSED if entry.zero_one else REWARDS
            inputs: dict[str, Any] = {"rng": 0, "entropy": np.arange(3.0), "tokens": 9 * REWARDS}
            inputs |= {"answers": REWARDS.round(1), "scores": (9 * REWARDS).round().clip(0)}
            got = advantages(rewards, text, **options, **inputs)
            assert np.isfinite(got).all()
            assert got.any()
            assert entry.formula
            assert entry.statement
            assert entry.claim in ("exact", "scaled", "biased")
            assert entry.source


@pytest.mark.parametrize(
    "text", ["max@4", "max@4:loo-1", "passk-training@4:full", "max@8/60%/mean"]
)
def test_objectives_travel_between_processes(text):
    asked = objective(text)
    arrived = pickle.loads(pickle.dumps(asked))
    assert str(arrived) == text
    assert arrived.least_samples == asked.least_samples


def test_every_entry_of_the_catalog_can_be_pickled():
    for variants in CATALOG.values():
        for entry in variants.values():
            assert pickle.loads(pickle.dumps(entry)) == entry
