"""The plug-in inside the real verl: its own config, its own compute_advantage, its own padding."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed here: make test-adapters")
pytest.importorskip("verl.trainer.ppo.v1", reason="verl's V1 trainer needs TransferQueue")

import torch
import verl
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass

import bestofk
from adapters import verl_native as native
from bestofk.adapters.verl.ppo_settings import chosen
from bestofk.adapters.verl.self_check import check
from bestofk.objectives import DroppedGroups

PAD = "pad0123456789abcdef0123456789abcdef"


def algorithm(objective="max@2", *more):
    """verl's `algorithm` section, composed from overrides as its trainer does."""
    overrides = ["algorithm.adv_estimator=bestofk", f"+algorithm.bestofk.objective={objective}"]
    return native.composed(*overrides, *more).algorithm


def weights(rewards, uids, objective="max@2", mask=None, length=3):
    """One number per row from verl's own compute_advantage, which must be constant over tokens."""
    values = torch.as_tensor(rewards, dtype=torch.float64)
    mask = torch.ones(len(values), length, dtype=torch.int64) if mask is None else mask
    found = native.advantages(native.batch(values, uids, mask), algorithm(objective))
    assert found.shape == mask.shape
    assert (found[mask == 0] == 0).all()
    rows = [row[keep.bool()] for row, keep in zip(found, mask, strict=True)]
    assert all((row == row[0]).all() for row in rows if len(row))
    return np.array([float(row[0]) if len(row) else 0.0 for row in rows])


@given(
    sizes=st.lists(st.integers(3, 6), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    objective=st.sampled_from(["max@2", "max@2:loo-1", "mean", "grpo", "bon-max-mean"]),
)
@settings(max_examples=60, deadline=None)
def test_rows_in_any_order_get_what_their_group_gets_alone(sizes, seed, objective):
    rng = np.random.default_rng(seed)
    groups = [rng.normal(size=size).round(2) for size in sizes]
    rewards = np.concatenate(groups)
    uids = np.concatenate([[f"uid-{i}"] * size for i, size in enumerate(sizes)])
    order = rng.permutation(len(rewards))
    found = np.empty(len(rewards))
    found[order] = weights(rewards[order], uids[order], objective)
    share = [len(rewards) / (len(groups) * size) for size in sizes]  # a prompt is a prompt
    alone = [bestofk.advantages(group, objective) * s for group, s in zip(groups, share)]
    np.testing.assert_allclose(found, np.concatenate(alone), rtol=1e-12, atol=1e-12)


def test_padding_is_not_a_group_and_gets_nothing():
    rewards, uids = [1.0, 0.0, 0.0, 0.5], ["a", "a", "a", "a"]
    mask = torch.ones(7, 3, dtype=torch.int64)
    mask[4:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", DroppedGroups)  # padding is not a group that was lost
        found = weights([*rewards, 0.0, 0.0, 0.0], [*uids, PAD, PAD, PAD], mask=mask)
    np.testing.assert_allclose(found[:4], bestofk.advantages(rewards, "max@2") * 7 / 4)
    assert (found[4:] == 0).all()
    assert (weights([0.0, 0.0], [PAD, PAD], mask=mask[4:6]) == 0).all()


def test_a_uid_that_only_begins_like_padding_is_a_prompt():
    uids = ["paddle"] * 3 + ["pad-thai"] * 3
    found = weights([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], uids)
    np.testing.assert_allclose(found, [2, -1, -1, -1, 2, -1])


def test_verls_own_passk_estimator_fails_on_the_padding_that_ours_leaves_out():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    mask = torch.ones(4, 1, dtype=torch.int64)
    mask[3] = 0
    data = native.batch(rewards, ["a", "a", "a", PAD], mask)
    own = native.composed("algorithm.adv_estimator=grpo_passk").algorithm
    with pytest.raises(ValueError, match="at least 2 samples"):
        native.advantages(data, own)
    found = native.advantages(data, algorithm())[:, 0]
    np.testing.assert_allclose(found, np.array([2, -1, -1, 0]) * 4 / 3, rtol=1e-6)


def test_rows_that_verl_rejects_leave_their_group():
    """Rejection by verl's own rollout correction: sequences far from the sampler are masked out."""
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.5, 0.2])
    data = native.batch(rewards, ["a"] * 5, torch.ones(5, 4, dtype=torch.int64))
    data.batch["old_log_probs"] = torch.full((5, 4), -1.0)
    data.batch["rollout_log_probs"] = torch.full((5, 4), -1.0)
    data.batch["rollout_log_probs"][0] = -3.0  # the best sample, and far off policy
    rule = RolloutCorrectionConfig(
        rollout_is=None, rollout_rs="seq_mean_k3", rollout_rs_threshold=1
    )
    data, _ = compute_rollout_correction_and_add_to_batch(data, rule)
    assert data.batch["response_mask"].sum(-1).tolist() == [0, 4, 4, 4, 4]
    found = native.advantages(data, algorithm())
    assert (found[0] == 0).all()
    wanted = bestofk.advantages(rewards[1:].numpy(), "max@2") * 5 / 4
    np.testing.assert_allclose(found[1:, 0], wanted, rtol=1e-6)


