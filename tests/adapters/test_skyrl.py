"""The plug-in inside SkyRL's own functions: its trainer, its registry, its Ray workers."""

import os
import re
import shlex
import subprocess
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("skyrl", reason="SkyRL is not installed here: make test-adapters")
pytest.importorskip("ray", reason="SkyRL's extra skyrl-train is not installed here")
pytest.importorskip("adapters.on_cpu.sitecustomize")

import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.trainer_utils import handle_dynamic_sampling

import bestofk
from adapters import skyrl_native
from adapters.skyrl_native import advantages, configured
from adapters.skyrl_native import registered as register
from bestofk.objectives import DroppedGroups, ObjectiveWarning
from oracles import policies, q_value, subset_mean
from ray_node import ray_node

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adapters" / "others.md"
VERDICTS = ROOT / "research" / "conformance.md"
ON_CPU = Path(__file__).parent / "on_cpu"
WORKERS_PATH = os.pathsep.join([str(ON_CPU), str(ROOT / "examples")])
# Ray leaves files and sockets open
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def brute(rewards, k):
    """n/(n-k) times what containing the sample adds to the mean best of k: max@k by subsets."""
    n, best = len(rewards), subset_mean(rewards, k, np.max)
    return np.array([k * (q_value(rewards, k, i) - best) * n / (n - k) for i in range(n)])


def trained(rows, *overrides, shards=1):
    """Rows (uid, repetition, tokens, reward, last) through SkyRL's trainer up to advantages."""
    config = configured(
        f"trainer.algorithm.advantage_estimator={register('max@2')}",
        "generator.inference_engine.enable_ray_prometheus_stats=false",
        "trainer.enable_ray_gpu_monitor=false",
        *overrides,
    )
    trainer = RayPPOTrainer(
        config, None, types.SimpleNamespace(pad_token_id=0), None, None, None
    )  # fmt: skip
    trainer.dispatch = types.SimpleNamespace(get_lcm_dp_size=lambda: shards)
    uids = [row[0] for row in rows]
    output = {
        "prompt_token_ids": [[7, 8]] * len(rows),
        "response_ids": [[5] * row[2] for row in rows],
        "rewards": [row[3] for row in rows],
        "loss_masks": [[1] * row[2] for row in rows],
        "rollout_logprobs": None,
        "trajectory_ids": [TrajectoryID(row[0], row[1]) for row in rows],
        "is_last_step": [row[4] for row in rows],
    }
    output, uids = trainer.postprocess_generator_output(output, uids)
    batch = trainer.convert_to_training_input(output, uids)
    batch["values"] = None
    return trainer.compute_advantages_and_returns(batch)


def row_weights(batch):
    """One number per row, and that it is the same on every token of the response, 0 elsewhere."""
    mask, values = batch["response_mask"].bool(), batch["advantages"]
    assert (values[~mask] == 0).all()
    rows = [set(value[live].tolist()) for value, live in zip(values, mask)]
    assert all(len(row) == 1 for row in rows)
    return np.array([row.pop() for row in rows])


def sizes(uids):
    """train_batch_size must fit the prompts for SkyRL's mini-batch boundaries."""
    count = len(set(uids))
    return (
        f"trainer.train_batch_size={count}",
        f"trainer.policy_mini_batch_size={count}",
        f"generator.n_samples_per_prompt={len(uids) // count}",
    )


REWARDS = {"a": [0.0, 1.0, 0.25], "b": [2.0, 2.0, -1.0]}
WANTED = {uid: brute(np.array(rewards), 2) for uid, rewards in REWARDS.items()}


def test_trainer_gives_each_response_its_weight_and_padding_none():
    rows = [(uid, i, 1 + i, r, True) for uid in REWARDS for i, r in enumerate(REWARDS[uid])]
    batch = trained(rows, *sizes([row[0] for row in rows]), shards=4)
    assert batch.metadata["uids"][6:] == ["pad0", "pad1"]  # copies of row 0
    wanted = np.array([*WANTED["a"], *WANTED["b"], 0, 0]) * 8 / 6  # SkyRL divides by all 8 rows
    np.testing.assert_allclose(row_weights(batch), wanted, rtol=1e-6)


def test_rows_of_a_stepwise_rollout_share_the_weight_of_its_last_row():
    rows: list = []
    wanted: list = []
    for uid in REWARDS:
        for i, reward in enumerate(REWARDS[uid]):
            steps = 1 + (i + len(rows)) % 3
            # the rewards of the earlier rows must not count
            rows += [
                (uid, i, 2, reward if step == steps - 1 else 9.0, step == steps - 1)
                for step in range(steps)
            ]
            wanted += [WANTED[uid][i]] * steps
    batch = trained(
        rows,
        "generator.step_wise_trajectories=true",
        "trainer.train_batch_size=2",
        "trainer.policy_mini_batch_size=2",
        "generator.n_samples_per_prompt=3",
        shards=8,
    )
    pads = len(batch["advantages"]) - len(rows)
    assert len(rows) > 6
    assert pads > 0
    made, all_rows = row_weights(batch), np.array(wanted + [0.0] * pads)
    share = made @ all_rows / (all_rows @ all_rows)  # the same for every row: SkyRL hides the rest
    np.testing.assert_allclose(made, share * all_rows, rtol=1e-6)


