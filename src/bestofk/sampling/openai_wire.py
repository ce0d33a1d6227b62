"""What goes over the wire to an OpenAI-compatible endpoint, and what comes back: pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bestofk.sampling.retrying_client import BadAnswer
from bestofk.sampling.sampler import Sampling
from bestofk.types import Prompt


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


@dataclass(frozen=True)
class Choice:
    """One completion of an answer."""

    text: str
    """A reasoning model's thoughts come first, in <think> tags."""
    has_content: bool
    """Whether a text was stated, an empty one too."""
    finish_reason: str
    logprob_sum: float | None
    n_tokens: int | None
    """As many as have log-probabilities; None where they are not given."""


@dataclass(frozen=True)
class Answer:
    """A response to a request for completions."""

    choices: tuple[Choice | None, ...]
    """None where one of several cannot be read."""
    fault: str
    """What is wrong with the first of those."""
    usage: Mapping[str, int]
    """Tokens as the endpoint counts them, where it does: prompt_tokens, completion_tokens, …"""

    @property
    def text(self) -> str:
        """Of the first choice that can be read."""
        return next(choice.text for choice in self.choices if choice is not None)


def read_answer(body: bytes, n: int) -> Answer:
    """The first n choices of a response.

    Raises:
        BadAnswer: there is none that can be read.
    """
    try:
        answer = json.loads(body)
    except RecursionError:
        raise BadAnswer("an answer that is nested too deeply") from None
    except ValueError as error:
        raise BadAnswer(f"an answer that is not JSON ({error})") from None
    listed = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        excerpt = body[:200].decode("utf-8", "replace")
        raise BadAnswer(f"an answer without choices: {excerpt}")
    choices, faults = list[Choice | None](), list[str]()
    for choice in listed[:n]:
        try:
            choices.append(_choice(choice))
        except BadAnswer as error:
            choices.append(None)
            faults.append(str(error))
    if not any(choices):
        raise BadAnswer(faults[0] if faults else "an answer with no choice in it")
    usage = {
        name: count
        for name, count in _dict(answer.get("usage")).items()
        if type(count) is int and 0 < count < 2**53
    }
    return Answer(tuple(choices), faults[0] if faults else "", usage)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _choice(choice: Any) -> Choice:
    fields = _dict(choice)
    message = _dict(fields.get("message"))
    if not message and "text" not in fields:
        raise BadAnswer("a choice without a message or a text")
    content = message.get("content") if message else fields["text"]
    text, reason = _string(content), fields.get("finish_reason")
    thought = message.get("reasoning_content") or message.get("reasoning")
    thought = _string(thought) if isinstance(thought, str) else ""
    logprob_sum, n_tokens = _logprobs(_dict(fields.get("logprobs")))
    return Choice(
        f"<think>{thought}</think>{text}" if thought else text,
        content is not None,
        _string(reason)[:100] if isinstance(reason, str) else "unknown",
        logprob_sum,
        n_tokens,
    )


def _string(value: Any) -> str:
    r"""A text, or the parts of one that are text. Half a surrogate pair becomes U+FFFD: no file
    holds it.

    >>> _string("a\ud83d"), _string([{"type": "text", "text": "b"}]), _string(None)
    ('a\ufffd', 'b', '')
    """
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        texts = (part.get("text") for part in value)
        value = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(value, str | None):
        raise BadAnswer(f"a choice with {type(value).__name__} where its text belongs")
    return (value or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _logprobs(logprobs: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Σ log-probability and number of tokens, where an endpoint gives them."""
    values = logprobs.get("token_logprobs")
    if isinstance(tokens := logprobs.get("content"), list):
        values = [_dict(token).get("logprob") for token in tokens]
    if not isinstance(values, list) or not values:
        return None, None
    if not all(type(value) in (int, float) and abs(value) < 1e9 for value in values):
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


def socket_and_base(url: str) -> tuple[str | None, str]:
    """The socket of a server, if it is at one, and the address that requests begin with."""
    return (urlsplit(url).path, "http://localhost") if url.startswith("unix:") else (None, url)
