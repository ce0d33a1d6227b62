"""The few shapes that pass between the rooms of the house: Prompt, Completion, Group, Verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args

from bestofk.common import reaches, unknown

Message: TypeAlias = Mapping[str, str]
"""One chat message: {"role": "user", "content": "..."}."""

Status: TypeAlias = Literal[
    "correct", "incorrect", "partial", "unparsed", "timeout", "memory", "crashed", "unscored"
]
STATUSES: tuple[str, ...] = get_args(Status)
FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True)
class Prompt:
    """One problem: what the model sees, and what its verifier needs to judge an answer."""

    id: str
    """Stable and unique within a task: runs are paired and splits are kept apart by it."""
    text: str | tuple[Message, ...]
    """Plain text, or chat messages."""
    task: str
    """Name of the task it comes from."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """What the verifier needs (numbers and target, tests, the answer): JSON values only."""
    reference: str | None = None
    """A completion that must score 1.0, or None where none is known."""


@dataclass(frozen=True)
class Completion:
    """One sampled answer to a prompt."""

    text: str
    tokens: tuple[int, ...] = ()
    """Sampled token ids, the end-of-sequence token included when it was sampled."""
    logprobs: tuple[float, ...] = ()
    """The sampler's log-probability of each of `tokens`."""
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True)
class Group:
    """A prompt and its n completions: the unit of sampling, scoring, learning and evaluation."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    prompt_tokens: tuple[int, ...] = ()
    temperature: float | None = None
    """Of the sampler that drew them; None where it is not known."""


@dataclass(frozen=True)
class Verdict:
    """What a verifier says about one completion. Wrong is a value; broken is `unscored`.

    >>> Verdict.unscored("worker died twice").reward
    nan
    """

    reward: float
    """Any finite number, larger is better; 1 is full marks unless a threshold says otherwise. NaN
    when unscored."""
    status: Status
    """`correct` exactly when the reward is at least 1, `partial` between 0 and 1, any other at 0
    and below."""
    passed: int = 0
    total: int = 1
    cpu_seconds: float = 0.0
    tier: int | None = None
    """Of the sandbox, where one was used."""
    detail: str = ""
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Rewards that this one is made of, by name; runs log their means."""
    penalty: float = 0.0
    """What training takes off the reward for length, except where passes are counted."""

    def __post_init__(self) -> None:
        """Reward and status say the same: runs are counted by one and trained by the other."""
        if self.status not in STATUSES:
            raise unknown("status", self.status, STATUSES)
        if (self.status == "unscored") != math.isnan(self.reward):
            raise ValueError(
                f"a verdict is NaN exactly when unscored, got {self.reward} with {self.status!r}"
            )
        if self.status == "unscored":
            return
        if math.isinf(self.reward):
            raise ValueError(f"a reward is a finite number or NaN, got {self.reward}")
        earned = status_of(self.reward)
        stated = self.status if self.status in ("correct", "partial") else "incorrect"
        if earned != stated:
            raise ValueError(
                'a verdict is "correct" exactly with a reward of at least 1, "partial" between 0 '
                f"and 1, and any other at 0 and below; got {self.reward} with {self.status!r}"
            )

    @staticmethod
    def unscored(detail: str) -> Verdict:
        """The verdict for a failure of ours: never a zero."""
        return Verdict(reward=math.nan, status="unscored", detail=detail)


ALMOST_ONE = 1.0 - 1e-6
"""The most that an answer which is not right can get: what is nearer to 1 is taken for 1."""


def status_of(reward: float) -> Status:
    """The status of a reward that nothing else is known about.

    >>> status_of(1.0), status_of(0.25), status_of(-1.0), status_of(2.5)
    ('correct', 'partial', 'incorrect', 'correct')
    """
    return "correct" if reaches(reward, 1.0) else "partial" if reward > 0.0 else "incorrect"


Verifier: TypeAlias = Callable[[Sequence[Prompt], Sequence[str]], list[Verdict]]
"""Judges a batch: as many verdicts as completions, in the same order."""


def plain_text(value: Any) -> str:
    """A value of data as the text an answer is compared with: the same however it was stored.

    Numbers are written out, since nobody answers 1e-07. Anything else (null, NaN, a list) is an
    error: "None" or "nan" would be an answer that can be given.

    >>> plain_text(" 7 "), plain_text(1e-07), plain_text(12)
    (' 7 ', '0.0000001', '12')

    Raises:
        ValueError: for anything but text, a bool and a finite number.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Integral):
        return str(value)
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return format(Decimal(repr(float(value))) if isinstance(value, float) else value, "f")
    raise ValueError(
        f"text, a finite number or a bool is needed, got {'null' if value is None else repr(value)}"
    )
