"""Sampling from an endpoint that misbehaves, and runs that are killed."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from bestofk.api.sampling_run import SampleFile
from bestofk.cli.sample_command import summary
from bestofk.sampling.endpoint import (
    Cap,
    CapReached,
    Endpoint,
    EndpointError,
    EndpointSample,
    SamplesToDraw,
    draw,
)
from bestofk.sampling.openai_wire import sample_seed
from bestofk.sampling.sampler import Sampling
from bestofk.types import Prompt, Verdict
from evaluation.faulty_server import FaultyServer, send
from sandbox_watch import eventually

MANY = Cap(10_000, 10_000_000)
PARAMETERS = Sampling(samples_per_prompt=4, max_new_tokens=32)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are a random share of seconds."""
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.01)


def wanted(problems: int, n: int) -> list[SamplesToDraw]:
    return [
        SamplesToDraw(Prompt(f"p{i}", f"question {i}", "t"), tuple(range(n)))
        for i in range(problems)
    ]


def drawn(server: Any, jobs: list[SamplesToDraw], **options: Any) -> list[EndpointSample]:
    kept: list[EndpointSample] = []
    cap = options.pop("cap", MANY)
    endpoint = Endpoint(base_url=server.url, model="m", **options)
    draw(endpoint, jobs, PARAMETERS, kept.append, cap=cap)
    return kept


def keys(samples: list[EndpointSample]) -> list[tuple[str, int]]:
    return sorted((sample.prompt.id, sample.sample) for sample in samples)


@pytest.mark.parametrize(
    "fault", ["429", "429-date", "500", "503", "cut", "drop", "garbage", "html", "empty"]
)
def test_every_fault_is_asked_again_and_every_sample_comes_once(fault: str) -> None:
    with FaultyServer([fault]) as server:
        found = drawn(server, wanted(2, 2), concurrency=1)
        assert keys(found) == [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1)]
        assert len(server.requests) == 5
        assert max(server.answered.values()) == 1


def test_a_storm_of_faults_loses_nothing_and_pays_nothing_twice() -> None:
    with FaultyServer(share=0.3) as server:
        found = drawn(server, wanted(10, 6), concurrency=8, retries=12)
        assert keys(found) == sorted((f"p{i}", s) for i in range(10) for s in range(6))
        assert sum(server.answered.values()) == 60
        assert max(server.answered.values()) == 1
        assert server.most_at_once <= 8


def test_retry_after_stops_everybody() -> None:
    told = Event()
    with FaultyServer(["429"], after=told) as server:
        endpoint = Endpoint(base_url=server.url, model="m", concurrency=3)
        kept: list[EndpointSample] = []
        draw(endpoint, wanted(9, 1), PARAMETERS, kept.append, cap=MANY, warn=lambda _: told.set())
        assert len(kept) == 9
        began = sorted(server.times)
        # three at once; one is told to wait 0.3 s, and so do the two that are answered afterwards
        assert began[3] - began[0] >= 0.3


def test_concurrency_is_used_and_bounded() -> None:
    with FaultyServer(together=4) as server:
        drawn(server, wanted(12, 1), concurrency=4)
        assert server.most_at_once == 4


def test_seeds_differ_by_sample_and_stay_the_same() -> None:
    with FaultyServer() as server:
        drawn(server, wanted(3, 3))
        seeds = [request["seed"] for request in server.requests]
        assert len(set(seeds)) == 9
        assert all(0 <= seed < 2**31 for seed in seeds)
        assert sample_seed(0, "p0", 0) in seeds


def test_several_samples_in_one_request_even_where_the_server_ignores_n() -> None:
    with FaultyServer() as server:
        found = drawn(server, wanted(2, 4), per_request=4)
        assert len(server.requests) == 2
        assert len(keys(found)) == 8
    with FaultyServer() as server:
        server.one_choice_only = True
        found = drawn(server, wanted(1, 4), per_request=4)
        assert keys(found) == [("p0", s) for s in range(4)]
        assert len(server.requests) == 4


