"""A trajectory by hand: a person types the model's messages and sees what the environment says."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from bestofk.environments.author_calls import AuthorThreads, Calling, R
from bestofk.environments.author_class import EnvironmentClasses, tools_of
from bestofk.environments.conversation import OpenConversation, with_observation
from bestofk.environments.limits import TurnLimits
from bestofk.environments.tool_calls import ToolCall, hermes
from bestofk.rewards import judge
from bestofk.types import Group, Prompt, Trajectory, Verdict, Verifier

HOW = "Type a message in a line, or with a block from ``` to ```. {tools}Ctrl-D or Ctrl-C ends."
Tools = Mapping[str, Callable[..., Any]]


def play(
    prompt: Prompt, verifier: Verifier, environments: EnvironmentClasses | None, limits: TurnLimits
) -> Verdict:
    """One trajectory, typed on standard input; prints each message that is not typed.

    Raises:
        EOFError, KeyboardInterrupt: the person left.
    """
    if environments is None:
        say_prompt(prompt, {})
        return _judged(prompt, Trajectory(text=typed()), verifier)
    talk = OpenConversation(prompt, limits)
    _result(talk.begin(environments, seed=0))
    shown = with_observation([talk])
    tools = {} if talk.environment is None else tools_of(talk.environment)
    say_prompt(shown, tools)
    while talk.ended_by is None:
        text = typed()
        for reply in _result(talk.hear(text, hermes(text) or typed_calls(text, tools))):
            talk.messages.append(reply)
            print(f"[{reply.get('name', 'environment')}] {reply['content']}")
    _result(talk.finish())
    ended = talk.conversation()
    print(f"ended by: {ended.ended_by}, after {ended.turns} turns")
    last = ended.messages[-1]["content"] if ended.messages else ""
    return _judged(shown, Trajectory(text=last, conversation=ended), verifier)


def _result(calling: Calling[R]) -> R:
    with closing(AuthorThreads(1)) as threads:
        return threads.results([calling])[0]


def _judged(prompt: Prompt, trajectory: Trajectory, verifier: Verifier) -> Verdict:
    ((verdict,),) = judge([Group(prompt, (trajectory,))], verifier)
    return verdict


def say_prompt(prompt: Prompt, tools: Tools) -> None:
    """The prompt, and how the model's messages are typed."""
    messages = [{"content": prompt.text}] if isinstance(prompt.text, str) else prompt.text
    for message in messages:
        print(f"[{message.get('role', 'prompt')}] {message['content']}")
    calls = ", ".join(f"{name}{inspect.signature(tool)}" for name, tool in tools.items())
    print(
        HOW.format(tools=f"A tool is called as in Python:\n{calls}. " if calls else ""), flush=True
    )


def typed() -> str:
    """A message: a line, or several where a line begins or ends a block with three backticks."""
    prompt = "> " if sys.stdin.isatty() else ""
    text = input(prompt)
    while text.count("```") % 2:
        text += "\n" + input(". " if prompt else "")
    if not prompt:
        print(f"[you] {text}")
    return text


def typed_calls(text: str, tools: Tools) -> list[ToolCall]:
    """A tool call as a person types it; none in other text.

    >>> typed_calls("add(1, b=[2])", {"add": lambda a, b: a})
    [ToolCall(name='add', arguments={'a': 1, 'b': [2]}, error='')]
    >>> typed_calls("add (1) and 2", {"add": lambda a, b: a})
    []
    """
    name = re.match(r"(\w+)\(.*\)$", text.strip(), re.DOTALL)
    if name is None or not tools:
        return []
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call):
            return []
        values = [ast.literal_eval(each) for each in call.args]
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        if name[1] not in tools:  # the environment says which there are
            return [ToolCall(name[1], named)]
        bound = inspect.signature(tools[name[1]]).bind_partial(*values, **named)
    except (SyntaxError, ValueError, TypeError) as error:
        return [ToolCall(name[1], error=f"the call cannot be read: {error}")]
    return [ToolCall(name[1], bound.arguments)]
