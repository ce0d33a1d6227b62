"""Tool calls as chat templates write them, read from what a model wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """One call, or why it cannot be read: the model is told."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


def _call_of(value: Any) -> ToolCall:
    """A call from its JSON: {"name": ..., "arguments" or "parameters": {...}}."""
    if isinstance(value, ToolCall):  # an error
        return value
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall(error='a tool call is {"name": ..., "arguments": {...}}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        return ToolCall(value["name"], error="the arguments of a tool call are a JSON object")
    return ToolCall(value["name"], arguments)


def _json(text: str) -> Any:
    """The value of a JSON text, or the error as a ToolCall."""
    value, rest = _first_json(text.strip())
    if rest and not isinstance(value, ToolCall):
        return ToolCall(error=f"the tool call is not JSON: it goes on with {rest[:80]!r}")
    return value


def _first_json(text: str) -> tuple[Any, str]:
    """The value that a text begins with, or the error as a ToolCall; what follows."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
        return value, text[end:]
    except (ValueError, RecursionError) as error:
        return ToolCall(error=f"the tool call is not JSON: {error}"[:200]), ""


def hermes(text: str, schemas: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """Calls as Hermes and Qwen write them: JSON between <tool_call> and </tool_call>.

    >>> hermes('I ask.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [ToolCall(name='add', arguments={'a': 1}, error='')]
    """
    calls = []
    for part in text.split("<tool_call>")[1:]:
        inside, end, _ = part.partition("</tool_call>")
        value = _json(inside) if end else ToolCall(error="the tool call has no </tool_call>")
        calls.append(_call_of(value))
    return calls


def qwen_coder(text: str, schemas: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """Calls as Qwen3-Coder writes them: <function=add><parameter=a>1</parameter></function>."""
    kinds = {each["function"]["name"]: each["function"]["parameters"] for each in schemas}
    calls = []
    for part in text.split("<function=")[1:]:
        head, end, _ = part.partition("</function>")
        name, _, body = head.partition(">")
        if not end:
            calls.append(ToolCall(name, error="the tool call has no </function>"))
            continue
        properties = kinds.get(name, {}).get("properties", {})
        arguments = {}
        for key, value in re.findall(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>", body, re.S):
            parsed = value if properties.get(key, {}).get("type") == "string" else _json(value)
            arguments[key] = value if isinstance(parsed, ToolCall) else parsed
        calls.append(ToolCall(name, arguments))
    return calls


def llama(text: str, schemas: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """Calls as Llama writes them: the message is {"name": "add", "parameters": {"a": 1}}; several
    are separated by a semicolon."""
    rest = text.replace("<|python_tag|>", "").strip()
    if not rest.startswith("{"):
        return []
    calls: list[ToolCall] = []
    while rest:
        value, rest = _first_json(rest)
        calls.append(_call_of(value))
        rest = rest.lstrip("; \n")
    return calls


CallReader = Callable[[str, Sequence[Mapping[str, Any]]], list[ToolCall]]
FORMS: dict[str, CallReader] = {
    "<function=": qwen_coder,
    "<tool_call>": hermes,
    '"parameters"': llama,
}
"""By what a template writes for a call; the first that is found."""
