"""The server that draws for `serve`: one request a sample, repeated while that can help."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from bestofk.deploy.racing import DrawFailed
from bestofk.deploy.requests import is_deeper
from bestofk.messages import printable
from bestofk.sampling.endpoint import (
    ANSWER_BYTES,
    CONNECT_SECONDS,
    ENCODINGS,
    FATAL,
    REDIRECTS,
    REJECTED,
    fetch,
    transient,
)
from bestofk.sampling.openai_wire import (
    NO_CONNECTION,
    BadAnswer,
    Choice,
    backoff,
    read_answer,
    reason_of,
    retry_after,
)

CONNECTIONS = 32
"""Of one HTTP client: with each request it looks at all that it has."""


@dataclass(frozen=True)
class Completion:
    """One sample as it came."""

    choice: Choice
    raw: Mapping[str, Any]
    """The choice as the server wrote it."""
    response: Mapping[str, Any]
    usage: Mapping[str, int]


def key_header(authorization: str) -> dict[str, bytes]:
    """The header as the client sent it, where it sent one."""
    return {"Authorization": authorization.encode("latin-1")} if authorization else {}


def check_choice(choice: Mapping[str, Any], *, is_chat: bool) -> None:
    """
    Raises:
        BadAnswer: a choice of the other kind, or tool calls that are none.
    """
    holder = choice.get("message") if is_chat else choice
    if not isinstance(holder, dict) or not (is_chat or "text" in holder):
        raise BadAnswer(f"a choice without a {'message' if is_chat else 'text'}")
    calls = holder.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadAnswer("tool_calls that are not a list of objects")


class Upstream:
    """An OpenAI-compatible server, asked by many requests at once. Use as a context."""

    def __init__(self, base_url: str, *, concurrency: int, retries: int) -> None:
        """
        Args:
            base_url: up to and including the version.
            concurrency: requests in flight at once.
            retries: times that a request is repeated after 429, 5xx, a cut connection or an answer
                that is no completion.
        """
        self.base_url, self.retries, self.concurrency = base_url.rstrip("/"), retries, concurrency
        self.slots = asyncio.Semaphore(concurrency)
        self.not_before = 0.0
        self.stack = AsyncExitStack()

    async def __aenter__(self) -> Upstream:
        import httpx

        limits = httpx.Limits(
            max_connections=None,
            max_keepalive_connections=self.concurrency,
            keepalive_expiry=2.0,  # vLLM closes idle connections after five seconds
        )
        context = httpx.create_ssl_context()
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json", "Accept-Encoding": ", ".join(ENCODINGS[1:])}
        clients = [
            await self.stack.enter_async_context(
                httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits, verify=context)
            )
            for _ in range(-(-self.concurrency // CONNECTIONS))
        ]
        self.clients = itertools.cycle(clients)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()

    async def draw(self, path: str, body: bytes, authorization: str) -> Completion:
        """One sample.

        Raises:
            DrawFailed: the server rejects the request, or keeps failing. No message holds the key.
        """
        url = f"{self.base_url}/{path}"
        headers, key = key_header(authorization), authorization.rpartition(" ")[2]
        failure = DrawFailed("")
        for attempt in range(self.retries + 1):
            pause = backoff(attempt)
            while (wait := self.not_before - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            try:
                async with self.slots:
                    status, told, content = await fetch(
                        next(self.clients), url, body, ANSWER_BYTES, headers
                    )
                if status == 200:
                    answer = read_answer(content, 1)
                    (choice,) = answer.choices
                    assert choice is not None
                    response = json.loads(content)
                    if is_deeper(response):
                        raise BadAnswer("an answer that is nested too deeply")
                    raw = response["choices"][0]
                    check_choice(raw, is_chat=path.startswith("chat/"))
                    return Completion(choice, raw, response, answer.usage)
                cause = self.printed(content.decode("utf-8", "replace"), key)
                says = f"upstream answered {status}: {cause}".removesuffix(": ")
                if status in FATAL | REJECTED:
                    raise DrawFailed(says, 502 if status in REDIRECTS else status, is_final=True)
                failure = DrawFailed(says, 429 if status == 429 else 502)
                asked = retry_after(told.get("retry-after"))
                pause = pause if asked is None else asked
                if status == 429:
                    self.not_before = time.monotonic() + pause
            except transient() as error:
                reason = reason_of(error)
                failure = DrawFailed(
                    f"upstream: {self.printed(f'{reason}: {error}', key)}".removesuffix(":"),
                    503 if reason == NO_CONNECTION else 502,
                )
            if attempt < self.retries:
                await asyncio.sleep(pause)
        raise failure

    async def models(self, authorization: str) -> Any:
        """What the server answers to GET /models.

        Raises:
            DrawFailed: it gives no JSON. No message holds the key.
        """
        headers, key = key_header(authorization), authorization.rpartition(" ")[2]
        try:
            async with self.slots, asyncio.timeout(CONNECT_SECONDS):
                url = f"{self.base_url}/models"
                status, _, content = await fetch(
                    next(self.clients), url, None, ANSWER_BYTES, headers
                )
        except transient() as error:
            raise DrawFailed(f"upstream: {reason_of(error)}", 503) from None
        if status != 200:
            cause = self.printed(content.decode("utf-8", "replace"), key)
            says = f"upstream answered {status}: {cause}".removesuffix(": ")
            raise DrawFailed(says, status if status >= 400 else 502)
        try:
            listed = json.loads(content)
            if not is_deeper(listed):
                return listed
        except (ValueError, RecursionError):
            pass
        raise DrawFailed("upstream: its list of models is not JSON")

    def printed(self, text: str, key: str) -> str:
        """A text from outside, without the key."""
        return printable(text.replace(key, "***") if key else text)[:300].strip()
