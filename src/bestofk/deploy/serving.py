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
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bestofk.deploy.answering import Judging, drawn_and_judged
from bestofk.deploy.racing import DrawFailed
from bestofk.deploy.requests import (
    BadRequest,
    Question,
    Rules,
    answer_of,
    events_of,
    parsed_body,
    question_of,
)
from bestofk.deploy.tally import Tally
from bestofk.deploy.upstream import Upstream
from bestofk.rewards import BatchVerifier
from bestofk.rewards.base import UnusableFunction
from bestofk.sampling.retrying_client import RetryingClient
from bestofk.sandbox import SandboxError
from bestofk.storage import json_safe

LOOPBACK = ("127.0.0.1", "localhost", "::1")
BODY_SECONDS = 30.0
"""Until a request has sent its body."""


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What the server allows and who may ask."""

    timeout: float = 600.0
    """Seconds of a request from its first byte; then the best of what has come is the answer."""
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


class Service:
    """The server between its clients and another one."""

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
        self.address, self.rules, self.limits = upstream, rules, limits
        self.judging, self.tally = Judging(verifier, threads=judges, say=say), Tally()
        self.numbers = itertools.count(1)

    @contextlib.asynccontextmanager
    async def running(self, _: Starlette) -> AsyncIterator[None]:
        limits = self.limits
        async with RetryingClient(concurrency=limits.concurrency, retries=limits.retries) as client:
            self.upstream = Upstream(self.address, client)
            yield
        self.judging.close()

    async def best(self, question: Question, request: Request, seconds: float) -> dict[str, Any]:
        """The response to a question."""
        drawn = await drawn_and_judged(
            question,
            self.upstream,
            self.judging,
            self.rules,
            authorization=self.authorization(request),
            seconds=seconds,
        )
        self.tally.draws(drawn)
        if not drawn.lines:
            if drawn.failures:
                raise drawn.failures[-1]
            cause = f"; {drawn.repeated[-1]}" if drawn.repeated else ""
            raise DrawFailed(f"no sample within {self.limits.timeout:g} s{cause}", 504)
        answer = answer_of(question, drawn, self.rules)
        self.tally.answer(answer)
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
            self.judging.check(question)
            seconds_left = begin + self.limits.timeout - time.monotonic()
            answer = await while_connected(request, self.best(question, request, seconds_left))
        except BadRequest as error:
            return self.failed(str(error), 400)
        except TimeoutError:
            return self.failed("the body did not come in time", 408)
        except DrawFailed as error:
            return self.failed(str(error), error.status)
        except ClientDisconnect:
            return self.failed("the client has gone", 499)
        except asyncio.CancelledError:  # by the web server, ten seconds after a signal
            return self.failed("this server is stopping", 503)
        except (UnusableFunction, SandboxError) as error:
            self.judging.note(str(error))
            return self.failed("the verifier cannot judge; the server's log says why", 500)
        finally:
            self.tally.in_progress -= 1
            self.tally.time(time.monotonic() - begin)
        self.tally.add("requests_total", 'status="200"')
        if question.stream:
            return Response("".join(events_of(question, answer)), media_type="text/event-stream")
        return as_json(answer, 200)

    async def body_of(self, request: Request) -> bytes:
        """The body, if it is JSON and not too large."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise BadRequest("state Content-Type: application/json")  # no page of a browser's can
        content = bytearray()
        async with asyncio.timeout(min(BODY_SECONDS, self.limits.timeout)):
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
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
        ]
        app = Starlette(
            routes=routes,
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
    """What a coroutine returns; it is cancelled when the client goes."""
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
    """A socket; port 0 takes a free one."""
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
