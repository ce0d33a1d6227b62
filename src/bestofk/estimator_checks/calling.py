"""Find out how a stranger's function wants to be called, and call it without falling over."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from bestofk.objectives import Objective

Kind: TypeAlias = Literal["numpy", "torch", "list"]
REPEATS = 12
"""Calls that must agree before a function is taken for one that is not random."""
PATIENCE = 2.0
"""Seconds until a line is said, or the end of slow calls foreseen."""


class TooSlow(ValueError):
    """The calls take longer than the limit; the message says how long, and the way out."""


class Clock:
    """How long the calls may take together, and a line now and then about what they are for."""

    def __init__(self, seconds: float, say: Callable[[str], None] = lambda _: None) -> None:
        self.seconds, self.say = seconds, say
        self.start = self.said = time.monotonic()

    def left(self) -> float:
        return self.start + self.seconds - time.monotonic()

    def tick(self, since: float, finished: int, total: int, n: int) -> None:
        """After so many of `total` groups of n samples, begun at `since`.

        Raises:
            TooSlow: the rest will not be done within the limit.
        """
        now = time.monotonic()
        in_all = (now - since) * total / finished
        remaining = in_all - (now - since)
        groups = f"{total:,} groups of {n} samples"
        if now - since > PATIENCE and remaining > self.left():
            raise TooSlow(
                f"{groups} take about {in_all:.0f} s, one call for each, and "
                f"all calls together may take {self.seconds:g}: judge with a smaller n, state "
                "seconds=, or let the function take a batch (groups, n)"
            )
        if now - self.said > PATIENCE:
            self.said = now
            self.say(f"{finished:,} of {groups}, {remaining:.0f} s left")


@dataclass(frozen=True)
class Request:
    """What is asked about a function."""

    name: str
    k: int
    n: int
    off_policy: bool
    kind: Kind | None
    seed: int
    clock: Clock


class CannotCall(Exception):
    """No way of calling the function gave one number per sample; the message says what happened."""


@dataclass(frozen=True)
class JudgedFunction:
    """A function rewards → advantages together with the way it is called."""

    fn: Callable[..., Any]
    off_policy: bool
    kind: Kind
    clock: Clock
    batched: bool
    """Whether (groups, n) is read as independent groups."""
    wrapped: bool
    """Whether one group must come as (1, n)."""
    batch_note: str = ""
    """What happened to a batch, when it is not read as groups."""
    groups_mix: bool = False
    """Whether groups in a batch change each other's advantages."""
    shape_note: str = ""

    def one(
        self,
        rewards: np.ndarray,
        log_ratio: np.ndarray | None = None,
        live: np.ndarray | None = None,
    ) -> np.ndarray:
        """Advantages of one group, (n,) → (n,). Raises what the function raises, or CannotCall."""
        n = len(rewards)
        if self.off_policy and log_ratio is None:
            log_ratio = np.zeros(n)
        values = self._call(*map(self.as_group, (rewards, log_ratio, live)))
        if values.size != n or tuple(s for s in values.shape if s != 1) not in ((n,), ()):
            raise CannotCall(
                f"it returned shape {values.shape} for rewards of shape "
                f"{self.as_group(rewards).shape}: one advantage per sample is wanted"
            )
        return values.reshape(n)

    def as_group(self, values: Any) -> Any:
        """What one group has, as the function takes it: (n,) or (1, n); None stays None."""
        return values[None] if self.wrapped and values is not None else values

    @property
    def takes_live(self) -> bool:
        """Whether the function has a parameter live=, which marks the samples that count."""
        try:
            return "live" in inspect.signature(self.fn).parameters
        except (TypeError, ValueError):
            return False

    def many(self, rewards: np.ndarray, log_ratio: np.ndarray | None = None) -> Answers:
        """Advantages of many groups, (groups, n): NaN where it raised."""
        if self.batched:
            with contextlib.suppress(Exception):  # a group may be the cause: found row by row
                values = self._call(rewards, log_ratio)
                if values.shape == rewards.shape:
                    return Answers(values, {})
        values = np.full(rewards.shape, np.nan)
        failures: dict[int, Exception] = {}
        since = time.monotonic()
        for row in range(len(rewards)):
            try:
                logs = None if log_ratio is None else log_ratio[row]
                values[row] = self.one(rewards[row], logs)
            except Exception as error:
                failures[row] = error
            self.clock.tick(since, row + 1, *rewards.shape)
        return Answers(values, failures)

    def _call(
        self, rewards: np.ndarray, logs: np.ndarray | None, live: np.ndarray | None = None
    ) -> np.ndarray:
        arguments = [given(rewards, self.kind)]
        if self.off_policy:
            arguments.append(given(np.asarray(logs), self.kind))
        named = {} if live is None else {"live": given(live, self.kind)}
        return _taken(self.fn(*arguments, **named))

    def writes_into_input(self, rewards: np.ndarray) -> bool:
        """Whether the function changes the rewards it is given."""
        row = self.as_group(rewards)
        theirs = given(row, self.kind)
        logs = [given(np.zeros(row.shape), self.kind)] if self.off_policy else []
        self.fn(theirs, *logs)
        return not np.array_equal(_taken(theirs), row)


