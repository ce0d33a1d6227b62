"""`bestofk serve` against scripted servers: early stop, streams, faults, load, access.

The commands of README.md and docs/deploy.md: `test_the_command_serves_and_ends_at_ctrl_c`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from bestofk.cli import main
from bestofk.cli.serve_command import threads_of
from bestofk.deploy import serving
from bestofk.deploy.choosing import choose
from bestofk.deploy.racing import DrawFailed, race
from bestofk.deploy.requests import Rules
from bestofk.deploy.serving import ServerLimits, Service, server_of
from bestofk.rewards import BatchVerifier, from_function, scored_by, verifier
from deploy.scripted_upstream import ScriptedUpstream, command, running, with_probability
from evaluation.faulty_server import FaultyServer, send


def says_it(prompt: Any, completion: str) -> bool:
    return f">{prompt.text[-1]['content'].split()[-1]}<" in completion


def right(completion: str) -> bool:
    return completion == "right"


@contextlib.contextmanager
def served(
    upstream: str, judge: BatchVerifier | None = None, k: int = 8, **more: Any
) -> Iterator[str]:
    """The address of a server in front of another one."""
    names = ("by", "threshold", "at_once", "fields")
    stated = {"by": "verifier", **{name: more.pop(name) for name in names if name in more}}
    rules, judges = Rules(k=k, **stated), more.pop("judges", 4)
    said = more.pop("say", lambda line: None)
    service = Service(
        upstream,
        judge or from_function(right),
        rules,
        ServerLimits(**more),
        judges=judges,
        say=said,
    )
    with running(server_of(service)) as address:
        yield address


def ask(address: str, content: str = "say one", **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    return httpx.post(f"{address}/v1/chat/completions", json=body, headers=headers, timeout=60)


def first_is_fast(body: dict[str, Any], number: int) -> tuple[str, float]:
    return ("wrong", 0.05) if number == 0 else ("right", 0.2) if number == 1 else ("right", 20.0)


def test_the_first_pass_is_the_answer_and_its_siblings_are_cancelled() -> None:
    upstream = ScriptedUpstream(first_is_fast)
    with upstream.running() as url, served(url) as address:
        begin = time.monotonic()
        answer = ask(address).json()
        assert time.monotonic() - begin < 15
        while sum(upstream.ends.values()) < 8:
            time.sleep(0.02)
    assert answer["choices"][0]["message"]["content"] == "right"
    assert (answer["id"], answer["object"]) == ("c1", "chat.completion")
    assert upstream.ends == {"finished": 2, "cancelled": 6}
    told = answer["bestofk"]
    assert (told["chosen_by"], told["passed"], told["reward"]) == ("pass", True, 1.0)
    assert (told["draws"], told["cancelled"], told["failed"], told["k"]) == (2, 6, 0, 8)
    assert answer["usage"] == {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28}
    assert all("n" not in body and "bestofk" not in body for body in upstream.requests)


def test_a_request_may_ask_for_fewer_and_for_one_after_the_other() -> None:
    upstream = ScriptedUpstream(lambda body, number: ("wrong" if number < 3 else "right", 0.02))
    with upstream.running() as url, served(url) as address:
        answer = ask(address, bestofk={"k": 5, "at_once": 1}, seed=7, stream=False).json()
        assert (answer["bestofk"]["draws"], answer["bestofk"]["cancelled"]) == (4, 0)
        assert [body["seed"] for body in upstream.requests] == [7, 8, 9, 10]
        assert upstream.most_at_once == 1
        upstream.script = lambda body, number: ("wrong", 0.0)
        told = ask(address, bestofk={"k": 2}).json()["bestofk"]
        assert (told["k"], told["draws"], told["passed"], told["reward"]) == (2, 2, False, 0.0)


def test_a_vote_and_a_score_see_all_k() -> None:
    texts = ["\\boxed{4}", "so it is 5", "the answer is 4", "\\boxed{6}", "it is long, and 5"]
    upstream = ScriptedUpstream(lambda body, number: (texts[number % 5], 0.0))
    longest = scored_by(None, from_function(lambda completion: len(completion)))
    with upstream.running() as url:
        with served(url, scored_by(None, None), k=5, by="vote", at_once=1) as address:
            voted = ask(address).json()
        with served(url, longest, k=5, by="score", at_once=1) as address:
            scored = ask(address).json()
    assert voted["choices"][0]["message"]["content"] == "\\boxed{4}"
    assert (voted["bestofk"]["chosen_by"], voted["bestofk"]["reward"]) == ("vote", None)
    assert scored["choices"][0]["message"]["content"] == texts[4]
    assert (scored["bestofk"]["chosen_by"], scored["bestofk"]["score"]) == ("score", len(texts[4]))


def more_letters(handler: Any, body: dict[str, Any]) -> None:
    """A judge that prefers the longer answer, wherever it stands."""
    texts = re.findall(r"<answer_[AB] \w+>\n(.*)\n</", body["messages"][0]["content"])
    content = f"Winner: {'A' if len(texts[0]) > len(texts[1]) else 'B'}"
    send(handler, 200, json.dumps({"choices": [{"message": {"content": content}}]}).encode())


def test_a_pairwise_judge_compares_all_k_once_they_are_there() -> None:
    texts = ["a long answer", "short", "the longest of all answers", "a longish answer"]
    upstream = ScriptedUpstream(lambda body, number: (texts[number % 4], 0.05 * (number % 4)))
    with faulty(always={"": more_letters}) as server, upstream.running() as url:
        judge = verifier(f"judge:m@{server.url}", pairwise=True)
        with served(url, scored_by(None, judge), k=4, by="score") as address:
            answer = ask(address).json()
            alone = ask(address, bestofk={"k": 1}).json()["bestofk"]
        assert len(server.requests) == 4 * 3
        judge.close()
    assert answer["choices"][0]["message"]["content"] == texts[2]
    told = answer["bestofk"]
    assert (told["chosen_by"], told["score"], told["draws"]) == ("score", 1.0, 4)
    assert (alone["chosen_by"], alone["score"]) == ("first", None)


def test_a_request_with_a_pairwise_judge_ends_within_its_time() -> None:
    """One sample does not come, and the judge does not answer."""
    go_on = threading.Event()

    def waits(handler: Any, body: dict[str, Any]) -> None:
        go_on.wait(60)
        more_letters(handler, body)

    upstream = ScriptedUpstream(lambda body, number: (f"answer {number}", 60.0 * (number == 2)))
    with faulty(always={"": waits}) as server, upstream.running() as url:
        judge = verifier(f"judge:m@{server.url}", pairwise=True)
        with served(url, scored_by(None, judge), k=3, by="score", timeout=3.0) as address:
            begin = time.monotonic()
            told = ask(address).json()["bestofk"]
            took = time.monotonic() - begin
            metrics = httpx.get(f"{address}/metrics").text
            go_on.set()
        judge.close()
    assert took < 5.5
    assert (told["draws"], told["cancelled"], told["chosen_by"]) == (2, 1, "first")
    assert len(server.requests) == 2  # the two that came were being compared
    assert "bestofk_late_total 1" in metrics


def test_a_stream_is_the_answer_in_events() -> None:
    upstream = ScriptedUpstream(lambda body, number: ("right", 0.0))
    with upstream.running() as url, served(url, k=2) as address:
        plain = ask(address).json()
        response = ask(address, stream=True, stream_options={"include_usage": True})
        text = httpx.post(
            f"{address}/v1/completions", json={"model": "m", "prompt": "?", "stream": True}
        ).text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert all("stream" not in body for body in upstream.requests)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == plain["choices"][0]["message"]
    assert chunks[1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[1]["bestofk"]["passed"] is True
    assert chunks[2]["choices"] == []
    assert chunks[2]["usage"]["completion_tokens"] >= 4
    assert '"text": "right"' in text


BAD: list[tuple[dict[str, Any], str]] = [
    ({"bestofk": {"k": 9}}, "bestofk.k is a whole number from 1 to 8"),
    ({"bestofk": {"k": True}}, "bestofk.k is a whole number"),
    ({"bestofk": {"verifier": "os:system"}}, "unknown key of bestofk 'verifier'"),
    ({"bestofk": 4}, "bestofk is an object"),
    ({"bestofk": []}, "bestofk is an object"),
    ({"bestofk": {"k": 10**30}}, "bestofk.k is a whole number"),
    ({"bestofk": {"k": -1}}, "bestofk.k is a whole number"),
    ({"bestofk": {"k": 4.0}}, "bestofk.k is a whole number"),
    ({"n": 2}, "n is 1 here"),
    ({"temperature": 0}, "at temperature 0 all 8 samples are one"),
    ({"seed": "a"}, "seed is a whole number"),
    ({"messages": []}, "at least one message"),
    ({"messages": ["hi"]}, "a message is an object"),
    ({"stream": "yes"}, "stream is true or false"),
    ({"deep": json.loads("[" * 80 + "]" * 80)}, "levels deep"),
]


def test_a_request_that_breaks_a_rule_costs_nothing_and_is_told() -> None:
    upstream = ScriptedUpstream(lambda body, number: ("right", 0.0))
    with upstream.running() as url, served(url, body_bytes=10_000) as address:
        for more, said in BAD:
            response = ask(address, **more)
            assert response.status_code == 400, more
            assert said in response.json()["error"]["message"]
        target = f"{address}/v1/chat/completions"
        as_json = {"Content-Type": "application/json"}
        whole = json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}], "x": 7})
        numbers = [whole.replace("7", no).encode() for no in ("NaN", "-Infinity", "1e999")]
        for content in (b"", b"{", b"[]", b"\xff", b"[" * 9000, b"7", *numbers):
            assert httpx.post(target, content=content, headers=as_json).status_code == 400
        large = httpx.post(target, content=b"x" * 20_000, headers=as_json)
        assert "a body of more than 10,000 bytes" in large.json()["error"]["message"]
        form = httpx.post(target, content=b"{}", headers={"Content-Type": "text/plain"})
        assert "state Content-Type" in form.json()["error"]["message"]
        upper = httpx.post(target, content=b"{}", headers={"Content-Type": "Application/JSON"})
        assert "at least one message" in upper.json()["error"]["message"]
        assert httpx.get(f"{address}/v1/files").status_code == 404
        assert httpx.get(target).status_code == 405
        for path in ("//v1/models", "/v1/models/", "/V1/models", "/health/x"):
            assert httpx.get(f"{address}{path}").status_code == 404
    assert upstream.requests == []


def test_only_named_fields_of_the_metadata_reach_the_verifier() -> None:
    seen = []

    def keyed(completion: str, expected: str, **rest: Any) -> bool:
        seen.append(rest["prompt"].spec)
        return completion == expected

    upstream = ScriptedUpstream(lambda body, number: ("right", 0.0))
    judge = from_function(keyed)
    with upstream.running() as url, served(url, judge, k=1, fields=("expected",)) as address:
        answer = ask(address, metadata={"expected": "right", "verifier": "os:system"}).json()
        assert answer["bestofk"]["passed"] is True
        without = ask(address)
        assert without.status_code == 400
        assert "needs expected in the request's metadata" in without.json()["error"]["message"]
    assert seen == [{"expected": "right"}]
    assert "metadata" not in upstream.requests[0]


def test_a_client_that_sends_slowly_or_too_much_is_told_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Raw bytes: half a body, a body of 50 MB, two Hosts, an absolute address, a huge header."""
    monkeypatch.setattr(serving, "BODY_SECONDS", 0.3)
    upstream = ScriptedUpstream(lambda body, number: ("right", 0.0))
    with upstream.running() as url, served(url, body_bytes=10_000) as address:
        host, port = address.removeprefix("http://").split(":")

        def answer(head: str, *rest: bytes) -> str:
            with socket.create_connection((host, int(port)), 60) as client:
                lines = f"{head}\r\nContent-Type: application/json\r\n\r\n".encode()
                with contextlib.suppress(ConnectionError):  # it stops reading
                    for part in (lines, *rest):
                        client.sendall(part)
                with contextlib.suppress(ConnectionError):
                    return client.recv(4096).decode().partition("\r\n")[0]
                return "cut"

        post = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}"
        get = f"GET /metrics HTTP/1.1\r\nHost: {host}:{port}"
        assert "408" in answer(f"{post}\r\nContent-Length: 100", b"{")
        large = answer(f"{post}\r\nContent-Length: 50000000", *[b"x" * 2**16] * 760)
        assert "400" in large or large == "cut"
        assert "400" in answer(f"{post}\r\nContent-Length: -5")
        assert "400" in answer(f"{get}\r\nHost: evil.example")
        assert "400" in answer(f"{get}\r\nX-Long: {'a' * 200_000}")
        assert "404" in answer(get.replace("/metrics", "http://evil.example/metrics"))
        assert "421" in answer("GET /metrics HTTP/1.0")
        assert "421" in answer(f"GET /metrics HTTP/1.1\r\nHost: {host}@evil.example")
        metrics = httpx.get(f"{address}/metrics").text
    assert "bestofk_in_progress 0" in metrics
    assert upstream.requests == []


