"""Servers that die, that come back or not, and that serve another model."""

from __future__ import annotations

import socket
import threading

import pytest

from bestofk.cli import main
from bestofk.config import merged, read
from bestofk.models import Policy, save, tiny
from bestofk.runs import read_metrics
from bestofk.sampling.vllm_server import EngineError
from bestofk.training.resolve import resolve
from bestofk.training.train import train
from training.serving_peer import ServingPeer

AHEAD = {"ahead": 1, "correct_sampler": True}


@pytest.fixture
def port():
    """A port of this test alone, also while nobody listens on it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


# With one batch ahead, requests 18 to 21 draw the batch of step 3, 22 to 25 that of step 4.
@pytest.mark.parametrize(("off_policy", "lives"), [({}, 30), (AHEAD, 19), (AHEAD, 23)])
def test_a_server_that_dies_is_waited_for_and_gets_the_weights_again(
    recipe, small_model, port, capsys, off_policy, lives
):
    first = ServingPeer(small_model, port, lives=lives)
    second = []

    def back_again():
        first.gone.wait()
        second.append(ServingPeer(small_model, port))

    starting = threading.Thread(target=back_again)
    starting.start()
    server = {"engine": "vllm", "server": first.url}
    config = read(recipe(sampling=server, run={"steps": 4}, off_policy=off_policy))
    end = train(resolve(config))
    starting.join()
    second[0].close()
    assert end.step == 4
    assert first.updates >= 1
    assert second[0].updates >= 2  # the weights of the step it died in, and later ones
    lines = [line for line in read_metrics(end.path) if line["kind"] == "train"]
    assert max(line["sampler_gap_max"] for line in lines) < 1e-4
    assert f"no vLLM server answers at {first.url}" in capsys.readouterr().out


@pytest.mark.parametrize("off_policy", [{}, AHEAD])
def test_a_server_that_does_not_come_back_leaves_a_run_that_can_be_resumed(
    recipe, small_model, port, capsys, monkeypatch, tmp_path, off_policy
):
    monkeypatch.setattr("bestofk.sampling.vllm_server.PATIENCE", 0.0)
    peer = ServingPeer(small_model, port, lives=14)
    path = recipe(
        sampling={"engine": "vllm", "server": peer.url},
        run={"steps": 4, "checkpoint_every": 50},
        evaluation={"every": 0},
        off_policy=off_policy,
    )
    assert main(["train", str(path)]) == 1
    told = capsys.readouterr().err
    done = [line["step"] for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    assert f"{done[-1]} steps are saved; resume with: bestofk train --resume {tmp_path}" in told
    assert "VLLM_SERVER_DEV_MODE=1" in told
    assert f"--model {small_model}" in told
    assert (tmp_path / "run" / "checkpoints" / f"step-{done[-1]:06d}").is_dir()
    peer.gone.wait()
    again = ServingPeer(small_model, port)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    again.close()


@pytest.mark.parametrize(
    ("flaw", "steps", "cause"),
    [
        ({"loads": 1}, 1, "the engine did not take the weights"),
        ({"scale": 1.5}, 0, "the engine computes another model"),
    ],
)
def test_a_server_that_holds_other_weights_stops_the_run_before_it_is_drawn_from(
    recipe, small_model, port, tmp_path, flaw, steps, cause
):
    peer = ServingPeer(small_model, port, **flaw)
    sampling = {"engine": "vllm", "server": peer.url}
    config = read(recipe(sampling=sampling, evaluation={"every": 0}))
    with pytest.raises(ValueError, match=rf"more than 0\.001, .*Likely cause: {cause}"):
        train(resolve(config))
    peer.close()
    metrics = tmp_path / "run" / "metrics.jsonl"
    done = read_metrics(tmp_path / "run") if metrics.exists() else []
    assert [line["step"] for line in done if line["kind"] == "train"] == [*range(1, steps + 1)]


def test_a_server_of_another_model_is_named_before_it_gets_weights(recipe, port, tmp_path):
    other = save(
        Policy(tiny.untrained(hidden=32, layers=3, heads=2, inner=64), tiny.tokenizer()),
        tmp_path / "m",
    )
    peer = ServingPeer(other, port)
    config = read(recipe(sampling={"engine": "vllm", "server": peer.url}))
    with pytest.raises(EngineError, match=r"num_hidden_layers = 3, and this run needs 2"):
        train(resolve(config))
    assert peer.updates == 0
    peer.close()
    with pytest.raises(EngineError, match=r"(?s)no vLLM server answers.*start it with:.*--dtype"):
        train(resolve(merged(config, {"run.dir": str(tmp_path / "other")})))
