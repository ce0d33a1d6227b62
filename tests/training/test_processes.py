"""Two processes (gloo, CPU): the same batch, the same update; one that dies takes both down."""

import pytest
import torch
from safetensors.torch import load_file

from bestofk.runs import read_metrics

EXACT = {"objective": "max@4", "off_policy": {"passes": 2, "mini_batches": 2}}
ADAPTIVE = {
    "objective": "passk-training@4:adaptive",
    "objective_options": {"threshold": 0.8},
    "loss": {"name": "clipped", "normaliser": "dapo", "kl": 0.05},
}
REFILL = {"objective": "max@4", "objective_options": {"threshold": 0.9}, "sampling": {"refill": 2}}


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param(EXACT, id="exact"),
        pytest.param(ADAPTIVE, id="adaptive", marks=pytest.mark.slow),
        pytest.param(REFILL, id="refill", marks=pytest.mark.slow),
    ],
)
def test_one_process_and_two_give_the_same_updates(sections, recipe, command, last_json, tmp_path):
    """... also when the two are stopped half way and resumed."""
    path = recipe(**sections, run={"steps": 4}, optimiser={"learning_rate": 1e-3})
    done = command("tests/training/ranks.py", "same", path, tmp_path)
    logs = "".join(file.read_text() for file in sorted(tmp_path.glob("*.log.*")))
    assert done.returncode == 0, done.stderr + logs
    assert last_json(done.stdout)["ends"] == [[0], [0, 0], [0, 0]], logs
    one, two = read_metrics(tmp_path / "one"), read_metrics(tmp_path / "two")
    start = load_file(tmp_path / "one" / "checkpoints" / "step-000002" / "weights.safetensors")
    a, b = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("one", "two"))
    assert max(float((a[key] - b[key]).abs().max()) for key in a) < 1e-5
    assert max(float((a[key] - start[key]).abs().max()) for key in start) > 5e-4  # it did move
    half = [line for line in two if line["kind"] == "train"]
    whole = [line for line in one if line["kind"] == "train"]
    assert [line["step"] for line in half] == [1, 2, 3, 4]
    names = ("reward", "max@4", "entropy", "groups_with_signal", "grad_norm", "refilled", "ess")
    for ours, theirs in zip(whole, half):
        assert ours.keys() == theirs.keys()
        for name in names:
            if name in ours:
                assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name


def test_a_process_that_dies_stops_the_other_with_a_word(recipe, command, last_json, tmp_path):
    path = recipe(run={"steps": 100_000}, evaluation={"every": 0})
    done = command("tests/training/ranks.py", "dies", path, tmp_path)
    assert done.returncode == 0, done.stderr
    told = last_json(done.stdout)
    assert told["ends"][1] == -9
    assert told["ends"][0] == 1
    assert told["seconds"] < 60
    said = (tmp_path / "log.0").read_text()
    assert "process 1 of 2 died" in said
    assert f"--resume {tmp_path / 'run'}" in said


def test_a_batch_that_processes_cannot_share_is_refused():
    from bestofk.training.processes import Processes

    processes = Processes(device="cpu")
    processes.size = 3
    with pytest.raises(ValueError, match=r"must be a multiple of processes × mini-batches = 3 × 2"):
        processes.share(16, 2)
    processes.share(18, 2)
    assert torch.get_num_threads() > 0
