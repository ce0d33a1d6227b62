"""A real small model, a recipe that trains it in seconds, and how to compare two runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bestofk.config import Config, to_toml
from bestofk.models import Policy, save, tiny
from bestofk.runs import read_metrics

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # the judging functions can be imported


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """25,000 weights, untrained, with the tiny tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "small"
    model = tiny.untrained(hidden=32, layers=2, heads=2, inner=64, seed=1)
    save(Policy(model, tiny.tokenizer()), folder)
    return folder


@pytest.fixture
def recipe(small_model, tmp_path):
    """Writes a recipe (sections merged into a small one) and returns its path."""

    def write(name="run.toml", **sections):
        base: dict[str, Any] = {
            "objective": "max@4",
            "model": {"path": str(small_model), "device": "cpu"},
            "task": {
                "name": "countdown",
                "verifier": "training_judges:digits",
                "options": {"style": "compact", "train_size": 40},
            },
            "sampling": {"prompts_per_step": 4, "samples_per_prompt": 8, "max_new_tokens": 6},
            "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2},
            "evaluation": {"every": 3, "prompts": 4, "samples_per_prompt": 4},
            "run": {"dir": str(tmp_path / "run"), "steps": 7, "checkpoint_every": 2},
        }
        for section, values in sections.items():
            base[section] = base.get(section, {}) | values if isinstance(values, dict) else values
        path = tmp_path / name
        path.write_text(to_toml(Config(**base)))
        return path

    return write


@pytest.fixture
def command(warm):
    """Runs a Python command line with the judging functions in reach."""

    def run(*words, wait=True, cold=False, **options):
        path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        python = sys.executable if cold else str(warm / "python")
        arguments = [python, *map(str, words)]
        if wait:
            return subprocess.run(arguments, env=environment, timeout=1800, **options)
        return subprocess.Popen(arguments, env=environment, **options)

    return run


CLOCKED = ("seconds", "tokens_per_second", "sampling_tokens_per_second")


def facts(line):
    """A line of metrics without what the clock decides."""
    return {k: v for k, v in line.items() if k not in CLOCKED}


@pytest.fixture
def same_run():
    """Asserts that two finished runs have the same metrics and weights, bit for bit."""

    def compare(one, other):
        ours, theirs = read_metrics(one), read_metrics(other)
        assert [facts(line) for line in ours] == [facts(line) for line in theirs]
        for name in ("final/model.safetensors", newest(one) + "/weights.safetensors"):
            a, b = load_file(Path(one) / name), load_file(Path(other) / name)
            assert a.keys() == b.keys()
            assert all(torch.equal(a[key], b[key]) for key in a), name
        a, b = (torch.load(Path(p) / newest(p) / "trainer.pt", weights_only=True)
                for p in (one, other))  # fmt: skip
        assert flat(a) == flat(b)

    return compare


def newest(run):
    return max(str(p.relative_to(run)) for p in Path(run).glob("checkpoints/step-*"))


def flat(value):
    if isinstance(value, dict):
        return {str(key): flat(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [flat(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.fixture
def last_json():
    return lambda text: json.loads(text.strip().splitlines()[-1])