def test_request_says_only_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with FaultyServer() as server:
        found = drawn(server, wanted(1, 1), key_variable="MY_KEY", logprobs=True)
        assert set(server.requests[0]) == {
            *("model", "temperature", "max_tokens", "seed", "messages"),
            *("logprobs", "top_logprobs"),
        }
        assert server.headers[0]["Authorization"] == "Bearer sk-secret"
        assert found[0].logprob_sum == -0.75
        assert found[0].n_tokens == 2
        plain = drawn(server, wanted(1, 1), api="completions", logprobs=True)
        assert server.requests[1]["prompt"] == "question 0"
        assert plain[0].logprob_sum == -0.75
        chat = [SamplesToDraw(Prompt("c", ({"role": "user", "content": "q"},), "t"), (0,))]
        with pytest.raises(ValueError, match="--api chat"):
            drawn(server, chat, api="completions")


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refusal_is_not_asked_again_and_never_shows_the_key(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with FaultyServer() as server:
        server.refuse = (status, "bad key sk-very-secret given")
        with pytest.raises(EndpointError) as caught:
            drawn(server, wanted(1, 1))
        assert len(server.requests) == 1
        assert "sk-very-secret" not in str(caught.value)
        assert "***" in str(caught.value)
        assert str(status) in str(caught.value)


def test_giving_up_says_so_and_keeps_what_came() -> None:
    with FaultyServer(["", *["500"] * 20]) as server:
        kept: list[EndpointSample] = []
        endpoint = Endpoint(base_url=server.url, model="m", concurrency=1, retries=2)
        with pytest.raises(EndpointError, match=r"failed 3 times.*500 oops.*again to resume"):
            draw(endpoint, wanted(3, 1), PARAMETERS, kept.append, cap=MANY)
        assert len(kept) == 1
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("500", "500 oops"), ("empty", "no choice in it"), ("drop", "a cut connection")],
)
def test_the_cause_of_failure_is_raised_and_repeats_do_not_count_against_the_cap(
    fault: str, cause: str
) -> None:
    with FaultyServer([fault] * 50) as server:
        said: list[str] = []
        with pytest.raises(EndpointError, match=cause):
            draw(
                Endpoint(base_url=server.url, model="m", concurrency=1, retries=2),
                wanted(3, 1),
                PARAMETERS,
                lambda sample: None,
                cap=Cap(1, 10**9),
                warn=said.append,
            )
        assert len(server.requests) == 3
    assert any(cause in text for text in said)  # told at once, not only in the end


def test_a_dead_port_is_named_soon() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        endpoint = Endpoint(base_url=url, model="m", concurrency=2, retries=8)
        with pytest.raises(EndpointError, match=r"3 times.*no connection.*Is the server running"):
            draw(endpoint, wanted(3, 1), PARAMETERS, lambda sample: None, cap=MANY)


def test_a_server_that_hangs_is_reported_while_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestofk.sampling.endpoint.PATIENCE", 0.2)
    said: list[str] = []
    told = Event()

    def warn(text: str) -> None:
        said.append(text)
        told.set()

    with FaultyServer(after=told) as server:
        endpoint = Endpoint(base_url=server.url, model="m", timeout=600)
        kept: list[EndpointSample] = []
        draw(endpoint, wanted(2, 1), PARAMETERS, kept.append, cap=MANY, warn=warn)
    assert len(kept) == 2
    assert any("no sample for" in text and "2 requested" in text for text in said)


def test_a_timeout_is_repeated_and_named() -> None:
    with FaultyServer(after=Event()) as server:
        endpoint = Endpoint(base_url=server.url, model="m", timeout=0.3, retries=1)
        with pytest.raises(EndpointError, match=r"failure was no answer in time\. .*--timeout"):
            draw(endpoint, wanted(1, 1), PARAMETERS, lambda sample: None, cap=MANY)
        assert eventually(lambda: len(server.requests) == 2)


