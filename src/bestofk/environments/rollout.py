"""Trajectories of several turns: the model draws, the environment answers, until one of them ends.

All rows draw a turn together, then all environments answer in threads. Tokens are appended, never
tokenised again; every draw is fixed by seed, prompt, sample and the place among the row's own
tokens, so nothing depends on which environment answers first.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from bestofk.environments.author_class import EnvironmentClasses, UnfitRow, class_name, tools_of
from bestofk.environments.chat_turns import ChatTurns
from bestofk.environments.limits import TurnLimits
from bestofk.environments.tool_calls import ToolCall
from bestofk.rewards.base import as_verdict, broken
from bestofk.rewards.time_limit import CallTimeout, limited_call, limited_wait
from bestofk.sampling.decode import Drawn, trajectory
from bestofk.sampling.prompts import digests, uniforms
from bestofk.sampling.sampler import Sampling
from bestofk.types import Conversation, Ending, Group, Message, Prompt, Trajectory, Verdict

THREADS = 16
"""Environments that answer at once."""


@dataclass
class OpenTrajectory:
    """A trajectory in the making."""

    prompt: Prompt
    text: ChatTurns
    limits: TurnLimits
    environment: Any = None
    """The author's instance, from `begin` on."""
    observation: str | None = None
    """What `reset` adds to the prompt."""
    tokens: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    ended_by: Ending | None = None
    verdict: Verdict | None = None

    def begin(self, environments: EnvironmentClasses, seed: int) -> None:
        """Make an environment and bring it to the problem of the row. One that fails ends the
        trajectory after its first turn, unscored: a trajectory without tokens is none.

        Raises:
            ValueError: the row lacks what `reset` takes.
        """
        make = environments.maker_of(self.prompt)
        where = class_name(make)
        try:
            self.environment = self._limited(make, {})
            arguments = environments.reset_arguments(self.environment, self.prompt, seed)
            where = f"{where}.reset"
            added = self._limited(self.environment.reset, arguments)
            if not isinstance(added, str | None):
                raise TypeError(f"reset returns text or None, got {type(added).__name__}")
            self.observation = added
        except UnfitRow:
            raise
        except (Exception, CallTimeout) as error:
            self.ended_by = "broken"
            self.verdict = broken(where, self.prompt, error)

    @property
    def own_room(self) -> float:
        """Tokens that the model may still write."""
        return (self.limits.own_tokens or math.inf) - sum(self.own)

    def free(self, longest: int) -> int:
        """Tokens that the next turn may have, in a trajectory of at most `longest` tokens."""
        room = longest - len(self.tokens)
        return int(min(self.limits.turn_tokens or room, room, self.own_room))

    def add(self, tokens: Sequence[int], log_probs: Sequence[float], *, own: bool) -> None:
        self.tokens += tokens
        self.log_probs += log_probs
        self.own += [own] * len(tokens)

    def take(
        self,
        ids: Sequence[int],
        log_probs: Sequence[float],
        *,
        longest: int,
        ends: Collection[int],
        stop: Sequence[str] = (),
    ) -> None:
        """Append a turn that the policy drew, up to the limits; let the environment answer it.

        Args:
            longest: tokens that the trajectory may have.
            ends: ids that end a turn.
            stop: texts that end a turn.
        """
        most, tokenizer = self.free(longest), self.text.tokenizer
        ids, log_probs = list(ids)[:most], list(log_probs)[:most]
        self.add(ids, log_probs, own=True)
        drawn = trajectory(np.array(ids), np.array(log_probs), tokenizer, frozenset(ends), stop)
        raw = str(tokenizer.decode(ids))
        room = longest - len(self.tokens)
        self.turns += 1
        self.messages.append({"role": "assistant", "content": drawn.text})
        if self.ended_by is not None:
            return
        if drawn.finish_reason == "length":
            within: Ending = "turn_tokens" if self.own_room else "own_tokens"
            self.ended_by = within if room else "length"
            return
        replies = self._replies(drawn.text, raw)
        if self.ended_by is not None:
            return
        if self.turns == self.limits.turns or not self.own_room:
            self.ended_by = "turns" if self.turns == self.limits.turns else "own_tokens"
            return
        told = self.text.reply(replies, self.tokens[-1], ends)
        if len(told) >= room:
            self.ended_by = "length"
            return
        self.messages += replies
        self.add(told, [0.0] * len(told), own=False)

    def _replies(self, text: str, raw: str) -> list[Message]:
        """The messages of the environment; none where it or the model has ended the trajectory."""
        calls = self.text.calls(raw)
        if calls:
            self.tool_calls += len(calls)
            tools = tools_of(self.environment)
            seconds = self.limits.tool_seconds / len(calls)
            return [
                {"role": "tool", "name": call.name, "content": self._result(call, tools, seconds)}
                for call in calls
            ]
        if not callable(self.environment):
            self.ended_by = "answer"
            return []
        try:
            reply = self._limited(self.environment, {"text": text})
        except (Exception, CallTimeout) as error:
            self.tool_errors += 1
            reply = _error(error)
        if reply is None:
            self.ended_by = "environment"
            return []
        return [{"role": "user", "content": str(reply)}]

    def _result(self, call: ToolCall, tools: dict[str, Any], seconds: float) -> str:
        """What a tool says, or why it could not."""
        try:
            if call.error or call.name not in tools:
                raise ValueError(call.error or f"no tool {call.name!r}; have {', '.join(tools)}")
            return str(self._limited(tools[call.name], dict(call.arguments), seconds))
        except (Exception, CallTimeout) as error:
            self.tool_errors += 1
            return _error(error)

    def _limited(
        self, function: Any, arguments: dict[str, Any], seconds: float | None = None
    ) -> Any:
        """A call of the author's code, also an async one, for at most so many seconds."""
        seconds = seconds or self.limits.tool_seconds
        name = getattr(function, "__name__", type(function).__name__)
        result = limited_call(lambda: function(**arguments), seconds, name)
        return limited_wait(result, seconds) if inspect.isawaitable(result) else result

    def finish(self) -> None:
        """Ask the environment for its reward, where it gives one; where that fails, unscored."""
        if self.verdict is not None or not hasattr(self.environment, "get_reward"):
            return
        try:
            reward = self._limited(self.environment.get_reward, {})
            self.verdict = None if reward is None else as_verdict(reward)
        except (Exception, CallTimeout) as error:
            name = f"{type(self.environment).__name__}.get_reward"
            self.verdict = broken(name, self.prompt, error)

    def trajectory(self) -> Trajectory:
        assert self.ended_by is not None
        return Trajectory(
            self.tokens,
            self.own,
            self.log_probs,
            self.messages[-1]["content"],
            "stop" if self.ended_by in ("answer", "environment") else "length",
            Conversation(
                tuple(self.messages),
                self.ended_by,
                self.turns,
                self.tool_calls,
                self.tool_errors,
                self.verdict,
            ),
        )