@given(st.lists(st.integers(3, 6), min_size=1, max_size=4), st.randoms(), st.integers(0, 3))
def test_groups_are_uids_wherever_their_rows_are(counts, random, pads):
    name = register("max@2")
    uids = [f"p{g}" for g, n in enumerate(counts) for _ in range(n)]
    random.shuffle(uids)
    rewards = torch.tensor([random.uniform(-1, 1) for _ in range(len(uids) + pads)])
    mask = torch.ones(len(rewards), 2)
    made = advantages(name, rewards, uids + [f"pad{i}" for i in range(pads)], mask)[:, 0].numpy()
    assert (made[len(uids) :] == 0).all()
    for uid in set(uids):
        rows = np.flatnonzero(np.array(uids) == uid)
        share = len(rewards) / (len(set(uids)) * len(rows))  # every prompt counts the same
        np.testing.assert_allclose(made[rows], share * brute(rewards.numpy()[rows], 2), atol=1e-5)


def test_unscored_rows_and_rows_without_a_response_do_not_count():
    rewards = torch.tensor([0.5, torch.nan, 1.0, 0.0, 3.0])
    mask = torch.tensor([[1, 1], [1, 1], [0, 1], [1, 1], [0, 0]])
    made = advantages(register("max@2"), rewards, ["a"] * 5, mask)
    wanted = brute(np.array([0.5, 1.0, 0.0]), 2) * 5 / 3  # two siblings left them their share
    np.testing.assert_allclose(made[[0, 2, 3], 1], wanted, rtol=1e-6)
    assert (made[[1, 4]] == 0).all()
    assert made[2, 0] == 0


def test_a_group_that_lost_samples_is_dropped_and_counted_but_too_few_samples_raise():
    rewards = torch.tensor([1.0, 0.0, torch.nan, 1.0, 0.0, 0.0])
    mask = torch.ones(6, 1)
    with pytest.warns(DroppedGroups, match="1 of 2 groups"):
        made = advantages(register("max@2"), rewards, list("aaabbb"), mask)
    np.testing.assert_allclose(made[:, 0], [0, 0, 0, *2 * brute(np.array([1.0, 0, 0]), 2)])
    with pytest.raises(ValueError, match=r"max@3 needs more than 3 samples per prompt, got 3"):
        advantages(register("max@3"), rewards, list("aaabbb"), mask)


def test_padding_is_no_group_and_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = advantages(
            register("max@2"), torch.tensor([1.0, 0, 0, 1]), ["a", "a", "a", "pad0"],
            torch.ones(4, 1),
        )  # fmt: skip
    np.testing.assert_allclose(made[:, 0], np.array([2, -1, -1, 0]) * 4 / 3, rtol=1e-6)


def test_copies_of_groups_are_refused_and_would_be_wrong():
    output = {
        "prompt_token_ids": [[1]] * 9, "response_ids": [[2]] * 9, "loss_masks": [[1]] * 9,
        "rewards": [0.0, 1.0, 0.25, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0],
        "stop_reasons": None, "rollout_logprobs": None,
    }  # fmt: skip
    uids = list("aaabbbccc")
    settings = {"type": "replace", "n_samples_per_prompt": 3, "min_replace_ratio": 0.3}
    _, uids, again, _ = handle_dynamic_sampling(output, uids, settings)
    assert not again
    assert max(uids.count(uid) for uid in uids) == 6  # one prompt, six rows, three samples
    rewards, mask = torch.tensor(output["rewards"]), torch.ones(9, 1)
    with pytest.raises(ValueError, match="type=replace copies groups"):
        advantages(
            register("max@2"), rewards, uids, mask,
            "trainer.algorithm.dynamic_sampling.type=replace",
        )  # fmt: skip


def update(policy, n, lengths, *overrides):
    """E[gradient] of SkyRL's loss: every outcome of n draws through its own functions."""
    algorithm = configured(*overrides).trainer.algorithm
    name, total = register("max@2"), np.zeros(3)
    for draw, chance in zip(*policy.outcomes(n)):
        logits = torch.tensor(policy.logits, requires_grad=True)
        mask = torch.tensor([[1.0] * lengths[y] + [0.0] * (4 - lengths[y]) for y in draw])
        rewards = torch.tensor(policy.rewards[draw])
        weights = advantages(name, rewards, ["a"] * n, mask, *overrides)
        weights = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
            weights, mask, algorithm.loss_reduction, 1, algorithm.max_seq_len, [(0, n)]
        )
        # an answer's log-probability is shared out over its tokens
        own = torch.log_softmax(logits, 0)[torch.tensor(draw)] / mask.sum(-1)
        logps = own.unsqueeze(-1).expand(mask.shape)
        loss, _ = ppo_utils.ppo_policy_loss(logps, logps.detach(), weights, algorithm, mask)
        (gradient,) = torch.autograd.grad(loss, logits)
        total -= chance * gradient.numpy()
    return total


