"""Exact off-policy weights in verl: its own actor and FSDP2 ranks, step by step as our learner."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed here: make test-adapters")
pytest.importorskip("verl.trainer.ppo.v1", reason="verl's V1 trainer needs TransferQueue")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos

import bestofk
from adapters import verl_native as native
from adapters.verl_runs import sampler_gap
from bestofk.adapters.inner_steps import check_version
from bestofk.adapters.verl import ppo_steps
from bestofk.adapters.verl.ppo_settings import LEAST
from bestofk.adapters.verl.ppo_trainer import validation_metrics, whole_groups
from bestofk.adapters.verl.self_check import check
from bestofk.learning import Learner, Optimizer
from bestofk.models import load
from bestofk.objectives import ObjectiveWarning
from bestofk.types import Group, Prompt, Trajectory
from oracles import subset_mean

RECIPE = Path(__file__).parents[2] / "recipes" / "verl-maze"
PAD = "pad0123456789abcdef0123456789abcdef"
N, PROMPTS, LR = 6, 4, 3e-5


def sampled(seed=0):
    """Groups that the tiny maze policy draws, and their real-valued rewards, with ties."""
    torch.manual_seed(seed)
    model: Any = load("tiny-maze").model
    end = model.config.eos_token_id
    groups = []
    for at in range(PROMPTS):
        prompt = torch.randint(5, 30, (1, 10 + at))
        drawn = model.generate(
            prompt.repeat(N, 1), attention_mask=torch.ones(N, 10 + at).long(), do_sample=True,
            max_new_tokens=9, top_k=0, pad_token_id=model.config.pad_token_id,
        )[:, 10 + at :].tolist()  # fmt: skip
        cut = [row[: row.index(end) + 1] if end in row else row for row in drawn]
        completions = tuple(Trajectory(row) for row in cut)
        groups.append(Group(Prompt(f"{at}", "", "maze"), completions, tuple(prompt[0].tolist())))
    rewards = np.random.default_rng(seed).integers(0, 5, (PROMPTS, N)) / 4
    return groups, rewards


def run_verl(folder, rows, *, ranks, epochs, objective, lr=LR, noise=0.0, settings=(), **options):
    torch.save(
        {"rows": rows, "mini": 2 * N, "epochs": epochs, "lr": lr, "settings": list(settings),
         "noise": noise, "options": {"objective": objective, **options}},
        folder / "batch.pt",
    )  # fmt: skip
    known = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    path = os.pathsep.join([str(RECIPE), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("verl_runs.py")), str(folder), str(ranks)],
        env={**known, "PYTHONPATH": path, "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1",
             "VERL_USE_EXTERNAL_MODULES": "verl_cpu", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == str([0] * ranks), done.stderr[-3000:]
    warned = "The first step is taken" in " ".join(done.stderr.split())
    assert warned == (noise > 0)
    return [torch.load(folder / f"rank-{r}.pt", weights_only=False) for r in range(ranks)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "objective", "options"),
    [
        (2, "max@3", {}),
        (1, "max@4:loo-1", {"truncate": 0.05}),
        (2, "mean", {"trust_region": [0.01, 0.01]}),
        (1, "max@3", {"correct_sampler": True}),
        (2, "select@3", {"scorer": "shown"}),
    ],
)
def test_every_inner_step_of_verls_actor_is_our_own_learners(ranks, objective, options, tmp_path):
    """Two mini-batches, two passes. A row could not be scored, one was rejected, one is padding."""
    groups, rewards = sampled()
    live = np.ones((PROMPTS, N), dtype=bool)
    rewards[0, 2], live[0, 2], live[1, 4], live[2, 0] = np.nan, False, False, False
    shown = np.random.default_rng(1).integers(0, 4, (PROMPTS, N)).astype(float)
    rows = [
        {"uid": f"{p}", "key": f"{p}_{i}_0", "prompt": group.prompt_tokens, "shown": shown[p, i],
         "response": each.tokens.tolist(), "reward": rewards[p, i], "live": int((p, i) != (1, 4))}
        for p, group in enumerate(groups)
        for i, each in enumerate(group.trajectories)
    ]  # fmt: skip
    lost = next(i for i, row in enumerate(rows) if row["key"] == "2_0_0")
    rows[lost] |= {"uid": PAD, "key": f"{PAD}_0_0", "live": 0, "reward": 0.0}
    found = run_verl(tmp_path, rows, ranks=ranks, epochs=2, objective=objective, **options)

    model = load("tiny-maze").model
    learner = Learner(model, optimizer=Optimizer(learning_rate=LR, max_grad_norm=0.0))
    learner.update.optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    old = learner.sequence_log_probs(groups)
    corrected, chosen = options.pop("correct_sampler", False), options.pop("scorer", None)
    if corrected:
        old = old - sampler_gap(np.arange(PROMPTS * N)).reshape(PROMPTS, N)
    largest = []
    for step in range(4):
        part = slice(2 * (step % 2), 2 * (step % 2) + 2)
        log_ratio = learner.sequence_log_probs(groups[part]) - old[part]
        weights = bestofk.advantages(
            rewards[part], objective, log_ratio=log_ratio, live=live[part],
            scores=shown[part] if chosen else None, **options,
        )  # fmt: skip
        largest.append(np.abs(log_ratio[live[part]]).max())
        wanted = np.zeros(PROMPTS * N)
        share = 2 * N / (2 * live[part].sum(axis=1, keepdims=True))
        wanted[part.start * N : part.stop * N] = (weights * share).reshape(-1)
        taken = [each["seen"][step] for each in found]
        assert sorted(i for places, *_ in taken for i in places) == list(
            range(part.start * N, part.stop * N)
        )
        for places, given_, metrics in taken:
            np.testing.assert_allclose(given_, wanted[places], rtol=1e-5, atol=1e-5)
            assert metrics["log_ratio_max"] == pytest.approx(largest[-1], abs=1e-4)
        learner.step(groups[part], weights, live=live[part])
        for _, _, metrics in taken:
            assert ("masked" in metrics) == ("trust_region" in options)
            assert 0 < metrics["effective_share"] <= 1
    assert largest[0] < 1e-4 or corrected  # the first step is on policy, the others are not
    assert min(largest[1:]) > 1e-3
    ours = dict(model.named_parameters())
    for each in found:
        for name, value in each["model"].items():
            torch.testing.assert_close(value, ours[name].detach(), rtol=0, atol=1e-5)
        assert "log_ratio_max" in each["metrics"]


def rows_of(groups, rewards):
    return [
        {"uid": f"{p}", "key": f"{p}_{i}_0", "prompt": group.prompt_tokens,
         "response": each.tokens.tolist(), "reward": rewards[p, i], "live": 1, "shown": None}
        for p, group in enumerate(groups)
        for i, each in enumerate(group.trajectories)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("floor", "noise", "taken"),
    [({}, 0.0, 1), ({"ess_floor": 0}, 0.0, 4), ({}, 1.0, 1)],
)
def test_inner_steps_end_below_the_floor_and_the_optimiser_does_not_move(
    floor, noise, taken, tmp_path
):
    """AdamW with weight decay at a large rate: too far away after one of four steps.

    With noise (sd in nats per completion) the first step is below the floor already, by re-scoring
    alone: it is taken, and says so.
    """
    adam = ["optimizer=AdamW", "weight_decay=0.1"]
    found = run_verl(
        tmp_path, rows_of(*sampled()), ranks=2, epochs=2, objective="max@3", lr=3e-3, noise=noise,
        settings=[f"actor_rollout_ref.actor.optim.{each}" for each in adam], **floor,
    )  # fmt: skip
    for each in found:
        assert each["optimiser_steps"]
        assert set(each["optimiser_steps"]) == {taken}
        ended = each["metrics"]["inner_steps_ended"]
        assert ended == [0.0] * taken + [1.0] * (4 - taken)
        assert len(each["metrics"]["lr"]) == 1  # the schedule goes on
        assert each["metrics"]["effective_share"][1] < 0.5
        assert (each["metrics"]["effective_share"][0] < 0.5) == (noise > 0)
        assert len(each["seen"]) == min(taken + 1, 4)  # what has ended is not scored any more


@given(
    prompts=st.integers(1, 4), minis=st.integers(1, 3), n=st.sampled_from([4, 8]),
    ranks=st.sampled_from([1, 2, 4]), lost=st.integers(0, 5), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_every_mini_batch_has_whole_groups_on_all_ranks_together(
    prompts, minis, n, ranks, lost, seed
):
    rng = np.random.default_rng(seed)
    uids = [f"{rng.integers(2**60):x}" for _ in range(prompts * minis)]
    keys = [f"{uid}_{i}_0" for uid in uids for i in range(n)]
    lost = min(lost, prompts * n - 1)
    keys = [*rng.permutation(keys)[lost:], *(f"{PAD}_{i}_0" for i in range(lost))]
    lengths = rng.integers(5, 50, len(keys)).tolist()
    order = whole_groups(keys, lengths, rows=prompts * n, ranks=ranks)
    assert sorted(order) == list(range(len(keys)))
    pieces = np.array(keys)[np.array(order)].reshape(ranks, minis, -1)
    where: dict[str, set[int]] = {}
    for batch in range(minis):
        for key in pieces[:, batch].reshape(-1):
            where.setdefault(key.rsplit("_", 2)[0], set()).add(batch)
    assert all(len(batches) == 1 for uid, batches in where.items() if uid != PAD)


def test_rollouts_of_several_rows_are_an_error_that_names_the_loss():
    with pytest.raises(
        ValueError, match=r"loss_mode=bestofk: the agent loop returned a rollout as"
    ):
        whole_groups(["a_0_0", "a_0_1"], [3, 3], rows=2, ranks=1)


def test_the_loss_is_the_weight_times_the_log_prob_and_needs_the_weights_of_its_step():
    loss_of = core_algos.get_policy_loss_fn("bestofk")
    log_prob = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    weights = torch.tensor([[2.0], [-1.0]]) * mask
    old = torch.full((2, 3), -9.0)  # a ratio that any clip would cut
    with pytest.raises(RuntimeError, match="did not make the advantages of the mini-batch"):
        loss_of(old, log_prob, weights, mask, "seq-mean-token-sum")
    token = ppo_steps.RENEWED.set(True)
    try:
        loss, _ = loss_of(old, log_prob, weights, mask, "seq-mean-token-sum")
    finally:
        ppo_steps.RENEWED.reset(token)
    (slope,) = torch.autograd.grad(-loss, log_prob)
    assert torch.allclose(slope * 2, weights.float())


def test_clipped_advantages_on_tokens_are_the_gradient_of_verls_own_loss():
    """Up to verl's dual clip, which stops the push on a negative weight above a ratio of 3."""
    rng = np.random.default_rng(0)
    logs, weights = rng.normal(0, 0.8, (1, 400)), rng.normal(size=(1, 400))
    now = torch.zeros((1, 400), dtype=torch.float64, requires_grad=True)
    actor = OmegaConf.create(
        {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "global_batch_info": {}}
    )
    loss, _ = core_algos.get_policy_loss_fn("vanilla")(
        torch.tensor(-logs), now, torch.tensor(weights), torch.ones(1, 400), "token-mean", actor
    )
    (slope,) = torch.autograd.grad(-loss * 400, now)
    ours = bestofk.objectives.clipped_advantages(weights, logs, 0.2, 0.28)
    dual = (weights < 0) & (np.exp(logs) > 3.0)
    assert dual.any()
    np.testing.assert_allclose(slope.numpy(), np.where(dual, 0.0, ours), rtol=1e-9)