def _error(error: BaseException) -> str:
    return json.dumps({"error": str(error)[:2000] or type(error).__name__})


class TurnSampler:
    """Draws trajectories with an environment: a `bestofk.sampling.Sampler`."""

    def __init__(
        self,
        sampler: Any,
        environments: EnvironmentClasses,
        limits: TurnLimits,
        *,
        model: str,
        context: int | None = None,
    ) -> None:
        """
        Args:
            sampler: continues from token ids, as `ModelSampler` and `VLLMServer` do.
            model: its name, for errors.
            context: tokens that the model has positions for.
        """
        self.sampler, self.environments, self.limits = sampler, environments, limits
        self.model, self.context = model, context
        self._texts: dict[tuple[str, bool], ChatTurns] = {}

    def text_for(self, prompt: Prompt) -> ChatTurns:
        """How the conversations of a prompt become tokens.

        Raises:
            ValueError: the model's chat template cannot do what its environment needs.
        """
        key = (self.environments.name_of(prompt), not isinstance(prompt.text, str))
        if key not in self._texts:
            made = self.environments.make(prompt)
            self._texts[key] = ChatTurns(
                self.sampler.tokenizer,
                self.model,
                tools_of(made),
                chat=key[1],
                replies=callable(made),
            )
        return self._texts[key]

    def check(self, prompt: Prompt) -> None:
        """Raise a ValueError where the model, or this row, cannot be used with its environment."""
        self.text_for(prompt)
        self.environments.reset_arguments(self.environments.make(prompt), prompt, 0)

    def sample(self, prompts: Sequence[Prompt], *, seed: int, sampling: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        n, most = sampling.n, sampling.max_new_tokens
        draws = uniforms(prompts, seed, n, most)
        with ThreadPoolExecutor(THREADS, "bestofk environment") as threads:
            rows = [
                [OpenTrajectory(prompt, self.text_for(prompt), self.limits) for _ in range(n)]
                for prompt in prompts
            ]
            flat = [row for group in rows for row in group]
            seeds = [_seed(digest, i) for digest in digests(prompts, seed) for i in range(n)]
            begin = partial(OpenTrajectory.begin, environments=self.environments)
            list(threads.map(lambda row, seed: begin(row, seed=seed), flat, seeds))
            shown = [with_observation(group) for group in rows]
            starts = [group[0].text.prompt(prompt) for group, prompt in zip(rows, shown)]
            room = [self._room(prompt, len(start), most) for prompt, start in zip(shown, starts)]
            active = list(range(len(flat)))
            while active:
                turns = self._draw(flat, active, starts, room, draws, sampling)

                def answer(at: int, turn: Drawn) -> None:
                    ids, log_probs = (each.tolist() for each in turn)
                    longest, ends = room[at // n], self.sampler.ends
                    flat[at].take(ids, log_probs, longest=longest, ends=ends, stop=sampling.stop)

                list(threads.map(answer, active, turns))
                active = [at for at in active if flat[at].ended_by is None]
            list(threads.map(OpenTrajectory.finish, flat))
        return [
            Group(prompt, tuple(row.trajectory() for row in group), start, sampling.temperature)
            for prompt, group, start in zip(shown, rows, starts)
        ]

    def _room(self, prompt: Prompt, start: int, most: int) -> int:
        """Tokens that the trajectories of a prompt may have."""
        room = most if self.context is None else min(most, self.context - start)
        if room < 1:
            raise ValueError(
                f"prompt {prompt.id!r} has {start} tokens with its tools, and the model has "
                f"positions for {self.context}: take shorter prompts"
            )
        return room

    def _draw(
        self,
        rows: Sequence[OpenTrajectory],
        active: Sequence[int],
        starts: Sequence[tuple[int, ...]],
        room: Sequence[int],
        draws: np.ndarray,
        sampling: Sampling,
    ) -> list[Drawn]:
        """Ids and log-probs of the next turn of the active rows."""
        n = sampling.n
        free = [rows[at].free(room[at // n]) for at in active]
        first = not rows[active[0]].tokens  # all rows are there: siblings share their prompt
        if first:
            texts, each = list(starts), draws[:, :, : max(free)]
        else:
            texts = [(*starts[at // n], *rows[at].tokens) for at in active]
            each = np.zeros((len(active), 1, max(free)))
            for place, at in enumerate(active):
                used = sum(rows[at].own)
                own = draws[at // n, at % n, used : used + free[place]]
                each[place, 0, : len(own)] = own
        options = sampling.changed(samples_per_prompt=each.shape[1], max_new_tokens=each.shape[2])
        drawn = dict(self.sampler.continue_from(texts, each, options))
        return [turn for place in range(len(texts)) for turn in drawn[place]]


def _seed(digest: bytes, sample: int) -> int:
    return int(np.random.SeedSequence([*digest, sample]).generate_state(1)[0])


def with_observation(rows: Sequence[OpenTrajectory]) -> Prompt:
    """The prompt with what `reset` adds to it: the same for all samples of the group.

    Raises:
        ValueError: their problems differ.
    """
    prompt = rows[0].prompt
    added = {row.observation for row in rows if row.ended_by != "broken"}
    if len(added) > 1:
        made = next(row.environment for row in rows if row.ended_by != "broken")
        raise ValueError(
            f"reset of {type(made).__name__} returned different texts for the "
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
