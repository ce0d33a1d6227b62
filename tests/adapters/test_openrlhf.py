"""The adapter inside OpenRLHF's own program: its parser, Ray actors, sampler and loop."""

import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openrlhf", reason="OpenRLHF is not installed here: make test-adapters")

pytest.importorskip("adapters.openrlhf_host")

import openrlhf.trainer.ray
import openrlhf.trainer.ray.launcher
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf import utils
from openrlhf.models.loss import PolicyLoss

import openrlhf_best_of_k as example
from adapters import openrlhf_host, openrlhf_native, openrlhf_runs
from adapters.openrlhf_native import arguments, experience, maker
from adapters.openrlhf_runs import BASE_LOG_PROB, LOG_PROB
from bestofk.objectives import DroppedGroups, ObjectiveWarning
from oracles import policies, q_value, subset_mean

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
PAGE = HERE.parents[1] / "docs" / "adapters" / "others.md"
VERDICTS = HERE.parents[1] / "research" / "conformance.md"
TOKENIZER = HERE.parents[1] / "src" / "bestofk" / "models" / "checkpoints" / "tiny-maze"
# Ray leaves files and sockets open
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def brute(rewards, k):
    """k n/(n-k) times what containing the sample adds to the mean best of k, by subsets."""
    rewards = np.asarray(rewards)
    n, best = len(rewards), subset_mean(rewards, k, np.max)
    return np.array([k * (q_value(rewards, k, i) - best) * n / (n - k) for i in range(n)])


def weights(made):
    """One number per row: the advantage of its last action."""
    return np.concatenate([each.advantages[:, -1].numpy() for each in made])


def made_of(rewards, index, prompts, n=3, text="max@2", kl_coefficient=0.0, **more):
    rows = experience(
        torch.tensor(rewards), index, prompts, more.pop("mask", None), more.pop("kl", None)
    )
    return maker(
        arguments(f"bestofk:{text}", n, **more), kl_coefficient
    ).compute_advantages_and_returns([rows])