def test_the_update_of_skyrls_loss_is_the_gradient_of_max_at_k_if_lengths_do_not_divide():
    policy, lengths = policies()[2], (1, 4, 2)
    gradient = policy.max_gradient(2)
    np.testing.assert_allclose(8 * update(policy, 3, lengths), gradient, atol=1e-12)
    with pytest.warns(ObjectiveWarning, match="biased update"):
        biased = update(
            policy, 3, lengths, "trainer.algorithm.loss_reduction=sequence_mean"
        )  # fmt: skip
    cosine = biased @ gradient / np.linalg.norm(biased) / np.linalg.norm(gradient)
    assert cosine < 0.999


@pytest.mark.parametrize("setting", ["loss_reduction=token_mean", "advantage_batch_normalize=true"])
def test_biased_settings_are_named(setting):
    with pytest.warns(ObjectiveWarning, match="biased update"):
        advantages(
            register("max@2"), torch.tensor([0.0, 1, 0]), ["a"] * 3, torch.ones(3, 1),
            f"trainer.algorithm.{setting}",
        )  # fmt: skip


@pytest.mark.parametrize("text", ["maks@8", "max@8/60%/mean", "passk-training@4:adaptive"])
def test_what_cannot_work_is_an_error(text):
    with pytest.raises(ValueError, match=r"did you mean|progress|entropy"):
        advantages(register(text), torch.rand(9), ["a"] * 9, torch.ones(9, 1))


def test_skyrl_validates_a_registered_name_and_no_other():
    flags = ("trainer.logger=console", "generator.n_samples_per_prompt=9")
    known = configured(*flags, f"trainer.algorithm.advantage_estimator={register('max@8')}")
    validate_cfg(known)
    with pytest.raises(AssertionError, match="invalid advantage_estimator: bestofk:max@7"):
        validate_cfg(configured(*flags, "trainer.algorithm.advantage_estimator=bestofk:max@7"))


def blocks(language):
    section = PAGE.read_text().partition("\n## SkyRL\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.S)


def test_the_page_shows_the_table_that_the_code_prints():
    assert skyrl_native.page() in VERDICTS.read_text()


@pytest.fixture(scope="module")
def cluster():
    """A Ray of one process, which imports what this one can."""
    register("max@2:loo-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", WORKERS_PATH)
        with ray_node():
            ppo_utils.sync_registries()
            yield


def test_a_worker_finds_what_was_registered_before_and_after_ray_started(cluster):
    @ray.remote
    def work(name, rewards):
        import sys

        import torch
        from skyrl.backends.skyrl_train.utils import ppo_utils
        from skyrl.train.config import AlgorithmConfig

        config = AlgorithmConfig(loss_reduction="seq_mean_token_sum_norm", max_seq_len=8)
        known = "bestofk" in sys.modules
        made, _ = ppo_utils.compute_advantages_and_returns(
            rewards[:, None], torch.ones(5, 1), [*"aaaa", "pad0"], name, config
        )
        return known, made[:, 0].tolist()

    rewards = torch.tensor([1.0, 0.0, 0.5, 0.5, 9.0])
    before = ray.get(work.remote("bestofk:max@2:loo-1", rewards))
    after = ray.get(work.remote(register("max@3"), rewards))
    assert not before[0]  # nothing but SkyRL's registry brought it there
    for name, made in (("max@2:loo-1", before[1]), ("max@3", after[1])):
        weights = bestofk.advantages(rewards[:4], name) * 5 / 4  # SkyRL's mean is over five rows
        np.testing.assert_allclose(made, [*weights, 0], rtol=1e-6)


def test_the_pages_command_passes_skyrls_checks_and_reaches_a_worker(tmp_path):
    def told(command):
        env = {**os.environ, "PYTHONPATH": str(ON_CPU), "HF_HUB_OFFLINE": "1"}
        command = command.replace("examples/", f"{ROOT}/examples/")
        done = subprocess.run(
            [sys.executable, *shlex.split(command.replace("\\\n", ""))[1:]],
            cwd=tmp_path, text=True, capture_output=True, check=False, env=env, timeout=1800,
        )  # fmt: skip
        assert done.returncode != 0  # there is no model here, and no GPU
        return done.stdout + done.stderr

    command = blocks("bash")[0]
    answer = told(command)
    assert "ray::skyrl_entrypoint()" in answer, answer  # the task: SkyRL's checks are behind it
    assert "BasePPOExp" in answer, answer
    answer = told(command.replace("n_samples_per_prompt=16", "n_samples_per_prompt=8"))
    assert "max@8 needs more than 8 samples per prompt, got 8" in answer
