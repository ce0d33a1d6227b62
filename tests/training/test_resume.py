"""A run that is killed, interrupted or moved ends like one that was never touched."""

import json
import os
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from bestofk.cli import main
from bestofk.config import Config, differences, merged, read
from bestofk.rewards.base import as_verdict
from bestofk.runs import Run, read_metrics, write_jsonl
from bestofk.tasks import countdown
from bestofk.training.batch import RolloutBatch
from bestofk.training.resolve import resolve
from bestofk.training.resume import QUEUE, unpacked
from bestofk.training.train import train
from bestofk.types import Group, Prompt, Trajectory, Verdict

OFF_POLICY = {"objective": "max@4", "off_policy": {"passes": 2, "mini_batches": 2}}
AHEAD = {"objective": "max@4", "off_policy": {"ahead": 2}}
TURNS = {
    **AHEAD,
    "task": {"environment": "training_judges:Asks", "verifier": "training_judges:counted"},
    "sampling": {"stop": list("02468"), "max_new_tokens": 40},
}
SCHEDULES = {
    "objective": "passk-training@4:bootstrap/50%/grpo",
    "loss": {"name": "clipped"},
    "off_policy": {"passes": 2},
    "optimizer": {"schedule": "cosine"},
    "sampling": {"refill": 1},
}


@pytest.fixture
def end_at(recipe, command, same_run, last_json, tmp_path):
    """Ends runs with signals at some moments; what is left must equal the untouched runs."""

    def end(**plans):
        asked = [
            (str(recipe(f"{name}.toml", **sections)), str(tmp_path / name), moments)
            for name, (moments, sections) in plans.items()
        ]
        done = command("tests/training/killing.py", json.dumps(asked))
        assert done.returncode == 0, done.stderr
        for name in plans:
            same_run(tmp_path / name / "whole", tmp_path / name / "ended")
        return last_json(done.stdout)

    return end


def test_ended_runs_resume_bit_for_bit(end_at):
    """Killed in every phase of a step, before and after its first checkpoint; asked to leave, which
    saves a checkpoint so that nothing is lost; and told twice, which leaves at once.

    Where batches are drawn ahead, the queue comes back from the checkpoint.
    """
    off_policy = ["step:6:KILL", "learn:4:KILL", "judge:2:TWICE", "record:2:INT"]
    ahead = [
        f"{phase}:{call}:KILL"
        for phase, call in (
            ("sample", 4), ("judge", 4), ("drawn", 2), ("learn", 2), ("step", 2), ("record", 2),
            ("save", 2), ("saved", 2),
        )
    ]  # fmt: skip
    late = {"run": {"steps": 5, "checkpoint_every": 1000}}
    ends = end_at(
        off_policy=(off_policy, OFF_POLICY),
        schedules=(["record:3:TERM"], SCHEDULES | late),
        ahead=(ahead, AHEAD | {"run": {"steps": 12, "checkpoint_every": 1}}),
        turns=(
            ["sample:4:KILL", "reply:90:KILL", "learn:2:KILL"],  # while environments answer, too
            TURNS | {"run": {"checkpoint_every": 1}},
        ),
        asked_with_a_queue=(["record:3:TERM"], AHEAD | late),
    )
    assert ends == [[-9, -9, -15, 130], [143], [-9] * len(ahead), [-9] * 3, [143]]


def test_a_queue_comes_back_as_it_was_on_any_number_of_processes():
    prompts = [
        Prompt(f"p{i}", ({"role": "user", "content": "?"},), "t", {"a": [1]}) for i in (0, 1)
    ]
    drawn = Trajectory([1, 2], None, [-0.1, -1 / 3], "x", "length")
    groups = [
        Group(p, (drawn, Trajectory([3, 4], [True, False], [-0.5, 0])), (5,), 0.7) for p in prompts
    ]
    rows = [(Verdict(0.1 + 0.2, "partial"), Verdict.unscored("broken")), (as_verdict(1),) * 2]
    whole = RolloutBatch(tuple(groups), tuple(rows), 9, 0, 4, {"sampler_gap_mean": 1e-7})
    parts = [replace(whole, groups=(g,), verdicts=(r,)) for g, r in zip(groups, rows)]
    stored = [QUEUE.dump_json([part]).decode() for part in parts]
    (back,) = unpacked(stored, cast(Any, SimpleNamespace(rank=0, size=1)))
    assert repr(back) == repr(whole)  # NaN is not equal to itself
    assert back.groups == whole.groups
    (second,) = unpacked(stored, cast(Any, SimpleNamespace(rank=1, size=2)))
    assert second.groups == whole.groups[1:]


