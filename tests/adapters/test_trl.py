"""BestOfKTrainer in real runs of the tiny model: weights, updates, unscored rows, evaluation."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed here: pip install 'bestofk[trl]'")


import bestofk
from adapters.trl_runs import (
    LENGTH,
    Judge,
    assert_moved,
    digits,
    groups_of,
    has_three,
    in_the_loss,
    our_update,
    trainer,
    weights_of,
)
from bestofk.learning import Learner, Optimizer
from bestofk.models import load
from oracles import subset_mean


@pytest.mark.parametrize("text", ["max@4", "max@8:loo-1", "pass@4", "passk-training@4", "tailrl"])
def test_the_loss_and_the_log_get_the_objectives_weights_of_each_group(text, tmp_path):
    score = has_three if text.startswith("pass") else digits
    judge = Judge(score)
    run = trainer(tmp_path, judge, text, max_steps=2, learning_rate=1e-3)
    run.train()
    rewards = judge.rewards(8)
    assert judge.calls == [16, 16]
    assert np.ptp(rewards, axis=1).max() > 0
    last = np.concatenate([bestofk.advantages(group, text) for group in rewards[2:]])
    np.testing.assert_allclose(list(run._logs["advantages"]), last, rtol=1e-6, atol=1e-7)
    # Rows are shuffled by now: equal completions of one prompt have equal rewards, so a sorted
    # list of (tokens, advantage) says whether each row kept its own.
    rows = sorted((ids, float(a)) for (_, ids, _), a in zip(judge.rows[16:], last))
    seen = sorted(in_the_loss(run))
    assert [ids for ids, _ in seen] == [ids for ids, _ in rows]
    np.testing.assert_allclose([a for _, a in seen], [a for _, a in rows], rtol=1e-6, atol=1e-7)


def test_a_schedule_follows_the_trainers_progress(tmp_path):
    judge = Judge()
    run = trainer(tmp_path, judge, "max@4/50%/mean", max_steps=4, learning_rate=1e-3)
    found: list[list[float]] = []
    run._logs["advantages"] = _Keeps(found)
    run.train()
    rewards = judge.rewards(8).reshape(4, 2, 8)
    for step, text in enumerate(["max@4", "max@4", "mean", "mean"]):
        wanted = bestofk.advantages(rewards[step], text).reshape(-1)
        np.testing.assert_allclose(found[2 * step + 1], wanted, rtol=1e-6, atol=1e-7)


class _Keeps(list):
    """A log that remembers what was written at a time: TRL's advantages, then ours."""

    def __init__(self, found):
        self.found = found

    def extend(self, values):
        self.found.append(list(values))
        super().extend(self.found[-1])


def test_random_designs_draw_the_same_sets_again(tmp_path):
    runs = []
    for name in ("a", "b"):
        runs.append(trainer(tmp_path / name, Judge(), "passk-training@4:bootstrap", max_steps=2))
        runs[-1].train()
    first, again = (list(run._logs["advantages"]) for run in runs)
    assert first == again
    assert len(set(first)) > 2


def test_the_adaptive_design_ranks_groups_by_entropy(tmp_path):
    judge = Judge(has_three)
    options = {"gradient_accumulation_steps": 4, "temperature": 1.3}
    run = trainer(tmp_path, judge, "passk-training@4:adaptive", **options)
    run.train()
    learner = Learner(load("tiny-countdown").model, temperature=1.3)
    entropy = learner.log_probs(groups_of(judge.rows, 8)).entropy
    assert np.ptp(entropy.mean(axis=1)) > 1e-3
    wanted = bestofk.advantages(judge.rewards(8), "passk-training@4:adaptive", entropy=entropy)
    plain = bestofk.advantages(judge.rewards(8), "passk-training@4")
    assert not np.allclose(wanted, plain)
    np.testing.assert_allclose(run._logs["advantages"], wanted.reshape(-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "loss_type", "unscored"),
    [
        ("max@4", None, ()),
        ("max@4", "luspo", ()),
        ("passk-training@4", None, ()),
        ("max@4", None, (1, 6, 9)),
        pytest.param("max@4", None, (8, 9, 10, 11), id="one group dropped"),
    ],
)
@pytest.mark.filterwarnings("ignore::bestofk.objectives.DroppedGroups")
def test_the_first_update_is_our_own_learners(text, loss_type, unscored, tmp_path):
    """dr_grpo divides by the constant max_completion_length, luspo by nothing."""
    judge = Judge(unscored=unscored)
    run = trainer(tmp_path, judge, text, named={"loss_type": loss_type})
    before = weights_of(run.model)
    run.train()
    rewards = judge.rewards(8)
    live = ~np.isnan(rewards)
    live &= live.sum(axis=1, keepdims=True) >= bestofk.objective(text).least_samples
    weights = bestofk.advantages(rewards, text)
    assert np.abs(weights).max(axis=1).astype(bool).sum() >= 1
    assert len({len(ids) for _, ids, _ in judge.rows}) > 1  # lengths matter
    ours = our_update(groups_of(judge.rows, 8), weights, live)
    scale = LENGTH if loss_type is None else 1
    assert_moved(before, weights_of(run.model), ours, scale)


