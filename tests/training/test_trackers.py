"""Trackers get what metrics.jsonl says: read back from what each of them wrote."""

import os
import struct
import subprocess
import sys

import pytest

from bestofk.config import merged, read
from bestofk.runs import read_metrics
from bestofk.training.checks import check, check_installed
from bestofk.training.resolve import resolve
from bestofk.training.train import train


@pytest.fixture
def trained(recipe, command, tmp_path, monkeypatch):
    """A run of two steps with a tracker, in a process of its own, that is resumed for a third."""

    def run(tracker):
        pytest.importorskip(tracker, reason=f"{tracker} is not installed")
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
        path = recipe(run={"steps": 2, "trackers": [tracker]}, evaluation={"every": 2})
        for words in ([path], ["--resume", tmp_path / "run", "--run.steps", "3"]):
            done = command("-m", "bestofk", "train", *words)
            assert done.returncode == 0, done.stderr
        return tmp_path / "run"

    return run


def said(run, kind):
    return [(line["step"], line) for line in read_metrics(run) if line["kind"] == kind]


def as_recorded(run, rows):
    """Rows of (step, {name: value}) hold the rewards and the validation's pass@1 of the run."""
    rewards = [(step, row["train/reward"]) for step, row in rows if "train/reward" in row]
    name = "validation/results/pass@1/value"
    checks = [(step, row[name]) for step, row in rows if name in row]
    expected = [(step, line["reward"]) for step, line in said(run, "train")]
    assert [step for step, _ in expected] == [1, 2, 3]
    assert [step for step, _ in rewards] == [1, 2, 3]
    assert [v for _, v in rewards] == pytest.approx([v for _, v in expected])
    results = [(step, line["results"]["pass@1"]["value"]) for step, line in said(run, "evaluation")]
    assert checks == [(step, pytest.approx(value)) for step, value in results]


def test_tensorboard(recipe, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = read(recipe(run={"steps": 2, "trackers": ["tensorboard"]}, evaluation={"every": 2}))
    train(resolve(config))
    train(resolve(merged(config, {"run.steps": 3}), resume=True))
    folder = next((tmp_path / "run" / "logs").rglob("events*")).parent
    events = EventAccumulator(str(folder))
    events.Reload()
    as_recorded(
        tmp_path / "run",
        [
            (event.step, {name: event.value})
            for name in events.Tags()["scalars"]
            for event in events.Scalars(name)
        ],
    )


def test_wandb_offline(trained):
    run = trained("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for file in sorted((run / "wandb").glob("offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                found = {
                    item.key or "/".join(item.nested_key): item.value_json
                    for item in record.history.item
                }
                rows.append((int(found["_step"]), {k: number(v) for k, v in found.items()}))
    as_recorded(run, rows)


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def records(data):
    """What wandb's file holds: a LevelDB log of 32 KiB blocks behind a header of 7 bytes."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield whole
            whole = b""


READ_TRACKIO = """
import json
from trackio.sqlite_storage import SQLiteStorage
assert SQLiteStorage.get_runs("bestofk") == ["run"]
print(json.dumps([[row["step"], row] for row in SQLiteStorage.get_logs("bestofk", "run")]))
"""


def test_trackio(trained, last_json):
    run = trained("trackio")
    done = subprocess.run(
        [sys.executable, "-c", READ_TRACKIO], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    as_recorded(run, last_json(done.stdout))


def test_a_tracker_that_is_not_there_is_refused_before_anything_is_loaded(recipe, monkeypatch):
    check(read(recipe(run={"trackers": ["wandb"]})))  # a dry run may name what is not here
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'bestofk\[wandb\]'"):
        check_installed(read(recipe(run={"trackers": ["wandb"]})))
