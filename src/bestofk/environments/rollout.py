"""Trajectories of several turns: the model draws, the environment answers, until one of them ends.

Environments answer in threads: beside the decoding in the group engine and with a vLLM server, else
when all rows have drawn a turn. Tokens are appended, never tokenised again; every draw is fixed by
seed, prompt, sample and the place among the row's own tokens, so nothing depends on which
environment answers first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from bestofk.environments.author_calls import AuthorThreads, Calling, checked
from bestofk.environments.author_class import EnvironmentClasses, tools_of
from bestofk.environments.chat_turns import ChatTurns, reply_ids
from bestofk.environments.conversation import OpenConversation, with_observation
from bestofk.environments.limits import TurnLimits
from bestofk.sampling.decode import Drawn, texts_of, up_to_stop, without_end
from bestofk.sampling.prompts import digests, uniforms
from bestofk.sampling.sampler import Sampling
from bestofk.types import Ending, Group, Message, Prompt, Trajectory

Reply: TypeAlias = tuple[list[int], int] | None
"""What follows a turn, and how many tokens the next may have; None where it was the last."""
Answer: TypeAlias = tuple[int, str | BaseException | None]
"""A row, and the text that follows its turn, None where it is over; or what was raised."""


@dataclass
class OpenTrajectory(OpenConversation):
    """A conversation as tokens."""

    text: ChatTurns = field(kw_only=True)
    start: tuple[int, ...] = ()
    """Ids of the prompt."""
    longest: int = 0
    """Tokens that it may have after the prompt."""
    replies: list[Message] = field(default_factory=list)
    """To the turn before, until they are appended."""
    tokens: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def own_room(self) -> float:
        """Tokens that the model may still write."""
        most = self.limits.own_tokens
        return math.inf if most is None else most - sum(self.own)

    @property
    def free(self) -> int:
        """Tokens that the next turn may have."""
        room = self.longest - len(self.tokens)
        return int(min(self.limits.turn_tokens or room, room, self.own_room))

    def add(self, tokens: Sequence[int], log_probs: Sequence[float], *, own: bool) -> None:
        self.tokens += tokens
        self.log_probs += log_probs
        self.own += [own] * len(tokens)

    def take(
        self, ids: Sequence[int], log_probs: Sequence[float], *, ends: Collection[int]
    ) -> Calling[None]:
        """Append a turn that the policy drew, up to the limits, and what the environment answers.

        Args:
            ends: ids that end a turn.
        """
        free, tokenizer = self.free, self.text.tokenizer
        ids, log_probs = list(ids)[:free], list(log_probs)[:free]
        (text,) = texts_of(tokenizer, [without_end(ids, ends)])
        answer = yield from self.heard(ids, log_probs, text, ends=ends)
        if answer is not None:
            self.told(*reply_ids(tokenizer, [answer], ids[-1:], ends))

    def heard(
        self,
        ids: list[int],
        log_probs: list[float],
        text: str,
        *,
        ends: Collection[int],
        stop: Sequence[str] = (),
    ) -> Calling[str | None]:
        """Append a turn and let the environment answer it; what follows it, as text, or None where
        the trajectory is over.

        Args:
            text: of the turn, without its end.
            stop: texts that end a turn.
        """
        self.add(ids, log_probs, own=True)
        text, is_cut = up_to_stop(text, stop)
        if self.ended_by is None and not is_cut and ids[-1] not in ends:
            within: Ending = "turn_tokens" if self.own_room else "own_tokens"
            self.ended_by = within if self.longest > len(self.tokens) else "length"
        self.replies = yield from self.hear(text, self.text.calls(without_end(ids, ends)))
        if self.ended_by is None and not self.own_room:
            self.ended_by = "own_tokens"
        if self.ended_by:
            return None
        reply = self.text.written(self.replies)
        if len(reply) > (self.longest - len(self.tokens)) * self.text.longest_token:
            self.ended_by = "length"
        return None if self.ended_by else reply

    def told(self, ids: list[int]) -> Reply:
        """Append what follows a turn, or end the trajectory where that does not fit."""
        if len(self.tokens) + len(ids) >= self.longest:
            self.ended_by = "length"
            return None
        self.messages += self.replies
        self.add(ids, [0.0] * len(ids), own=False)
        return ids, self.free

    def trajectory(self) -> Trajectory:
        talk = self.conversation()
        return Trajectory(
            self.tokens,
            self.own,
            self.log_probs,
            self.messages[-1]["content"],
            "stop" if talk.ended_by in ("answer", "environment") else "length",
            talk,
        )


@dataclass
class OpenGroups:
    """The trajectories in the making of some prompts."""

    rows: list[OpenTrajectory]
    """n of each prompt, one prompt after another."""
    sampling: Sampling
    sampler: Any
    threads: AuthorThreads

    def ask(
        self, turns: Sequence[tuple[int, np.ndarray, np.ndarray]], done: SimpleQueue[Answer]
    ) -> None:
        """Let environments answer turns (row, tokens, log-probs), in threads."""
        ends, rows, hearing = self.sampler.ends, self.rows, []
        drawn = [(at, *(each[: rows[at].free].tolist() for each in turn)) for at, *turn in turns]
        shown = [without_end(ids, ends) for _, ids, _ in drawn]
        texts = texts_of(self.sampler.tokenizer, shown)
        for (at, ids, log_probs), text in zip(drawn, texts, strict=True):
            heard = rows[at].heard(ids, log_probs, text, ends=ends, stop=self.sampling.stop)
            hearing.append((at, heard))
        self.threads.start(hearing, done)

    def told(self, answers: Sequence[Answer]) -> list[Reply]:
        """What follows the turns of rows: the answers of their environments, as tokens."""
        texts = {at: text for at, answer in answers if (text := checked(answer)) is not None}
        last = [self.rows[at].tokens[-1] for at in texts]
        tokenizer, ends = self.sampler.tokenizer, self.sampler.ends
        ids = zip(texts, reply_ids(tokenizer, list(texts.values()), last, ends))
        replies = {at: self.rows[at].told(each) for at, each in ids}
        return [replies.get(at) for at, _ in answers]


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
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            sampler: continues from token ids, as `ModelSampler` and `VLLMServer` do.
            model: its name, for errors.
            context: tokens that the model has positions for.
            options: of the chat template.
        """
        self.sampler, self.environments, self.limits = sampler, environments, limits
        self.model, self.context, self.options = model, context, options
        self._texts: dict[tuple[str, bool], ChatTurns] = {}

    def text_for(self, prompt: Prompt) -> ChatTurns:
        """How the conversations of a prompt become tokens.

        Raises:
            ValueError: the model's chat template cannot do what its environment needs.
        """
        key = (self.environments.name_of(prompt), not isinstance(prompt.text, str))
        if key not in self._texts:
            environment = self.environments.make(prompt)
            self._texts[key] = ChatTurns(
                self.sampler.tokenizer,
                self.model,
                tools_of(environment),
                chat=key[1],
                replies=callable(environment),
                options=self.options,
            )
        return self._texts[key]

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Raise a ValueError where the model, or a row, cannot be used with its environment."""
        made: dict[str, Any] = {}
        for prompt in prompts:
            self.text_for(prompt)
            name = self.environments.name_of(prompt)
            if name not in made:
                made[name] = self.environments.make(prompt)
            self.environments.reset_arguments(made[name], prompt, 0)

    def sample(self, prompts: Sequence[Prompt], *, seed: int, sampling: Sampling) -> list[Group]:
        """See `Sampler.sample`."""
        ways = [self._turn_by_turn]
        if hasattr(self.sampler, "converse"):
            ways.insert(0, self._in_engine)
        draws = uniforms(prompts, seed, sampling.n, sampling.max_new_tokens)
        with closing(AuthorThreads(self.environments.at_once)) as threads:
            for draw in ways:
                groups = self._opened(prompts, seed, sampling, threads)
                if draw(groups, draws, sampling):
                    break
            threads.results(row.finish() for row in groups.rows)
        made = []
        for at in range(0, len(groups.rows), sampling.n):
            rows = groups.rows[at : at + sampling.n]
            trajectories = tuple(map(OpenTrajectory.trajectory, rows))
            made.append(Group(rows[0].prompt, trajectories, rows[0].start, sampling.temperature))
        return made

    def _opened(
        self, prompts: Sequence[Prompt], seed: int, sampling: Sampling, threads: AuthorThreads
    ) -> OpenGroups:
        """Environments brought to their problems, which the prompts then show."""
        n, environments = sampling.n, self.environments
        rows = [
            OpenTrajectory(prompt, self.limits, text=self.text_for(prompt))
            for prompt in prompts
            for _ in range(n)
        ]
        seeds = [_seed(digest, i) for digest in digests(prompts, seed) for i in range(n)]
        threads.results(row.begin(environments, own) for row, own in zip(rows, seeds))
        for at in range(0, len(rows), n):
            shown = with_observation(rows[at : at + n])
            start = rows[at].text.prompt(shown)
            room = self._room(shown, len(start), sampling.max_new_tokens)
            for row in rows[at : at + n]:
                row.prompt, row.start, row.longest = shown, start, room
        return OpenGroups(rows, sampling, self.sampler, threads)

    def _room(self, prompt: Prompt, start: int, limit: int) -> int:
        """Tokens that the trajectories of a prompt may have."""
        room = limit if self.context is None else min(limit, self.context - start)
        if room < 1:
            raise ValueError(
                f"prompt {prompt.id!r} has {start} tokens with its tools, and the model has "
                f"positions for {self.context}: take shorter prompts"
            )
        return room

    def _in_engine(self, groups: OpenGroups, draws: np.ndarray, sampling: Sampling) -> bool:
        """All turns by a sampler that takes replies while it decodes; whether it can."""
        firsts = groups.rows[:: sampling.n]
        is_drawn = self.sampler.converse(
            [row.start for row in firsts], draws, sampling,
            room=[row.longest for row in firsts], first=[row.free for row in firsts],
            ask=groups.ask, told=groups.told,
        )  # fmt: skip
        return bool(is_drawn)

    def _turn_by_turn(self, groups: OpenGroups, draws: np.ndarray, sampling: Sampling) -> bool:
        """All rows draw a turn together, then all environments answer."""
        active, done = list(range(len(groups.rows))), SimpleQueue[Answer]()
        while active:
            turns = self._draw(groups, active, draws, sampling)
            groups.ask([(at, *turn) for at, turn in zip(active, turns, strict=True)], done)
            answers = dict(done.get() for _ in active)
            replies = groups.told([(at, answers[at]) for at in active])
            active = [at for at, reply in zip(active, replies) if reply is not None]
        return True

    def _draw(
        self, groups: OpenGroups, active: Sequence[int], draws: np.ndarray, sampling: Sampling
    ) -> list[Drawn]:
        """Ids and log-probs of the next turn of the active rows; those together that have positions
        for the longest turn among them."""
        rows = groups.rows
        n = 1 if rows[active[0]].tokens else sampling.n  # before a first turn siblings are alike
        texts = {at: (*rows[at].start, *rows[at].tokens) for at in active[::n]}
        turns: dict[int, list[Drawn]] = {}
        while left := [at for at in texts if at not in turns]:
            most = max(rows[at].free for at in left)
            fit = [at for at in left if len(texts[at]) + most <= (self.context or math.inf)]
            each = np.zeros((len(fit), n, most))
            for place, at in enumerate(fit):
                p, i = divmod(at, sampling.n)
                own = draws[p, i : i + n, sum(rows[at].own) :][:, :most]
                each[place, :, : own.shape[1]] = own
            options = sampling.changed(samples_per_prompt=n, max_new_tokens=most)
            drawn = self.sampler.continue_from([texts[at] for at in fit], each, options)
            turns |= {fit[place]: rows for place, rows in drawn}
        return [turn for at in texts for turn in turns[at]]


def _seed(digest: bytes, sample: int) -> int:
    return int.from_bytes(hashlib.sha256(digest + sample.to_bytes(4)).digest()[:4])