@given(st.integers(1, 4), st.integers(3, 5), st.randoms())
def test_groups_are_places_in_the_rollout_wherever_their_rows_are(prompts, n, random):
    index = list(range(prompts * n))
    random.shuffle(index)
    rewards = torch.tensor([random.uniform(-1, 1) for _ in index], dtype=torch.float64)
    cut = random.randint(0, len(index))
    batches = [
        experience(rewards[part], [index[i] for i in part], [str(index[i] // n) for i in part])
        for part in (list(range(cut)), list(range(cut, len(index))))
        if len(part)
    ]
    made = weights(maker(arguments("bestofk:max@2", n)).compute_advantages_and_returns(batches))
    for group in range(prompts):
        rows = [i for i, place in enumerate(index) if place // n == group]
        np.testing.assert_allclose(made[rows], brute(rewards.numpy()[rows], 2), atol=1e-12)


def test_a_group_with_two_prompts_is_refused():
    with pytest.raises(ValueError, match="a group of the rollout has several prompts"):
        made_of([0.0, 1, 0, 0, 1, 0], range(6), ["a", "a", "a", "a", "b", "b"])


def test_unscored_rows_and_rows_without_actions_do_not_count():
    mask = torch.tensor([[0.0, 1], [0, 1], [1, 1], [1, 1], [0, 0]])
    made = made_of([0.5, torch.nan, 1.0, 0.0, 3.0], range(5), ["a"] * 5, n=5, mask=mask)
    wanted = brute([0.5, 1.0, 0.0], 2) * 5 / 3  # two siblings left them their share
    np.testing.assert_allclose(weights(made)[[0, 2, 3]], wanted, rtol=1e-6)
    assert (made[0].advantages[[1, 4]] == 0).all()


def test_a_group_that_lost_samples_is_dropped_and_counted():
    with pytest.warns(DroppedGroups, match="1 of 2 groups"):
        made = made_of([1.0, 0, torch.nan, 1, 0, 0], range(6), list("aaabbb"))
    np.testing.assert_allclose(weights(made), [0, 0, 0, *2 * brute([1.0, 0, 0], 2)])


def test_length_penalties_come_before_the_objective():
    mask = torch.tensor([[1.0] * 8, [1.0] * 8, [0.0] * 6 + [1.0] * 2])
    made = made_of([1.0, 0.0, 0.75], range(3), ["a"] * 3, mask=mask, overlong_buffer_len=4.0)
    np.testing.assert_allclose(weights(made), brute([0.0, -1.0, 0.75], 2), rtol=1e-6)
    assert made[0].info["reward"].tolist() == [0.0, -1.0, 0.75]


def test_rewards_are_clipped_and_weights_are_not():
    rewards = [1.0] + [0.0] * 12
    made = made_of(rewards, range(13), ["a"] * 13, n=13, text="max@12")
    assert weights(made).max() == pytest.approx(12)  # over the range of ±10
    with pytest.warns(ObjectiveWarning, match=r"--reward.clip_range \(-10, 10\) changes rewards"):
        made = made_of([50.0, torch.nan, 0.0, 0.0], range(4), ["a"] * 4, n=4)
    made[0].advantages = made[0].advantages[[0, 2, 3]] * 0.75  # a lost sibling left its share
    np.testing.assert_allclose(weights(made), brute([10.0, 0.0, 0.0], 2), rtol=1e-6)


def test_the_kl_penalty_is_added_to_the_weights_from_each_token_on_as_openrlhf_does():
    mask = torch.tensor([[1.0, 1, 1], [0, 1, 1], [0, 0, 1]])
    kl = torch.arange(9.0).reshape(3, 3)
    made = made_of([1.0, 0.0, 0.5], range(3), ["a"] * 3, mask=mask, kl=kl, kl_coefficient=0.1)[0]
    wanted = (
        brute([1.0, 0.0, 0.5], 2)[:, None] - 0.1 * (kl * mask).flip(1).cumsum(1).flip(1).numpy()
    )
    np.testing.assert_allclose(made.advantages.numpy()[mask.bool()], wanted[mask.bool()], rtol=1e-5)
    rows = experience(torch.tensor([1.0, 0.0, 0.5]), range(3), ["a"] * 3, mask, kl)
    theirs = maker(arguments("rloo", 3), 0.1).compute_advantages_and_returns([rows])[0]
    ours = made_of(
        [1.0, 0.0, 0.5], range(3), ["a"] * 3, mask=mask, kl=kl, kl_coefficient=0.1, text="mean"
    )[0]
    for name in ("advantages", "returns"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
    assert ours.kl is theirs.kl is None
    torch.testing.assert_close(ours.info["return"], theirs.info["return"])


def test_the_update_of_openrlhfs_loss_is_the_gradient_of_max_at_k_for_responses_of_one_length():
    policy, total = policies()[2], np.zeros(3)
    for draw, chance in zip(*policy.outcomes(3)):
        logits = torch.tensor(policy.logits, requires_grad=True)
        made = made_of(policy.rewards[draw], range(3), ["a"] * 3)[0]
        logps = torch.log_softmax(logits, 0)[torch.tensor(draw)][:, None]
        loss, *_ = PolicyLoss()(
            logps, logps.detach(), made.advantages, action_mask=made.action_mask
        )
        (gradient,) = torch.autograd.grad(loss, logits)
        total -= chance * gradient.numpy()
    np.testing.assert_allclose(total, policy.max_gradient(2), atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maks@2", "did you mean"),
        ("max@3", "max@3 needs more than 3 samples per prompt, got 3"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(text, message):
    args = arguments("rloo", 3)
    with pytest.raises(ValueError, match=message):
        example.use(args, text)
    assert args.algo.advantage.estimator == "rloo"


def test_a_loss_that_divides_by_each_length_is_named():
    args = arguments("rloo", 3)
    args.actor.loss_agg_mode = "seq-mean-token-mean"
    with pytest.warns(ObjectiveWarning, match="loss_agg_mode seq-mean-token-mean"):
        example.use(args, "max@2")


def test_an_estimator_is_ours_where_it_is_unpickled():
    args = pickle.loads(pickle.dumps(arguments("bestofk:max@2", 4)))
    rows = experience(torch.tensor([0.6, 0.4, 0.1, 0.2]), range(4), ["a"] * 4)
    made = maker(args).compute_advantages_and_returns([rows])
    wanted = brute([0.6, 0.4, 0.1, 0.2], 2)
    np.testing.assert_allclose(weights(made), wanted, rtol=1e-6, atol=1e-7)  # float32 rewards


@pytest.fixture(scope="module")
def cluster():
    """A Ray that believes in two GPUs: OpenRLHF waits for them before it makes anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([*openrlhf_host.FOLDERS, str(HERE.parent), str(EXAMPLES)])
        )
        ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


PROMPTS = [  # ticks to wait, then the rewards of its samples
    "4 0.5 1 0 0.25", "0 1 1 1 1", "3 0 0 0 0.75", "0 -1 2 0.5 2", "1 0 0 0 0",
    "0 0.125 0.25 0.375 0.875",
]  # fmt: skip


def trained(monkeypatch, folder, objective, *flags):
    """The program's flags in, the experiences of all its steps out."""
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"input": prompt}) + "\n" for prompt in PROMPTS))
    engine = openrlhf_runs.Engine.remote()
    monkeypatch.setattr(openrlhf.trainer.ray, "create_vllm_engines", lambda *_, **__: [engine])
    monkeypatch.setattr(openrlhf.trainer.ray.launcher, "RayActorGroup", openrlhf_runs.Group)
    words = [
        "openrlhf_best_of_k", objective, "--actor.model_name_or_path", str(TOKENIZER),
        "--data.prompt_dataset", str(data),
        "--reward.remote_url", "http://127.0.0.1:9", "--rollout.n_samples_per_prompt", "4",
        "--rollout.batch_size", "2", "--train.batch_size", "8", "--rollout.micro_batch_size", "3",
        "--actor.num_gpus_per_node", "1", "--vllm.num_engines", "1", "--train.num_episodes", "1",
        "--ckpt.path", str(folder), *flags,
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(utils, "get_strategy", utils.get_strategy)  # put back afterwards
    example.main()
    kept = ray.get_actor("kept")
    found = openrlhf_runs.rows(ray.get(kept.get.remote()))
    ray.kill(kept)
    groups = defaultdict(list)
    for prompt, reward, values, _ in found:
        groups[prompt].append((reward, values))
    return groups


def rewards_of(prompt):
    return [float(word) for word in prompt.split()[1:]]


def assert_weights(groups, prompts, penalty=0.0):
    assert set(groups) == set(prompts)
    for prompt, rows in groups.items():
        wanted = dict(zip(rewards_of(prompt), brute(rewards_of(prompt), 2)))
        assert sorted(reward for reward, _ in rows) == sorted(rewards_of(prompt))
        for reward, values in rows:
            steps = np.arange(len(values), 0, -1)
            np.testing.assert_allclose(values, wanted[reward] - penalty * steps, atol=1e-5)


def test_the_whole_program_trains_on_our_weights_with_a_kl_penalty(cluster, monkeypatch, tmp_path):
    groups = trained(monkeypatch, tmp_path, "max@2", "--algo.kl.init_coef", "0.1")
    assert_weights(groups, PROMPTS, penalty=0.1 * (LOG_PROB - BASE_LOG_PROB))


def test_filtered_prompts_leave_groups_whole_in_dynamic_batches(cluster, monkeypatch, tmp_path):
    groups = trained(
        monkeypatch, tmp_path, "max@2", "--algo.kl.init_coef", "0", "--train.dynamic_batch_enable",
        "--rollout.max_tokens_per_gpu", "12", "--algo.dynamic_filtering_enable",
        "--algo.dynamic_filtering_range", "0", "1",
    )  # fmt: skip
    kept = [prompt for prompt in PROMPTS if 0 < np.mean(rewards_of(prompt)) < 1]
    assert len(kept) == 4
    assert_weights(groups, kept)


def test_asynchronous_training_too(cluster, monkeypatch, tmp_path):
    groups = trained(
        monkeypatch, tmp_path, "max@2", "--algo.kl.init_coef", "0", "--train.async_enable"
    )
    assert_weights(groups, PROMPTS)


def blocks(language):
    section = PAGE.read_text().partition("\n## OpenRLHF\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.S)


def test_the_page_shows_the_table_that_the_code_prints():
    assert openrlhf_native.page() in VERDICTS.read_text()


def test_the_pages_command_reaches_openrlhfs_trainer_in_its_actor(cluster, tmp_path):
    def told(command):
        env = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
            "PYTHONPATH": os.pathsep.join([*openrlhf_host.FOLDERS, str(EXAMPLES)]),
        }
        done = subprocess.run(
            [sys.executable, *shlex.split(command.replace("\\\n", ""))[2:]],
            cwd=tmp_path, text=True, capture_output=True, check=False, env=env, timeout=3600,
        )  # fmt: skip  # the driver and each actor import PyTorch and vLLM: minutes if starved
        assert done.returncode != 0  # the model is not here
        return done.stdout + done.stderr

    command = blocks("bash")[0]
    answer = told(command)
    assert "estimator='max@8'" in answer, answer
    assert "ray::PPOTrainer.__init__()" in answer, answer
    answer = told(command.replace("n_samples_per_prompt 16", "n_samples_per_prompt 8"))
    assert "max@8 needs more than 8 samples per prompt, got 8" in answer
