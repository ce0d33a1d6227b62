"""Several optimiser steps per batch in TRL: exact weights and updates, step by step as ours."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed here: pip install 'bestofk[trl]'")

from transformers import TrainerCallback
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

import bestofk
from adapters.trl_runs import (
    Judge,
    config,
    groups_of,
    inner_run,
    logged,
    prompts,
    trainer,
    weights_of,
    with_environment,
)
from bestofk.adapters.trl import BestOfKMixin, BestOfKTrainer
from bestofk.adapters.trl.grpo_rows import log_ratios
from bestofk.adapters.trl.grpo_settings import check_scaler
from bestofk.learning import Learner, Optimizer
from bestofk.models import load
from bestofk.objectives import ObjectiveWarning, effective_share

# a second pass is biased, which a test of test_trl_options.py hears
pytestmark = pytest.mark.filterwarnings("ignore:num_iterations=")


def replay(rows, objective, steps, per_step, *, n=8, lr=0.0005, live=None, **named):
    """Our own learner on the same samples: the weights of every inner step, and the last model.

    `steps` lists the groups of each optimiser step, as slices of the batch.
    """
    policy = load("tiny-countdown")
    learner = Learner(policy.model, optimizer=Optimizer(learning_rate=lr, max_grad_norm=0.0))
    learner.update.optimizer = torch.optim.SGD(policy.model.parameters(), lr=lr)
    values = [math.nan if reward is None else reward for *_, reward in rows]
    rewards = np.array(values).reshape(-1, n)
    groups = groups_of(rows, n)
    alive = ~np.isnan(rewards) if live is None else live
    old = learner.sequence_log_probs(groups)
    found = []
    for step in range(steps):
        at = step * per_step % len(groups)
        part = slice(at, at + per_step)
        log_ratio = learner.sequence_log_probs(groups[part]) - old[part]
        weights = bestofk.advantages(
            rewards[part], objective, log_ratio=log_ratio, live=alive[part], **named
        )
        found.append((weights, log_ratio, alive[part]))
        learner.step(groups[part], weights, live=alive[part])
    return found, weights_of(policy.model)


def assert_same(inner, found, tolerance=1e-5):
    """TRL's advantages of each step are our weights, times the share of live rows."""
    for seen, (weights, _, alive) in zip(inner, found, strict=True):
        share = weights.size / (len(weights) * np.maximum(alive.sum(axis=1, keepdims=True), 1))
        wanted = (weights * share).reshape(-1)
        np.testing.assert_allclose(seen, wanted, rtol=tolerance, atol=tolerance)


def assert_model(run, ours, tolerance=1e-5):
    for name, value in weights_of(run.model).items():
        torch.testing.assert_close(value, ours[name], rtol=0, atol=tolerance)


PASSES = {"num_iterations": 3, "max_steps": 3}
MINI = {"steps_per_generation": 6, "max_steps": 3}
BOTH = {"num_iterations": 2, "steps_per_generation": 4, "max_steps": 4}
SPLIT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
GOAL = bestofk.objective("pass@4", threshold=0.55, truncate=0.05)
CASES = [
    pytest.param("max@4", PASSES, {}, (), id="three passes"),
    pytest.param("max@4:loo-1", MINI, {}, (), id="three mini-batches"),
    pytest.param("mean", BOTH, {}, (), id="both"),
    pytest.param("max@4", PASSES | SPLIT, {}, (), id="a group over two micro-batches"),
    pytest.param("max@4", PASSES, {}, (1, 6, 9), id="unscored rows"),
    pytest.param(GOAL, PASSES, {}, (), id="an objective with options"),
    pytest.param("max@4", PASSES, {"truncate": 0.01}, (), id="truncate"),
    pytest.param("max@4", PASSES, {"trust_region": (0.02, 0.02)}, (), id="trust region"),
]  # fmt: skip


@pytest.mark.parametrize(("goal", "options", "named", "unscored"), CASES)
def test_every_inner_step_is_our_own_learners(goal, options, named, unscored, tmp_path):
    judge = Judge(unscored=unscored)
    goal = bestofk.objective(goal, **named) if named else goal
    run, inner = inner_run(tmp_path, judge, goal, named={"train_dataset": prompts()}, **options)
    run.train()
    found, ours = replay(judge.rows, goal, len(inner.seen), 2)
    assert len(inner.seen) == run.args.max_steps
    assert max(np.abs(ratio).max() for _, ratio, _ in found[1:]) > 0.02  # off policy indeed
    on_policy = np.resize(bestofk.advantages(judge.rewards(8), goal), (len(found), 2, 8))
    assert not np.allclose([weights for weights, *_ in found], on_policy, atol=1e-3)
    if named:
        free, _ = replay(judge.rows, "max@4", len(found), 2)
        assert not np.allclose(found[-1][0], free[-1][0], atol=1e-3)  # it did something
    assert_same(inner.seen, found)
    assert_model(run, ours)