def test_what_the_verifier_cannot_use_is_the_clients_fault() -> None:
    def keyed(completion: str, expected: Any) -> bool:
        return completion == expected["text"]

    def check_prompts(prompts: Any) -> None:
        raise KeyError(f"{prompts[0].id} has no text")

    upstream, judge = ScriptedUpstream(lambda body, number: ("right", 0.0)), from_function(keyed)
    judge.check_prompts = check_prompts  # type: ignore[method-assign]
    with upstream.running() as url, served(url, judge, k=1, fields=("expected",)) as address:
        answer = ask(address, metadata={"expected": 5})
    assert answer.status_code == 400
    assert "cannot use the request's metadata: 'the request has no text'" in answer.text
    assert upstream.requests == []


def faulty(*faults: Any, **more: Any) -> FaultyServer:
    return FaultyServer([*faults], **more)


def test_an_upstream_that_fails_is_asked_again_and_then_told() -> None:
    anything = from_function(lambda completion: True)
    for fault in ("429", "500", "cut", "drop", "garbage", "empty", "html"):
        with faulty(fault) as upstream, served(upstream.url, anything, k=1) as address:
            assert ask(address, seed=1).json()["bestofk"]["failed"] == 0, fault
            assert len(upstream.requests) == 2
        with (
            faulty(*[fault] * 4) as upstream,
            served(upstream.url, anything, k=1, retries=1) as address,
        ):
            response = ask(address, seed=1, headers={"Authorization": "Bearer sk-secret"})
            assert response.status_code == (429 if fault == "429" else 502), fault
            assert response.json()["error"]["message"].startswith("upstream")
            assert len(upstream.requests) == 2
    with served("http://127.0.0.1:1/v1", anything, k=2, retries=0) as address:
        assert ask(address).status_code == 503


