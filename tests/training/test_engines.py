"""Servers that die, that come back or not, and that serve another model."""

from __future__ import annotations

import threading

import pytest

from bestofk.cli import main
from bestofk.config import merged, read
from bestofk.models import Policy, save, tiny
from bestofk.runs import read_metrics
from bestofk.sampling.vllm import EngineError
from bestofk.training.train import train
from training.serving_peer import ServingPeer


def test_a_server_that_dies_is_waited_for_and_gets_the_weights_again(recipe, small_model, capsys):
    first = ServingPeer(small_model, lives=30)
    url = f"http://127.0.0.1:{first.port}"
    second = []

    def back_again():
        first.gone.wait()
        second.append(ServingPeer(small_model, first.port))

    starting = threading.Thread(target=back_again)
    starting.start()
    config = read(recipe(sampling={"engine": "vllm", "server": url}, run={"steps": 4}))
    end = train(config)
    starting.join()
    second[0].close()
    assert end.step == 4
    assert first.updates >= 1
    assert second[0].updates >= 2  # the weights of the step it died in, and later ones
    lines = [line for line in read_metrics(end.path) if line["kind"] == "train"]
    assert max(line["sampler_gap_max"] for line in lines) < 1e-4
    assert f"no vLLM server answers at {url}" in capsys.readouterr().out


@pytest.mark.parametrize("off_policy", [{}, {"ahead": 1, "correct_sampler": True}])
def test_a_server_that_does_not_come_back_leaves_a_run_that_can_be_resumed(
    recipe, small_model, capsys, monkeypatch, tmp_path, off_policy
):
    monkeypatch.setattr("bestofk.sampling.vllm_server.PATIENCE", 0.0)
    peer = ServingPeer(small_model, lives=40)
    url = f"http://127.0.0.1:{peer.port}"
    path = recipe(
        sampling={"engine": "vllm", "server": url},
        run={"steps": 8, "checkpoint_every": 50},
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
    again = ServingPeer(small_model, peer.port)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    again.close()


def test_a_server_of_another_model_is_named_before_it_gets_weights(recipe, tmp_path):
    other = save(
        Policy(tiny.untrained(hidden=32, layers=3, heads=2, inner=64), tiny.tokenizer(), ""),
        tmp_path / "m",
    )
    peer = ServingPeer(other)
    url = f"http://127.0.0.1:{peer.port}"
    config = read(recipe(sampling={"engine": "vllm", "server": url}))
    with pytest.raises(EngineError, match=r"num_hidden_layers = 3, and this run needs 2"):
        train(config)
    assert peer.updates == 0
    peer.close()
    with pytest.raises(EngineError, match=r"(?s)no vLLM server answers.*start it with:.*--dtype"):
        train(merged(config, {"run.dir": str(tmp_path / "other")}))