def test_a_reward_that_could_not_be_scored_does_not_count_as_wrong():
    nan = float("nan")
    found = weights([1.0, 0.0, nan, 0.5, 0.25], ["a"] * 5)
    wanted = bestofk.advantages([1, 0, 0.5, 0.25], "max@2") * 5 / 4
    np.testing.assert_allclose(found[[0, 1, 3, 4]], wanted)
    assert found[2] == 0


def test_a_named_score_of_the_reward_chooses_and_the_reward_pays():
    """Two rows of one rollout, padding, and a rollout without a score, which is not counted."""
    rewards, shown = [1.0, 0.0, 0.5, 0.25, 0.75], [0.0, 2.0, 2.0, 1.0, None]
    data, keys, session = several_rows([1, 2, 1, 1, 1, 1], [*rewards, 0.0], ["a"] * 5 + [PAD])
    extra = [{"reward_extra_info": {"score": 0.0, "shown": [*shown, 9.0][i]}} for i in session]
    settings = ["algorithm.adv_estimator=bestofk", "+algorithm.bestofk.objective=select@2"]
    settings.append("+algorithm.bestofk.scorer=shown")
    found = through_the_trainer(data, keys, *settings, extra_fields=extra)
    once = bestofk.advantages(rewards[:4], "select@2", scores=shown[:4]) * len(keys) / 4
    np.testing.assert_allclose(found, np.append(once, [0.0, 0.0])[session])


def test_a_group_too_small_for_k_is_dropped_and_counted():
    nan = float("nan")
    with pytest.warns(DroppedGroups, match="1 of 2 groups"):
        found = weights([1.0, 0.0, nan, 1.0, 0.0, 0.0], ["a"] * 3 + ["b"] * 3)
    np.testing.assert_allclose(found, np.array([0, 0, 0, 2, -1, -1]) * 6 / 3)
    with pytest.raises(ValueError, match="more than 8 samples"):
        weights([1.0, 0.0, 0.0], ["a"] * 3, "max@8")


def test_a_reward_is_the_sum_over_tokens_and_masked_tokens_still_hold_it():
    """Rejecting single tokens may mask the one that carries the reward."""
    mask = torch.ones(3, 3, dtype=torch.int64)
    mask[:, -1] = 0
    np.testing.assert_allclose(weights([1.0, 0.0, 0.0], ["a"] * 3, mask=mask), [2, -1, -1])