def test_some_failing_draws_do_not_spoil_the_others() -> None:
    with faulty("500", "garbage", "cut") as upstream, served(upstream.url, k=8, retries=0) as at:
        told = ask(at, seed=1).json()["bestofk"]
    assert (told["draws"], told["failed"]) == (5, 3)


def test_a_rejected_request_is_asked_once_and_its_reason_comes_back_without_the_key() -> None:
    def reject(handler: Any, body: dict[str, Any]) -> None:
        key = handler.headers["Authorization"]
        send(handler, 400, f'{{"error": "too long, {key}"}}'.encode())

    with FaultyServer(always={"": reject}) as upstream, served(upstream.url) as address:
        response = ask(address, headers={"Authorization": "Bearer sk-secret"})
        assert response.status_code == 400
        assert "too long, Bearer ***" in response.json()["error"]["message"]
        assert len(upstream.requests) <= 8


def models_are_said_with_the_key(handler: Any) -> None:
    send(handler, 401, f"wrong: {handler.headers['Authorization']}".encode())


@pytest.mark.parametrize("authorization", ["Bearer sk-secret", "sk-secret", "Bearer  sk-secret"])
def test_no_error_of_the_upstream_brings_a_key(authorization: str) -> None:
    def reject(handler: Any, body: dict[str, Any]) -> None:
        models_are_said_with_the_key(handler)

    with FaultyServer(always={"": reject}) as upstream:
        upstream.http.RequestHandlerClass.do_GET = models_are_said_with_the_key  # type: ignore[attr-defined]
        for own in ("", "sk-secret"):
            with served(upstream.url, upstream_key=own) as address:
                headers = {"Authorization": authorization}
                for answer in (
                    ask(address, headers=headers),
                    httpx.get(f"{address}/v1/models", headers=headers),
                ):
                    message = answer.json()["error"]["message"]
                    assert answer.status_code == 401
                    assert message.startswith("upstream answered 401: wrong: ")
                    assert "sk-secret" not in message


