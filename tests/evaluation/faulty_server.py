"""A small OpenAI-compatible server on loopback that fails on purpose and counts its answers."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Fault: TypeAlias = str | Callable[[Any, dict[str, Any]], None]


class FaultyServer:
    """Serves chat and text completions; `faults` are taken in turn, then all goes well.

    Faults: "429" (with Retry-After), "429-date", "500", "503", "cut" (mid-answer), "drop" (no
    answer), "garbage" (not JSON), "empty" (no choices), "html"; or what takes the handler and the
    request and answers. `always` holds faults of requests whose prompt has this word in it.

    After `most` answers requests are held until `go` is set, and then dropped; each that is held
    releases `held`. Answers are given `together`, so many at once, and `after` an event; faults
    come at once.
    """

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        always: Mapping[str, Fault] | None = None,
        share: float = 0.0,
        after: threading.Event | None = None,
        most: int = 10**9,
        together: int = 1,
    ) -> None:
        self.faults, self.always = list(faults), dict(always or {})
        self.share, self.after, self.left = share, after, most
        self.held, self.go = threading.Semaphore(0), threading.Event()
        self.together = threading.Barrier(together, timeout=900)
        self.rng = random.Random(0)
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answered: Counter[tuple[str, int]] = Counter()
        self.at_once = self.most_at_once = 0
        self.times: list[float] = []
        self.refuse: tuple[int, str] | None = None
        self.one_choice_only = False
        self.bare = False
        """Whether answers have null content, no log-probs and no usage."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server.serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # type: ignore[method-assign]  # of cut connections
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FaultyServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def fault(self, prompt: str) -> Fault:
        for word, fault in self.always.items():
            if word in prompt:
                return fault
        with self.lock:
            if self.faults:
                return self.faults.pop(0)
            kinds = ("429", "500", "cut", "drop", "garbage", "empty")
            return self.rng.choice(kinds) if self.rng.random() < self.share else ""

    def serve(self, handler: Any) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            self.requests.append(body)
            self.headers.append(dict(handler.headers))
            self.times.append(time.monotonic())
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.refuse:
                send(handler, self.refuse[0], self.refuse[1].encode())
            else:
                self.answer(handler, body, self.fault(prompt_of(body)))
        finally:
            with self.lock:
                self.at_once -= 1

    def answer(self, handler: Any, body: dict[str, Any], fault: Fault) -> None:
        if not isinstance(fault, str):
            fault(handler, body)
        elif fault == "429":
            send(handler, 429, b'{"error": "slow down"}', {"Retry-After": "0.3"})
        elif fault == "429-date":
            send(handler, 429, b"{}", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
        elif fault in ("500", "503"):
            send(handler, int(fault), b"oops")
        elif fault == "garbage":
            send(handler, 200, b"\x00\x01 not json {{{")
        elif fault == "html":
            send(handler, 200, b"<html>login</html>")
        elif fault == "empty":
            send(handler, 200, b'{"choices": []}')
        elif fault == "drop" or self.is_held(fault):
            handler.close_connection = True
            handler.connection.close()
        else:
            if self.after is not None:
                self.after.wait(900)
            self.together.wait()
            data = json.dumps(self.completion(body)).encode()
            if fault == "cut":
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(data)))
                handler.end_headers()
                handler.wfile.write(data[: len(data) // 2])
                handler.wfile.flush()
                handler.close_connection = True
                return
            send(handler, 200, data)
            with self.lock:
                self.answered[prompt_of(body), body["seed"]] += 1

    def is_held(self, fault: str) -> bool:
        """Whether this is one answer too many; returns when nobody is held any more."""
        with self.lock:
            self.left -= not fault
            if fault or self.left >= 0 or self.go.is_set():
                return False
        self.held.release()
        return self.go.wait(900)

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        count = 1 if self.one_choice_only else body.get("n", 1)
        choices = []
        for number in range(count):
            text = f"<answer>{body['seed'] % 7 + number}</answer>"
            choice: dict[str, Any] = {"index": number, "finish_reason": "stop"}
            if "messages" in body:
                choice["message"] = {"role": "assistant", "content": text}
                if body.get("logprobs"):
                    choice["logprobs"] = {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}
            else:
                choice["text"] = text
                if body.get("logprobs"):
                    choice["logprobs"] = {"token_logprobs": [-0.5, -0.25]}
            choices.append(choice)
        if self.bare:
            message = {"role": "assistant", "content": None}
            bare = [
                {"index": i, "message": message, "finish_reason": "length"} for i in range(count)
            ]
            bare[0]["message"] = message | {"content": "7"}
            return {"choices": bare}
        tokens = 4 * count
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
        return {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}


def prompt_of(body: dict[str, Any]) -> str:
    return json.dumps(body.get("messages") or body.get("prompt"))


def send(handler: Any, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
