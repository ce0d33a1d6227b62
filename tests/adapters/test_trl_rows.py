"""BestOfKTrainer in real runs: unscored rows, metrics, evaluation, what hosts do to rows."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed here: pip install 'bestofk[trl]'")

from trl import GRPOTrainer

import bestofk
from adapters.trl_runs import (
    Judge,
    assert_moved,
    groups_of,
    has_three,
    logged,
    our_update,
    prompts,
    trainer,
    weights_of,
    with_environment,
)
from bestofk.adapters.trl import BestOfKMixin
from bestofk.adapters.trl.grpo_rows import combined, mean_entropy
from bestofk.learning import Learner
from bestofk.models import load
from bestofk.models.load import find
from bestofk.objectives import DroppedGroups
from oracles import subset_mean


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
    for name in ("pass@1", "max@3"):
        assert line[f"{name}/low"] < line[name] < line[f"{name}/high"]


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


def named_judges(*, unscored=()):
    """A reward function that pays, and one that chooses."""
    pays, chooses = Judge(), Judge(lambda text: float(len(text)), unscored)
    pays.__name__, chooses.__name__ = "pays", "chooses"
    return pays, chooses


def test_a_reward_function_that_is_the_scorer_chooses_and_does_not_pay(tmp_path):
    pays, chooses = named_judges(unscored=(3,))
    run = trainer(tmp_path, [chooses, pays], "select@4", named={"scorer": "chooses"})
    run.train()
    rewards, scores = pays.rewards(8), chooses.rewards(8)
    live = ~np.isnan(scores)
    wanted = bestofk.advantages(rewards, "select@4", scores=scores, live=live)
    wanted *= 8 / live.sum(axis=1, keepdims=True)  # TRL's loss divides by all rows
    np.testing.assert_allclose(run._logs["advantages"], wanted.reshape(-1), rtol=1e-5, atol=1e-6)
    assert wanted[0, 3] == 0
    assert not np.allclose(wanted[1], bestofk.advantages(rewards[1], "max@4"), atol=1e-3)
    paid = np.where(live, rewards, np.nan)
    assert logged(run)[0]["max@1"] == pytest.approx(np.nanmean(paid, axis=1).mean(), rel=1e-5)


def test_a_scorer_is_one_of_several_reward_functions(tmp_path):
    with pytest.raises(ValueError, match="unknown scorer 'choose'; did you mean 'chooses'"):
        trainer(tmp_path, list(named_judges()), "select@4", named={"scorer": "choose"})
    with pytest.raises(ValueError, match="no reward function pays: add one"):
        trainer(tmp_path, named_judges()[0], "select@4", named={"scorer": "pays"})
    with pytest.raises(ValueError, match="no reward function pays: add one, or give one a weight"):
        trainer(tmp_path, Judge(), reward_weights=[0.0])
    with pytest.raises(ValueError, match="scorer='pays' names several reward functions: rename"):
        trainer(tmp_path, [named_judges()[0]] * 2, "select@4", named={"scorer": "pays"})


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
        training_objective = "max@2"

    judge = Judge()
    run = trainer(tmp_path, judge, None, cls=Mine)
    run.train()
    assert run.seen == 16
    wanted = bestofk.advantages(judge.rewards(8), "max@2").reshape(-1)
    np.testing.assert_allclose(run._logs["advantages"], wanted, rtol=1e-5, atol=1e-6)
    other = trainer(tmp_path, judge, "max@3", cls=Mine)
    assert str(other.training_objective) == "max@3"


def test_a_host_that_drops_rows_is_refused(tmp_path):
    class Filters(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            return {name: value[:-1] if value.dim() else value for name, value in output.items()}

    class Mine(BestOfKMixin, Filters):
        training_objective = "max@4"

    with pytest.raises(RuntimeError, match=r"16 rewards for 15 rows on each of 1 processes"):
        trainer(tmp_path, Judge(), None, cls=Mine).train()


def test_the_mixin_alone_is_refused():
    class Mine(BestOfKMixin):
        training_objective = "max@4"

    with pytest.raises(TypeError, match=r"class Mine\(BestOfKMixin, GRPOTrainer\)"):
        Mine("model")


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_tokens_of_an_environment_are_not_the_policys(tmp_path):
    roll_out, masks = with_environment()
    judge, text = Judge(), "passk-training@4:adaptive"
    named = {"rollout_func": roll_out, "train_dataset": prompts()}
    run = trainer(tmp_path, judge, text, named=named, learning_rate=0.0)
    run.train()
    scores = Learner(load("tiny-countdown").model).log_probs(groups_of(judge.rows, 8))
    spread = [row for group in scores.entropies for row in group]
    own = [float(row[np.array(mask) == 1].mean()) for row, mask in zip(spread, masks)]
    known = {ids: entropy for (_, ids, _), entropy in zip(judge.rows, own)}
    for batch in run._buffered_inputs:
        rows = zip(batch["completion_ids"], batch["completion_mask"])
        wanted = [known[tuple(ids[mask.bool()].tolist())] for ids, mask in rows]
        np.testing.assert_allclose(mean_entropy(run, batch), wanted, rtol=1e-4)
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