def several_rows(parts, rewards, uids, seed=0):
    """Rollouts as V1 keeps them: {uid}_{session}_{part}, each part a row with the final reward."""
    rows = [
        (uid, f"{uid}_{session}_{part}", reward, session)
        for session, (uid, reward, count) in enumerate(zip(uids, rewards, parts, strict=True))
        for part in range(count)
    ]
    order = np.random.default_rng(seed).permutation(len(rows))
    rows = [rows[i] for i in order]
    data = native.batch(
        torch.tensor([row[2] for row in rows], dtype=torch.float64),
        [row[0] for row in rows],
        torch.ones(len(rows), 2, dtype=torch.int64),
    )
    return data, [row[1] for row in rows], np.array([row[3] for row in rows])


SETTINGS = ["algorithm.adv_estimator=bestofk", "+algorithm.bestofk.objective=max@2"]


def through_the_trainer(data, keys, *settings, compute=None, **fields):
    """One number per row, from the method of verl's trainer; its queue is in memory here."""
    nested = {"response_mask": data.batch["response_mask"],
              "rm_scores": data.batch["token_level_rewards"]}  # fmt: skip
    fields |= {name: torch.nested.as_nested_tensor(list(each), layout=torch.jagged)
               for name, each in nested.items()}  # fmt: skip
    fields["uid"] = data.non_tensor_batch["uid"].tolist()
    written = {}
    queue = SimpleNamespace(
        kv_batch_get=lambda select_fields, **_: tu.get_tensordict(dict(fields)),
        kv_batch_put=lambda fields, **_: written.update(fields),
    )
    config = native.composed(*(settings or SETTINGS))
    trainer = SimpleNamespace(config=config, global_steps=1, total_training_steps=2)
    batch = Batch(keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_base, "tq", queue)
        (compute or trainer_base.PPOTrainer._compute_advantage)(trainer, batch, {})
    rows = np.array([row.tolist() for row in written["advantages"].unbind()])
    assert (rows == rows[:, :1]).all()
    return rows[:, 0]


class Batch(list):
    """What verl's trainer knows of a batch: its keys."""

    def __init__(self, keys):
        super().__init__(keys)
        self.keys, self.partition_id = keys, "train"


@given(parts=st.lists(st.integers(1, 4), min_size=7, max_size=7), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_rollout_of_several_rows_is_one_sample(parts, seed):
    rewards, uids = [1.0, 0.0, 0.0, 0.3, 0.9, 0.9, 0.1], ["a"] * 4 + ["b"] * 3
    data, keys, session = several_rows(parts, rewards, uids, seed)
    found = through_the_trainer(data, keys)
    once = bestofk.advantages(rewards, "max@2", groups=np.array(uids))
    once *= sum(parts) / (2 * np.array([4] * 4 + [3] * 3))  # verl's loss divides by all rows
    np.testing.assert_allclose(found, once[session])


def test_the_last_row_of_a_rollout_is_the_one_that_is_scored():
    data, keys, session = several_rows([2, 2, 2], [1.0, 0.0, 0.0], ["a"] * 3, seed=1)
    first = torch.tensor([key.endswith("_0") for key in keys])
    data.batch["token_level_rewards"][first] = 0.7
    found = through_the_trainer(data, keys)
    wanted = np.array([2, -1, -1]) * 6 / 3  # six rows, three rollouts
    np.testing.assert_allclose(found, wanted[session])


def test_other_estimators_keep_their_advantages():
    data, keys, _ = several_rows([2, 1, 3], [1.0, 0.0, 0.5], ["a"] * 3)
    for name in ("grpo", "rloo"):
        settings = [f"algorithm.adv_estimator={name}", "+algorithm.bestofk.passing=1.0"]
        found = through_the_trainer(data, keys, *settings)
        own = trainer_base.PPOTrainer._compute_advantage.__wrapped__
        assert np.array_equal(found, through_the_trainer(data, keys, *settings, compute=own))


def test_two_runs_of_a_random_design_agree_under_torchs_seed():
    rewards, uids = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0], ["a"] * 6
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(weights(rewards * 4, uids * 4, "passk-training@4:bootstrap"))
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()