def test_scores_choose_in_every_inner_step(tmp_path):
    pays, chooses = Judge(), Judge(lambda text: float(len(text)))
    pays.__name__, chooses.__name__ = "pays", "chooses"
    named = {"scorer": "chooses"}
    run, inner = inner_run(tmp_path, [pays, chooses], "select@4", named=named, **PASSES)
    run.train()
    found, ours = replay(pays.rows, "select@4", 3, 2, scores=chooses.rewards(8))
    assert max(np.abs(ratio).max() for _, ratio, _ in found[1:]) > 0.02
    assert_same(inner.seen, found)
    assert_model(run, ours)


def test_how_far_the_policy_has_moved_is_logged(tmp_path):
    judge, region = Judge(), (0.02, 0.02)
    goal = bestofk.objective("max@4", trust_region=region)
    run, _ = inner_run(tmp_path, judge, goal, num_iterations=3, max_steps=3)
    run.train()
    found, _ = replay(judge.rows, goal, 3, 2)
    for line, (_, log_ratio, _) in zip(logged(run), found, strict=True):
        rewards = judge.rewards(8).astype(float)
        whole = bestofk.advantages(rewards, "max@4", log_ratio=log_ratio)
        outside = ((whole > 0) & (log_ratio > 0.02)) | ((whole < 0) & (log_ratio < -0.02))
        distance = np.mean(np.exp(log_ratio) - 1 - log_ratio)
        assert line["masked"] == pytest.approx(outside.mean())
        assert line["effective_share"] == pytest.approx(effective_share(distance, 4, 8), abs=1e-4)
        assert line["log_ratio_max"] == pytest.approx(np.abs(log_ratio).max(), abs=1e-4)
    assert [line["masked"] > 0 for line in logged(run)] == [False, True, True]


def test_a_new_batch_starts_on_policy(tmp_path):
    judge = Judge()
    run, inner = inner_run(tmp_path, judge, "max@4", num_iterations=2, max_steps=4)
    run.train()
    assert judge.calls == [16, 16]
    fresh = bestofk.advantages(judge.rewards(8)[2:], "max@4").reshape(-1)
    np.testing.assert_allclose(inner.seen[2], fresh, rtol=1e-4, atol=1e-4)
    assert not np.allclose(inner.seen[3], fresh, atol=1e-3)
    steps = [line["log_ratio_max"] for line in logged(run)]
    assert max(steps[0], steps[2]) < 1e-4
    assert min(steps[1], steps[3]) > 1e-3


def test_truncated_completions_that_trl_masks_are_not_siblings_off_policy(tmp_path):
    judge, length = Judge(), 8
    options = {"mask_truncated_completions": True, "max_completion_length": length}
    run, inner = inner_run(tmp_path, judge, "max@2", num_iterations=3, max_steps=3, **options)
    run.train()
    cut = np.array([len(ids) == length and ids[-1] != 1 for _, ids, _ in judge.rows]).reshape(2, 8)
    assert cut.any()
    found, ours = replay(judge.rows, "max@2", 3, 2, live=~cut)
    assert_same(inner.seen, found)
    assert_model(run, ours)


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_tokens_of_an_environment_are_not_in_the_log_ratio(tmp_path):
    roll_out, masks = with_environment()
    judge = Judge()
    named = {"train_dataset": prompts(), "rollout_func": roll_out}
    run, _ = inner_run(tmp_path, judge, num_iterations=2, max_steps=1, named=named)
    run.train()
    groups = groups_of(judge.rows, 8)
    old, new = (
        Learner(each).log_probs(groups) for each in (load("tiny-countdown").model, run.model)
    )
    rows = zip([row for group in new.tokens for row in group],
               [row for group in old.tokens for row in group], masks)  # fmt: skip
    wanted = [float((after - before)[np.array(mask) == 1].sum()) for after, before, mask in rows]
    whole = (new.log_prob - old.log_prob).reshape(-1)
    assert not np.allclose(wanted, whole, atol=1e-2)
    np.testing.assert_allclose(log_ratios(run, run._buffered_inputs), wanted, atol=1e-4)


def test_a_schedule_moves_with_the_optimiser_steps_of_a_batch(tmp_path):
    judge = Judge()
    run, inner = inner_run(tmp_path, judge, "max@4/50%/mean", num_iterations=4, max_steps=4)
    run.train()
    found, _ = replay(judge.rows, "max@4", 2, 2)
    assert_same(inner.seen[:2], found)
    assert np.abs(np.mean(inner.seen[2])) < 1.0
    assert not np.allclose(inner.seen[2], found[1][0].reshape(-1), atol=0.05)


