"""An OpenAI-compatible server that answers with the best of k samples of another one.

Endpoints: POST /v1/chat/completions and /v1/completions, GET /v1/models, /metrics (Prometheus) and
/health. Bodies, time, requests at once and samples at once are bounded. The key of a request goes
to the upstream server and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import json
import math
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bestofk.deploy.racing import DrawFailed, Race, race
from bestofk.deploy.requests import (
    BadRequest,
    Question,
    Rules,
    answer_of,
    events_of,
    parsed_body,
    question_of,
)
from bestofk.deploy.upstream import Upstream
from bestofk.messages import printable
from bestofk.rewards import BatchVerifier
from bestofk.rewards.base import UnusableFunction
from bestofk.rewards.combine import NO_VERIFIER
from bestofk.rewards.maths.extract_answer import given_answer
from bestofk.sampling.retrying_client import RetryingClient
from bestofk.sandbox import SandboxError
from bestofk.storage import json_safe

LOOPBACK = ("127.0.0.1", "localhost", "::1")
BODY_SECONDS = 30.0
"""Until a request has sent its body."""
MOST_NOTES = 20
"""Kinds of failing verdicts that are told on stderr."""
SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Bounds of the histogram of a request's time."""


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What the server allows and who may ask."""

    timeout: float = 600.0
    """Seconds of a request; then the best of what has come is the answer."""
    requests: int = 1024
    """Answered at once; more get status 429."""
    concurrency: int = 256
    """Samples drawn at once, over all requests."""
    retries: int = 2
    body_bytes: int = 4 << 20
    token: str = ""
    """What a client sends as its key; empty where anybody on this machine may ask."""
    upstream_key: str = ""
    """Sent to the upstream server; where it is empty and no token is needed, the client's key."""
    hosts: tuple[str, ...] = LOOPBACK
    """Accepted in the Host header; empty accepts all."""


NOT_JUDGED = {"reward": None, "score": None, "status": "unscored", "answer": None}


class Tally:
    """What /metrics shows."""

    def __init__(self) -> None:
        self.counts = Counter[tuple[str, str]]()
        self.in_progress = 0

    def add(self, name: str, label: str, value: float = 1) -> None:
        self.counts[name, label] += value  # type: ignore[assignment]  # seconds are no integers

    def time(self, seconds: float) -> None:
        """A request that took so long, in the histogram."""
        for bound in (*SECONDS, math.inf):
            text = "+Inf" if bound == math.inf else f"{bound:g}"
            self.add("request_seconds_bucket", f'le="{text}"', int(seconds <= bound))
        self.add("request_seconds_sum", "", seconds)
        self.add("request_seconds_count", "")

    def draws(self, drawn: Race, answer: dict[str, Any]) -> None:
        told = answer["bestofk"]
        for end in ("cancelled", "failed"):
            self.add("draws_total", f'end="{end}"', told[end])
        self.add("draws_total", 'end="finished"', told["draws"])
        self.add("answers_total", f'chosen_by="{told["chosen_by"]}"')
        self.add("answers_passed_total", "", int(told["passed"]))
        self.add("tokens_total", 'kind="completion"', answer["usage"]["completion_tokens"])
        self.add("tokens_total", 'kind="prompt"', answer["usage"]["prompt_tokens"])
        self.add("late_total", "", int(drawn.is_late))
        unscored = sum(line["status"] == "unscored" for line in drawn.lines)
        self.add("verdicts_unscored_total", "", unscored)

    def text(self) -> str:
        """In Prometheus' text format."""
        kinds = {"request_seconds_bucket": "histogram", "in_progress": "gauge"}
        lines, seen = [], set[str]()
        self.counts["in_progress", ""] = self.in_progress
        for (name, label), value in sorted(self.counts.items(), key=lambda item: item[0][0]):
            base = name.removesuffix("_bucket")
            if name not in seen and not name.endswith(("seconds_sum", "seconds_count")):
                lines.append(f"# TYPE bestofk_{base} {kinds.get(name, 'counter')}")
            seen.add(name)
            lines.append(f"bestofk_{name}{f'{{{label}}}' if label else ''} {value:g}")
        return "\n".join(lines) + "\n"