CHOSEN = [
    "algorithm.adv_estimator=bestofk", "+algorithm.bestofk.objective=max@8",
    "actor_rollout_ref.rollout.n=16", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
]  # fmt: skip
ACTOR = "actor_rollout_ref.actor"
ONE_STEP = [f"{ACTOR}.ppo_mini_batch_size=1024"]
EXACT = [f"{ACTOR}.policy_loss.loss_mode=bestofk"]

ERRORS = [
    ([], r"takes 4 optimiser steps per batch \(data.train_batch_size=1024, .*batch_size=256"),
    ([*ONE_STEP, f"{ACTOR}.ppo_epochs=4"], r"takes 4 optimiser steps .*ppo_epochs=4.*loss_mode"),
    ([*ONE_STEP, "+algorithm.bestofk.truncate=1"], r"bestofk.truncate=1 acts on ratios"),
    ([*EXACT, "+algorithm.bestofk.correct_sampler=true",
      "actor_rollout_ref.rollout.calculate_log_probs=False"], r"needs .*calculate_log_probs=True"),
    ([*EXACT, "+algorithm.bestofk.ess_floor=50"], r"ess_floor is a share of .*, got 50"),
    ([*ONE_STEP, "+algorithm.bestofk.passing=high"], r"bestofk.passing is a finite number, got"),
    ([*ONE_STEP, "+algorithm.bestofk.ess_floor=0.3"], r"bestofk.ess_floor=0.3 acts on ratios"),
    ([*EXACT, f"{ACTOR}.shuffle=True"], r"actor.shuffle=True scatters groups"),
    ([*EXACT, f"{ACTOR}.ppo_mini_batch_size=300"], r"1024 is not a multiple of .*=300"),
    ([*EXACT, f"{ACTOR}.loss_agg_mode=token-mean"], r"loss_agg_mode=token-mean weighs a sample by"),
    ([*EXACT, f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"], r"with actor.loss_scale_factor"),
    ([*EXACT, "algorithm.rollout_correction.rollout_is=token"], r"rollout_is=token multiplies"),
    ([*EXACT, "algorithm.rollout_correction.bypass_mode=True"], r"bypass_mode=True replaces"),
    ([*EXACT, "algorithm.use_kl_in_reward=True"], r"use_kl_in_reward=True makes the"),
    ([*EXACT, "trainer.v1.trainer_mode=colocate_async"], r"trainer_mode=colocate_async is"),
    ([*EXACT, f"{ACTOR}.strategy=megatron"], r"strategy=megatron is not supported"),
    ([*EXACT, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2"], r"parallel_size=2 is"),
    ([*EXACT, "+algorithm.bestofk.off_policy=none"], r"max@8 has off_policy=none"),
    ([*EXACT, "algorithm.bestofk.objective=maxrl"], r"maxrl has no off-policy form"),
    ([*ONE_STEP, "trainer.use_v1=False"], r"use_v1=False chooses verl's legacy trainer"),
    ([*EXACT, "algorithm.adv_estimator=grpo"], r"loss_mode=bestofk needs it: set it to bestofk"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "message"), ERRORS)
def test_a_setting_under_which_the_update_is_not_the_objectives_is_an_error(more, message):
    kept = [each for each in CHOSEN if each.split("=")[0].lstrip("+") not in
            {one.split("=")[0].lstrip("+") for one in more}]  # fmt: skip
    with pytest.raises(ValueError, match=message):
        check(native.composed(*kept, *(f"++{one.lstrip('+')}" for one in more)))


CAUTIONS = [
    (f"{ACTOR}.loss_agg_mode=token-mean", "loss_agg_mode=token-mean weighs a sample by"),
    ("actor_rollout_ref.rollout.top_p=0.8", r"rollout.top_p=0.8 changes what is sampled"),
    ("actor_rollout_ref.rollout.top_k=20", r"rollout.top_k=20 changes what is sampled"),
    ("algorithm.use_kl_in_reward=True", "use_kl_in_reward=True makes the penalty"),
    ("++algorithm.filter_groups.enable=True", "changes how often each prompt counts"),
    ("algorithm.rollout_correction.rollout_is=token", "would need its siblings' too"),
]


@pytest.mark.parametrize(("more", "message"), CAUTIONS)
def test_a_setting_that_biases_the_update_is_named(more, message):
    kept = [each for each in CHOSEN if each.split("=")[0] != more.split("=")[0]]
    said = check(native.composed(*kept, *ONE_STEP, more)).splitlines()
    assert len(said) == 2
    assert said[1].startswith("biased update: ")
    assert message in said[1]


def test_settings_that_train_the_objective_are_said_in_one_line():
    assert "\n" not in check(native.composed(*CHOSEN, *ONE_STEP))
    exact = check(native.composed(*CHOSEN, *EXACT))
    assert exact.endswith("objective max@8, 16 samples per prompt, exact off-policy advantages")
    passes = check(native.composed(*CHOSEN, *EXACT, f"{ACTOR}.ppo_epochs=3"))
    assert f"biased update: {ACTOR}.ppo_epochs=3 reuses samples" in passes.splitlines()[1]
    clipped = check(native.composed(*CHOSEN, "+algorithm.bestofk.off_policy=none"))
    assert "takes 4 optimiser steps per batch, and the advantages are those of the first" in clipped


@pytest.mark.filterwarnings("ignore:Disabled critic")
def test_verls_trainer_checks_its_settings_when_it_is_made():
    """At run time too: the settings that were never checked by hand."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    trainer = get_trainer_cls("sync")
    with pytest.raises(ValueError, match="takes 4 optimiser steps per batch"):
        trainer(native.composed(*CHOSEN))
    config = native.composed(*CHOSEN, *ONE_STEP, "actor_rollout_ref.rollout.top_p=0.8")
    with pytest.warns(ObjectiveWarning, match="biased update: .*top_p=0.8"):
        trainer(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ObjectiveWarning)
        trainer(native.composed(*CHOSEN, *ONE_STEP))
        trainer(native.composed("algorithm.adv_estimator=grpo"))


@pytest.mark.filterwarnings("ignore:Legacy trainer")
def test_the_legacy_trainer_and_older_versions_are_errors():
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    with pytest.raises(ValueError, match=r"set trainer\.use_v1=True"):
        RayPPOTrainer(native.composed(*CHOSEN, "trainer.use_v1=False"), None, {}, None)
    for old in ("0.8.0", "0.7.1.dev0"):
        with pytest.raises(ValueError, match=rf"needs verl 0.9 or newer.*is verl {old}"):
            check_version("verl", old, LEAST)
    check_version("verl", "0.9.0.dev3", LEAST)
    check_version("verl", "1.0", LEAST)


def test_a_schedule_follows_verls_steps():
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from bestofk.adapters.verl.ppo_trainer import WRAPPERS, progress_of

    config = native.composed(
        "algorithm.adv_estimator=bestofk", "+algorithm.bestofk.objective=max@2/50%/mean"
    )
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.25])
    data = native.batch(rewards, ["a"] * 4, torch.ones(4, 1).long())
    compute = WRAPPERS["_compute_advantage"](lambda *_: native.advantages(data, config.algorithm))
    assert hasattr(PPOTrainer._compute_advantage, "__wrapped__")
    for step, text in ((1, "max@2"), (2, "max@2"), (3, "mean"), (4, "mean")):
        trainer = SimpleNamespace(global_steps=step, total_training_steps=4, config=config)
        assert progress_of(trainer) == (step - 1) / 4
        wanted = bestofk.advantages(rewards.numpy(), text)
        batch = SimpleNamespace(keys=[f"a_{i}_0" for i in range(4)])
        np.testing.assert_allclose(compute(trainer, batch)[:, 0], wanted, rtol=1e-6)
    with pytest.raises(ValueError, match="progress= is needed"):
        native.advantages(data, config.algorithm)


def test_validation_gets_means_over_subsets_of_each_prompt():
    rewards = [0.0, 1.0, 0.5, 0.25, 1.0, float("nan"), 0.0, None]
    uids = ["a"] * 4 + ["b"] * 4
    found = validation_metrics(["maze"] * 8, uids, {"reward": rewards}, k=3, passing=1.0)
    first, second = np.array(rewards[:4], float), np.array([1.0, 0.0])
    for k in (1, 2):
        best = [subset_mean(each, k, np.max) for each in (first, second)]
        passed = [subset_mean(each >= 1, k, np.max) for each in (first, second)]
        assert found[f"val-core/maze/reward/max@{k}"] == pytest.approx(np.mean(best))
        assert found[f"val-core/maze/reward/pass@{k}"] == pytest.approx(np.mean(passed))
    for k in (3, 4):  # the second prompt has too few samples
        best_of = subset_mean(first, k, np.max)
        assert found[f"val-core/maze/reward/max@{k}"] == pytest.approx(best_of)
        low, high = (found[f"val-core/maze/reward/max@{k}/{end}"] for end in ("low", "high"))
        assert 0 < low < 0.2 < best_of <= high <= 1  # one prompt says little
    low, high = (found[f"val-core/maze/reward/pass@1/{end}"] for end in ("low", "high"))
    assert 0 < low < found["val-core/maze/reward/pass@1"] < high < 1


def test_verls_own_best_at_k_is_biased_where_ours_is_not():
    """One right answer among 8: best of 8 is 1; drawn with replacement it is about .66."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    trainer = SimpleNamespace(config=native.composed("+algorithm.bestofk.passing=1.0"))
    infos = {"reward": [1.0] + [0.0] * 7}
    found = PPOTrainer._val_metrics_update(trainer, ["maze"] * 8, ["a"] * 8, infos, [])
    assert found["val-core/maze/reward/best@8/mean"] == pytest.approx(0.656, abs=0.05)
    assert found["val-core/maze/reward/max@8"] == 1.0
    assert found["val-core/maze/reward/pass@4"] == pytest.approx(0.5)
    silent = SimpleNamespace(config=native.composed())
    plain = PPOTrainer._val_metrics_update(silent, ["maze"] * 8, ["a"] * 8, infos, [])
    assert not [name for name in plain if "/max@" in name or "/pass@" in name]