def test_extra_fields_are_sent_and_tokens_counted() -> None:
    with FaultyServer() as server:
        endpoint = Endpoint(base_url=server.url, model="m", extra_body={"reasoning_effort": "low"})
        spent = draw(endpoint, wanted(2, 1), PARAMETERS, lambda sample: None, cap=MANY)
        assert all(request["reasoning_effort"] == "low" for request in server.requests)
    assert (spent.prompt_tokens, spent.completion_tokens) == (20, 8)


def test_what_an_endpoint_leaves_out_is_said_once() -> None:
    said: list[str] = []
    kept: list[EndpointSample] = []
    with FaultyServer() as server:
        server.bare = True
        endpoint = Endpoint(base_url=server.url, model="m", logprobs=True, per_request=2)
        spent = draw(endpoint, wanted(3, 2), PARAMETERS, kept.append, cap=MANY, warn=said.append)
    assert [sample.text for sample in sorted(kept, key=lambda s: s.sample)] == ["7"] * 3 + [""] * 3
    assert (spent.completion_tokens, spent.uncounted, spent.tokens) == (0, 3, 6 * 32)
    assert len(said) == 3
    told = " ".join(said)
    assert "answers come without usage" in told
    assert "--logprobs was asked for" in told
    assert "no content (null, finish_reason 'length')" in told
    assert "(and those of 3 answers without a count)" in summary(spent)


def test_caps_hold_and_name_themselves() -> None:
    with FaultyServer() as server:
        kept: list[EndpointSample] = []
        endpoint = Endpoint(base_url=server.url, model="m", concurrency=3)
        with pytest.raises(CapReached, match="cap of 5 requests"):
            draw(endpoint, wanted(20, 1), PARAMETERS, kept.append, cap=Cap(5, 10**9))
        assert len(server.requests) == len(kept) == 5
    with FaultyServer() as server:
        kept = []
        with pytest.raises(CapReached, match="cap of 100 tokens"):
            draw(endpoint_of(server), wanted(20, 1), PARAMETERS, kept.append, cap=Cap(99, 100))
        assert sum(14 for _ in kept) <= 100


def endpoint_of(server: Any) -> Endpoint:
    return Endpoint(base_url=server.url, model="m", concurrency=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "localhost:80"},
        {"base_url": "http://"},
        {"base_url": "http://x:99999"},
        {"concurrency": 0},
        {"per_request": 0},
        {"timeout": 0},
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"http|at least 1|timeout"):
        Endpoint(**{"base_url": "http://x/v1", "model": "m", **wrong})


# Answers that are not what the API promises

