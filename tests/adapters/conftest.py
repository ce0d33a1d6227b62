"""Helpers of a host's tests import that host, so doctests must not be looked for in them."""

import gc
import os
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
