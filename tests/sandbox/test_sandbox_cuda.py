"""A process that holds a CUDA context judges programs, and keeps its context."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.types import Prompt
from sandbox_watch import descendants

PROMPT = Prompt("p", "", "code", {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]})
PROGRAMS = ["def f(x): return x + 1", "def f(x): return 2", "def f(x): return x"]


@pytest.mark.gpu
def test_a_process_that_holds_cuda_judges_programs() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    weights = torch.arange(4096.0, device="cuda")
    others = descendants(os.getpid())  # such as the compiler's, of tests before this one
    with CodeVerifier(workers=2) as verifier, ThreadPoolExecutor(4) as threads:
        batches = threads.map(lambda _: verifier([PROMPT] * 3, PROGRAMS), range(16))
        assert {tuple(v.reward for v in batch) for batch in batches} == {(1.0, 0.5, 0.0)}
        ours = Path(f"/proc/{os.getpid()}/maps").read_text()
        assert "nvidia" in ours
        workers = set(descendants(os.getpid())) - set(others)
        assert len(workers) >= 2
        for pid in workers:  # nothing of the driver is in them: neither mapped nor open
            assert "nvidia" not in Path(f"/proc/{pid}/maps").read_text()
            folder = f"/proc/{pid}/fd"
            held = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
            assert not [path for path in held if "nvidia" in path]
    assert float(weights.sum()) == 4095.0 * 4096.0 / 2