def test_the_first_update_with_adamw_is_our_own_learners(tmp_path):
    """As people run it: TRL's AdamW against ours, where the gradient is no rounding error."""
    judge = Judge()
    options = {"optim": "adamw_torch", "learning_rate": 1e-3, "max_grad_norm": 1.0}
    run = trainer(tmp_path, judge, "max@4", named={"loss_type": "luspo"}, **options)
    run.train()
    model = load("tiny-countdown").model
    before = weights_of(model)
    learner = Learner(model, optimizer=Optimizer(learning_rate=1e-3, max_grad_norm=1.0))
    groups, weights = groups_of(judge.rows, 8), bestofk.advantages(judge.rewards(8), "max@4")
    learner.step(groups, weights)
    gradient = our_update(groups, weights)
    theirs = weights_of(run.model)
    compared = 0
    for name, value in weights_of(model).items():
        clear = gradient[name].abs() > 1e-4
        compared += int(clear.sum())
        torch.testing.assert_close(
            (theirs[name] - before[name])[clear], (value - before[name])[clear], rtol=2e-3, atol=0
        )
    assert compared > 10_000


def test_two_processes_share_groups_and_make_the_same_update(two_processes):
    """12 rows a process, groups of 8: the middle group lies on both, and each lost a row."""
    ranks = two_processes["on"]
    rows = ranks[0]["rows"] + ranks[1]["rows"]
    values = [math.nan if reward is None else reward for *_, reward in rows]
    rewards = np.array(values, dtype=np.float32).reshape(3, 8)
    assert np.isnan(rewards).sum(axis=1).tolist() == [0, 2, 0]
    weights = bestofk.advantages(rewards, "max@4")
    share = 24 / (3 * (~np.isnan(rewards)).sum(axis=1, keepdims=True))
    wanted = (weights * share).reshape(-1)
    for rank, found in enumerate(ranks):
        np.testing.assert_allclose(found["logged"], wanted, rtol=1e-5, atol=1e-6)
        mine = zip(found["rows"], wanted[12 * rank : 12 * rank + 12])
        assert [ids for ids, _ in sorted(found["seen"])] == sorted(
            ids for _, ids, _ in found["rows"]
        )
        pairs = sorted((ids, float(a)) for (_, ids, _), a in mine)
        np.testing.assert_allclose(
            [a for _, a in sorted(found["seen"])], [a for _, a in pairs], rtol=1e-5, atol=1e-6
        )
    ours = our_update(groups_of(rows, 8), weights, ~np.isnan(rewards))
    for found in ranks:
        start = {name: torch.zeros_like(value) for name, value in ours.items()}
        assert_moved(start, found["update"], ours, LENGTH)
    judged = [reward for found in ranks for *_, reward in found["evaluated"]]
    # Two batches of 12 over two processes, 6 rows each: groups of 6 in the order of the calls.
    halves = [[reward for *_, reward in found["evaluated"]] for found in ranks]
    in_order = np.array(
        [halves[r][6 * batch : 6 * batch + 6] for batch in range(2) for r in range(2)], dtype=object
    )
    best = [
        subset_mean(np.array([r for r in group if r is not None], dtype=float), 4, np.max)
        for group in in_order
    ]
    assert len(judged) == 24
    for found in ranks:
        assert found["eval"]["eval_max@4"] == pytest.approx(np.mean(best), rel=1e-5)
