"""BestOfKTrainer in real runs of the tiny model: weights, updates, unscored rows, evaluation."""

import gc
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed here: pip install 'bestofk[trl]'")

from trl import GRPOTrainer

import bestofk
from adapters.trl_runs import (
    LENGTH,
    Judge,
    digits,
    groups_of,
    has_three,
    our_update,
    prompts,
    trainer,
    weights_of,
)
from bestofk.adapters.trl import BestOfKMixin, combined
from bestofk.learning import Learner, Optimisation
from bestofk.models import load
from bestofk.models.load import find
from bestofk.objectives import DroppedGroups
from oracles import subset_mean


@pytest.fixture(autouse=True, scope="module")
def _quick():
    """Small matrices want one thread, and accelerate collects garbage at every `train()`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


def in_the_loss(run):
    """(tokens, advantage) of every row of the last batch, as TRL's loss got them: shuffled."""
    return [
        (tuple(ids[mask.bool()].tolist()), float(advantage))
        for batch in run._buffered_inputs
        for ids, mask, advantage in zip(
            batch["completion_ids"], batch["completion_mask"], batch["advantages"]
        )
    ]


def assert_moved(before, after, ours, scale):
    """TRL's SGD step, times a constant, is ours up to the rounding of float32 weights."""
    largest = max(float(value.abs().max()) for value in ours.values())
    assert largest > 1e-3
    for name, value in after.items():
        moved = (value - before[name]) * scale
        torch.testing.assert_close(moved, ours[name], rtol=1e-3, atol=1e-4 * largest)


def logged(run, kind="loss"):
    return [line for line in run.state.log_history if kind in line]


QUICK = ["max@4", "max@8:loo-1", "pass@4", "passk-training@4"]
LONG = ["passk-training@4:combination", "maxrl", "tailrl", "rs-grpo", "grpo", "dr-grpo",
        "reinforce", "top2@4", "median@4", "max@1+4", "bon-max-second", "max@4:zscore",
        "pkpo@4"]  # fmt: skip


@pytest.mark.parametrize(
    "text", [*QUICK, *(pytest.param(text, marks=pytest.mark.slow) for text in LONG)]
)
def test_the_loss_and_the_log_get_the_objectives_weights_of_each_group(text, tmp_path):
    score = has_three if text.startswith(("pass", "maxrl")) else digits
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
    entropy = learner.score(groups_of(judge.rows, 8)).entropy
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
    learner = Learner(model, optimisation=Optimisation(lr=1e-3, max_grad_norm=1.0))
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


def test_two_processes_share_groups_and_make_the_same_update(tmp_path):
    """12 rows a process, groups of 8: the middle group lies on both, and each lost a row."""
    script = Path(__file__).with_name("trl_runs.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ends"] == [0, 0], done.stderr
    ranks = [torch.load(tmp_path / f"rank-{r}.pt", weights_only=False) for r in range(2)]
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


@pytest.mark.filterwarnings("error::bestofk.objectives.DroppedGroups")
def test_an_unscored_sample_leaves_a_smaller_group(tmp_path):
    """TRL asks for a reward of None: that row has weight 0, and n is the live count."""
    judge = Judge(unscored=(0, 5, 12))
    run = trainer(tmp_path, judge)
    run.train()
    rewards = judge.rewards(8)
    wanted = np.zeros((2, 8))
    for group, row in zip(rewards, wanted):
        live = ~np.isnan(group)
        row[live] = bestofk.advantages(group[live], "max@4") * 8 / live.sum()
    np.testing.assert_allclose(run._logs["advantages"], wanted.reshape(-1), rtol=1e-5, atol=1e-6)
    [line] = logged(run)
    assert line["unscored"] == pytest.approx(3 / 16)
    assert line["dropped"] == 0


def test_a_group_too_small_is_dropped_counted_and_said(tmp_path):
    judge = Judge(unscored=(8, 9, 10, 11))
    run = trainer(tmp_path, judge)
    with pytest.warns(DroppedGroups, match=r"max@4 needs more than 4 samples per prompt: 1 of 2"):
        run.train()
    weights = np.reshape(run._logs["advantages"], (2, 8))
    first = bestofk.advantages(judge.rewards(8)[0], "max@4")
    np.testing.assert_allclose(weights, [first * 2, np.zeros(8)], rtol=1e-5, atol=1e-6)
    [line] = logged(run)
    assert line["dropped"] == 0.5
    assert line["no_signal"] == 0.5
    whole = [r for r in judge.rewards(8)[1] if r == r]
    expected = np.mean(
        [subset_mean(judge.rewards(8)[0], 4, np.max), subset_mean(np.array(whole), 4, np.max)]
    )
    assert line["max@4"] == pytest.approx(expected, rel=1e-5)  # four are enough for an estimate
    assert line["max@8"] == pytest.approx(judge.rewards(8)[0].max())


