"""Requests to an HTTP server, repeated while that can help: under `sample`, `serve` and judges.

A request is repeated after 429, 5xx, a cut connection, a time-out or an answer that cannot be read.
A rate limit that one request meets holds all with its key until it is over. An answer has a longest
time and a largest size. The key of a request is sent in one header, and cut out of every message.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import itertools
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bestofk.messages import printable

REJECTED = frozenset({400, 413, 422})
"""Statuses that a repeat will not change, but another text may."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
FATAL = REDIRECTS | {401, 403, 404, 405, 415, 501}
"""Statuses that no text will change."""
CONNECTING = 3
"""Tries where no connection was ever made."""
CONNECT_SECONDS = 30.0
"""Until a connection is made."""
ANSWER_BYTES = 2**24
"""The largest answer, unless stated."""
ENCODINGS = ("identity", "gzip", "deflate")
"""Compressions of an answer: none that makes more than 1,032 bytes of one."""
CONNECTIONS = 32
"""Of one httpx client: with each request it looks at all that it has."""
LONGEST_PAUSE = 120.0
"""Seconds; no server makes us wait longer at once."""
NO_CONNECTION, TOO_SLOW = "no connection", "no answer in time"
T = TypeVar("T")


class BadAnswer(ValueError):
    """An answer that is not what the API promises."""


class RequestFailed(RuntimeError):
    """A request that got no answer which can be used; its text is the cause, without the key."""

    def __init__(self, reason: str, text: str, status: int = 0) -> None:
        """
        Args:
            reason: the kind of failure, in words.
            text: the beginning of what the server or the connection said.
            status: of the answer; 0 where there is none.
        """
        cause = f"{status} {text}".strip() if status else f"{reason}: {text}".removesuffix(": ")
        super().__init__(cause)
        self.reason, self.text, self.status, self.tries = reason, text, status, 1

    @property
    def is_final(self) -> bool:
        """Whether no repeat would change it."""
        return self.status in FATAL | REJECTED


def check_address(what: str, url: str) -> None:
    """
    Raises:
        ValueError: nothing can be asked there.
    """
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ValueError(f"{what} starts with http://HOST:PORT or https://HOST, got {url!r}")


