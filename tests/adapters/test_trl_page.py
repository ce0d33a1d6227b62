"""docs/adapters/trl.md: its examples run as shown, the verdicts on TRL are what its code gives."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl", reason="TRL is not installed here: pip install 'bestofk[trl]'")

from datasets import Dataset
from trl import GRPOTrainer

import bestofk
from adapters import trl_native
from adapters.trl_runs import Judge, config, prompts
from bestofk.adapters.trl import BestOfKTrainer
from bestofk.estimator_checks import conformance
from bestofk.models import load
from bestofk.models.load import find

PAGE = (Path(__file__).parents[2] / "docs" / "adapters" / "trl.md").read_text(encoding="utf-8")
VERDICTS = Path(__file__).parents[2] / "research" / "conformance.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_three_lines_run_as_shown(tmp_path):
    """`model` is the name of a folder, as most people give it."""
    [lines] = [
        text for text in EXAMPLES if "(model, reward, args" in text and "GRPOConfig" not in text
    ]
    assert len(lines.strip().splitlines()) == 3
    given = {
        "model": find("tiny-countdown")[0],
        "reward": Judge(),
        "args": config(tmp_path, num_generations=16, per_device_train_batch_size=16),
        "prompts": prompts(),
    }
    exec(lines, given)
    assert str(given["trainer"].training_objective) == "max@8"
    assert "max@8" in given["trainer"].state.log_history[0]


def test_several_steps_per_batch_run_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [lines] = [text for text in EXAMPLES if "steps_per_generation=8" in text]
    data = Dataset.from_dict({"prompt": [f"{a} {b} 7={a + b}\n" for a in (1, 2) for b in range(4)]})
    given = {"BestOfKTrainer": BestOfKTrainer, "model": find("tiny-countdown")[0],
             "reward": Judge(), "prompts": data}  # fmt: skip
    exec(lines, given)
    run = given["trainer"]
    run.args.max_steps = run.args.logging_steps = 2
    run.args.max_completion_length = run.max_completion_length = 12
    run.train()
    assert run.training_objective.trust_region == (0.2, 0.28)
    assert [line["log_ratio_max"] > 0 for line in run.state.log_history if "loss" in line] != []
    assert given["reward"].calls == [128]  # one batch, two optimiser steps of it


def test_the_block_of_the_readme_is_the_first_of_the_page():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert [text for text in blocks if "trl" in text] == EXAMPLES[:1]


@pytest.mark.slow
def test_the_whole_example_runs_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [text] = [text for text in EXAMPLES if "load(" in text]
    given: dict = {}
    exec(text, given)
    assert [line["step"] for line in given["trainer"].state.log_history if "max@8" in line] == [
        1, 2, 3, 4, 5,
    ]  # fmt: skip


def test_the_mixin_runs_as_shown(tmp_path):
    [text] = [text for text in EXAMPLES if "class Mine" in text]
    given = {"SomeGRPOTrainer": GRPOTrainer}
    exec(text, given)
    policy = load("tiny-countdown")
    args = config(tmp_path, num_generations=16, per_device_train_batch_size=16)
    run = given["Mine"](
        policy.model, Judge(), args, train_dataset=prompts(), processing_class=policy.tokenizer
    )
    run.train()
    assert "max@8" in run.state.log_history[0]


def test_any_grpo_trainer_logs_unbiased_figures_after_one_line(tmp_path):
    [text] = [text for text in EXAMPLES if "log_best_of_k(trainer)" in text]
    policy, judge = load("tiny-countdown"), Judge(unscored=(1,))
    args = config(tmp_path, max_steps=2, logging_steps=2)
    plain = GRPOTrainer(
        policy.model, judge, args, train_dataset=prompts(), eval_dataset=prompts(3),
        processing_class=policy.tokenizer,
    )  # fmt: skip
    exec(text, {"trainer": plain})
    plain.train()
    [line] = [line for line in plain.state.log_history if "loss" in line]
    groups = [group[~np.isnan(group)] for group in judge.rewards(8)]
    wanted = np.mean([bestofk.max_at_k(group, 4) for group in groups])
    assert line["max@4"] == pytest.approx(wanted, rel=1e-5)
    assert line["max@4/low"] < line["max@4"] < line["max@4/high"]
    seen = len(judge.rewards(8))
    found = plain.evaluate()
    wanted = np.mean([bestofk.max_at_k(group, 4) for group in judge.rewards(8)[seen:]])
    assert found["eval_max@4"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trl_trains_the_mean_and_we_train_the_best():
    """Through TRL's own function, by exact enumeration."""
    theirs = conformance(trl_native.inside(GRPOTrainer, scale_rewards="none"), 2, 4, quiet=True)
    assert theirs.verdict == "other objective"
    assert "mean reward (max@1), times 0.75" in theirs.summary
    ours = conformance(trl_native.inside(BestOfKTrainer, objective="max@2"), 2, 4, quiet=True)
    assert ours.verdict == "exact"
    fine = {finding.check for finding in ours.findings if finding.status == "ok"}
    assert {"padding", "n < k"} <= fine
    assert not ours.defects


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_table_is_what_the_code_prints():
    printed = trl_native.judged()
    assert len(printed.splitlines()) > 10
    assert printed in VERDICTS.read_text(encoding="utf-8")