GOOD: dict[str, Any] = {
    "choices": [
        {
            "message": {"role": "assistant", "content": "7"},
            "finish_reason": "stop",
            "logprobs": {"content": [{"logprob": -0.5}]},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


def changed(path: str, value: Any) -> Callable[[Any, dict[str, Any]], None]:
    """A good answer with another value at one place."""
    answer = json.loads(json.dumps(GOOD))
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = answer
    for key in parents:
        place = place[key]
    place[last] = value
    return lambda handler, body: send(handler, 200, json.dumps(answer).encode())


def raw(content: bytes, status: int = 200, **headers: str) -> Callable[[Any, dict[str, Any]], None]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, body: send(handler, status, content, fields)


WRONG: list[Any] = [None, 7, True, "x", [], {}, [7], {"a": [1]}]


@pytest.mark.parametrize(
    "path",
    [
        *("choices", "choices.0", "choices.0.message", "choices.0.message.content"),
        *("choices.0.message.reasoning", "choices.0.finish_reason", "choices.0.logprobs"),
        *("choices.0.logprobs.content", "choices.0.logprobs.content.0"),
        *("choices.0.logprobs.content.0.logprob", "usage", "usage.total_tokens"),
        "usage.completion_tokens",
    ],
)
def test_a_field_of_a_wrong_type_loses_no_sample_and_ends_no_run(path: str) -> None:
    odd = [*WRONG, -1, 0.5, float("nan"), float("inf"), 10**400]
    with FaultyServer([changed(path, value) for value in odd]) as server:
        found = drawn(server, wanted(4, 4), concurrency=2, logprobs=True, retries=30)
    assert keys(found) == [(f"p{i}", s) for i in range(4) for s in range(4)]
    for sample in found:
        json.dumps([sample.text, sample.finish_reason, sample.logprob_sum], allow_nan=False)
        assert type(sample.text) is str
        assert sample.n_tokens is None or sample.n_tokens >= 1
    # what is not the text itself is not worth a second request
    if not path.startswith("choices.0.message") and path not in ("choices", "choices.0"):
        assert len(server.requests) == 16


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("half an emoji \ud83d", "half an emoji �"),
        ("\udc00\ud800 swapped", "�� swapped"),
        ("a whole one \U0001f600", "a whole one \U0001f600"),
        ([{"type": "text", "text": "parts "}, {"type": "image"}, {"text": "of text"}],
         "parts of text"),
        ("", ""),
        (None, ""),
    ],
)  # fmt: skip
def test_texts_that_json_can_hold_and_a_file_cannot(content: Any, text: str) -> None:
    with FaultyServer([changed("choices.0.message.content", content)]) as server:
        (sample,) = drawn(server, wanted(1, 1))
        assert sample.text == text
        sample.text.encode()
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"choices": [{"message": {"content": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_003,
        b'{"choices": [{"text": ' + b"[" * 400 + b"]" * 400 + b"}]}",
        b'{"choices": [{"finish_reason": ' + b"[" * 900 + b"]" * 900 + b"}]}",
        *(b"", b"7", b"null", b"[]", b'"text"', b"{}", b"\xff\xfe", b'{"choices": {"0": 1}}'),
        b'{"choices": [{"text": "a", "seed": ' + b"9" * 5000 + b"}]}",
        b'{"error": {"message": "overloaded"}}',
    ],
)
def test_bodies_that_are_no_completion_are_repeated(body: bytes) -> None:
    with FaultyServer([raw(body)]) as server:
        found = drawn(server, wanted(2, 2), concurrency=1)
        assert len(keys(found)) == 4
        assert len(server.requests) == 5


def test_one_choice_that_cannot_be_read_costs_no_other() -> None:
    def three_of_four(handler: Any, body: dict[str, Any]) -> None:
        contents = ["a", "b", 7, "d"]
        choices = [{"message": {"content": content}} for content in contents]
        send(handler, 200, json.dumps({"choices": choices}).encode())

    with FaultyServer([three_of_four]) as server:
        found = drawn(server, wanted(1, 4), per_request=4)
        assert keys(found) == [("p0", s) for s in range(4)]
        assert {s.sample: s.text for s in found if s.sample != 2} == {0: "a", 1: "b", 3: "d"}
        assert [request.get("n", 1) for request in server.requests] == [4, 1]
        assert server.requests[1]["seed"] == sample_seed(0, "p0", 2)


# Bodies without an end, in drops, and of another length than stated


def endless(handler: Any, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
    handler.close_connection = True


def drops(handler: Any, body: dict[str, Any], pause: float = 0.02) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(pause)
    handler.close_connection = True


def reset(handler: Any, body: dict[str, Any]) -> None:
    """Half an answer, and a connection that is reset."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()


def of_length(stated: int) -> Callable[[Any, dict[str, Any]], None]:
    def answer(handler: Any, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(stated))
        handler.end_headers()
        handler.wfile.write(json.dumps(GOOD).encode())
        handler.close_connection = True

    return answer


BOMB = gzip.compress(b" " * 2_000_000)


@pytest.mark.parametrize(
    ("fault", "reason", "cause"),
    [
        (endless, "an answer that is not a completion", "more than 100,000 bytes (`bestofk"),
        (raw(BOMB, Content_Encoding="gzip"), "an answer that is not a completion", "100,000 bytes"),
        (raw(BOMB, Content_Encoding="zstd"), "an answer that is not a completion", "'zstd'"),
        (raw(BOMB, Content_Encoding="gzip, gzip"), "an answer that is not a completion", "gzip, g"),
        (drops, "no answer in time", "no answer in time"),
        (reset, "a cut connection (ReadError)", "a cut connection"),
        (of_length(10_000), "a cut connection (RemoteProtocolError)", "a cut connection"),
        (of_length(30), "an answer that is not a completion", "not JSON"),
    ],
)
def test_a_body_has_a_largest_size_and_a_longest_time(fault: Any, reason: str, cause: str) -> None:
    said: list[str] = []
    kept: list[EndpointSample] = []
    with FaultyServer([fault]) as server:
        endpoint = Endpoint(
            base_url=server.url, model="m", concurrency=1, answer_bytes=100_000,
            timeout=3 if fault is drops else 600,
        )  # fmt: skip
        usage = draw(endpoint, wanted(2, 2), PARAMETERS, kept.append, cap=MANY, warn=said.append)
    assert len(keys(kept)) == 4
    assert usage.reasons == {reason: 1}
    assert cause in said[0]


def test_the_largest_answer_grows_with_what_is_asked_for() -> None:
    long = json.dumps(GOOD).encode() + b" " * 17_000_000
    with FaultyServer([raw(long)]) as server:
        endpoint = Endpoint(base_url=server.url, model="m")
        short, many = (PARAMETERS.changed(max_new_tokens=n) for n in (32, 10_000))
        assert draw(endpoint, wanted(1, 1), short, print, cap=MANY).retried == 1
    with FaultyServer([raw(long)]) as server:
        endpoint = Endpoint(base_url=server.url, model="m")
        assert draw(endpoint, wanted(1, 1), many, print, cap=MANY).retried == 0


@pytest.mark.parametrize("status", [429, 500])
@pytest.mark.parametrize(
    "after", ["0", "0.01", "soon", "-1", "nan", "1e-9999", "Wed, 21 Oct 0001 07:28:00 GMT", None]
)
def test_any_retry_after_is_survived(status: int, after: str | None) -> None:
    headers = {} if after is None else {"Retry_After": after}
    with FaultyServer([raw(b"\xff busy", status, **headers)]) as server:
        assert len(keys(drawn(server, wanted(2, 2), concurrency=2))) == 4
        assert len(server.requests) == 5


# One prompt that cannot be answered, and an endpoint that answers none


@pytest.mark.parametrize(
    "fault",
    [
        *(raw(b'{"error": "maximum context length"}', status) for status in (400, 413, 422)),
        *(changed("choices.0.message.content", 7), endless, drops, reset),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_one_prompt_that_cannot_be_answered_ends_no_run(fault: Any, concurrency: int) -> None:
    kept: list[EndpointSample] = []
    with FaultyServer(always={"question 0": fault}) as server:
        timeout, retries = (3, 0) if fault is drops else (600, 1)
        endpoint = Endpoint(
            base_url=server.url, model="m", concurrency=concurrency, answer_bytes=100_000,
            timeout=timeout, retries=retries,
        )  # fmt: skip
        with pytest.raises(EndpointError, match="2 samples of 1 problems could not be drawn"):
            draw(endpoint, wanted(4, 2), PARAMETERS, kept.append, cap=MANY)
    assert keys(kept) == [(f"p{i}", s) for i in range(1, 4) for s in range(2)]


def test_an_endpoint_that_answers_no_prompt_is_left_soon() -> None:
    with FaultyServer(always={"question": raw(b"{}")}) as server:
        with pytest.raises(EndpointError, match="without choices"):
            drawn(server, wanted(20, 1), concurrency=1, retries=1)
        assert len(server.requests) == 6
    with FaultyServer(always={"question": raw(b"", 307, Location="/v2/chat")}) as server:
        with pytest.raises(EndpointError, match=r"307 /v2/chat.*state the URL"):
            drawn(server, wanted(20, 1), concurrency=1)
        assert len(server.requests) == 1


def test_what_ends_the_keeping_ends_the_asking() -> None:
    def keep(sample: EndpointSample) -> None:
        raise OSError("no space left on device")

    with FaultyServer() as server:
        endpoint = Endpoint(base_url=server.url, model="m", concurrency=2)
        with pytest.raises(OSError, match="no space left"):
            draw(endpoint, wanted(40, 1), PARAMETERS, keep, cap=MANY)
        assert len(server.requests) <= 3


def test_what_is_printed_holds_no_key_and_no_escape_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    long = b"x" * 290 + b"sk-very-secret"
    with FaultyServer([raw(b"\x1b[2J" + long, 500), raw(long)]) as server:
        said: list[str] = []
        endpoint = Endpoint(base_url=server.url, model="m", concurrency=1)
        draw(endpoint, wanted(1, 1), PARAMETERS, print, cap=MANY, warn=said.append)
    assert len(said) == 2
    assert not any("sk-very" in text or "\x1b" in text for text in said)


# The command


@pytest.fixture
def command(warm: Path) -> Callable[..., list[str]]:
    """A command line that draws 30 samples into a file."""

    def words(server: FaultyServer, out: Path, *more: str) -> list[str]:
        return [
            *(str(warm / "bestofk"), "sample", server.url, "--model", "m"),
            *("--task", "countdown", "--problems", "5", "--n", "6", "--out", str(out)),
            *("--max-new-tokens", "32", "--concurrency", "2", *more),
        ]

    return words


FIELDS = [
    *("problem_id", "sample_id", "prompt", "completion", "answer", "reward", "correct", "status"),
    *("finish_reason", "n_tokens", "logprob_sum", "seed", "model", "sampling", "run_id"),
]


def stopped(server: FaultyServer, process: subprocess.Popen[str], number: int) -> None:
    """Send a signal while both of the command's workers wait for an answer."""
    for _ in range(2):
        assert server.held.acquire(timeout=900)
    process.send_signal(number)
    process.communicate(timeout=900)
    server.go.set()


def test_a_killed_run_goes_on_and_no_sample_is_paid_twice(
    tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    out = tmp_path / "a.jsonl"
    environment = {**os.environ, "OPENAI_API_KEY": "sk-do-not-log-me"}
    with FaultyServer(share=0.1, most=8) as server:
        process = subprocess.Popen(
            command(server, out), env=environment, stderr=subprocess.PIPE, text=True
        )
        stopped(server, process, signal.SIGKILL)
        assert sum(server.answered.values()) == 8
        with out.open("a") as torn:
            torn.write('{"problem_id": "torn')
        again = subprocess.run(
            command(server, out), env=environment, capture_output=True, text=True
        )
        assert again.returncode == 0, again.stderr
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(lines) == 30
        assert len({(line["problem_id"], line["sample_id"]) for line in lines}) == 30
        assert list(lines[0]) == FIELDS
        total = sum(server.answered.values())
        assert total == 30
        assert "cap: " in again.stderr
        assert "prompt and" in again.stderr
        assert "of 30 there" in again.stderr
        third = subprocess.run(
            command(server, out), env=environment, capture_output=True, text=True
        )
        assert third.returncode == 0
        assert sum(server.answered.values()) == total
        assert "bestofk eval" in third.stdout
    everything = again.stdout + again.stderr + third.stdout + third.stderr
    for file in tmp_path.iterdir():
        everything += file.read_text()
    assert "sk-do-not-log-me" not in everything
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_paid_sample_that_was_not_scored_is_scored_without_asking(
    tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    out = tmp_path / "a.jsonl"
    with FaultyServer() as server:
        first = subprocess.run(command(server, out), capture_output=True, text=True)
        assert first.returncode == 0, first.stderr
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        lost = lines.pop()
        out.write_text("".join(json.dumps(line) + "\n" for line in lines))
        journal = tmp_path / "a.jsonl.journal"
        kept = {k: lost[k] for k in ("problem_id", "sample_id", "completion", "seed")}
        journal.write_text(json.dumps(kept) + '\n{"problem')
        before = len(server.requests)
        again = subprocess.run(command(server, out), capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert len(server.requests) == before
        last = json.loads(out.read_text().splitlines()[-1])
        assert (last["problem_id"], last["reward"]) == (lost["problem_id"], lost["reward"])


def test_an_interrupt_loses_nothing(tmp_path: Path, command: Callable[..., list[str]]) -> None:
    out = tmp_path / "a.jsonl"
    with FaultyServer(most=6) as server:
        process = subprocess.Popen(command(server, out), stderr=subprocess.PIPE, text=True)
        stopped(server, process, signal.SIGINT)
        assert process.returncode == 130
        assert len(out.read_text().splitlines()) == 6
        again = subprocess.run(command(server, out), capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        assert len(out.read_text().splitlines()) == 30
        assert sum(server.answered.values()) == 30


def test_another_runs_file_is_not_written_to_and_caps_end_with_status_one(
    tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    out = tmp_path / "a.jsonl"
    with FaultyServer() as server:
        capped = command(server, out, "--max-requests", "7")
        first = subprocess.run(capped, capture_output=True, text=True)
        assert first.returncode == 1
        assert "cap of 7 requests" in first.stderr
        assert len(out.read_text().splitlines()) == 7
        other = command(server, out, "--temperature", "0.5")
        second = subprocess.run(other, capture_output=True, text=True)
        assert second.returncode == 2
        assert "samples of another run" in second.stderr


def test_bad_answers_end_no_command(tmp_path: Path, command: Callable[..., list[str]]) -> None:
    out = tmp_path / "a.jsonl"
    bad = [
        changed("choices.0.message.content", 7),
        raw(b"[" * 100_000),
        changed("choices.0.message.content", "half \ud83d"),
        endless,
    ]
    with FaultyServer(bad) as server:
        done = subprocess.run(
            command(server, out, "--max-answer-bytes", "100000"), capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 30
    assert sum(line["completion"] == "half �" for line in lines) == 1
    first = r"not a completion: (.*int where its text belongs|.*too deeply|.*100,000 bytes)"
    assert re.search(first, done.stderr)  # whichever of the two at once came first
    assert "repeated: an answer that is not a completion 3×" in done.stderr


def sample_file(out: Path, judge: Any) -> SampleFile:
    prompts = {"p": Prompt("p", "half \ud83d", "t")}
    return SampleFile(out, {"model": "m", "sampling": {}, "run_id": "r"}, prompts, judge)


def test_a_sample_that_arrives_after_judging_broke_is_kept(tmp_path: Path) -> None:
    def broken(prompts: Any, texts: Any) -> Any:
        raise RuntimeError("the judge broke")

    def right(prompts: Any, texts: Any) -> list[Verdict]:
        return [Verdict(1.0, "correct") for _ in texts]

    out = tmp_path / "a.jsonl"
    file = sample_file(out, broken).__enter__()
    file.take(problem_id="p", sample_id=0, completion="half \udc00")
    file._thread.join()
    with pytest.raises(RuntimeError, match="broke"):
        file.take(problem_id="p", sample_id=1, completion="b")
    with pytest.raises(RuntimeError, match="broke"):
        file.__exit__(None, None, None)
    with sample_file(out, right) as file:
        assert file.missing(2) == {}
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {line["sample_id"]: line["completion"] for line in lines} == {0: "half \udc00", 1: "b"}
