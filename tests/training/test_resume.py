"""A run that is killed, interrupted or moved ends like one that was never touched."""

import os
import random
import shutil
import signal

import pytest

from bestofk.config import read, replaced
from bestofk.runs import Run, read_metrics, write_jsonl
from bestofk.tasks import countdown
from bestofk.training.train import train

OFF_POLICY = {"objective": "max@4", "off_policy": {"passes": 2, "mini_batches": 2}}
SCHEDULES = {
    "objective": "passk-training@4:bootstrap/50%/grpo",
    "loss": {"name": "clipped"},
    "off_policy": {"passes": 2},
    "optimizer": {"schedule": "cosine"},
    "sampling": {"refill": 1},
}


@pytest.fixture
def end_at(recipe, command, same_run, last_json, tmp_path):
    """Ends a run with a signal at some moments; what is left must equal the untouched run."""

    def end(signal, moments, **sections):
        done = command("tests/training/killing.py", recipe(**sections), tmp_path, signal, *moments)
        assert done.returncode == 0, done.stderr
        same_run(tmp_path / "whole", tmp_path / "ended")
        return last_json(done.stdout)

    return end


def test_killed_runs_resume_bit_for_bit(end_at):
    moments = [random.Random(number).uniform(0.1, 0.35) for number in range(3)]
    assert end_at("KILL", moments, **OFF_POLICY)["ends"] == [-9, -9, -9]


def test_a_first_signal_leaves_with_a_checkpoint_and_nothing_is_lost(end_at, tmp_path):
    told = end_at("TERM", [0.4, 0.3], **SCHEDULES, run={"checkpoint_every": 1000})
    assert told["ends"] == [143, 143]


@pytest.mark.parametrize("steps", [3, 6])
def test_leaving_right_before_an_evaluation_loses_and_repeats_none(
    one_thread, recipe, same_run, tmp_path, monkeypatch, steps
):
    """Asked to leave in step 3, whose evaluation is due: the last one, or one of three."""
    config = read(recipe(**SCHEDULES, run={"steps": steps, "checkpoint_every": 1000}))
    whole, ended = (replaced(config, "run.dir", str(tmp_path / n)) for n in ("whole", "ended"))
    assert train(whole).signal is None
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
        outcome = train(ended, resume=resume)
        left = None if resume and steps == 3 else signal.SIGTERM
        assert (outcome.signal, outcome.step) == (left, 3)
    monkeypatch.setattr(Run, "record", recorded)
    assert train(ended, resume=True).signal is None
    same_run(tmp_path / "whole", tmp_path / "ended")


@pytest.mark.slow
@pytest.mark.parametrize("sections", [OFF_POLICY, SCHEDULES], ids=["off policy", "schedules"])
@pytest.mark.parametrize("signal", ["KILL", "INT", "TWICE"])
def test_ended_at_twenty_moments(end_at, signal, sections):
    rng = random.Random(signal)
    moments = [rng.uniform(0.02, 0.5) for _ in range(20)]
    run = {"steps": 40, "checkpoint_every": 2}
    told = end_at(signal, moments, **sections, run=run)
    how = {"KILL": -9, "INT": 130, "TWICE": -15}[signal]
    assert sum(end == how for end in told["ends"]) >= 3  # later lives may end before their moment


def test_a_second_signal_leaves_at_once(recipe, command, tmp_path):
    """In the middle of a step whose judge never answers."""
    path = recipe(task={"verifier": "training_judges:endless"}, evaluation={"every": 0})
    child = command("-m", "bestofk", "train", path, wait=False)
    for line in child.stdout:
        if "judging now" in line:
            break
    child.terminate()
    assert "once more to leave at once" in child.stderr.readline() + child.stderr.readline()
    assert child.poll() is None
    child.terminate()
    assert child.wait(timeout=900) == -15
    child.stdout.close()
    child.stderr.close()


def test_a_run_may_be_moved_and_given_more_steps(recipe, one_thread, same_run, tmp_path):
    config = read(recipe(evaluation={"every": 0}, run={"steps": 4}))
    train(replaced(config, "run.steps", 6))
    moved = replaced(config, "run.dir", str(tmp_path / "other"))
    train(moved)
    shutil.move(tmp_path / "other", tmp_path / "third")
    third = replaced(replaced(config, "run.dir", str(tmp_path / "third")), "run.steps", 6)
    assert train(third, resume=True).step == 6
    same_run(tmp_path / "run", tmp_path / "third")


def test_resuming_a_finished_run_changes_nothing(recipe, one_thread, tmp_path):
    config = read(recipe(run={"steps": 2}))
    train(config)
    before = read_metrics(tmp_path / "run")
    assert train(config, resume=True).step == 2
    assert read_metrics(tmp_path / "run") == before


def test_a_changed_config_and_changed_data_are_refused(recipe, one_thread, tmp_path):
    config = read(recipe(run={"steps": 3}))
    train(config)
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: 0.01 → 0.5"):
        train(replaced(config, "optimizer.learning_rate", 0.5), resume=True)
    # An edited config.toml does not deceive: the checkpoint knows what it was made with.
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("learning_rate = 0.01", "learning_rate = 0.5"))
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: 0.01 → 0.5"):
        train(read(file), resume=True)
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 2


def test_lost_checkpoints_are_noticed_and_a_run_before_its_first_starts_over(
    recipe, one_thread, tmp_path
):
    config = read(recipe(run={"steps": 5, "checkpoint_every": 2}))
    train(config)
    before = read_metrics(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(FileNotFoundError, match="metrics up to step 5 and no checkpoint"):
        train(config, resume=True)
    assert read_metrics(tmp_path / "run") == before
    early = [line for line in before if line["step"] <= 2]  # killed while it wrote the first one
    write_jsonl(tmp_path / "run" / "metrics.jsonl", early)
    assert train(config, resume=True).step == 5


def test_other_data_under_the_same_name_are_noticed(recipe, one_thread, monkeypatch):
    config = read(recipe(run={"steps": 2}))
    train(config)
    original = countdown.identity
    monkeypatch.setattr(countdown, "identity", lambda task, content: original(task, content + "!"))
    with pytest.raises(ValueError, match="the data changed since the run was started"):
        train(config, resume=True)