def test_evaluation_between_inner_steps_changes_nothing(tmp_path):
    runs = []
    for name, options in {"a": {}, "b": {"eval_strategy": "steps", "eval_steps": 1}}.items():
        named = {"train_dataset": prompts(), "eval_dataset": prompts(2)}
        options |= {"per_device_eval_batch_size": 16, "temperature": 1.0}
        run, inner = inner_run(tmp_path / name, Judge(), num_iterations=2, max_steps=2,
                               named=named, **options)  # fmt: skip
        run.train()
        runs.append(inner.seen)
    assert runs[0] == runs[1]


def test_two_processes_weigh_the_groups_of_a_step_together(two_processes):
    ranks = two_processes["off"]
    halves = [rank["rows"] for rank in ranks]
    # Two optimiser steps per pass: a group of each process in each.
    rows = [row for at in (0, 8) for half in halves for row in half[at : at + 8]]
    found, ours = replay(rows, "max@4", 4, 2)
    for rank, seen in enumerate(ranks):
        own = [
            (weights[[rank]] * 2 * 8 / (2 * alive[[rank]].sum()), ratio[[rank]], alive[[rank]])
            for weights, ratio, alive in found
        ]
        for i, (step, (weights, _, _)) in enumerate(zip(seen["seen"], own, strict=True)):
            close = 1e-5 if i < 2 else 5e-5  # rounding of float32 adds up
            np.testing.assert_allclose(step, weights.reshape(-1), rtol=close, atol=close)
        for name, value in seen["model"].items():
            torch.testing.assert_close(value, ours[name], rtol=0, atol=1e-5)
    for name, value in ranks[0]["model"].items():
        assert torch.equal(value, ranks[1]["model"][name])


def with_dropout(tmp_path, **options):
    policy = load("tiny-countdown")
    for module in policy.model.modules():
        if hasattr(module, "attention_dropout"):
            setattr(module, "attention_dropout", 0.05)  # noqa: B010
    return trainer(
        tmp_path, Judge(), cls=lambda _, *a, **k: bound(policy.model, *a, **k), **options
    )


def bound(model, *args, **named):
    from bestofk.adapters.trl import BestOfKTrainer

    return BestOfKTrainer(model, *args, **named)


def test_dropout_is_named_on_policy_and_an_error_off_policy(tmp_path):
    with pytest.warns(ObjectiveWarning, match=r"dropout is active.*attention_dropout = 0.05"):
        with_dropout(tmp_path)
    with pytest.raises(ValueError, match=r"attention_dropout = 0.05.*lora_dropout=0"):
        with_dropout(tmp_path, num_iterations=2)


def test_lora_dropout_is_found_and_disable_dropout_switches_it_off(tmp_path):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, lora_dropout=0.05, target_modules="all-linear")
    named = {"train_dataset": prompts(), "peft_config": lora}
    with pytest.raises(ValueError, match=r"lora_dropout.*p = 0.05"):
        trainer(tmp_path, Judge(), named=named, num_iterations=2)
    run, inner = inner_run(tmp_path, Judge(), num_iterations=2, max_steps=2, named=named,
                           disable_dropout=True)  # fmt: skip
    run.train()
    assert len(inner.seen) == 2


def test_a_loss_of_the_hosts_own_is_named(tmp_path):
    """TRL's GMPO: one step per batch gets a warning, several are an error."""

    class Mine(BestOfKMixin, GMPOTrainer):
        training_objective = "max@4"

    def made(**options):
        policy, plain = load("tiny-countdown"), config(tmp_path, **options)
        args = GMPOConfig(**{name: getattr(plain, name) for name in OPTIONS | options.keys()})
        return Mine(policy.model, Judge(), args, train_dataset=prompts(),
                    processing_class=policy.tokenizer)  # fmt: skip

    with pytest.warns(ObjectiveWarning, match=r"GMPOTrainer\._compute_loss replaces TRL's loss"):
        made()
    with pytest.raises(ValueError, match=r"GMPOTrainer\._compute_loss replaces TRL's own"):
        made(num_iterations=2)


OPTIONS = {
    "output_dir", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps",
    "bf16", "use_cpu", "report_to", "max_completion_length",
}  # fmt: skip


def test_arguments_reach_the_host_by_name(tmp_path):
    """As TRL's order has them, though the host takes args alone by position."""

    class Host(GRPOTrainer):
        def __init__(self, args=None, **named):
            super().__init__(args=args, **named)

    class Mine(BestOfKMixin, Host):
        training_objective = "max@4"

    policy = load("tiny-countdown")
    run = Mine(policy.model, Judge(), config(tmp_path), prompts(), None, policy.tokenizer)
    assert run.processing_class is policy.tokenizer
    assert run.train_dataset["prompt"] == prompts()["prompt"]  # type: ignore[index]
    with pytest.raises(TypeError, match=r"multiple values for .*train_dataset"):
        Mine(policy.model, Judge(), config(tmp_path), prompts(), train_dataset=prompts())


