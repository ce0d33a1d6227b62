"""Two processes (gloo, CPU): the same batch, the same update; one that dies takes both down."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from bestofk.runs import read_metrics, read_samples

EXACT = {"objective": "max@4", "off_policy": {"passes": 2, "mini_batches": 2}}
ADAPTIVE = {
    "objective": "passk-training@4:adaptive",
    "objective_options": {"threshold": 0.8},
    "loss": {"name": "clipped", "normaliser": "dapo", "kl": 0.05},
}
REFILL = {"objective": "max@4", "objective_options": {"threshold": 0.9}, "sampling": {"refill": 2}}
DRAWN = {
    "objective": "passk-training@4:bootstrap",
    "loss": {"name": "clipped"},
    "off_policy": {"mini_batches": 2},
}
ADAPTERS = {
    "objective": "max@4",
    "model": {"lora_rank": 2, "advanced": {"gradient_checkpointing": True}},
    "loss": {"kl": 0.05},
}
SELDOM = {
    "objective": "max@4",
    "task": {"verifier": "training_judges:seldom"},
    "sampling": {"prompts_per_step": 2},
}
SEVERAL_TURNS = {
    "objective": "max@4",
    "task": {"environment": "training_judges:Asks", "verifier": "training_judges:counted"},
    "sampling": {"stop": list("02468"), "max_new_tokens": 40},
}
CLIPPED = {"objective": "max@4", "optimizer": {"max_grad_norm": 0.01, "learning_rate": 1e-3}}
WAYS = {
    "one": [(1, False, 4)],
    "two": [(2, False, 2), (2, False, 4)],
    "sharded": [(2, True, 2), (2, True, 4)],
    "grown": [(1, False, 2), (2, False, 4)],
    "shrunk": [(2, True, 2), (1, False, 4)],
}
"""(processes, sharded, steps) of each life; all but the first are resumed."""
IN_TURN = {"one": WAYS["one"], "turns": [(1, False, 1), (2, False, 2), (2, True, 3), (1, False, 4)]}
"""The same changes of a run in one row: to two processes, to shared-out weights, back to one."""
DIES: dict[str, list[tuple[int, bool, int]]] = {"dies": []}


def weights(run):
    return load_file(run / "final" / "model.safetensors")


def apart(one, other):
    assert one.keys() == other.keys()
    return max(float((one[key] - other[key]).abs().max()) for key in one)


@pytest.mark.parametrize(
    ("sections", "ways"),
    [
        pytest.param(EXACT, IN_TURN, id="exact"),
        *(
            pytest.param(sections, WAYS, marks=pytest.mark.slow)
            for sections in (
                EXACT,
                ADAPTIVE,
                REFILL,
                DRAWN,
                ADAPTERS,
                SELDOM,
                CLIPPED,
                SEVERAL_TURNS,
            )
        ),
    ],
)
def test_the_same_batch_gives_the_same_updates_however_it_is_shared(
    sections, ways, recipe, command, last_json, tmp_path, small_model
):
    """One process, two, two with shared-out weights; resumed by as many, by more, by fewer.

    A process that dies stops the other with a word.
    """
    sections = {"optimizer": {"learning_rate": 1e-3}} | sections
    sections["model"] = {"device": "auto"} | sections.get("model", {})  # as a recipe leaves it
    path = recipe(**sections, run={"steps": 4})
    done = command("tests/training/ranks.py", path, tmp_path, json.dumps({**ways, **DIES}))
    logs = "".join(file.read_text() for file in sorted(tmp_path.glob("*.log.*")))
    assert done.returncode == 0, done.stderr + logs
    expected = {name: [[0] * life[0] for life in lives] for name, lives in ways.items()}
    assert last_json(done.stdout) == {**expected, "dies": [[1, -9]]}, logs
    said = (tmp_path / "dies.log.0").read_text()
    assert "process 1 of 2 died" in said
    assert f"--resume {tmp_path / 'dies'}" in said
    one, start = weights(tmp_path / "one"), load_file(small_model / "model.safetensors")
    assert apart(one, start) > 5e-4  # it did move
    whole = [line for line in read_metrics(tmp_path / "one") if line["kind"] == "train"]
    if "seldom" in str(sections):
        signal = [line["groups_with_signal"] for line in whole]
        assert 0 in signal[signal.index(max(signal)) :], signal  # a silent step after a loud one
    drawn = [(row["prompt_id"], row["completion"]) for row in read_samples(tmp_path / "one")]
    for name in ways:
        assert apart(one, weights(tmp_path / name)) < 1e-5, name
        AutoModelForCausalLM.from_pretrained(tmp_path / name / "final")
        lines = [line for line in read_metrics(tmp_path / name) if line["kind"] == "train"]
        assert [line["step"] for line in lines] == [1, 2, 3, 4]
        for ours, theirs in zip(whole, lines):
            assert ours.keys() == theirs.keys()
            for what in ("reward", "max@4", "entropy", "groups_with_signal", "grad_norm", "lr",
                         "refilled", "ess", "clip_fraction", "kl", "sampler_gap_max"):  # fmt: skip
                if what in ours:
                    close = pytest.approx(theirs[what], rel=1e-3, abs=1e-5)
                    assert ours[what] == close, (name, what)
        rows = [(row["prompt_id"], row["completion"]) for row in read_samples(tmp_path / name)]
        assert rows == drawn, name


@pytest.mark.slow
def test_a_launcher_that_starts_one_process_of_several_is_told_on(recipe, command, tmp_path):
    """accelerate starts one process on CPU, whatever number it was asked for, without a word."""
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "-m")
    done = command(*launch, "bestofk", "train", recipe())
    assert done.returncode != 0
    assert "torchrun --nproc_per_node" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_launcher_whose_processes_would_each_train_the_whole_run_is_refused():
    from bestofk.training.processes import check_launcher

    check_launcher({"MASTER_PORT": "1", "WORLD_SIZE": "2", "ACCELERATE_MIXED_PRECISION": "no"})
    check_launcher({"ACCELERATE_MIXED_PRECISION": "no", "PMI_SIZE": "1"})
    alone = [{"MASTER_PORT": "1", "ACCELERATE_MIXED_PRECISION": "no"}, {"PMI_SIZE": "2"}]
    for environ in alone:
        with pytest.raises(ValueError, match="torchrun --nproc_per_node N -m bestofk train"):
            check_launcher(environ)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_torchrun_starts_processes_that_share_the_work(
    recipe, command, tmp_path, monkeypatch, device
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = recipe(run={"steps": 2}, model={"device": device, "advanced": {"fsdp": True}})
    launch = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "-m")
    done = command(*launch, "bestofk", "train", path)
    assert done.returncode == 0, done.stderr
    assert "2 processes on cpu" in done.stdout
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final")


def test_processes_beyond_the_gpus_share_them_in_turn(monkeypatch):
    from bestofk.training.processes import backend, device_of

    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    ranks = [{"LOCAL_RANK": str(rank)} for rank in range(3)]
    assert [device_of("auto", rank) for rank in ranks] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [device_of(name, ranks[1]) for name in ("cpu", "cuda", "cuda:0")] == [
        "cpu", "cuda:1", "cuda:0",
    ]  # fmt: skip
    assert device_of("auto", {}) == "cuda"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert backend("cuda:0") == backend("cpu") == "gloo"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [backend("cuda:0"), backend("cpu")] == ["nccl", "gloo"]


def test_what_ranks_say_of_a_batch_becomes_one_figure():
    """NaN stays: a rank whose log-probs are broken is not outvoted."""
    from bestofk.learning.distributed import mean, total

    ranks = [{"loss": 1.0, "rows": 2.0, "gap_max": 3.0}, {"loss": 2.0, "rows": 4.0, "gap_max": 1.0}]
    assert total(ranks) == {"loss": 1.5, "rows": 6.0, "gap_max": 3.0}
    assert mean(ranks) == {"loss": 1.5, "rows": 3.0, "gap_max": 2.0}
    ranks[1]["gap_max"] = float("nan")
    assert math.isnan(total(ranks)["gap_max"])


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    from bestofk.training.processes import check_device

    check_device("auto")
    check_device("cpu")
    with pytest.raises(ValueError, match=r"auto, cpu, cuda .* got 'gpuu'"):
        check_device("gpuu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"'cuda:1'.* sees no GPU here: 'auto'"):
        check_device("cuda:1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check_device("cuda:1")
    with pytest.raises(ValueError, match="last GPU that PyTorch sees here is cuda:1"):
        check_device("cuda:2")


def test_fp8_needs_a_gpu_that_has_it(monkeypatch):
    from bestofk.training.processes import check_fp8

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for name in ("auto", "cpu"):
        with pytest.raises(ValueError, match=r"8.9 or higher .*, and this run is on CPU: leave it"):
            check_fp8(name)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for found, name in (((9, 0), "auto"), ((8, 9), "cuda"), ((10, 0), "cuda:1")):
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda _, found=found: found)
        check_fp8(name)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (8, 6))
    with pytest.raises(ValueError, match=r"and this one has 8.6: leave it out"):
        check_fp8("cuda")


def test_a_batch_that_processes_cannot_share_is_refused():
    from bestofk.training.processes import Processes

    processes = Processes(device="cpu")
    processes.size = 3
    with pytest.raises(ValueError, match=r"must be a multiple of processes × mini-batches = 3 × 2"):
        processes.check_share(16, 2)
    processes.check_share(18, 2)
    assert torch.get_num_threads() > 0
