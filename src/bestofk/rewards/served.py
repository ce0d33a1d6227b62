"""Requests to a server that judges: repeated, counted, and each sent once.

An answer is remembered by its request, so no text is judged twice. No message holds the key.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from bestofk.messages import printable
from bestofk.rewards.base import Judge, PairVerifier, UnusableFunction
from bestofk.sampling.endpoint import ANSWER_BYTES, FATAL, REJECTED, key_in
from bestofk.sampling.openai_wire import backoff, retry_after
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
        self.key = key_in(key_variable)
        self.has_answered = False
        self._answers: OrderedDict[bytes, Future[Any]] = OrderedDict()
        self._http: Any = None
        self._lock = threading.Lock()

    @property
    def http(self) -> Any:
        import httpx

        with self._lock:
            if self._http is None:
                headers = {"Content-Type": "application/json"}
                headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
                limits = httpx.Limits(max_connections=self.concurrency)
                self._http = httpx.Client(headers=headers, timeout=self.timeout, limits=limits)
            return self._http

    def close(self) -> None:
        with self._lock:
            if self._http is not None:
                self._http.close()
            self._http = None

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
        status, answer = self.sent("POST", url, content)
        cause = f"{url} answered {status} {self.printed(answer)}"
        if status in REJECTED and self.has_answered:
            raise Rejected(cause)
        if status != 200:
            raise (NotServed if status in (404, 501) else UnusableFunction)(cause)
        self.has_answered = True
        return answer

    def sent(self, method: str, url: str, content: bytes = b"") -> tuple[int, bytes]:
        """Status and content of the answer that no repeat will change.

        Raises:
            RuntimeError: there is none.
        """
        import httpx

        cause = ""
        for attempt in range(self.retries + 1):
            pause = backoff(attempt)
            try:
                answer = self.http.request(method, url, content=content)
                if len(answer.content) > ANSWER_BYTES:
                    raise RuntimeError(f"{url} sent an answer of more than {ANSWER_BYTES:,} bytes")
                if answer.status_code in {200, 501} | FATAL | REJECTED:
                    return answer.status_code, answer.content
                cause = f"{answer.status_code} {self.printed(answer.content)}"
                asked = retry_after(answer.headers.get("retry-after"))
                pause = pause if asked is None else asked
            except httpx.HTTPError as error:
                cause = self.printed(f"{type(error).__name__}: {error}".encode())
            if attempt < self.retries:
                time.sleep(pause)
        raise RuntimeError(f"{url} failed {self.retries + 1} times: {cause}")

    def printed(self, content: bytes) -> str:
        """The beginning of a text from outside, without the key."""
        text = content[:4000].decode("utf-8", "replace")
        return printable(text.replace(self.key, "***") if self.key else text)[:300].strip()


class ServedVerifier(PairVerifier):
    """Judges pairs by a server, many at once."""

    is_learned = True

    def __init__(self, name: str, client: Client, judge: Judge) -> None:
        super().__init__(judge, name=name, threads=client.concurrency)
        self.client = client

    def close(self) -> None:
        self.client.close()