def test_a_host_that_replays_rows_is_an_error(tmp_path):
    class Replays(GRPOTrainer):
        kept = None

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            kept, self.kept = self.kept, output
            return output if kept is None else kept

    class Mine(BestOfKMixin, Replays):
        training_objective = "max@4"

    with pytest.raises(RuntimeError, match="reorders or replays rows cannot be used"):
        trainer(tmp_path, Judge(), None, cls=Mine, max_steps=2).train()


def test_images_are_an_error_that_names_the_setting():
    from bestofk.adapters.trl.grpo_rows import score_rows

    rows = {"advantages": torch.zeros(2), "pixel_values": torch.zeros(2, 3)}
    with pytest.raises(ValueError, match="num_iterations or steps_per_generation above one"):
        score_rows(None, rows)


def state_of(optimiser):
    """Adam's moments and step counts, one copy per parameter."""
    return [
        {name: torch.as_tensor(value).clone() for name, value in state.items()}
        for state in optimiser.state.values()
    ]


class Snapshots(TrainerCallback):
    """The model and the optimiser after every step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
        self.seen.append((weights_of(model), state_of(optimizer.optimizer)))


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_inner_steps_end_below_the_floor_and_nothing_moves(optim, tmp_path):
    """Four passes at a large rate: the policy is too far away after the first, until new samples.

    Weight decay and momentum would both move the weights in a step of gradient zero.
    """
    after, judge = Snapshots(), Judge()
    named = {"train_dataset": prompts(), "callbacks": [after]}
    options = {"optim": optim, "learning_rate": 3e-3, "weight_decay": 0.1, "max_grad_norm": 1.0}
    run = trainer(tmp_path, judge, named=named, num_iterations=4, max_steps=6, **options)
    run.train()
    lines = logged(run)
    assert [line["inner_steps_ended"] for line in lines] == [0, 1, 1, 1, 0, 1]
    assert judge.calls == [16, 16]
    assert lines[1]["effective_share"] < 0.5
    for step in (1, 2, 3, 5):
        for before, now in zip(after.seen[step - 1][0].values(), after.seen[step][0].values()):
            assert torch.equal(before, now)
        for before, now in zip(after.seen[step - 1][1], after.seen[step][1], strict=True):
            assert all(torch.equal(before[name], now[name]) for name in before)
    moved = zip(after.seen[3][0].values(), after.seen[4][0].values())
    assert any(not torch.equal(before, now) for before, now in moved)


def test_a_floor_of_zero_never_ends_inner_steps(tmp_path):
    named = {"train_dataset": prompts(), "ess_floor": 0}
    options = {"optim": "adamw_torch", "learning_rate": 3e-3}
    run = trainer(tmp_path, Judge(), named=named, num_iterations=3, max_steps=3, **options)
    run.train()
    assert [line["inner_steps_ended"] for line in logged(run)] == [0, 0, 0]
    with pytest.raises(ValueError, match=r"ess_floor is a share .* got 1.5"):
        trainer(tmp_path, Judge(), named={"ess_floor": 1.5}, num_iterations=3)
    with pytest.raises(ValueError, match="passing is a finite number, got '1'"):
        trainer(tmp_path, Judge(), named={"passing": "1"})


class RescoredWithNoise(BestOfKTrainer):
    """As bf16 over thousands of tokens: a nat per completion between two scorings."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        old = output["old_per_token_logps"]
        torch.manual_seed(0)
        output["old_per_token_logps"] = old + torch.randn(len(old), 1) / old.shape[1]
        return output


def test_the_first_step_is_taken_and_a_batch_that_starts_below_the_floor_is_named(tmp_path):
    options = {"num_iterations": 2, "max_steps": 2, "learning_rate": 1e-9}
    run = trainer(tmp_path, Judge(), cls=RescoredWithNoise, **options)
    with pytest.warns(ObjectiveWarning, match=r"share of .*, below ess_floor=0.5, before"):
        run.train()
    assert [line["inner_steps_ended"] for line in logged(run)] == [0, 1]


def test_a_gradient_scaler_cannot_end_inner_steps():
    scaled = SimpleNamespace(fp16=True)
    with pytest.raises(ValueError, match=r"fp16=True.*ess_floor=0.5.*bf16=True"):
        check_scaler(0.5, scaled)
    check_scaler(0.0, scaled)


def test_resuming_inside_a_generation_batch_is_said(tmp_path):
    options = {"steps_per_generation": 4, "save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, Judge(), **options).train()
    again = trainer(tmp_path, Judge(), **options | {"max_steps": 2})
    with pytest.warns(ObjectiveWarning, match="resumed at step 1, inside .* batch of 2 optimiser"):
        again.train(resume_from_checkpoint=True)
