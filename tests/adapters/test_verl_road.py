"""verl's processes: what loads the plug-in, a Ray worker, and its whole trainer on this CPU."""

import gzip
import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed here: make test-adapters")
pytest.importorskip("verl.trainer.ppo.v1", reason="verl's V1 trainer needs TransferQueue")

import ray
import torch
from verl.utils.config import validate_config

import bestofk
from adapters import verl_native as native
from ray_node import ray_node

ROOT = Path(__file__).parents[2]
RECIPE, MATHS = ROOT / "recipes" / "verl-maze", ROOT / "recipes" / "verl-maths"
PAGE = (ROOT / "docs" / "adapters" / "verl.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def run(*command, **environment):
    """Runs in this environment's Python, whichever it is."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    known = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    return subprocess.run(
        command, env=known | {"PATH": path} | environment, capture_output=True, text=True
    )


def train(folder, *settings, recipe=RECIPE, attempts=5, **environment):
    """A recipe on this CPU; again where Ray's processes did not start within Ray's own limit of
    thirty seconds, which a busy machine may not have."""
    for _ in range(attempts):
        done = run("bash", str(recipe / "cpu.sh"), str(folder), *settings, **environment)
        if not (done.returncode and "node timed out during startup" in done.stdout + done.stderr):
            break
    return done


def say(**environment):
    return run("python", "-m", "bestofk.adapters.verl", **environment)


def test_the_entry_point_alone_registers_the_plug_in():
    done = say()
    assert done.returncode == 0, done.stderr
    assert "is registered with verl" in done.stdout


def test_the_module_variable_registers_it_where_entry_points_are_off():
    off = {"VERL_USE_EXTERNAL_PLUGINS": "none"}
    done = say(**off)
    assert (done.returncode, done.stdout) == (1, "")
    assert "VERL_USE_EXTERNAL_PLUGINS=none leaves it out" in done.stderr
    assert say(**off, VERL_USE_EXTERNAL_MODULES="bestofk.adapters.verl.plugin").returncode == 0


def test_a_plug_in_that_verl_hides_as_broken_is_named_with_its_error():
    code = """
import sys
sys.modules["bestofk.adapters.verl.rollout_rows"] = None    # any import error of ours
import verl                                              # verl says nothing
from bestofk.adapters.verl.self_check import check
check()
"""
    done = run("python", "-c", code)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: verl ")
    assert "its import fails with" in last
    assert "rollout_rows" in last


def advantages_in_worker(rewards, uids, overrides):
    """In a fresh process, which knows verl and nothing else."""
    from hydra import compose, initialize_config_module
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    data = DataProto.from_dict(
        tensors={
            "token_level_rewards": rewards[:, None],
            "response_mask": torch.ones(len(rewards), 1),
        },
        non_tensors={"uid": uids},
    )
    name = config.algorithm.adv_estimator
    return compute_advantage(data, name, config=config.algorithm).batch["advantages"][:, 0].numpy()


@pytest.mark.filterwarnings("ignore")
def test_a_ray_worker_has_the_plug_in_of_its_own():
    rewards = np.array([0.1, 0.9, 0.4, 0.0, 1.0, 0.3, 0.2, 0.2])
    uids = np.array(["a", "b"] * 4, dtype=object)
    overrides = ["algorithm.adv_estimator=bestofk", "+algorithm.bestofk.objective=max@2"]
    with ray_node():
        # by value: the worker has no module of that name to import the function from
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        work = ray.remote(advantages_in_worker)
        weights = ray.get(work.remote(torch.tensor(rewards), uids, overrides))
    np.testing.assert_allclose(weights, bestofk.advantages(rewards, "max@2", groups=uids))


@pytest.mark.parametrize("script", ["train.sh", "exact.sh"])
def test_the_commands_of_the_page_are_the_recipes(script):
    assert ("bash", (RECIPE / script).read_text(encoding="utf-8")) in FENCED


def settings_of(script, folder):
    """What a script of the recipe would give verl's trainer, without running it."""
    show = f'python() {{ printf "%s\\n" "$@" && echo; }}; source {script} {folder}'
    done = run("bash", "-c", show)
    assert done.returncode == 0, done.stderr
    (given,) = [call for call in done.stdout.split("\n\n") if "verl.trainer.main_ppo" in call]
    return [word for word in given.split("\n")[2:] if not word.startswith("hydra.")]


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (1, 8), (8, 8)])
@pytest.mark.filterwarnings("ignore")
def test_verl_accepts_the_settings_for_gpus(nodes, gpus, tmp_path, monkeypatch):
    from bestofk.adapters.verl.self_check import check

    monkeypatch.setenv("NODES", str(nodes))
    monkeypatch.setenv("GPUS", str(gpus))
    config = native.composed(*settings_of(MATHS / "gpus.sh", tmp_path))
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == gpus * nodes
    validate_config(config, use_reference_policy=False, use_critic=False)
    assert "max@8, 16 samples" in check(config)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert actor.ppo_mini_batch_size == config.data.train_batch_size  # on policy
    assert actor.loss_scale_factor == config.data.max_response_length  # the same in every batch
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 1.0, -1)


