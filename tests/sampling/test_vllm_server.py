"""A real vLLM server, its weights changed while it runs; and what is said when it cannot be."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is tested in an environment of its own")

from bestofk.models import Policy, save, tiny
from bestofk.sampling import Sampling, WeightHolder
from bestofk.sampling.vllm_server import SHARD, EngineError, VLLMServer, command, write
from bestofk.sampling.vllm_worker import MEMORY, private
from bestofk.sampling.weights import named_weights
from vllm_models import NOISE, PROMPTS, SERVED, gap, model, serving

pytestmark = NOISE
CLOSE = 1e-4
PARAMS = Sampling(samples_per_prompt=4, max_new_tokens=8, temperature=0.8)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    folder = tmp_path_factory.mktemp("served") / "model"
    save(Policy(model(1), tiny.tokenizer()), folder)
    with serving(str(folder), options=SERVED) as url:
        socket = Path(url.removeprefix("unix://"))
        assert socket.parent.stat().st_mode & 0o077 == 0  # nobody else can reach it
        yield VLLMServer(url, model(1), tiny.tokenizer())
    assert not socket.exists()


def test_it_answers_like_any_sampler(server: VLLMServer) -> None:
    assert isinstance(server, WeightHolder)
    server.update(named_weights(model(1)))
    sampling = Sampling(samples_per_prompt=5, max_new_tokens=8, temperature=0.8, stop=("15", "="))
    groups = server.sample(PROMPTS, seed=3, sampling=sampling)
    assert gap(model(1), groups, 0.8) < CLOSE
    assert [group.prompt for group in groups] == PROMPTS
    small = tiny.tokenizer()
    for group in groups:
        assert group.prompt_tokens == tuple(small(group.prompt.text)["input_ids"])
        assert len(group.trajectories) == 5
        for done in group.trajectories:
            assert len(done.tokens) == len(done.log_probs)
            assert not any(word in done.text for word in sampling.stop)
    reasons = {done.finish_reason for group in groups for done in group.trajectories}
    assert reasons == {"stop", "length"}
    again = server.sample(PROMPTS, seed=3, sampling=sampling)
    assert [list(g.trajectories) for g in again] == [list(g.trajectories) for g in groups]
    assert server.sample(PROMPTS, seed=4, sampling=sampling) != groups
    assert server.sample([], seed=0, sampling=sampling) == []
    (greedy,) = server.sample(
        PROMPTS[:1], seed=0, sampling=Sampling(samples_per_prompt=3, temperature=0.0)
    )
    assert len(set(greedy.trajectories)) == 1
    assert set(greedy.trajectories[0].log_probs) == {0.0}


def test_a_server_of_another_model_is_left_alone(server: VLLMServer) -> None:
    """vLLM's engine would die of its weights."""
    other = tiny.untrained(hidden=64, layers=3, heads=2, inner=96, seed=1)
    with pytest.raises(EngineError, match=r"num_hidden_layers = 2, and this run needs 3.*\nSTART"):
        VLLMServer(server.url, other, tiny.tokenizer(), start="START")
    with pytest.raises(EngineError, match="dtype = 'float32', and this run needs 'bfloat16'"):
        VLLMServer(server.url, model(1), tiny.tokenizer(), dtype="bfloat16")


def test_weights_change_in_place_and_nothing_old_is_served(server: VLLMServer) -> None:
    for seed in (2, 1, 3):
        server.update(named_weights(model(seed)), version=seed)
        assert server.version == seed
        groups = server.sample(PROMPTS, seed=1, sampling=PARAMS)  # long prompts, cached by the last
        assert gap(model(seed), groups, 0.8) < CLOSE
        assert gap(model(seed + 1), groups, 0.8) > 1.0
    assert not list(MEMORY.glob("bestofk-weights-*"))


def test_large_models_come_in_several_files(
    server: VLLMServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bestofk.sampling.vllm_server.SHARD", 40_000)
    server.update(named_weights(model(5)))
    assert gap(model(5), server.sample(PROMPTS, seed=1, sampling=PARAMS), 0.8) < CLOSE


def test_the_workers_read_nothing_but_weights_of_this_user(server: VLLMServer) -> None:
    server.update(named_weights(model(1)))
    for path in ("/etc", str(MEMORY), str(MEMORY / "nothing-here"), str(MEMORY / ".." / "etc")):
        with pytest.raises(EngineError, match="weights lie in a folder of their own in /dev/shm"):
            server._call("weights_from_memory", path)
    # … and go on with what they had.
    assert gap(model(1), server.sample(PROMPTS, seed=1, sampling=PARAMS), 0.8) < CLOSE


@pytest.fixture
def folder() -> Iterator[Path]:
    place = MEMORY / f"bestofk-test-{os.getpid()}"
    place.mkdir(mode=0o700)
    yield place
    for path in place.iterdir():
        path.unlink()
    place.rmdir()


def test_weights_are_for_their_user_alone(folder: Path, tmp_path: Path) -> None:
    assert write(named_weights(model(1)), folder, torch.bfloat16) == len(
        list(named_weights(model(1)))
    )
    (path,) = private(str(folder))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size < 2.2 * sum(p.numel() for p in model(1).parameters())  # two bytes
    path.chmod(0o644)
    with pytest.raises(ValueError, match="not this user's alone"):
        private(str(folder))
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(b"")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="not this user's alone"):
        private(str(folder))


def test_memory_that_is_too_small_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(EngineError, match=r"1,000 bytes left .* --shm-size"):
        write(named_weights(model(1)), folder, torch.float32)
    assert SHARD == 2**30


class Bare(http.server.BaseHTTPRequestHandler):
    """A server of the same protocol that was not started for training."""

    def do_GET(self) -> None:
        self.answer(200, b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(404, b"Not Found")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_server_that_cannot_be_trained_with_is_refused() -> None:
    bare = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bare)
    threading.Thread(target=bare.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{bare.server_port}"
    with pytest.raises(EngineError, match=r"404 to /collective_rpc.*; start it with:\nTHIS WAY"):
        VLLMServer(url, model(1), tiny.tokenizer(), start="THIS WAY")
    bare.shutdown()
    bare.server_close()
    with pytest.raises(EngineError, match="no vLLM server answers at"):
        VLLMServer(url, model(1), tiny.tokenizer())


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "https://example.org", "ftp://localhost"])
def test_servers_of_other_machines_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="runs on this machine"):
        VLLMServer(url, model(1), tiny.tokenizer())


def test_the_page_shows_the_command_that_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "adapters" / "vllm.md").read_text()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    words = command("MODEL", "http://127.0.0.1:8000", "bfloat16")
    block = page.partition("VLLM_SERVER_DEV_MODE=1 ")[2].partition("```")[0]
    assert block.replace("\\\n", " ").split() == ["python", *words[1:]]
