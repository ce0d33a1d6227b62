"""The server that draws for `serve`: one request a sample, repeated while that can help."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from bestofk.deploy.racing import DrawFailed
from bestofk.deploy.requests import is_deeper
from bestofk.sampling.openai_wire import read_answer
from bestofk.sampling.retrying_client import (
    CONNECT_SECONDS,
    NO_CONNECTION,
    REDIRECTS,
    TOO_SLOW,
    BadAnswer,
    RequestFailed,
    RetryingClient,
)


def sample_in(content: bytes, *, is_chat: bool) -> dict[str, Any]:
    """The one sample of an answer: its text, its choice and all as the server wrote it, its usage.

    Raises:
        BadAnswer: there is none, one of the other kind or with tool calls that are none, or it is
            nested too deeply.
    """
    answer = read_answer(content, 1)
    response = json.loads(content)
    if is_deeper(response):
        raise BadAnswer("an answer that is nested too deeply")
    choice = response["choices"][0]
    holder = choice.get("message") if is_chat else choice
    if not isinstance(holder, dict) or not (is_chat or "text" in holder):
        raise BadAnswer(f"a choice without a {'message' if is_chat else 'text'}")
    calls = holder.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadAnswer("tool_calls that are not a list of objects")
    return {"text": answer.text, "choice": choice, "response": response, "usage": answer.usage}


class Upstream:
    """An OpenAI-compatible server, asked by many requests at once."""

    def __init__(self, base_url: str, client: RetryingClient) -> None:
        """`base_url` ends with the version."""
        self.base_url, self.client = base_url.rstrip("/"), client

    async def draw(
        self, path: str, body: bytes, authorization: str, repeated: Callable[[DrawFailed], None]
    ) -> dict[str, Any]:
        """One sample, as `sample_in` reads it.

        Args:
            repeated: told why the request may be repeated.

        Raises:
            DrawFailed: the server rejects the request, or keeps failing. No message holds the key.
        """
        try:
            return await self.client.ask(
                f"{self.base_url}/{path}",
                body,
                partial(sample_in, is_chat=path.startswith("chat/")),
                authorization=authorization,
                failed=lambda failure: repeated(draw_failed(failure)),
            )
        except RequestFailed as failure:
            raise draw_failed(failure) from None

    async def models(self, authorization: str) -> Any:
        """What the server answers to GET /models.

        Raises:
            DrawFailed: it gives no JSON. No message holds the key.
        """
        url = f"{self.base_url}/models"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                content = await self.client.ask(url, None, bytes, authorization=authorization)
            listed = json.loads(content)
            if not is_deeper(listed):
                return listed
        except RequestFailed as failure:
            raise draw_failed(failure) from None
        except TimeoutError:
            raise DrawFailed(f"upstream: {TOO_SLOW}", 504) from None
        except (ValueError, RecursionError):
            pass
        raise DrawFailed("upstream: its list of models is not JSON")


def draw_failed(failure: RequestFailed) -> DrawFailed:
    """The failure as a client is told it."""
    status = failure.status
    if not status:
        return DrawFailed(f"upstream: {failure}", 503 if failure.reason == NO_CONNECTION else 502)
    text = "" if status in REDIRECTS else failure.text
    is_told = status == 429 or (failure.is_final and status not in REDIRECTS)
    return DrawFailed(
        f"upstream answered {status}: {text}".removesuffix(": "),
        status if is_told else 502,
        is_final=failure.is_final,
    )