BREAKING = f"""
import sys
sys.path.insert(0, {str(RECIPE)!r})
import reward

def compute_score(data_source, solution_str, ground_truth, **known):
    if len(solution_str) % 5 == 0:
        return float("nan")  # as when a judge breaks
    return reward.compute_score(data_source, solution_str, ground_truth, **known)
"""


@pytest.mark.slow
def test_verls_own_trainer_takes_exact_inner_steps_on_this_cpu(tmp_path):
    """Four optimiser steps per batch in two FSDP processes, and unbiased validation."""
    settings = [
        "trainer.n_gpus_per_node=2",
        "++ray_kwargs.ray_init.num_gpus=2",
        "trainer.total_training_steps=2",
        "trainer.test_freq=2",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "actor_rollout_ref.rollout.val_kwargs.n=4",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        f"trainer.validation_data_dir={tmp_path / 'validation'}",
    ]
    done = train(tmp_path, *settings, TRAIN="exact")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "16 samples per prompt, exact off-policy advantages" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert all("3 figures as logged" in line for line in lines)
    logged = [
        json.loads(line)["data"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert all(step["actor/log_ratio_max"] > 0.01 for step in logged)
    assert all(step["actor/grad_norm"] > 0 for step in logged)
    assert not any("pg_clipfrac" in name for step in logged for name in step)
    rows = [
        json.loads(line)
        for line in (tmp_path / "validation" / "2.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    prompts: dict[str, list[float]] = {}
    for row in rows:
        prompts.setdefault(row["uid"].rsplit("_", 2)[0], []).append(row["score"])
    assert {len(scores) for scores in prompts.values()} == {4}
    for k in (1, 2, 4):
        best = np.mean([bestofk.max_at_k(scores, k) for scores in prompts.values()])
        assert logged[-1][f"val-core/bestofk/maze/reward/max@{k}"] == pytest.approx(best)
        assert logged[-1][f"val-core/bestofk/maze/reward/pass@{k}"] == pytest.approx(best)


@pytest.mark.slow
def test_verls_own_trainer_runs_on_this_cpu_and_logs_our_advantages(tmp_path):
    """Ray, TransferQueue, agent and reward loop, FSDP2 in two processes, weights handed over."""
    (tmp_path / "breaking.py").write_text(BREAKING, encoding="utf-8")
    settings = [
        "trainer.n_gpus_per_node=2",
        "++ray_kwargs.ray_init.num_gpus=2",
        "trainer.total_training_steps=2",
        f"reward.custom_reward_function.path={tmp_path / 'breaking.py'}",
    ]
    done = train(tmp_path, *settings)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert [line[:6] for line in lines] == ["step 1", "step 2"]
    assert all("128 rollouts of 8 prompts, max@8" in line for line in lines)
    assert all("3 figures as logged" in line for line in lines)
    first, second = (
        json.loads(line)["data"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    )
    assert first["actor/grad_norm"] > 0
    # the server samples from the weights that were just trained, as exactly as before
    assert max(step["training/rollout_probs_diff_max"] for step in (first, second)) < 1e-4
    path = tmp_path / "rollouts" / "2.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert 0 < sum(math.isnan(row["score"]) for row in rows) < len(rows)
    solved = Counter(row["input"] for row in rows if row["score"] == 1.0)
    hardest = min(solved, key=lambda prompt: solved[prompt])  # where a right answer weighs most
    next(row for row in rows if row["input"] == hardest and row["score"] == 1.0)["score"] = 0.0
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    done = run("python", str(RECIPE / "check.py"), str(tmp_path))
    assert done.returncode == 1
    assert "step 2: verl logged critic/advantages/" in done.stderr


AGAIN = """
import json
import random

from bestofk.rewards import verifier
from bestofk.types import Prompt

JUDGE = verifier("maze")


class Again:
    def reset(self, raw_prompt, reward_model, **row):
        truth = json.loads(reward_model["ground_truth"])
        self.problem = Prompt(truth["id"], "", "maze", truth["spec"])
        self.maze, self.rewards = raw_prompt[0]["content"], []

    def __call__(self, text):
        self.rewards.append(JUDGE([self.problem], [text])[0].reward)
        return None if self.rewards[-1] == 1 or len(self.rewards) == 2 else self.maze

    def get_reward(self):
        paid = (1 + self.rewards[1]) / 4 if len(self.rewards) == 2 else sum(self.rewards)
        return paid + random.random() / 1000  # so that the weights move with every mini-batch
"""


@pytest.mark.slow
def test_verls_own_trainer_plays_an_environment_with_exact_inner_steps(tmp_path):
    """A wrong path gets the maze again; the second try pays a quarter, a path half."""
    (tmp_path / "again.py").write_text(AGAIN, encoding="utf-8")
    settings = [
        "trainer.total_training_steps=1",
        "data.max_response_length=80",
        "actor_rollout_ref.rollout.agent.default_agent_loop=bestofk",
        f"+algorithm.bestofk.environment={tmp_path / 'again.py'}:Again",
    ]
    done = train(tmp_path, *settings, TRAIN="exact")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(lines) == 1
    assert all("128 rollouts of 8 prompts, max@8" in line for line in lines)
    logged = [
        json.loads(line)["data"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert all(step["actor/log_ratio_max"] > 0.001 for step in logged)
    # the learner's log-probs of the drawn tokens are the server's, also after a reply
    assert max(step["training/rollout_probs_diff_max"] for step in logged) < 1e-4
    rows = [
        json.loads(line)
        for line in (tmp_path / "rollouts" / "1.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert {0.0, 0.25, 0.5, 1.0} >= {round(row["score"], 2) for row in rows} >= {0.25, 1.0}
    for row in rows:
        assert (row["input"] in row["output"]) == (row["score"] < 0.9)


def test_the_reward_of_the_maths_recipe_is_our_verifiers():
    score = runpy.run_path(str(RECIPE / "reward.py"))["compute_score"]
    truth = json.dumps({"id": "math/1", "spec": {"expected": "1/2"}, "verifier": "maths"})
    assert score("math", "So it is \\boxed{0.5}.", truth) == 1.0
    assert score("math", "So it is \\boxed{2}.", truth) == 0.0


PROBLEMS = {
    "gsm8k": {"question": "What is 2 + {i}?", "answer": "2 + {i} = <<2+{i}={j}>>{j}\n#### {j}"},
    "math": {
        "problem": "Find $2 + {i}$.",
        "solution": "It is $\\boxed{{{j}}}$.",
        "level": "Level 1",
    },
}


@pytest.mark.slow
def test_the_maths_recipe_runs_on_two_workers_with_unbiased_metrics(tmp_path):
    for name, fields in PROBLEMS.items():
        for split, first in (("train", 0), ("test", 20)):
            rows = [{key: text.format(i=i, j=i + 2) for key, text in fields.items()}
                    for i in range(first, first + 20)]  # fmt: skip
            with gzip.open(tmp_path / f"{name}-{split}.jsonl.gz", "wt", encoding="utf-8") as out:
                out.write("".join(json.dumps(row) + "\n" for row in rows))
    done = train(tmp_path / "run", recipe=MATHS, BESTOFK_DATA=str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert [line[:6] for line in lines] == ["step 1", "step 2"]
    path = tmp_path / "run" / "metrics.jsonl"
    logged = [json.loads(line)["data"] for line in path.read_text().splitlines()]
    assert all("bestofk/pass@8/high" in step for step in logged)
    for source in ("gsm8k", "math"):
        assert logged[-1][f"val-core/{source}/reward/pass@4"] == 0.0
        assert 0.3 < logged[-1][f"val-core/{source}/reward/pass@4/high"] < 0.6  # of four prompts


def test_the_table_of_the_page_is_what_the_code_prints():
    assert native.page() in (ROOT / "research" / "conformance.md").read_text(encoding="utf-8")
