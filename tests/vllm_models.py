"""Models that vLLM's CPU build takes (heads of 32 numbers), prompts, and the gap to a learner."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bestofk.learning import Learner
from bestofk.models import tiny
from bestofk.sampling.openai_wire import socket_and_base
from bestofk.sampling.vllm_server import EngineError, command
from bestofk.types import Group, Prompt

# vLLM's imports, and torch's that it asks for, warn about themselves.
NOISE = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
ENDS = list(range(1, 12))
"""Several tokens end a completion, so that many do."""
SERVED = [
    "--dtype=float32", "--enforce-eager", "--max-model-len=512", "--block-size=32",
    f"--kv-cache-memory-bytes={2**26}",
]  # fmt: skip
LONG = "1 2 3 4 5 6 7 8 9 = 24: " * 8
PROMPTS = [
    *(Prompt(f"p{i}", LONG + "3 5 7 = 15:"[: 3 + 2 * i], "test") for i in range(4)),
    Prompt("short", "12:", "test"),
]


def model(seed: int) -> Any:
    """Random weights, large enough for distributions that are far from uniform."""
    made = tiny.untrained(hidden=64, layers=2, heads=2, inner=96, seed=seed)
    assert made.generation_config is not None
    made.generation_config.eos_token_id = ENDS
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=noise))
    return made.eval()


def gap(learned: Any, groups: Sequence[Group], temperature: float = 1.0) -> float:
    """The largest difference of a token's log-prob between sampler and learner."""
    scores = Learner(learned, temperature=temperature).log_probs(groups)
    return max(
        float(np.abs(ours - theirs.log_probs).max())
        for row, group in zip(scores.tokens, groups, strict=True)
        for ours, theirs in zip(row, group.trajectories, strict=True)
    )


@contextmanager
def serving(
    model: str, *, options: Sequence[str] = (), listen: str | None = None, patience: float = 600.0
) -> Iterator[str]:
    """A server for the time inside, on a socket of this user alone unless said; yields its URL.

    Raises:
        EngineError: it ended, or was not ready in time; with its last words.
    """
    folder = Path(tempfile.mkdtemp(prefix="bestofk-vllm-"))
    url = listen or f"unix://{folder / 'socket'}"
    quiet = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if not torch.cuda.is_available():
        quiet["TORCHDYNAMO_DISABLE"] = "1"  # on CPU its sampler would be compiled at first use
    log = folder / "log"
    with open(log, "wb") as out:
        server = subprocess.Popen(
            command(model, url, "float32", options),
            env={**os.environ, **quiet},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(server, url, log, patience)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path, patience: float) -> None:
    import httpx

    until = time.monotonic() + patience
    socket, base = socket_and_base(url)
    transport = httpx.HTTPTransport(uds=socket)
    with httpx.Client(transport=transport, base_url=base, timeout=10) as client:
        while server.poll() is None and time.monotonic() < until:
            try:
                if client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
    ended = "ended" if server.poll() is not None else f"was not ready in {patience:g} seconds"
    last = log.read_text(errors="replace")[-2000:]
    raise EngineError(f"the vLLM server {ended}; its last words:\n{last}")