def test_a_queue_of_an_earlier_version_is_read():
    stored = """[{"groups": [{"prompt": {"id": "p0", "text": "?", "task": "t", "spec": {"a": [1]},
        "reference": null}, "completions": [{"text": "x", "tokens": [1, 2], "logprobs": [-0.1,
        -1.5], "finish_reason": "length"}], "prompt_tokens": [5], "temperature": 0.7}], "verdicts":
        [[{"reward": NaN, "status": "unscored", "passed": 0, "total": 1, "cpu_seconds": 0.0, "tier":
        null, "detail": "broken", "parts": {}}]], "position": 9, "refilled": 0, "drawn_after": 4,
        "gap": {"sampler_gap_mean": 1e-7}}]"""
    (back,) = unpacked([stored], cast(Any, SimpleNamespace(rank=0, size=1)))
    drawn = Trajectory([1, 2], [True, True], [-0.1, -1.5], "x", "length")
    assert back.groups == (Group(Prompt("p0", "?", "t", {"a": [1]}), (drawn,), (5,), 0.7),)
    assert (back.position, back.drawn_after, back.verdicts[0][0].detail) == (9, 4, "broken")


@pytest.mark.parametrize("steps", [3, 6])
def test_leaving_right_before_an_evaluation_loses_and_repeats_none(
    recipe, same_run, tmp_path, monkeypatch, steps
):
    """Asked to leave in step 3, whose evaluation is due: the last one, or one of three."""
    config = read(recipe(**SCHEDULES, run={"steps": steps, "checkpoint_every": 1000}))
    whole, ended = (merged(config, {"run.dir": str(tmp_path / n)}) for n in ("whole", "ended"))
    assert train(resolve(whole)).signal is None
    recorded = Run.record

    def leave_in_step_3(run, line):
        recorded(run, line)
        if (line["kind"], line["step"]) == ("train", 3):
            os.kill(os.getpid(), signal.SIGTERM)

    def leave_in_evaluation_3(run, line):
        recorded(run, line)
        if (line["kind"], line["step"]) == ("evaluation", 3) and steps > 3:
            os.kill(os.getpid(), signal.SIGTERM)

    for resume, record in [(False, leave_in_step_3), (True, leave_in_evaluation_3)]:
        monkeypatch.setattr(Run, "record", record)
        outcome = train(resolve(ended, resume=resume))
        left = None if resume and steps == 3 else signal.SIGTERM
        assert (outcome.signal, outcome.step) == (left, 3)
    monkeypatch.setattr(Run, "record", recorded)
    assert train(resolve(ended, resume=True)).signal is None
    same_run(tmp_path / "whole", tmp_path / "ended")


def test_a_second_signal_leaves_at_once(recipe, command, tmp_path):
    """In the middle of a step whose judge never answers."""
    path = recipe(task={"verifier": "training_judges:endless"}, evaluation={"every": 0})
    child = command("-m", "bestofk", "train", path, wait=False)
    for line in child.stdout:
        if "judging now" in line:
            break
    child.terminate()
    assert any("once more to leave at once" in line for line in child.stderr)
    assert child.poll() is None
    child.terminate()
    assert child.wait(timeout=900) == -15
    child.stdout.close()
    child.stderr.close()


def test_a_run_may_be_moved_and_given_more_steps(recipe, same_run, tmp_path):
    config = read(recipe(evaluation={"every": 0}, run={"steps": 4}))
    train(resolve(merged(config, {"run.steps": 6})))
    moved = merged(config, {"run.dir": str(tmp_path / "other")})
    train(resolve(moved))
    shutil.move(tmp_path / "other", tmp_path / "third")
    third = merged(config, {"run.dir": str(tmp_path / "third"), "run.steps": 6})
    assert train(resolve(third, resume=True)).step == 6
    same_run(tmp_path / "run", tmp_path / "third")


