"""What goes over the wire to an OpenAI-compatible endpoint, and what comes back: pure functions."""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from bestofk.sampling.sampler import Sampling
from bestofk.types import Prompt

LONGEST_PAUSE = 120.0
"""Seconds; no server makes us wait longer at once."""


NO_CONNECTION, TOO_SLOW = "no connection", "no answer in time"


def request_body(
    prompt: Prompt,
    sampling: Sampling,
    *,
    model: str,
    n: int,
    seed: int,
    chat: bool,
    logprobs: bool,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The request; only what differs from the API's defaults is sent, for strict servers.

    Args:
        extra: further fields, which win over ours.
    """
    body: dict[str, Any] = {
        "model": model,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_new_tokens,
        "seed": seed,
    }
    if n > 1:
        body["n"] = n
    if sampling.top_p < 1.0:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    text = prompt.text
    if chat:
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": 1}  # llama.cpp gives none without the second
        turns: Sequence[Mapping[str, str]]
        turns = ({"role": "user", "content": text},) if isinstance(text, str) else text
        body["messages"] = [dict(turn) for turn in turns]
    else:
        if logprobs:
            body["logprobs"] = 1
        if not isinstance(text, str):
            raise ValueError(
                f"prompt {prompt.id!r} holds chat messages: take --api chat, or a task with "
                "style 'text'"
            )
        body["prompt"] = text
    return body | dict(extra or {})


def sample_seed(seed: int, problem: str, sample: int) -> int:
    """A seed for every sample, the same in a resumed run; 31 bits, as servers want it."""
    digest = hashlib.sha256(f"{seed}/{sample}/{problem}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


def backoff(attempt: int) -> float:
    """Seconds before the next try: doubling from half a second, spread so that workers part."""
    return float(min(LONGEST_PAUSE, 0.5 * 2**attempt) * random.uniform(0.5, 1.0))


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
    if isinstance(error, httpx.TimeoutException):
        return TOO_SLOW
    if isinstance(error, httpx.TransportError):
        return f"a cut connection ({type(error).__name__})"
    return "an answer that is not a completion"


def text_of(choice: Mapping[str, Any]) -> str:
    """A choice's text; a reasoning model's thoughts come first, in <think> tags."""
    if "message" in choice:
        message = choice["message"]
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        stated = message.get("content") or ""
        return f"<think>{thought}</think>{stated}" if thought else stated
    return str(choice["text"])


def logprobs_of(choice: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Σ log-probability and number of tokens of a choice, where the endpoint gives them."""
    given = choice.get("logprobs") or {}
    tokens = given.get("content")
    if tokens is not None:
        values = [token.get("logprob") for token in tokens]
    else:
        values = list(given.get("token_logprobs") or [])
    if not values or any(value is None for value in values):
        return None, None
    return float(sum(values)), len(values)


def local(url: str) -> str:
    """The URL, if it is of this machine: weights go through its memory."""
    parts = urlsplit(url)
    here = parts.scheme == "unix" or (
        parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    )
    if not here:
        raise ValueError(
            f"a vLLM server that is trained with runs on this machine, as http://127.0.0.1:8000 or "
            f"unix:///path/to/socket: weights go through shared memory; got {url!r}"
        )
    return url.rstrip("/").removesuffix("/v1")


def socket_of(url: str) -> str | None:
    return urlsplit(url).path if url.startswith("unix:") else None


def base_of(url: str) -> str:
    return "http://localhost" if url.startswith("unix:") else url
