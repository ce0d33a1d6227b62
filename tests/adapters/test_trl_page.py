"""docs/adapters/trl.md: its examples run as shown, its table is what TRL's own code gives."""

import re
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed here: pip install 'bestofk[trl]'")

from datasets import Dataset
from trl import GRPOTrainer

from adapters import trl_native
from adapters.trl_runs import Judge, config, one_thread, prompts
from bestofk.adapters.trl import BestOfKTrainer
from bestofk.conformance import conformance
from bestofk.models import load
from bestofk.models.load import find

PAGE = (Path(__file__).parents[2] / "docs" / "adapters" / "trl.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    with one_thread():
        yield


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
    assert printed in PAGE
