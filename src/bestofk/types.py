"""The few shapes that pass between the rooms of the house: Prompt, Completion, Group, Verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Message: TypeAlias = Mapping[str, str]
"""One chat message: {"role": "user", "content": "..."}."""

Status: TypeAlias = Literal[
    "correct", "incorrect", "partial", "unparsed", "timeout", "memory", "crashed", "unscored"
]
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


@dataclass(frozen=True)
class Verdict:
    """What a verifier says about one completion. Wrong is a value; broken is `unscored`.

    >>> Verdict.unscored("worker died twice").reward
    nan
    """

    reward: float
    """In [0, 1], or NaN when unscored."""
    status: Status
    passed: int = 0
    total: int = 1
    cpu_seconds: float = 0.0
    tier: int | None = None
    """Of the sandbox, where one was used."""
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.status == "unscored") != math.isnan(self.reward):
            raise ValueError(
                f"a verdict is NaN exactly when unscored, got {self.reward} with {self.status!r}"
            )
        if not math.isnan(self.reward) and not 0.0 <= self.reward <= 1.0:
            raise ValueError(f"a reward lies in [0, 1] or is NaN, got {self.reward}")

    @staticmethod
    def unscored(detail: str) -> Verdict:
        """The verdict for a failure of ours: never a zero."""
        return Verdict(reward=math.nan, status="unscored", detail=detail)


Verifier: TypeAlias = Callable[[Sequence[Prompt], Sequence[str]], list[Verdict]]
"""Judges a batch: as many verdicts as completions, in the same order."""