@pytest.mark.parametrize("objective", ["max@8", "max@8:loo-1", "passk-training@4:combination"])
def test_an_objective_comes_through_verls_command_line_as_written(objective):
    assert algorithm(objective).bestofk.objective == objective
    assert str(chosen(algorithm(objective))) == objective


def test_options_of_the_objective_stand_beside_it():
    config = algorithm("pass@2", "+algorithm.bestofk.threshold=0.5")
    data = native.batch(torch.tensor([0.6, 0.1, 0.2]), ["a"] * 3, torch.ones(3, 1).long())
    assert native.advantages(data, config)[:, 0].tolist() == [2, -1, -1]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], r"add \+algorithm.bestofk.objective=max@8 \(algorithm.bestofk is \{\}"),
        (["+algorithm.bestofk=max@8"], r"bestofk is a table, got 'max@8': add .*objective=max@8"),
        (["+algorithm.bestofk.objectiv=max@8"], "needs an objective"),
        (["+algorithm.bestofk.objective=maks@8"], "did you mean"),
        (["+algorithm.bestofk.objective=passk-training@8:adaptive"], "needs entropy, which verl"),
        (["+algorithm.bestofk.objective=maj@8"], "needs answers, which verl does not give"),
        (
            ["+algorithm.bestofk.objective=select@8"],
            r"needs scores .* add \+algorithm.bestofk.scor",
        ),
        (["+algorithm.bestofk={objective:max@8,treshold:0.5}"], "threshold"),
    ],
)
def test_what_is_wrong_is_said(overrides, said):
    config = native.composed("algorithm.adv_estimator=bestofk", *overrides).algorithm
    with pytest.raises(ValueError, match=said):
        chosen(config)


def test_rows_without_uids_are_an_error():
    ones = torch.ones(3, 1)
    with pytest.raises(ValueError, match="needs a uid for every row"):
        core_algos.get_adv_estimator_fn("bestofk")(ones, ones, config=algorithm())


def test_the_check_reads_verls_whole_configuration():
    given = ["algorithm.adv_estimator=bestofk", "+algorithm.bestofk.objective=max@8",
              "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
              "actor_rollout_ref.actor.ppo_mini_batch_size=1024"]  # fmt: skip
    n = "actor_rollout_ref.rollout.n"
    said = check(native.composed(*given, f"{n}=16"))
    assert said.endswith("objective max@8, 16 samples per prompt")
    assert verl.__version__ in said
    with pytest.raises(ValueError, match=r"rollout\.n=8: objective max@8 needs more than 8"):
        check(native.composed(*given, f"{n}=8"))
    with pytest.raises(ValueError, match="adv_estimator is gae: set it to bestofk"):
        check(native.composed())


def test_dtype_and_device_are_the_rewards():
    data = native.batch(torch.tensor([1.0, 0.0, 0.0]), ["a"] * 3, torch.ones(3, 1).bool())
    assert native.advantages(data, algorithm()).dtype == torch.float32


@pytest.mark.parametrize(
    ("mode", "exact"),
    [("seq-mean-token-sum", True), ("token-mean", False), ("seq-mean-token-mean", False)],
)
def test_which_of_verls_loss_normalisers_keeps_the_estimator_unbiased(mode, exact):
    """-d loss/d log_prob on policy is A_i/N for every token only without division by length."""
    lengths = torch.tensor([1, 2, 4])
    mask = (torch.arange(4) < lengths[:, None]).long()
    data = native.batch(torch.tensor([1.0, 0.0, 0.0]), ["a"] * 3, torch.ones_like(mask))
    data.batch["response_mask"] = mask
    found = native.advantages(data, algorithm())
    log_prob = torch.full((3, 4), -1.0, requires_grad=True)
    config = native.composed("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1")
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss, _ = core_algos.compute_policy_loss_vanilla(
        log_prob.detach(), log_prob, found, mask, mode, actor
    )
    (slope,) = torch.autograd.grad(-loss, log_prob)
    assert torch.allclose(slope * 3, found) == exact
