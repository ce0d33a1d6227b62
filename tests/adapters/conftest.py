"""Helpers of a host's tests import that host, so doctests must not be looked for in them."""

import gc
import json
import os
import subprocess
from pathlib import Path

import pytest

# Ray starts workers at niceness 15: beside other work they hardly run, and a test takes minutes.
os.environ.setdefault("RAY_worker_niceness", "0")

collect_ignore = [
    path.name for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")
]
collect_ignore += ["on_cpu", "without_cuda"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small matrices want one thread, and accelerate collects garbage at every `train()`."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory, warm):
    """What two processes that trained with TRL left: "on" and "off" policy, in "turns"; by rank."""
    import torch

    folder = tmp_path_factory.mktemp("two-processes")
    command = [str(warm / "python"), str(Path(__file__).with_name("trl_runs.py")), str(folder)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ends"] == [[0, 0]] * 3, done.stderr
    return {
        kind: [torch.load(folder / f"{kind}-{rank}.pt", weights_only=False) for rank in range(2)]
        for kind in ("on", "off", "turns")
    }