def test_logged_metrics_are_means_over_subsets_of_each_group(tmp_path):
    judge = Judge()
    run = trainer(tmp_path, judge, "max@3", named={"passing": 0.5}, max_steps=2, logging_steps=2)
    run.train()
    [line] = logged(run)
    for k in (1, 2, 3, 4, 8):
        groups = judge.rewards(8)
        best = [subset_mean(group, k, np.max) for group in groups]
        passed = [subset_mean(group >= 0.5, k, np.max) for group in groups]
        assert line[f"max@{k}"] == pytest.approx(np.mean(best), rel=1e-5)
        assert line[f"pass@{k}"] == pytest.approx(np.mean(passed), rel=1e-5)
    assert 0 < line["pass@1"] < line["pass@8"]


@pytest.mark.parametrize("n", [4, 8])
def test_evaluation_has_its_own_group_size_and_counts_every_prompt_once(n, tmp_path):
    """Three prompts in batches of two groups: the last batch is half as large, a prompt is not."""
    judge = Judge(unscored=(1,))
    options = {"num_generations_eval": n, "per_device_eval_batch_size": 2 * n}
    run = trainer(tmp_path, judge, named={"eval_dataset": prompts(3)}, **options)
    found = run.evaluate()
    groups = [group[~np.isnan(group)] for group in judge.rewards(n)]
    assert judge.calls == [2 * n, n]
    for k in [k for k in (1, 2, 4, 8) if k <= n]:
        best = [subset_mean(group, k, np.max) for group in groups if len(group) >= k]
        assert found[f"eval_max@{k}"] == pytest.approx(np.mean(best), rel=1e-5)
    assert f"eval_max@{2 * n}" not in found
    assert found["eval_unscored"] == pytest.approx(1 / (3 * n))
    weights = np.reshape(run._logs["advantages"], (-1, n))[-1]
    wanted = np.zeros(n) if n == 4 else bestofk.advantages(groups[-1], "max@4")
    np.testing.assert_allclose(weights, wanted, rtol=1e-5, atol=1e-6)


def test_truncated_completions_that_trl_masks_are_not_siblings(tmp_path):
    """mask_truncated_completions takes a row out of the loss: it leaves its group as well."""
    judge, length = Judge(), 8
    options = {"mask_truncated_completions": True, "max_completion_length": length}
    run = trainer(tmp_path, judge, "max@2", **options)
    before = weights_of(run.model)
    run.train()
    rewards = judge.rewards(8)
    cut = np.array([len(ids) == length and ids[-1] != 1 for _, ids, _ in judge.rows]).reshape(2, 8)
    assert cut.any()
    assert (~cut).sum(axis=1).min() > 2
    weights = bestofk.advantages(rewards, "max@2", live=~cut)
    assert np.abs(weights).max() > 0
    share = 8 / (~cut).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        run._logs["advantages"], (weights * share).reshape(-1), rtol=1e-5, atol=1e-6
    )
    ours = our_update(groups_of(judge.rows, 8), weights, ~cut)
    assert_moved(before, weights_of(run.model), ours, length)
    assert logged(run)[0]["max@1"] == pytest.approx(rewards.mean(), rel=1e-5)  # metrics see all


def test_several_reward_functions_are_weighed_and_added(tmp_path):
    first, second, watcher = Judge(), Judge(has_three), Judge(unscored=range(99))
    first.__name__, second.__name__, watcher.__name__ = "first", "second", "watcher"
    run = trainer(tmp_path, [first, second, watcher], reward_weights=[0.5, 2.0, 0.0])
    run.train()
    rewards = 0.5 * first.rewards(8) + 2.0 * second.rewards(8)
    wanted = bestofk.advantages(rewards, "max@4").reshape(-1)
    np.testing.assert_allclose(run._logs["advantages"], wanted, rtol=1e-5, atol=1e-6)
    assert np.abs(wanted).max() > 0


def test_a_function_that_fails_on_some_siblings_leaves_them_unscored():
    nan = math.nan
    columns = torch.tensor(
        [[1.0, 1.0, 9.0], [nan, 1.0, nan], [0.5, 0.0, 9.0],   # the first failed on one sample
         [nan, 1.0, 9.0], [nan, 0.0, 9.0], [nan, nan, 9.0],   # the first is not for this prompt
         [nan, nan, 9.0], [nan, nan, 9.0], [nan, nan, 9.0]]   # nobody judged this one
    )  # fmt: skip
    found = combined(columns, torch.tensor([1.0, 2.0, 0.0]), 3)
    wanted = [[3.0, nan, 0.5], [2.0, 0.0, nan], [nan, nan, nan]]
    np.testing.assert_array_equal(found, np.array(wanted, dtype=np.float32))


def test_a_kl_penalty_leaves_the_weights_alone(tmp_path):
    judge = Judge()
    run = trainer(tmp_path, judge, beta=0.1, max_steps=2, learning_rate=0.1)
    assert run.ref_model.config._name_or_path == find("tiny-countdown")[0]
    run.train()
    wanted = bestofk.advantages(judge.rewards(8)[2:], "max@4").reshape(-1)
    np.testing.assert_allclose(run._logs["advantages"], wanted, rtol=1e-5, atol=1e-6)
    assert [line["kl"] > 0 for line in logged(run)] == [False, True]