@dataclass(frozen=True)
class Answers:
    """Advantages of many groups, and which groups raised what."""

    values: np.ndarray
    failures: dict[int, Exception]


def given(values: np.ndarray, kind: Kind) -> Any:
    """A fresh copy in the library the function wants."""
    if kind == "torch":
        return sys.modules["torch"].tensor(values)
    return values.tolist() if kind == "list" else values.copy()


def _taken(result: Any) -> np.ndarray:
    """What came back, as float64. Raises CannotCall on anything that is not numbers."""
    if isinstance(result, tuple) and result and np.ndim(result[0]) > 0:
        result = result[0]  # (advantages, returns), as trainers' estimators answer
    if hasattr(result, "detach"):
        result = result.detach().cpu().numpy()
    what = type(result).__name__
    if result is None:
        raise CannotCall("it returned None: one advantage per sample is wanted")
    try:
        return np.array(result, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise CannotCall(
            f"it returned {what}, not numbers: one advantage per sample is wanted"
        ) from error


def name_of(fn: Callable[..., Any] | Objective) -> str:
    """What a function is called in a verdict."""
    if isinstance(fn, Objective):
        return str(fn)
    if not callable(fn):
        raise TypeError(
            "conformance judges a function from rewards to advantages, an Objective or its name "
            f"such as 'max@8', got {type(fn).__name__}"
        )
    inner = getattr(fn, "func", fn)  # functools.partial
    return str(getattr(inner, "__name__", type(fn).__name__))


def by_place(fn: Callable[..., Any] | Objective) -> Callable[..., Any]:
    """A function of rewards and log-ratios in this order."""
    if not isinstance(fn, Objective):
        return fn
    return lambda rewards, logs=None: fn(rewards, log_ratio=logs)


def find_out(fn: Callable[..., Any], request: Request, *, off_policy: bool) -> JudgedFunction:
    """Probe the function with groups of 0/1 rewards, and settle how to call it.

    NumPy arrays first, then torch tensors (where torch is loaded), then plain lists; one group as
    (n,), else as (1, n). A batch is used only if it gives what its rows give one by one.
    """
    n, kind = request.n, request.kind
    probe = np.array(
        [[float(j >= n - c) for j in range(n)] for c in sorted({0, 1, 2, n // 2, n - 1})]
    )
    probe = probe[:, np.random.default_rng(0).permutation(n)]
    logs = 0.1 * np.random.default_rng(1).standard_normal(probe.shape) if off_policy else None
    kinds: list[Kind] = [kind] if kind else ["numpy", "torch", "list"]
    reasons = []
    for chosen in kinds:
        if chosen == "torch" and "torch" not in sys.modules:
            continue
        for wrapped in (False, True):
            estimator = JudgedFunction(fn, off_policy, chosen, request.clock, False, wrapped)
            rows = estimator.many(probe, logs)
            if len(rows.failures) < len(probe):
                return _with_batch(estimator, probe, logs, rows)
            reasons.append(rows.failures[0])
    if isinstance(reasons[0], CannotCall):
        raise reasons[0]
    text = f"it raises for every group of {n} samples: {described(reasons[0], 400)}"
    raise CannotCall(text) from reasons[0]


def described(error: Exception, limit: int = 160) -> str:
    """Type and first line of an exception."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _with_batch(
    estimator: JudgedFunction, probe: np.ndarray, logs: np.ndarray | None, rows: Answers
) -> JudgedFunction:
    """Decide whether a batch may be used."""
    facts: dict[str, Any] = {}
    good = [row for row in range(len(probe)) if row not in rows.failures]
    probe, logs = probe[good], None if logs is None else logs[good]
    row = estimator.as_group(probe[0])
    shape = estimator._call(row, None if logs is None else estimator.as_group(logs[0])).shape
    if shape != row.shape:
        facts["shape_note"] = f"returns shape {shape} for rewards {row.shape}"
    for _ in range(REPEATS):
        again = estimator.many(probe, logs)
        if not np.array_equal(again.values, rows.values[good], equal_nan=True):
            return estimator  # random: nothing can be compared
    try:
        values = estimator._call(probe, logs)
    except Exception as error:
        facts["batch_note"] = f"a batch (groups, n) raises {described(error, 80)}"
    else:
        if values.shape != probe.shape:
            facts["batch_note"] = f"a batch {probe.shape} comes back with shape {values.shape}"
        elif not np.allclose(values, rows.values[good], rtol=1e-5, atol=1e-7, equal_nan=True):
            facts["groups_mix"] = True
            facts["batch_note"] = (
                "groups in a batch change each other's advantages: judged one group at a time"
            )
        else:
            facts["batched"] = True
    return replace(estimator, **facts)
