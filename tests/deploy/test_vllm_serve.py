"""`bestofk serve` in front of a real vLLM server."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is tested in an environment of its own")

from bestofk.deploy.requests import Rules
from bestofk.deploy.serving import ServerLimits, Service, server_of
from bestofk.models import Policy, save, tiny
from bestofk.rewards import from_function
from deploy.scripted_upstream import running
from vllm_models import NOISE, SERVED, model, serving

pytestmark = NOISE


def ask(address: str, **more: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "12:", "max_tokens": 16, "temperature": 1.0, **more}
    response = httpx.post(f"{address}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_the_answer_is_the_first_of_vllms_draws_that_passes(tmp_path: Path) -> None:
    folder = save(Policy(model(1), tiny.tokenizer()), tmp_path / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"http://127.0.0.1:{free.getsockname()[1]}"
    with serving(str(folder), options=[*SERVED, "--served-model-name=tiny"], listen=listen) as url:
        draws = [ask(url, seed=7 + i) for i in range(8)]
        texts = [each["choices"][0]["text"] for each in draws]
        passing = texts[3]
        spent = [each["usage"]["completion_tokens"] for each in draws]

        service = Service(
            f"{url}/v1", from_function(lambda completion: completion == passing),
            Rules(k=8, by="verifier"), ServerLimits(), judges=2, say=lambda line: None,
        )  # fmt: skip
        with running(server_of(service)) as address:
            in_turn = ask(address, seed=7, bestofk={"at_once": 1})
            at_once = ask(address, seed=7)
            none = ask(address, seed=107, max_tokens=1)
            metrics = httpx.get(f"{address}/metrics").text

        count = texts.index(passing) + 1
        assert [in_turn["choices"][0]["text"], at_once["choices"][0]["text"]] == [passing] * 2
        assert in_turn["bestofk"]["draws"] == count
        assert in_turn["usage"]["completion_tokens"] == sum(spent[:count])
        assert at_once["bestofk"]["passed"] is True
        assert (none["bestofk"]["passed"], none["bestofk"]["draws"]) == (False, 8)
        assert "bestofk_answers_passed_total 2" in metrics
        until = time.monotonic() + 30
        while working(url):  # cancelled siblings are gone from vLLM too
            assert time.monotonic() < until
            time.sleep(0.1)


def working(url: str) -> float:
    """Requests that vLLM works on, by its own count."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    (line,) = [each for each in lines if each.startswith("vllm:num_requests_running{")]
    return float(line.split()[-1])
