"""A conversation with an environment, in progress: what answers each message, and its limits."""

from __future__ import annotations

import json
import time
from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bestofk.environments.author_calls import AuthorCall, Calling
from bestofk.environments.author_class import EnvironmentClasses, UnfitRow, class_name, tools_of
from bestofk.environments.limits import TurnLimits
from bestofk.environments.tool_calls import ToolCall
from bestofk.rewards.base import as_verdict, broken
from bestofk.rewards.time_limit import CallTimeout
from bestofk.types import Conversation, Ending, Message, Prompt, Verdict

FAILURES = (Exception, SystemExit, CancelledError, CallTimeout)
"""What an author's code may raise, all but a KeyboardInterrupt: a `sys.exit` ends no run."""


@dataclass
class OpenConversation:
    """Messages of the model, whoever writes them, and of an environment of their own."""

    prompt: Prompt
    limits: TurnLimits
    environment: Any = None
    """The author's instance, from `begin` on."""
    observation: str | None = None
    """What `reset` adds to the prompt."""
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    ended_by: Ending | None = None
    verdict: Verdict | None = None

    def begin(self, environments: EnvironmentClasses, seed: int) -> Calling[None]:
        """Make an environment and bring it to the problem of the row. One that fails ends the
        trajectory after its first turn, unscored: a trajectory without tokens is none.

        Raises:
            ValueError: the row lacks what `reset` takes.
        """
        make = environments.maker_of(self.prompt)

        def start() -> Any:
            self.environment = make()
            arguments = environments.reset_arguments(self.environment, self.prompt, seed)
            return self.environment.reset(**arguments)

        try:
            added = yield AuthorCall(start, {}, self.limits.tool_seconds)
            if not isinstance(added, str | None):
                raise TypeError(f"reset returns text or None, got {type(added).__name__}")
            self.observation = added
        except UnfitRow:
            raise
        except FAILURES as error:
            self.ended_by = "broken"
            where = "" if self.environment is None else ".reset"
            self.verdict = broken(class_name(make) + where, self.prompt, error)

    def hear(self, text: str, calls: Sequence[ToolCall]) -> Calling[list[Message]]:
        """Append a message of the model; what the environment answers, nothing where it ended."""
        self.turns += 1
        self.messages.append({"role": "assistant", "content": text})
        replies = (yield from self._replies(text, calls)) if self.ended_by is None else []
        if self.ended_by is None and self.turns == self.limits.turns:
            self.ended_by = "turns"
        return [] if self.ended_by else replies

    def _replies(self, text: str, calls: Sequence[ToolCall]) -> Calling[list[Message]]:
        """The messages of the environment; none where it or the model has ended the trajectory."""
        until = time.monotonic() + self.limits.tool_seconds
        if calls:
            self.tool_calls += len(calls)
            tools = tools_of(self.environment)
            results: list[Message] = []
            for call in calls:
                said = yield from self._result(call, tools, until)
                results.append({"role": "tool", "name": call.name, "content": said})
            return results
        if not callable(self.environment):
            self.ended_by = "answer"
            return []
        reply = yield from self._answer(self.environment, {"text": text}, until)
        if reply is None:
            self.ended_by = "environment"
            return []
        return [{"role": "user", "content": reply}]

    def _result(self, call: ToolCall, tools: dict[str, Any], until: float) -> Calling[str]:
        """What a tool says, or why it could not."""
        if call.error or call.name not in tools:
            return self._failure(call.error or f"no tool {call.name!r}; have {', '.join(tools)}")
        return str((yield from self._answer(tools[call.name], dict(call.arguments), until)))

    def _answer(
        self, function: Any, arguments: dict[str, Any], until: float
    ) -> Calling[str | None]:
        """What the author's code says before that time, or why it could not, as UTF-8 can hold."""
        try:
            if (seconds := until - time.monotonic()) <= 0:
                raise CallTimeout
            said = yield AuthorCall(function, arguments, seconds)
            return None if said is None else str(said).encode("utf-8", "replace").decode()
        except CallTimeout:
            return self._failure(f"no answer within {self.limits.tool_seconds:g} s")
        except FAILURES as error:
            return self._failure(str(error) or type(error).__name__)

    def _failure(self, why: str) -> str:
        self.tool_errors += 1
        return json.dumps({"error": why[:2000]})

    def finish(self) -> Calling[None]:
        """Ask the environment for its reward, where it gives one; where that fails, unscored."""
        if self.verdict is not None or not hasattr(self.environment, "get_reward"):
            return
        try:
            reward = yield AuthorCall(self.environment.get_reward, {}, self.limits.tool_seconds)
            self.verdict = None if reward is None else as_verdict(reward)
        except FAILURES as error:
            name = f"{type(self.environment).__name__}.get_reward"
            self.verdict = broken(name, self.prompt, error)

    def conversation(self) -> Conversation:
        """What happened, once it has ended."""
        assert self.ended_by is not None
        return Conversation(
            tuple(self.messages),
            self.ended_by,
            self.turns,
            self.tool_calls,
            self.tool_errors,
            self.verdict,
        )


def with_observation(rows: Sequence[OpenConversation]) -> Prompt:
    """The prompt with what `reset` adds to it: the same for all samples of the group.

    Raises:
        ValueError: their problems differ.
    """
    prompt = rows[0].prompt
    added = {row.observation for row in rows if row.ended_by != "broken"}
    if len(added) > 1:
        environment = next(row.environment for row in rows if row.ended_by != "broken")
        raise ValueError(
            f"reset of {type(environment).__name__} returned different texts for the "
            f"samples of {prompt.id!r}, and the samples of a group answer one problem: let reset "
            "take everything that varies from the row"
        )
    text = added.pop() if added else None
    if not text:
        return prompt
    if isinstance(prompt.text, str):
        return replace(prompt, text=prompt.text + text)
    last = prompt.text[-1]
    return replace(prompt, text=(*prompt.text[:-1], {**last, "content": last["content"] + text}))