NO_CHOICES: list[dict[str, Any]] = [
    {"text": "right"},
    {"message": None, "text": "right"},
    {"message": {"content": "right", "tool_calls": "abc"}},
    {"message": {"content": "right", "tool_calls": [1]}},
]


@pytest.mark.parametrize("choice", NO_CHOICES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_of_another_kind_is_a_failed_draw(choice: dict[str, Any], stream: bool) -> None:
    def answer(handler: Any, body: dict[str, Any]) -> None:
        send(handler, 200, json.dumps({"id": "c", "choices": [choice]}).encode())

    with FaultyServer(always={"": answer}) as upstream, served(upstream.url, retries=0) as address:
        response = ask(address, stream=stream)
        assert response.status_code == 502
        assert "an answer that is not a completion" in response.json()["error"]["message"]


def test_a_redirect_is_no_answer_and_a_stream_is_json_where_the_upstream_wrote_nan() -> None:
    def redirect(handler: Any, body: dict[str, Any]) -> None:
        send(handler, 302, b"", {"Location": "http://127.0.0.1:9/"})

    def with_nan(handler: Any, body: dict[str, Any]) -> None:
        send(handler, 200, b'{"x": NaN, "choices": [{"message": {"content": "right"}}]}')

    with FaultyServer(always={"": redirect}) as upstream, served(upstream.url) as address:
        response = ask(address)
        assert response.status_code == 502
        assert response.json()["error"]["message"] == "upstream answered 302"
    with FaultyServer(always={"": with_nan}) as upstream, served(upstream.url) as address:
        first = ask(address, stream=True).text.partition("\n\n")[0].removeprefix("data: ")

    def not_json(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(first, parse_constant=not_json)["x"] is None


@pytest.mark.parametrize("depth", [70, 900, 100_000])
def test_an_answer_that_is_nested_deeply_is_no_answer(depth: int) -> None:
    deep = "[" * depth + "]" * depth

    def answer(handler: Any, body: dict[str, Any]) -> None:
        told = '"choices": [{"message": {"content": "right"}}]'
        send(handler, 200, f'{{{told}, "x": {deep}}}'.encode())

    def models(handler: Any) -> None:
        send(handler, 200, deep.encode())

    with FaultyServer(always={"": answer}) as upstream, served(upstream.url, retries=0) as address:
        upstream.http.RequestHandlerClass.do_GET = models  # type: ignore[attr-defined]
        assert "nested too deeply" in ask(address).json()["error"]["message"]
        listed = httpx.get(f"{address}/v1/models")
        assert "its list of models is not JSON" in listed.json()["error"]["message"]


def test_when_the_time_is_up_the_best_of_what_came_is_the_answer() -> None:
    late = ScriptedUpstream(lambda body, number: ("wrong", 0.02) if number == 0 else ("right", 60))
    with late.running() as url, served(url, k=3, timeout=1.0) as address:
        told = ask(address).json()["bestofk"]
        assert (told["draws"], told["cancelled"], told["passed"]) == (1, 2, False)
        late.script = lambda body, number: ("right", 60.0)
        assert ask(address).status_code == 504


def test_a_rate_limit_of_one_key_holds_no_other_and_is_the_cause_of_being_late() -> None:
    def limits(handler: Any, body: dict[str, Any]) -> None:
        if handler.headers["Authorization"] == "Bearer busy":
            send(handler, 429, b"slow down", {"Retry-After": "60"})
        else:
            text = {"message": {"content": "right"}}
            send(handler, 200, json.dumps({"choices": [text]}).encode())

    with faulty(always={"": limits}) as upstream, served(upstream.url, k=1, timeout=2.0) as address:
        busy = ask(address, headers={"Authorization": "Bearer busy"})
        free = ask(address, headers={"Authorization": "Bearer free"})
    assert busy.status_code == 504
    message = busy.json()["error"]["message"]
    assert message == "no sample within 2 s; upstream answered 429: slow down"
    assert free.json()["bestofk"]["passed"] is True


def test_a_client_that_goes_cancels_its_draws() -> None:
    upstream = ScriptedUpstream(lambda body, number: ("right", 60.0))
    with upstream.running() as url, served(url, k=4) as address:
        body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/v1/chat/completions", json=body, timeout=0.5)
        while upstream.ends["cancelled"] < 4:
            time.sleep(0.02)
        metrics = httpx.get(f"{address}/metrics").text
    assert 'bestofk_requests_total{status="499"} 1' in metrics
    assert "bestofk_in_progress 0" in metrics


@pytest.mark.filterwarnings(  # of connections that were cancelled while they were made
    "ignore:.*unclosed:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_200_requests_at_once_get_each_its_own_answer_and_the_metrics_add_up() -> None:
    upstream = ScriptedUpstream(with_probability(0.3, 0.01))
    judge = from_function(says_it)

    async def ask_all(address: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits()) as client:

            async def one(number: int) -> httpx.Response:
                message = {"role": "user", "content": f"say w{number}"}
                body = {"model": "m", "messages": [message], "seed": 100 * number}
                return await client.post(f"{address}/v1/chat/completions", json=body)

            return await asyncio.gather(*map(one, range(200)))

    with upstream.running() as url, served(url, judge, concurrency=64) as address:
        responses = asyncio.run(ask_all(address))
        metrics = httpx.get(f"{address}/metrics").text
        assert upstream.most_at_once <= 64 + 200  # cancelled ones may not have ended yet
    assert [response.status_code for response in responses] == [200] * 200
    draws = 0
    for number, response in enumerate(responses):
        answer = response.json()
        text, told = answer["choices"][0]["message"]["content"], answer["bestofk"]
        own = [random.Random(f"{100 * number + i} w{number}").random() < 0.3 for i in range(8)]
        assert told["passed"] == (text == f"<answer>w{number}</answer>") == any(own)
        draws += told["draws"]
    assert f'bestofk_draws_total{{end="finished"}} {draws}' in metrics
    assert 'bestofk_requests_total{status="200"} 200' in metrics
    assert "bestofk_request_seconds_count 200" in metrics
    assert upstream.ends["finished"] >= draws


def test_more_requests_than_allowed_are_told_to_come_again() -> None:
    upstream = ScriptedUpstream(lambda body, number: ("right", 1.0))

    async def ask_two(address: str) -> list[int]:
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
            posts = [client.post(f"{address}/v1/chat/completions", json=body) for _ in range(2)]
            return [response.status_code for response in await asyncio.gather(*posts)]

    with upstream.running() as url, served(url, k=1, requests=1) as address:
        assert sorted(asyncio.run(ask_two(address))) == [200, 429]


def test_who_may_ask() -> None:
    upstream = ScriptedUpstream(lambda body, number: ("right", 0.0))
    with upstream.running() as url:
        with served(url, k=1) as address:
            assert ask(address, headers={"Host": "evil.example"}).status_code == 421
            assert ask(address, headers={"Origin": "https://evil.example"}).status_code == 403
            assert ask(address, headers={"Authorization": "Bearer sk-mine"}).status_code == 200
            models = httpx.get(f"{address}/v1/models", headers={"Authorization": "Bearer sk-2"})
            assert models.json()["data"] == [{"id": "m"}]
        assert upstream.keys == ["Bearer sk-mine", "Bearer sk-2"]
        with served(url, k=1, token="t0k", upstream_key="sk-ours") as address:
            assert ask(address).status_code == 401
            assert ask(address, headers={"Authorization": "Bearer t0"}).status_code == 401
            assert httpx.get(f"{address}/metrics").status_code == 401
            assert httpx.get(f"{address}/health").text == "ok\n"
            assert ask(address, headers={"Authorization": "Bearer t0k"}).status_code == 200
        assert upstream.keys[2:] == ["Bearer sk-ours"]
        with served(url, k=1, token="t0k") as address:  # the token is for this server alone
            assert ask(address, headers={"Authorization": "Bearer t0k"}).status_code == 200
        assert upstream.keys[3:] == [None]


def test_headers_that_are_no_addresses_and_keys_that_are_no_ascii() -> None:
    upstream = ScriptedUpstream(lambda body, number: ("right", 0.0))
    with upstream.running() as url, served(url, k=1, hosts=("127.0.0.1", "MyBox")) as address:
        for header, status in (("Host", 421), ("Origin", 403)):
            for name in ("http://[::1", "[::1", "]["):
                assert ask(address, headers={header: name}).status_code == status
        assert ask(address, headers={"Host": "mybox:8001"}).status_code == 200
        key: Any = {"Authorization": "Bearer sk-é".encode("latin-1")}
        assert ask(address, headers=key).status_code == 200
        missed = httpx.post(f"{address}/chat/completions", json={})
        assert missed.status_code == 404
        assert "POST /chat/completions is not served here" in missed.json()["error"]["message"]
    assert upstream.keys == [None, "Bearer sk-é"]


def test_a_verifier_that_breaks_is_unscored_and_noted_once() -> None:
    notes: list[str] = []

    def breaks(completion: str) -> float:
        raise RuntimeError("no judge")

    upstream = ScriptedUpstream(lambda body, number: ("right", 0.0))
    broken, by_score = from_function(breaks), {"by": "score"}
    for judge, more in ((broken, {}), (scored_by(None, broken), by_score)):
        notes.clear()
        with (
            upstream.running() as url,
            served(url, judge, k=2, say=notes.append, **more) as address,
        ):
            for _ in range(2):
                told = ask(address).json()["bestofk"]
                assert (told["status"], told["reward"], told["passed"]) == ("unscored", None, False)
        assert len(notes) == 1
        assert "no judge" in notes[0]


FORGED = """```python
import os, sys, pathlib
pathlib.Path({target!r}).write_text("hurt")
os.environ["HURT"] = "1"
def f(x):
    class Equal(int):
        def __eq__(self, other): return True
    return Equal(0)
```"""


def test_nothing_forged_through_the_server_reaches_the_host(tmp_path: Any) -> None:
    """A program of the model, and tests in a request that want to be more than tests."""
    target = tmp_path / "hurt"
    text = FORGED.format(target=str(target))
    upstream = ScriptedUpstream(lambda body, number: (text, 0.0))
    tests = ["assert f(1) == 2", f"assert open({str(target)!r}, 'w')"]
    with verifier("code") as judge, upstream.running() as url:
        fields = ("asserts", "entry_point")
        with served(url, judge, k=2, fields=fields, timeout=120.0) as address:
            for asserts in (
                tests[:1],
                tests,
                ["import os; os.system('touch " + str(target) + "')"],
            ):
                response = ask(address, metadata={"asserts": asserts, "entry_point": "f"})
                assert response.json()["bestofk"]["passed"] is False
            path = {"checker": "/etc/passwd", "asserts": tests[:1], "entry_point": "f"}
            assert ask(address, metadata=path).json()["bestofk"]["passed"] is False
    assert not target.exists()
    assert "HURT" not in os.environ


def test_the_command_serves_and_ends_at_ctrl_c(tmp_path: Any) -> None:
    with (
        ScriptedUpstream(first_is_fast).running() as url,
        command(url.removesuffix("/v1"), tmp_path) as (process, address),
    ):
        key = {"Authorization": "Bearer sk-secret"}
        assert ask(address, headers=key).json()["bestofk"]["passed"] is True
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "sk-secret" not in said


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_server_answers_what_it_has_begun_and_cancels_what_takes_long(
    stop: signal.Signals, tmp_path: Any
) -> None:
    begun = threading.Semaphore(0)

    def slow(body: dict[str, Any], number: int) -> tuple[str, float]:
        begun.release()
        return "right", 3.0 if "short" in json.dumps(body) else 60.0

    upstream = ScriptedUpstream(slow)
    with (
        upstream.running() as url,
        command(url, tmp_path, "--k", "1") as (process, address),
        ThreadPoolExecutor(2) as pool,
    ):
        short = pool.submit(ask, address, "short")
        long = pool.submit(ask, address, "long")
        for _ in range(2):
            assert begun.acquire(timeout=60)
        process.send_signal(stop)
        assert short.result(60).json()["bestofk"]["passed"] is True
        said = process.communicate(timeout=60)[1]
        answer = long.result(60)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            503,
            "this server is stopping",
        )
    assert process.returncode == 128 + stop
    assert "Traceback" not in said
    assert upstream.ends == {"finished": 1, "cancelled": 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "state what chooses: --verifier NAME, --scorer NAME or --vote"),
        (["--vote", "--host", "0.0.0.0"], "a token is needed: export BESTOFK_TOKEN="),
        (["--vote", "--upstream", "vllm"], "--upstream starts with http://"),
        (["--vote", "--key-variable", "NO_KEY"], "$NO_KEY is empty"),
        (["--verifier", "nope"], "unknown verifier 'nope'"),
        (["--verifier", "keyed.py:reward"], "--fields names what a request brings"),
        (["--verifier", "construct"], "kind, items, best, and the row of a request"),
        (["--verifier", "maze"], "--fields names what a request brings"),
        (["--verifier", "code"], "needs one of calls, asserts, check, stdio"),
        (["--verifier", "gym"], "verifier gym needs the option dataset"),
        (["--verifier", "maths"], "has no fields; --fields names what a request brings"),
        (["--vote", "--k", "0"], "--k takes"),
        (["--vote", "--threshold", "nan"], "threshold is the reward that passes, got nan"),
        (["--vote", "--key-variable", "ODD_KEY"], "$ODD_KEY has a character that no key has"),
        (
            ["--verifier", "exact", "--scorer", "judge:m@http://x/v1"]
            + ["--scorer-option", "pairwise=true"],
            "samples are compared once all k are drawn",
        ),
        (["--vote", "--scorer-option", "a=1"], "--scorer-option is for --scorer"),
        (["--vote", "--port", "70000"], "cannot listen on 127.0.0.1:70000"),
    ],
)
def test_the_command_says_what_is_wrong(
    words: list[str], said: str, tmp_path: Any, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BESTOFK_TOKEN", raising=False)
    monkeypatch.setenv("ODD_KEY", "sk-a\nb")
    (tmp_path / "keyed.py").write_text("def reward(completion, key):\n    return 1.0\n")
    assert main(["serve", "--upstream", "http://127.0.0.1:1", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_official_client(tmp_path: Any) -> None:
    openai = pytest.importorskip("openai")
    upstream = ScriptedUpstream(lambda body, number: ("right", 0.0))
    with (
        upstream.running() as url,
        served(url) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="sk-mine") as client,
    ):
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        plain = client.chat.completions.create(**asked, extra_body={"bestofk": {"k": 2}})
        assert plain.choices[0].message.content == "right"
        assert plain.bestofk["k"] == 2
        chunks = list(client.chat.completions.create(**asked, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "right"
        assert [model.id for model in client.models.list()] == ["m"]
        with pytest.raises(openai.BadRequestError, match="n is 1 here"):
            client.chat.completions.create(**asked, n=2)
    assert set(upstream.keys) == {"Bearer sk-mine"}


class Draws:
    """Draws that take equally long, and which were started."""

    def __init__(self, passes: Sequence[bool]) -> None:
        self.passes, self.started = passes, list[int]()

    async def draw(self, number: int) -> dict[str, Any]:
        self.started.append(number)
        await asyncio.sleep(0)
        return {"sample_id": number, "reward": float(self.passes[number]), "answer": None}


@pytest.mark.parametrize("at_once", [1, 2, 3, 5])
def test_a_race_costs_what_enumeration_says(at_once: int) -> None:
    """All patterns of passes among five draws that take equally long."""
    options: Any = {"threshold": 1.0, "at_once": at_once, "seconds": 60.0}
    for passes in itertools.product([False, True], repeat=5):
        draws = Draws(passes)
        result = asyncio.run(race(draws.draw, 5, "verifier", **options))
        line, why = choose(result.lines, "verifier", 1.0)
        assert len(result.lines) + result.cancelled == len(draws.started)
        if any(passes):
            assert (why, line["sample_id"]) == ("pass", passes.index(True))
            assert len(draws.started) <= passes.index(True) + at_once
        else:
            assert len(draws.started) == len(result.lines) == 5


def test_a_failure_that_all_share_ends_a_race_at_once() -> None:
    async def draw(number: int) -> dict[str, Any]:
        raise DrawFailed("no such model", 404, is_final=True)

    drawing = race(draw, 5, "vote", threshold=1.0, at_once=1, seconds=60.0)
    with pytest.raises(DrawFailed, match="no such model"):
        asyncio.run(drawing)


def test_plain_functions_are_called_by_one_thread_and_async_ones_by_many(tmp_path: Any) -> None:
    async def waits(completion: str) -> float:
        return 0.0

    plain, waiting = from_function(right), from_function(waits)
    assert [threads_of(each) for each in (plain, waiting, verifier("exact"))] == [1, 16, 1]
    both = scored_by(waiting, plain)
    assert min(map(threads_of, both.verifiers)) == 1  # type: ignore[attr-defined]