def key_in(variable: str) -> str:
    """The key in an environment variable; empty where it is not set.

    Raises:
        ValueError: no header can hold it. Its text would be in a later error.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"${variable} has a character that no key has: set it again")
    return key


class RetryingClient:
    """Asks HTTP servers from one event loop. Use as a context."""

    def __init__(self, *, concurrency: int, retries: int, timeout: float | None = None) -> None:
        """
        Args:
            concurrency: requests in flight at once.
            retries: times that a request is repeated.
            timeout: seconds until the end of an answer; without one, the caller bounds the time.
        """
        self.concurrency, self.retries, self.timeout = concurrency, retries, timeout
        self.slots = asyncio.Semaphore(concurrency)
        self.stack = AsyncExitStack()
        self.not_before: dict[str, float] = {}
        """When the rate limit of a key is over."""
        self.has_connected = False

    async def __aenter__(self) -> RetryingClient:
        import httpx

        limits = httpx.Limits(
            max_connections=None,
            max_keepalive_connections=self.concurrency,
            keepalive_expiry=2.0,  # vLLM closes idle connections after five seconds
        )
        context = httpx.create_ssl_context()
        timeout = httpx.Timeout(None, connect=min(self.timeout or CONNECT_SECONDS, CONNECT_SECONDS))
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

    async def ask(
        self,
        url: str,
        content: bytes | None,
        read: Callable[[bytes], T],
        *,
        authorization: str = "",
        largest: int = ANSWER_BYTES,
        before: Callable[[int], None] = lambda attempt: None,
        failed: Callable[[RequestFailed], None] = lambda failure: None,
    ) -> T:
        """What `read` makes of the answer, of status 200. Without content it is a GET.

        Args:
            read: raises BadAnswer where a repeat may help.
            authorization: the header, as a client sent it.
            largest: bytes of the answer.
            before: called before each try, with the number of those before it.
            failed: called after each try that failed and may be repeated.

        Raises:
            RequestFailed: the server rejects the request, or keeps failing.
        """
        import httpx

        tries, attempt, secret = self.retries + 1, 0, authorization.rpartition(" ")[2]
        headers = {"Authorization": authorization.encode("latin-1")} if authorization else {}
        while True:
            while (seconds := self.not_before.get(authorization, 0.0) - time.monotonic()) > 0:
                await asyncio.sleep(seconds)
            before(attempt)
            # Doubling from half a second, spread so that those who wait part.
            pause = min(LONGEST_PAUSE, 0.5 * 2 ** min(attempt, 8)) * random.uniform(0.5, 1.0)
            try:
                async with self.slots, asyncio.timeout(self.timeout):
                    client = next(self.clients)
                    status, told, answer = await fetch(client, url, content, largest, headers)
                self.has_connected = True
                if status == 200:
                    return read(answer)
                text = answer.decode("utf-8", "replace") or told.get("location", "")
                reason = "429 too many requests" if status == 429 else str(status)
                failure = RequestFailed(reason, _printed(text, secret), status)
                if failure.is_final:
                    raise failure
                stated_pause = retry_after(told.get("retry-after"))
                pause = pause if stated_pause is None else stated_pause
                if status == 429:
                    now = time.monotonic()
                    self.not_before = {k: end for k, end in self.not_before.items() if end > now}
                    self.not_before[authorization] = now + pause
            except (httpx.TransportError, httpx.DecodingError, TimeoutError, BadAnswer) as error:
                failure = RequestFailed(reason_of(error), _printed(str(error), secret))
                if failure.reason == NO_CONNECTION and not self.has_connected:
                    tries = min(tries, CONNECTING)  # nobody is there: say so soon
            failed(failure)
            attempt += 1
            if attempt >= tries:
                failure.tries = tries
                raise failure
            await asyncio.sleep(pause)


def _printed(text: str, secret: str) -> str:
    """The beginning of a text from outside, for a terminal and without the key."""
    return printable(text.replace(secret, "***") if secret else text)[:300].strip()


async def fetch(
    client: Any,
    url: str,
    body: bytes | None,
    largest: int,
    headers: Mapping[str, str | bytes] | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and content of an answer; of an error, the beginning of the content. Without
    a body it is a GET.

    Raises:
        BadAnswer: more than `largest` bytes, or a compression that was not asked for.
    """
    content = bytearray()
    async with client.stream(
        "GET" if body is None else "POST", url, content=body, headers=headers
    ) as answer:
        encoding = answer.headers.get("content-encoding", "identity").lower()
        if encoding not in ENCODINGS:
            raise BadAnswer(f"an answer compressed by {encoding!r}, which was not asked for")
        async for piece in answer.aiter_bytes():
            content += piece
            if answer.status_code != 200 and len(content) > 2000:
                break
            if len(content) > largest:
                raise BadAnswer(
                    f"an answer of more than {largest:,} bytes (`bestofk sample` and `solve` take "
                    "--max-answer-bytes)"
                )
        return answer.status_code, answer.headers, bytes(content)


def retry_after(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks for: a number, or a date.

    >>> retry_after("2"), retry_after(None), retry_after("soon")
    (2.0, None, None)
    """
    if header is None:
        return None
    with contextlib.suppress(ValueError):
        return min(LONGEST_PAUSE, max(0.0, float(header)))
    with contextlib.suppress(ValueError, TypeError):
        when = email.utils.parsedate_to_datetime(header).timestamp()
        return min(LONGEST_PAUSE, max(0.0, when - time.time()))
    return None


def reason_of(error: Exception) -> str:
    """What kind of failure this is, in words."""
    import httpx

    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return NO_CONNECTION
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return TOO_SLOW
    if isinstance(error, httpx.TransportError):
        return f"a cut connection ({type(error).__name__})"
    return "an answer that is not a completion"
