"""A run's folder: written whole or not at all, found damaged when damaged, never torn."""

import json
import os
import re
import resource
import subprocess

import pytest
import torch

from bestofk.runs import (
    DamagedCheckpoint,
    Run,
    damage,
    read_metrics,
    read_samples,
    write_atomically,
    write_folder,
)
from bestofk.storage import json_safe

OPENED: list[Run] = []


def make(path, **options):
    OPENED.append(Run.create(path / "run", "seed = 1\n", {"python": "3"}, **options))
    return OPENED[-1]


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPENED:
        OPENED.pop().close()


def save(run, step, size=64):
    for done in range(last_step(run) + 1, step + 1):
        run.record({"kind": "train", "step": done, "reward": done / 7})
    generator = torch.Generator().manual_seed(step)
    tensors = {"w": torch.randn(size, generator=generator)}
    trainer = {"optimiser": {"m": torch.full((3,), step)}, "steps": step}
    return run.save(step, tensors=tensors, trainer=trainer, state={"position": 10 * step})


def last_step(run):
    file = run.path / "metrics.jsonl"
    return max((line["step"] for line in read_metrics(run.path)), default=0) if file.exists() else 0


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path):
    run = make(tmp_path)
    save(run, 1)
    save(run, 2)
    found = run.restore()
    assert (found.step, found.state["position"]) == (2, 20)
    expected = torch.randn(64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(found.tensors()["w"], expected)
    assert found.trainer_state()["steps"] == 2


def test_a_run_is_created_once_and_held_by_one_process(tmp_path):
    run = make(tmp_path)
    with pytest.raises(BlockingIOError, match="being trained by another process"):
        make(tmp_path)
    run.close()
    run = make(tmp_path)  # it never began: nothing to lose
    run.record({"kind": "train", "step": 1})
    with pytest.raises(FileExistsError, match="--resume"):
        make(tmp_path)
    with pytest.raises(BlockingIOError, match="another process"):
        Run.open(run.path)
    run.close()
    Run.open(run.path).close()
    with pytest.raises(FileNotFoundError, match="is not a run"):
        Run.open(tmp_path)


@pytest.mark.parametrize("harm", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_named(tmp_path, harm):
    run = make(tmp_path)
    save(run, 1)
    path = save(run, 2)
    file = path / "weights.safetensors"
    content = bytearray(file.read_bytes())
    if harm == "flip":
        content[-1] ^= 1
        file.write_bytes(content)
    elif harm == "cut":
        file.write_bytes(content[:-8])
    elif harm == "remove":
        file.unlink()
    else:
        (path / "manifest.json").write_text("{")
    with pytest.raises(DamagedCheckpoint, match=r"the last good one is step-000001: --resume") as e:
        run.restore()
    assert str(path) in str(e.value)
    assert damage(run.checkpoints.paths()[0]) is None
    found = run.restore("step-000001")
    assert found.step == 1
    assert [path.name for path in run.checkpoints.paths()] == ["step-000001"]
    assert [line["step"] for line in read_metrics(run.path)] == [1]


def test_metrics_after_the_checkpoint_are_dropped_and_lost_ones_noticed(tmp_path):
    run = make(tmp_path)
    save(run, 2)
    run.record({"kind": "train", "step": 3, "reward": float("nan")})
    with open(run.path / "metrics.jsonl", "a") as f:
        f.write('{"kind": "train", "ste')
    run.record_samples(2, [{"step": 2}])
    run.record_samples(3, [{"step": 3}])
    run.restore()
    assert [line["step"] for line in read_metrics(run.path)] == [1, 2]
    assert [row["step"] for row in read_samples(run.path)] == [2]
    (run.path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    with pytest.raises(ValueError, match="ends at step 1, before the checkpoint of step 2"):
        run.restore()
    (run.path / "metrics.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=re.escape("metrics.jsonl is missing")):
        run.restore()


def test_a_torn_line_in_the_middle_is_an_error_not_a_gap(tmp_path):
    run = make(tmp_path)
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_metrics(run.path)


def test_the_last_checkpoints_are_kept_and_leftovers_removed(tmp_path):
    run = make(tmp_path)
    for step in range(1, 6):
        save(run, step)
    (run.path / "checkpoints" / ".writing-step-000009").mkdir()
    run.checkpoints.prune(2)
    names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert names == ["step-000004", "step-000005"]


def test_samples_stay_under_their_limit_and_the_newest_are_kept(tmp_path):
    run = make(tmp_path, samples_bytes=3000)
    for step in range(1, 30):
        run.record_samples(step, [{"step": step, "completion": "x" * 400}])
    steps = [row["step"] for row in read_samples(run.path)]
    assert steps == list(range(30 - len(steps), 30))
    size = sum(f.stat().st_size for f in (run.path / "samples").iterdir())
    assert 2000 < size <= 3000


def test_only_the_best_model_is_kept(tmp_path):
    run = make(tmp_path)
    for step, value in [(5, 0.2), (9, 0.4)]:
        run.save_best(step, value, "max@8", lambda path: (path / "w").write_text("x") and None)
    note = json.loads((run.path / "best.json").read_text())
    assert note == {"step": 9, "metric": "max@8", "value": 0.4}
    assert sorted(path.name for path in (run.path / "best").iterdir()) == ["manifest.json", "w"]
    run.close()
    (run.path / "best").rename(run.path / ".before-best")  # a kill between the two renames
    Run.open(run.path).close()
    assert (run.path / "best" / "w").read_text() == "x"


def test_numbers_json_does_not_have_become_null():
    assert json_safe({"a": [float("nan"), 1.5], "b": (float("inf"), "nan", 3)}) == {
        "a": [None, 1.5], "b": [None, "nan", 3]
    }  # fmt: skip


def test_a_disk_that_takes_no_more_is_told_and_the_last_good_checkpoint_is_intact(tmp_path):
    run = make(tmp_path)
    save(run, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match="cannot write the checkpoint of step 2") as caught:
            save(run, 2, size=100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value).startswith("cannot write")  # and no number of an error
    assert "the last good checkpoint, step-000001, is intact" in str(caught.value)
    assert [path.name for path in run.checkpoints.paths()] == ["step-000001"]
    assert not list((run.path / "checkpoints").glob(".writing-*"))
    found = run.restore()
    assert found is not None
    assert found.step == 1


def test_a_disk_that_is_full_is_called_full(tmp_path):
    """torch and safetensors have words of their own for it, which nobody understands."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        run = make(tmp_path)
        save(run, 1, size=1000)
        with pytest.raises(OSError, match=r"no space left on .*step-000001, is intact; make room"):
            save(run, 2, size=1_100_000)
        assert damage(run.path / "checkpoints" / "step-000001") is None
        run.close()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


KILLED = """
import builtins, io, itertools, os, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_runs import Run, make, read_metrics, save, torch
folder = Path({folder!r})
make(folder).close()

def step_of(found):
    return found.step if found else 0

def dies(real, calls, last):
    def call(*args, **named):
        if next(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **named)
    return call

reached, ends = [], []
for last in itertools.count(1):
    child = os.fork()
    if not child:
        calls = itertools.count(1)
        for name in ("open", "mkdir", "fsync", "replace", "rename", "unlink", "rmdir"):
            setattr(os, name, dies(getattr(os, name), calls, last))
        builtins.open = io.open = dies(open, calls, last)
        run = Run.open(folder / "run")
        first = step_of(run.restore()) + 1
        for step in range(first, first + 2):
            save(run, step, size=2_000)
            run.checkpoints.prune(2)
        os._exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    run = Run.open(folder / "run")
    found = run.restore()
    run.close()
    reached.append(step_of(found))
    if found:
        expected = torch.randn(2_000, generator=torch.Generator().manual_seed(found.step))
        assert torch.equal(found.tensors()["w"], expected)
        steps = [line["step"] for line in read_metrics(run.path)]
        assert steps == list(range(1, found.step + 1)), steps
    if ends[-1] == 0:
        break
assert reached == sorted(reached), reached
assert set(ends[:-1]) == {{-9}}, ends
print(len(ends), reached[-1])
"""


def test_a_run_killed_while_writing_is_always_whole(tmp_path, warm):
    """SIGKILL before every call that opens, makes, moves or removes something on the disk."""
    code = KILLED.format(here=os.path.dirname(__file__), folder=str(tmp_path))
    words = [str(warm / "python"), "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    calls, step = map(int, done.stdout.split())
    assert calls > 40
    assert step > 20


def test_writing_leaves_nothing_behind_when_it_fails(tmp_path):
    def fill(folder):
        (folder / "a").write_text("a")
        raise RuntimeError("PytorchStreamWriter failed writing file")

    with pytest.raises(OSError, match="PytorchStreamWriter failed"):
        write_folder(tmp_path / "x", fill)
    with pytest.raises(OSError, match="No such file"):
        write_atomically(tmp_path / "missing" / "y", "text")
    assert list(tmp_path.iterdir()) == []