class Service:
    """One verifier, one upstream server, and the requests between them."""

    def __init__(
        self,
        upstream: str,
        verifier: BatchVerifier,
        rules: Rules,
        limits: ServerLimits,
        *,
        judges: int = 16,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """
        Args:
            upstream: URL up to and including the version.
            judges: samples judged at once.
            say: told once of each kind of failing verdict.
        """
        self.address, self.verifier, self.rules, self.limits = upstream, verifier, rules, limits
        self.pool = ThreadPoolExecutor(judges, "bestofk judge")
        self.tally, self.say, self.notes = Tally(), say, set[str]()
        self.numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def running(self, _: Starlette) -> AsyncIterator[None]:
        limits = self.limits
        async with RetryingClient(concurrency=limits.concurrency, retries=limits.retries) as client:
            self.upstream = Upstream(self.address, client)
            yield
        self.pool.shutdown(wait=False, cancel_futures=True)

    async def judge(self, question: Question, lines: Sequence[dict[str, Any]]) -> None:
        """Write their verdicts into lines, and the answers that a vote counts."""
        prompt, texts = question.prompt, [line["text"] for line in lines]
        verdicts = await asyncio.get_running_loop().run_in_executor(
            self.pool, self.verifier, [prompt] * len(texts), texts
        )
        for line, verdict in zip(lines, verdicts):
            if verdict.status == "unscored" and verdict.detail != NO_VERIFIER:
                self.note(verdict.detail.replace(prompt.id, "a request"))
            line |= {
                "reward": None if math.isnan(verdict.reward) else verdict.reward,
                "score": verdict.score,
                "status": verdict.status,
                "answer": verdict.answer or given_answer(prompt, line["text"], verdict),
            }

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < MOST_NOTES:
            self.notes.add(text)
            self.say(printable(text))

    async def best(self, question: Question, authorization: str) -> dict[str, Any]:
        """The response to a question.

        Raises:
            DrawFailed: no sample came.
        """
        path = "chat/completions" if question.is_chat else "completions"

        async def draw(sample: int) -> dict[str, Any]:
            came = await self.upstream.draw(path, question.body_of(sample), authorization)
            line = {
                "sample_id": sample,
                "text": came.choice.text,
                "choice": came.raw,
                "response": came.response,
                "usage": came.usage,
                **NOT_JUDGED,
            }
            if not self.verifier.compares:
                await self.judge(question, [line])
            return line

        rules, seconds = self.rules, self.limits.timeout
        drawn = await race(
            draw,
            question.k,
            rules.by,
            threshold=rules.threshold,
            at_once=question.at_once,
            seconds=seconds,
        )
        if not drawn.lines:
            self.tally.add("draws_total", 'end="failed"', len(drawn.failures))
            self.tally.add("draws_total", 'end="cancelled"', drawn.cancelled)
            if drawn.failures:
                raise drawn.failures[-1]
            raise DrawFailed(f"no sample within {seconds:g} s", 504)
        if self.verifier.compares and len(drawn.lines) > 1:
            with contextlib.suppress(TimeoutError):  # then nothing is known of them
                async with asyncio.timeout(seconds):
                    await self.judge(question, drawn.lines)
        answer = answer_of(question, drawn, rules)
        self.tally.draws(drawn, answer)
        return answer

    async def complete(self, request: Request) -> Response:
        """Answer a request for a completion."""
        if self.tally.in_progress >= self.limits.requests:
            return self.failed(f"{self.limits.requests} requests are being answered", 429)
        self.tally.in_progress += 1
        begin = time.monotonic()
        try:
            body = await self.body_of(request)
            question = question_of(
                parsed_body(body),
                self.rules,
                f"request-{next(self.numbers)}",
                is_chat=request.url.path.endswith("/chat/completions"),
            )
            self.check(question)
            answer = await while_connected(
                request, self.best(question, self.authorization(request))
            )
        except BadRequest as error:
            return self.failed(str(error), 400)
        except TimeoutError:
            return self.failed(f"the body did not come within {BODY_SECONDS:g} s", 408)
        except DrawFailed as error:
            return self.failed(str(error), error.status)
        except ClientDisconnect:
            return self.failed("the client has gone", 499)
        except asyncio.CancelledError:  # by the web server, ten seconds after a signal
            return self.failed("this server is stopping", 503)
        except (UnusableFunction, SandboxError) as error:
            self.note(str(error))
            return self.failed("the verifier cannot judge; the server's log says why", 500)
        finally:
            self.tally.in_progress -= 1
            self.tally.time(time.monotonic() - begin)
        self.tally.add("requests_total", 'status="200"')
        if question.stream:
            return Response("".join(events_of(question, answer)), media_type="text/event-stream")
        return as_json(answer, 200)

    def check(self, question: Question) -> None:
        """
        Raises:
            BadRequest: the verifier cannot use what the request brings.
        """
        try:
            self.verifier.check_prompts([question.prompt])
        except (ValueError, TypeError, LookupError) as error:
            said = f"{error}".replace(question.prompt.id, "the request")
            raise BadRequest(f"the verifier cannot use the request's metadata: {said}") from error

    async def body_of(self, request: Request) -> bytes:
        """The body, if it is JSON and not too large.

        Raises:
            BadRequest: it is not.
            TimeoutError: it comes too slowly.
        """
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise BadRequest("state Content-Type: application/json")  # no page of a browser's can
        content = bytearray()
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > self.limits.body_bytes:
                    raise BadRequest(f"a body of more than {self.limits.body_bytes:,} bytes")
        return bytes(content)

    def authorization(self, request: Request) -> str:
        """The header for the upstream server: a token is for this one alone."""
        if self.limits.upstream_key:
            return f"Bearer {self.limits.upstream_key}"
        return "" if self.limits.token else request.headers.get("authorization", "")

    def failed(self, message: str, status: int) -> Response:
        self.tally.add("requests_total", f'status="{status}"')
        return refusal(message, status)

    async def models(self, request: Request) -> Response:
        try:
            listed = await self.upstream.models(self.authorization(request))
        except DrawFailed as error:
            return self.failed(str(error), error.status)
        return as_json(listed, 200)

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(self.tally.text(), media_type="text/plain; version=0.0.4")

    async def health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    @property
    def app(self) -> Any:
        """The ASGI application."""
        post = [
            Route(f"/v1/{path}", self.complete, methods=["POST"])
            for path in ("chat/completions", "completions")
        ]
        get = [
            Route(path, endpoint, methods=["GET"])
            for path, endpoint in (
                ("/v1/models", self.models),
                ("/metrics", self.metrics),
                ("/health", self.health),
            )
        ]
        app = Starlette(
            routes=[*post, *get],
            lifespan=self.running,
            exception_handlers={404: self.no_such_path, 405: self.no_such_path},
        )
        app.router.redirect_slashes = False  # to an address that the client's Host header names
        return checked_access(app, self.limits)

    async def no_such_path(self, request: Request, error: Any) -> Response:
        paths = "/v1/chat/completions, /v1/completions, /v1/models, /metrics and /health"
        return self.failed(
            f"{request.method} {request.url.path[:100]} is not served here: {paths} are",
            error.status_code,
        )


async def while_connected(request: Request, answering: Any) -> Any:
    """What a coroutine returns; it is cancelled when the client goes.

    Raises:
        ClientDisconnect: the client went.
    """
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(request.receive())  # after the body there is only one message
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


def checked_access(app: Any, limits: ServerLimits) -> Any:
    """The application for those who may ask: the right Host, no page of another site, the token.

    Another name for loopback, or another origin, is another site's attempt to ask through a
    browser.
    """

    hosts = {name.lower() for name in limits.hosts}

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
            host = host_in(f"//{headers.get(b'host', '')}")
            origin = headers.get(b"origin")
            token = headers.get(b"authorization", "").removeprefix("Bearer ")
            fault: Response | None = None
            if hosts and host not in hosts:
                fault = refusal("the Host header names another machine", 421)
            elif origin is not None and host_in(origin) not in hosts:
                fault = refusal("a page of another site may not ask", 403)
            elif limits.token and scope["path"] != "/health":
                right = hmac.compare_digest(token.encode(), limits.token.encode())
                fault = None if right else refusal("the token is missing or wrong", 401)
            if fault is not None:
                await fault(scope, receive, send)
                return
        await app(scope, receive, send)

    return checked


def host_in(address: str) -> str:
    """The host of an address, in lower case; empty where it has none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def refusal(message: str, status: int) -> Response:
    """An error as the API writes it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": status}
    headers = {"Retry-After": "1"} if status == 429 else {}
    return as_json({"error": error}, status, headers)


def as_json(value: Any, status: int, headers: dict[str, str] | None = None) -> Response:
    data = json.dumps(json_safe(value))
    return Response(data, status, headers, media_type="application/json")


def listening(host: str, port: int) -> socket.socket:
    """A socket; port 0 takes a free one.

    Raises:
        OSError: the address or port cannot be taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise OSError(
            f"cannot listen on {host}:{port} ({getattr(error, 'strerror', error)}): choose another "
            "--port from 1024 to 65535, or 0 for a free one"
        ) from None
    return listener


def server_of(service: Service) -> Any:
    """The web server, still to be run."""
    import uvicorn

    config = uvicorn.Config(
        service.app,
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,  # longer than clients keep idle connections: they close them first
    )
    return uvicorn.Server(config)


def run(service: Service, listener: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM; requests in progress have ten seconds to end.

    Raises:
        SystemExit: after SIGTERM, which ends the process as Ctrl-C does: verifiers are closed.
    """

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)  # uvicorn raises the signal again when it has ended
    with listener:
        server_of(service).run(sockets=[listener])
    sys.stderr.flush()
