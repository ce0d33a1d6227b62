"""What a client of `serve` asks, and what it gets back: pure functions on JSON values.

The request goes on as it came, but for what this server decides: n, streaming, the seed of each
sample. A request names no file, no verifier and no code; of its metadata only the fields that the
server was started with reach the verifier.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bestofk.deploy.choosing import Chooser, choose
from bestofk.deploy.racing import Race
from bestofk.messages import unknown
from bestofk.storage import json_safe
from bestofk.types import Prompt, reaches

MOST_DEPTH = 64
"""Lists and objects inside each other."""


class BadRequest(ValueError):
    """A request that cannot be answered, and why, for its sender."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the server was started with, and no request changes."""

    k: int
    """The most samples of a request."""
    by: Chooser
    threshold: float = 1.0
    at_once: int = 0
    """Samples drawn side by side; 0 is all k."""
    fields: tuple[str, ...] = ()
    """Of a request's metadata, what the verifier gets."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request that can be answered."""

    body: Mapping[str, Any]
    """For the upstream server, without the seed of a sample."""
    prompt: Prompt
    k: int
    at_once: int
    is_chat: bool
    stream: bool
    with_usage: bool
    """Whether a stream ends with the usage."""

    def body_of(self, sample: int) -> bytes:
        """The request for one sample; a stated seed gives each sample its own."""
        seed = self.body.get("seed")
        own = {} if seed is None else {"seed": (seed + sample) % 2**31}
        return json.dumps({**self.body, **own}).encode()


def parsed_body(data: bytes) -> dict[str, Any]:
    """The JSON object of a request."""
    try:
        body = json.loads(data, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if not isinstance(body, dict) or is_deeper(body):
        raise BadRequest(f"the body is a JSON object, at most {MOST_DEPTH} levels deep")
    return body


def is_deeper(value: Any, levels: int = MOST_DEPTH) -> bool:
    """Whether lists and objects are inside each other more often."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(is_deeper(each, levels - 1) for each in inside)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no JSON")
    return number


def question_of(stated: Mapping[str, Any], rules: Rules, id: str, *, is_chat: bool) -> Question:
    """What is asked."""
    body = dict(stated)
    own = body.pop("bestofk", None)
    own = {} if own is None else own
    if not isinstance(own, dict):
        raise BadRequest('bestofk is an object, such as {"k": 4}')
    for key in own:
        if key not in ("k", "at_once"):
            raise BadRequest(str(unknown("key of bestofk", key, ["k", "at_once"])))
    k = _whole(own, "k", rules.k, rules.k)
    at_once = _whole(own, "at_once", min(rules.at_once or k, k), rules.k)
    for name in ("n", "best_of"):
        if body.pop(name, None) not in (None, 1):
            raise BadRequest(f'{name} is 1 here: state "bestofk": {{"k": …}}, and one comes back')
    stream, options = body.pop("stream", None), body.pop("stream_options", None)
    if stream not in (None, True, False):
        raise BadRequest("stream is true or false")
    if k > 1 and body.get("temperature") == 0:
        raise BadRequest(
            f'at temperature 0 all {k} samples are one: raise it, or ask for "bestofk": {{"k": 1}}'
        )
    if type(body.get("seed")) not in (int, type(None)):
        raise BadRequest("seed is a whole number")
    return Question(
        body=body,
        prompt=Prompt(
            id,
            _messages(body) if is_chat else _text(body),
            "serve",
            _fields(body.pop("metadata", None), rules),
        ),
        k=k,
        at_once=at_once,
        is_chat=is_chat,
        stream=bool(stream),
        with_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _whole(own: Mapping[str, Any], name: str, usual: int, most: int) -> int:
    number = own.get(name, usual)
    if type(number) is not int or not 1 <= number <= most:
        raise BadRequest(f"bestofk.{name} is a whole number from 1 to {most}")
    return number


def _fields(metadata: Any, rules: Rules) -> dict[str, Any]:
    if not rules.fields:
        return {}
    have = metadata if isinstance(metadata, dict) else {}
    if missing := [name for name in rules.fields if name not in have]:
        raise BadRequest(f"the verifier needs {', '.join(missing)} in the request's metadata")
    return {name: have[name] for name in rules.fields}


def _text(body: Mapping[str, Any]) -> str:
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise BadRequest("prompt is one text")
    return prompt


def _messages(body: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """The chat as text, for the verifier: parts that are no text are left out."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages is a list with at least one message")
    result = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest("a message is an object with a role and a content")
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        text = "".join(text for text in texts if isinstance(text, str))
        result.append({"role": message["role"], "content": text})
    return tuple(result)


def answer_of(question: Question, drawn: Race, rules: Rules) -> dict[str, Any]:
    """The response: the kept sample's, with its verdict and what all samples have cost.

    `usage` is that of all samples that came, as of the API's own `best_of`.
    """
    line, why = choose(drawn.lines, rules.by, rules.threshold)
    reward = line["reward"]
    usages: Sequence[Mapping[str, int]] = [each["usage"] for each in drawn.lines]
    names = ("prompt_tokens", "completion_tokens")
    usage = {name: sum(each.get(name, 0) for each in usages) for name in names}
    answer = {key: value for key, value in line["response"].items() if key != "choices"}
    return answer | {
        "object": "chat.completion" if question.is_chat else "text_completion",
        "choices": [{**line["choice"], "index": 0}],
        "usage": usage | {"total_tokens": sum(usage.values())},
        "bestofk": {
            "k": question.k,
            "chosen_by": why,
            "passed": reward is not None and bool(reaches(reward, rules.threshold)),
            "reward": reward,
            "score": line["score"],
            "status": line["status"],
            "sample": line["sample_id"],
            "draws": len(drawn.lines),
            "cancelled": drawn.cancelled,
            "failed": len(drawn.failures),
            "drawn_tokens": usage["completion_tokens"],
        },
    }


def events_of(question: Question, answer: Mapping[str, Any]) -> Iterator[str]:
    """The same response as server-sent events."""
    usage, told = answer["usage"], answer["bestofk"]
    about = {key: answer[key] for key in answer if key not in ("choices", "usage", "bestofk")}
    if question.is_chat:
        about["object"] = "chat.completion.chunk"
    (choice,) = answer["choices"]
    rest = {key: value for key, value in choice.items() if key not in ("message", "text")}
    if question.is_chat:
        calls = choice["message"].get("tool_calls") or []
        delta = dict(choice["message"])
        if calls:
            delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
        first: dict[str, Any] = {"delta": delta}
        last: dict[str, Any] = {"delta": {}}
    else:
        first, last = {"text": choice.get("text", "")}, {"text": ""}
    chunks: list[dict[str, Any]] = [
        {"choices": [{**rest, **first, "finish_reason": None}]},
        {"choices": [{"index": 0, **last, "finish_reason": choice.get("finish_reason")}],
         "bestofk": told},
    ]  # fmt: skip
    if question.with_usage:
        chunks.append({"choices": [], "usage": usage})
    for chunk in chunks:
        yield f"data: {json.dumps(json_safe({**about, **chunk}))}\n\n"
    yield "data: [DONE]\n\n"
