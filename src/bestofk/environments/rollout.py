"""Trajectories of several turns: the model draws, the environment answers, until one of them ends.

All rows draw a turn together, then all environments answer in threads. Tokens are appended, never
tokenised again; every draw is fixed by seed, prompt, sample and the place among the row's own
tokens, so nothing depends on which environment answers first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from bestofk.environments.author_class import EnvironmentClasses, tools_of
from bestofk.environments.chat_turns import ChatTurns
from bestofk.environments.conversation import OpenConversation, with_observation
from bestofk.environments.limits import TurnLimits
from bestofk.sampling.decode import Drawn, trajectory
from bestofk.sampling.prompts import digests, uniforms
from bestofk.sampling.sampler import Sampling
from bestofk.types import Ending, Group, Prompt, Trajectory

THREADS = 16
"""Environments that answer at once."""


@dataclass
class OpenTrajectory(OpenConversation):
    """A conversation as tokens."""

    text: ChatTurns = field(kw_only=True)
    tokens: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

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
        if self.ended_by is None and drawn.finish_reason == "length":
            within: Ending = "turn_tokens" if self.own_room else "own_tokens"
            self.ended_by = within if room else "length"
        replies = self.hear(drawn.text, self.text.calls(raw))
        if self.ended_by is None and not self.own_room:
            self.ended_by = "own_tokens"
        if self.ended_by is not None:
            return
        told = self.text.reply(replies, self.tokens[-1], ends)
        if len(told) >= room:
            self.ended_by = "length"
            return
        self.messages += replies
        self.add(told, [0.0] * len(told), own=False)

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
                [OpenTrajectory(prompt, self.limits, text=self.text_for(prompt)) for _ in range(n)]
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
