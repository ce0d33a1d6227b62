"""The few shapes that pass between modules: Prompt, Trajectory, Group, Verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Integral
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np

from bestofk.messages import unknown

Message: TypeAlias = Mapping[str, str]
"""One chat message: {"role": "user", "content": "..."}."""
Ending: TypeAlias = Literal[
    "answer", "environment", "turns", "turn_tokens", "own_tokens", "length", "broken"
]
"""Why a trajectory with an environment ended: the model called no tool; the environment ended it;
the limit of turns, of one turn's tokens, of all that the model writes, of all tokens; or the
environment could not be made or reset."""

Status: TypeAlias = Literal[
    "correct", "incorrect", "partial", "unparsed", "timeout", "memory", "crashed", "unscored"
]
STATUSES: tuple[str, ...] = get_args(Status)
FinishReason: TypeAlias = Literal["stop", "length"]
ENDINGS: tuple[str, ...] = get_args(Ending)


def reaches(rewards: Any, threshold: float) -> Any:
    """Whether rewards (a number or an array) are at least the threshold, but for rounding.

    >>> sum([0.1] * 10), reaches(sum([0.1] * 10), 1.0), reaches(0.999, 1.0)
    (0.9999999999999999, True, False)
    """
    return rewards >= threshold - 1e-9 * max(1.0, abs(threshold))


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


class _Listed:
    """Marks an array that pydantic reads from a list and writes as one; null where all is True."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import any_schema, plain_serializer_function_ser_schema

        def listed(array: np.ndarray) -> list[Any] | None:
            return None if array.dtype == bool and array.all() else array.tolist()

        return any_schema(serialization=plain_serializer_function_ser_schema(listed))


Array: TypeAlias = Annotated[Any, _Listed()]
"""Made from any sequence; always a NumPy array."""
_ALL = np.broadcast_to(np.True_, 2**40)
"""Of one byte: what is `own` where the policy drew every token."""


@dataclass(frozen=True)
class Conversation:
    """What happened between the policy and the environment of a trajectory."""

    messages: tuple[Message, ...]
    """After the prompt, in order."""
    ended_by: Ending
    turns: int
    """Messages of the policy."""
    tool_calls: int = 0
    tool_errors: int = 0
    """Calls that could not be read, failed or took too long: the policy was told."""
    verdict: Verdict | None = None
    """The environment's own, where it gives rewards."""

    @property
    def fields(self) -> dict[str, Any]:
        """What a line of a file of samples says of it."""
        names = ("messages", "turns", "ended_by", "tool_calls", "tool_errors")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, eq=False, slots=True)
class Trajectory:
    """One sample of a prompt: all that follows it, drawn by the policy or by its environment.

    Any sequences are accepted; they become arrays of the trajectory's own. Trajectories are equal
    where every value is, bit for bit.

    >>> Trajectory([5, 8, 2], log_probs=[-0.5, -1.0, -0.25], text="ab").log_prob
    -1.75
    """

    tokens: Array = ()
    """(T,) int32: token ids after the prompt, the end-of-sequence token included when drawn."""
    own: Array = None
    """(T,) bool: whether the policy drew the token. All of them by default."""
    log_probs: Array = ()
    """(T,) float32: the sampler's log-probability of each token, 0 where it is not own; empty where
    the sampler reported none."""
    text: str = ""
    """What the policy wrote; with an environment, its last message."""
    finish_reason: FinishReason = "stop"
    conversation: Conversation | None = None
    """What happened with its environment, where there was one."""

    def __post_init__(self) -> None:
        tokens, log_probs = np.array(self.tokens, np.int32), np.array(self.log_probs, np.float32)
        own = _ALL[: tokens.size] if self.own is None else np.array(self.own, bool)
        for name, array in (("tokens", tokens), ("own", own), ("log_probs", log_probs)):
            none_reported = name == "log_probs" and not array.size
            if array.shape != (tokens.size,) and not none_reported:
                raise ValueError(
                    f"a trajectory of {tokens.size} tokens has as many {name} in one row, got "
                    f"shape {array.shape}"
                )
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def verdict(self) -> Verdict | None:
        """Its environment's, where that gives rewards."""
        return self.conversation.verdict if self.conversation else None

    @property
    def drawn(self) -> int:
        """Tokens that the policy drew."""
        return int(np.count_nonzero(self.own))

    @property
    def own_log_probs(self) -> np.ndarray:
        """Log-probabilities of the drawn tokens alone; empty where the sampler reported none."""
        return self.log_probs[self.own] if self.log_probs.size else self.log_probs

    @property
    def log_prob(self) -> float:
        """Log-probability of the trajectory: the sum over the tokens that the policy drew."""
        return float(self.own_log_probs.sum(dtype=np.float64))

    def with_log_probs(self, own: np.ndarray) -> Trajectory:
        """The same with other log-probabilities of the drawn tokens."""
        log_probs = np.zeros(self.tokens.shape, np.float32)
        log_probs[self.own] = own
        return replace(self, log_probs=log_probs)

    def _values(self) -> tuple[Any, ...]:
        arrays = (self.tokens, self.own, self.log_probs)
        rest = (self.text, self.finish_reason, repr(self.conversation))
        return (*rest, *(array.tobytes() for array in arrays))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trajectory) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())


@dataclass(frozen=True)
class Group:
    """A prompt and its n trajectories: the unit of sampling, scoring, learning and evaluation."""

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    prompt_tokens: tuple[int, ...] = ()
    temperature: float | None = None
    """Of the sampler that drew them; None where it is not known."""


@dataclass(frozen=True)
class Verdict:
    """What a verifier says about one trajectory. Wrong is a value; broken is `unscored`.

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
    answer: str | None = None
    """What a vote counts, where the verifier finds one; empty where it says that there is none."""
    score: float | None = None
    """What a selector sorts by, where there is one; -inf is never chosen."""

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
        if self.score is not None and (math.isnan(self.score) or self.score == math.inf):
            raise ValueError(
                f"a score is a number, or -inf for what is never chosen, got {self.score}"
            )
        earned = status_of(self.reward)
        claimed = self.status if self.status in ("correct", "partial") else "incorrect"
        if earned != claimed:
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