def test_the_table_of_completions_has_our_advantages(tmp_path):
    import pandas

    judge = Judge()
    run = trainer(tmp_path, judge, log_completions=True, num_completions_to_print=0)
    run.train()
    table = pandas.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    wanted = bestofk.advantages(judge.rewards(8), "max@4").reshape(-1)
    np.testing.assert_allclose(table["advantage"], wanted, rtol=1e-5, atol=1e-6)


def test_the_mixin_goes_in_front_of_any_grpo_trainer(tmp_path):
    class Theirs(GRPOTrainer):
        """Overrides what others override too."""

        seen = 0

        def _generate_and_score_completions(self, inputs):
            self.seen += len(inputs)
            return super()._generate_and_score_completions(inputs)

    class Mine(BestOfKMixin, Theirs):
        goal = "max@2"

    judge = Judge()
    run = trainer(tmp_path, judge, None, cls=Mine)
    run.train()
    assert run.seen == 16
    wanted = bestofk.advantages(judge.rewards(8), "max@2").reshape(-1)
    np.testing.assert_allclose(run._logs["advantages"], wanted, rtol=1e-5, atol=1e-6)
    other = trainer(tmp_path, judge, "max@3", cls=Mine)
    assert str(other.goal) == "max@3"


def test_a_host_that_drops_rows_is_refused(tmp_path):
    class Filters(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            return {name: value[:-1] if value.dim() else value for name, value in output.items()}

    class Mine(BestOfKMixin, Filters):
        goal = "max@4"

    with pytest.raises(RuntimeError, match=r"16 rewards for 15 rows on each of 1 processes"):
        trainer(tmp_path, Judge(), None, cls=Mine).train()


def test_the_mixin_alone_is_refused():
    class Mine(BestOfKMixin):
        goal = "max@4"

    with pytest.raises(TypeError, match=r"class Mine\(BestOfKMixin, GRPOTrainer\)"):
        Mine("model")


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_tokens_of_an_environment_are_not_the_policys(tmp_path):
    """A rollout_func whose env_mask marks every second token as the environment's."""
    drawn = torch.Generator().manual_seed(3)
    masks = [[(t + 1) % 2 for t in range(4 + row % 3)] for row in range(16)]

    def roll_out(asked, run):
        ids = [torch.randint(5, 60, (len(mask),), generator=drawn).tolist() for mask in masks]
        return {
            "prompt_ids": [run.processing_class(text)["input_ids"] for text in asked],
            "completion_ids": ids,
            "logprobs": [[0.0] * len(each) for each in ids],
            "env_mask": masks,
        }

    judge, text = Judge(), "passk-training@4:adaptive"
    named = {"rollout_func": roll_out, "train_dataset": prompts()}
    run = trainer(tmp_path, judge, text, named=named, learning_rate=0.0)
    run.train()
    scores = Learner(load("tiny-countdown").model).score(groups_of(judge.rows, 8))
    spread = [row for group in scores.entropies for row in group]
    own = [float(row[np.array(mask) == 1].mean()) for row, mask in zip(spread, masks)]
    known = {ids: entropy for (_, ids, _), entropy in zip(judge.rows, own)}
    for batch in run._buffered_inputs:
        rows = zip(batch["completion_ids"], batch["completion_mask"])
        wanted = [known[tuple(ids[mask.bool()].tolist())] for ids, mask in rows]
        np.testing.assert_allclose(run._entropy(batch), wanted, rtol=1e-4)
    weights = bestofk.advantages(judge.rewards(8), text, entropy=np.reshape(own, (2, 8)))
    np.testing.assert_allclose(run._logs["advantages"], weights.reshape(-1), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_training_raises_max_at_k(tmp_path):
    """Forty steps of AdamW: the best of four has more digits than before."""
    options = {"optim": "adamw_torch", "learning_rate": 1e-3, "max_steps": 40, "max_grad_norm": 1.0}
    run = trainer(tmp_path, Judge(), "max@4", gradient_accumulation_steps=4, **options)
    run.train()
    lines = [line["max@4"] for line in logged(run)]
    assert np.mean(lines[-5:]) > np.mean(lines[:5]) + 0.15


@pytest.mark.slow
def test_the_best_model_can_be_chosen_by_max_at_k(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best", "max_steps": 3,
               "metric_for_best_model": "max@4", "per_device_eval_batch_size": 16}  # fmt: skip
    run = trainer(tmp_path, Judge(), named={"eval_dataset": prompts(2)}, **options)
    run.train()
    found = [line["eval_max@4"] for line in logged(run, "eval_max@4")]
    assert len(set(found)) > 1
    assert run.state.best_metric == max(found)