def test_a_run_in_fp8_resumes_bit_for_bit_and_names_what_its_adapters_belong_to(
    recipe, same_run, tmp_path
):
    """A dry resolution does not ask for the GPU; on CPU the same numbers are plain products."""
    model = {"precision": "bf16", "lora_rank": 2, "advanced": {"lora_fp8": True}}
    for name, parts in (("a", [4]), ("b", [2, 4])):
        torch.manual_seed(0)  # adapters begin with random numbers
        for steps in parts:
            run = {"dir": str(tmp_path / name), "steps": steps}
            config = read(recipe(f"{name}.toml", model=model, run=run, evaluation={"every": 0}))
            train(resolve(config, resume=steps == 4 and len(parts) > 1, dry=True))
    same_run(tmp_path / "a", tmp_path / "b")
    lines = [line for line in read_metrics(tmp_path / "a") if line["kind"] == "train"]
    assert max(line["sampler_gap_mean"] for line in lines) < 0.1
    assert min(line["grad_norm"] for line in lines) > 0
    card = (tmp_path / "a" / "final" / "README.md").read_text()
    assert "LoRA of rank 2, its linear layers in FP8" in card
    assert "`adapter/` belongs to these" in card


def test_the_next_resume_knows_what_the_last_one_changed(recipe, tmp_path):
    """An extension, and another evaluation: the printed command states neither."""
    folder = tmp_path / "run"
    train(resolve(read(recipe(run={"steps": 3}))))
    changes = ["--run.steps", "5", "--evaluation.every", "1", "--evaluation.samples_per_prompt=2"]
    assert main(["train", "--resume", str(folder), *changes]) == 0
    assert main(["train", "--resume", str(folder)]) == 0
    stored = read(folder / "config.toml")
    assert (stored.run.steps, stored.evaluation.samples_per_prompt) == (5, 2)
    lines = [line for line in read_metrics(folder) if line["kind"] == "evaluation"]
    assert [(x["step"], x["samples_per_prompt"]) for x in lines] == [(0, 4), (3, 4), (4, 2), (5, 2)]
    best = json.loads((folder / "best.json").read_text())
    assert best["metric"] == "max@2"
    with pytest.raises(ValueError, match=r"has done 5 steps, more than run\.steps = 4"):
        train(resolve(merged(stored, {"run.steps": 4}), resume=True))
    assert read(folder / "config.toml") == stored


def test_a_threshold_that_chose_the_prompts_may_not_change():
    old = merged(Config(), {"task.advanced.pass_rates": "rates.jsonl"})
    new = merged(old, {"evaluation.threshold": 0.5, "evaluation.every": 3})
    assert differences(old, new) == ["evaluation.threshold: None → 0.5"]
    assert differences(Config(), merged(Config(), {"evaluation.threshold": 0.5})) == []


def test_resuming_a_finished_run_changes_nothing(recipe, tmp_path):
    config = read(recipe(run={"steps": 2}))
    train(resolve(config))
    before = read_metrics(tmp_path / "run")
    assert train(resolve(config, resume=True)).step == 2
    assert read_metrics(tmp_path / "run") == before


def test_a_changed_config_and_changed_data_are_refused(recipe, tmp_path):
    config = read(recipe(run={"steps": 3}))
    train(resolve(config))
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: 0.01 → 0.5"):
        train(resolve(merged(config, {"optimizer.learning_rate": 0.5}), resume=True))
    # An edited config.toml does not deceive: the checkpoint knows what it was made with.
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("learning_rate = 0.01", "learning_rate = 0.5"))
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: 0.01 → 0.5"):
        train(resolve(read(file), resume=True))
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 2


def test_lost_checkpoints_are_noticed_and_a_run_before_its_first_starts_over(recipe, tmp_path):
    config = read(recipe(run={"steps": 5, "checkpoint_every": 2}))
    train(resolve(config))
    before = read_metrics(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(FileNotFoundError, match="metrics up to step 5 and no checkpoint"):
        train(resolve(config, resume=True))
    assert read_metrics(tmp_path / "run") == before
    early = [line for line in before if line["step"] <= 2]  # killed while it wrote the first one
    write_jsonl(tmp_path / "run" / "metrics.jsonl", early)
    assert train(resolve(config, resume=True)).step == 5


def test_other_data_under_the_same_name_are_noticed(recipe, monkeypatch):
    config = read(recipe(run={"steps": 2}))
    train(resolve(config))
    original = countdown.identity
    monkeypatch.setattr(countdown, "identity", lambda task, content: original(task, content + "!"))
    with pytest.raises(ValueError, match="the data changed since the run was started"):
        train(resolve(config, resume=True))


@pytest.mark.slow
def test_a_run_under_random_faults_ends_like_the_untouched_one(command, tmp_path):
    """The short form of `make chaos`."""
    done = command("tools/chaos.py", "--rounds", "1", "--seed", "4", "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["rounds"] == 1
    assert told["steps"] == 12
    assert told["lives"] > 1
    assert told["sandbox processes killed"] > 0
    assert told["clock jumps"] > 0
    assert told["rewards checked"] > 500
