"""Requests to a server that judges: repeated, counted, and each sent once.

An answer is remembered by its request, so no text is judged twice. No message holds the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from bestofk.rewards.base import Judge, PairVerifier, UnusableFunction
from bestofk.sampling.retrying_client import REJECTED, RequestFailed, RetryingClient, key_in
from bestofk.sections import check_options

REMEMBERED = 20_000
"""Answers that are kept."""
T = TypeVar("T")


class NotServed(UnusableFunction):
    """A path that a server does not have."""


class Rejected(RuntimeError):
    """A server that accepts other texts does not accept this one."""


def model_and_url(kind: str, source: str) -> tuple[str, str]:
    """The model before the last @, empty where there is none, and the address without a slash.

    >>> model_and_url("judge", "org/m@http://127.0.0.1:8000/v1/")
    ('org/m', 'http://127.0.0.1:8000/v1')
    """
    model, _, url = source.rpartition("@")
    if not url.startswith(("http://", "https://")):
        raise ValueError(
            f"{kind} behind a server is {kind}:MODEL@http://HOST:PORT/v1, got {source!r}"
        )
    return model, url.rstrip("/")


def client_of(kind: str, options: Mapping[str, Any]) -> Client:
    """A client with these options; an unknown one is an error in words."""
    check_options(f"verifier {kind}", Client, options)
    return Client(**options)


class Client:
    """JSON to one server and back, from many threads."""

    def __init__(
        self,
        *,
        concurrency: int = 16,
        retries: int = 4,
        timeout: float = 120.0,
        most_calls: int = 0,
        key_variable: str = "OPENAI_API_KEY",
    ) -> None:
        """
        Args:
            concurrency: requests at once.
            most_calls: bound on the requests, and so on the cost; repeats are not counted, 0 is
                none.
        """
        if concurrency < 1 or retries < 0 or most_calls < 0 or not timeout > 0:
            raise ValueError(
                "concurrency is at least 1, retries and most_calls at least 0, timeout positive; "
                f"got {concurrency}, {retries}, {most_calls} and {timeout}"
            )
        self.concurrency, self.retries, self.timeout = concurrency, retries, timeout
        self.most_calls, self.calls = most_calls, 0
        key = key_in(key_variable)
        self.authorization = f"Bearer {key}" if key else ""
        self.has_answered = False
        self._answers: OrderedDict[bytes, Future[Any]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def sent(self, url: str, content: bytes | None) -> bytes:
        """The answer of status 200 to a request. Without content it is a GET."""
        with self._lock:
            if self._loop is None:
                self._http = RetryingClient(
                    concurrency=self.concurrency, retries=self.retries, timeout=self.timeout
                )
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), daemon=True).start()
                asyncio.run_coroutine_threadsafe(self._http.__aenter__(), self._loop).result()
            asking = self._http.ask(url, content, bytes, authorization=self.authorization)
            answer = asyncio.run_coroutine_threadsafe(asking, self._loop)
        return answer.result()

    def close(self) -> None:
        with self._lock:
            if self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    async def _disconnect(self) -> None:
        """Cancel the requests that are still being answered."""
        asking = asyncio.all_tasks() - {asyncio.current_task()}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._http.__aexit__()

    def asked(self, url: str, body: Mapping[str, Any], read: Callable[[bytes], T]) -> T:
        """What `read` makes of the answer to a request. One that was answered is not sent again.

        Raises:
            UnusableFunction: the bound on calls is reached, or no request would be accepted.
            Rejected: this text is not accepted, and others are.
            RuntimeError: the server keeps failing.
        """
        content = json.dumps(body).encode()
        digest = hashlib.sha256(url.encode() + b"\n" + content).digest()
        with self._lock:
            answer = self._answers.get(digest)
            is_first = answer is None
            if answer is None:
                answer = self._answers[digest] = Future()
                if len(self._answers) > REMEMBERED:
                    self._answers.popitem(last=False)
        if is_first:
            try:
                answer.set_result(read(self._counted(url, content)))
            except BaseException as error:
                with self._lock:
                    self._answers.pop(digest, None)
                answer.set_exception(error)
        return answer.result()

    def _counted(self, url: str, content: bytes) -> bytes:
        with self._lock:
            self.calls += 1
            if self.most_calls and self.calls > self.most_calls:
                raise UnusableFunction(
                    f"{url}: the bound of {self.most_calls:,} calls is reached: raise most_calls"
                )
        try:
            answer = self.sent(url, content)
        except RequestFailed as failure:
            cause = f"{url} answered {failure}"
            if failure.status in REJECTED and self.has_answered:
                raise Rejected(cause) from None
            if failure.is_final:
                unusable = NotServed if failure.status in (404, 501) else UnusableFunction
                raise unusable(cause) from None
            raise RuntimeError(f"{url} failed {failure.tries} times: {failure}") from None
        self.has_answered = True
        return answer


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped."""
    with contextlib.closing(loop):
        loop.run_forever()


class ServedVerifier(PairVerifier):
    """Judges pairs by a server, many at once."""

    is_learned = True

    def __init__(self, name: str, client: Client, judge: Judge) -> None:
        super().__init__(judge, name=name, threads=client.concurrency)
        self.client = client

    def close(self) -> None:
        self.client.close()
