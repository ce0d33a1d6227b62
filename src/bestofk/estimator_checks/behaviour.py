"""What a function does at the edges: ties, no success, too few samples, dead samples, order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from .calling import REPEATS, JudgedFunction, described

Status: TypeAlias = Literal["ok", "bad", "note"]


@dataclass(frozen=True)
class Finding:
    """One observation: "bad" is a defect, "note" is worth knowing."""

    check: str
    status: Status
    text: str


ROUNDING = 1e-9
"""Of the largest advantage; a dead sample has none above this."""


def _same(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-5) -> bool:
    scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
    return bool(np.all(np.abs(a - b) <= tolerance * scale))


def _is_zero(dead: float, live: np.ndarray) -> bool:
    """Whether a dead sample's advantage is nothing but rounding beside those of live ones."""
    return bool(abs(dead) <= ROUNDING * max(1.0, float(np.abs(live).max())))


def _group(n: int, c: int) -> np.ndarray:
    """c right of n, not sorted."""
    rewards = np.zeros(n)
    rewards[np.random.default_rng(n).permutation(n)[:c]] = 1.0
    return rewards


def _numbers(values: np.ndarray) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in values + 0.0) + "]"


def tried(
    estimator: JudgedFunction, rewards: np.ndarray, *, moved: bool = False
) -> np.ndarray | Exception:
    """Advantages of a group, or what it raised; `moved` gives off-policy functions ratios ≠ 1."""
    logs = 0.3 * np.random.default_rng(5).standard_normal(len(rewards)) if moved else None
    try:
        return estimator.one(rewards, logs)
    except Exception as error:
        return error


def by_count(estimator: JudgedFunction, n: int) -> tuple[tuple[float, float], ...]:
    """(advantage of a right sample, of a wrong one) for c = 0..n right of n 0/1 samples.

    NaN where there is no such sample or the function raises; means over tied samples.
    """
    table = []
    for c in range(n + 1):
        rewards = _group(n, c)
        advantages = tried(estimator, rewards)
        if isinstance(advantages, Exception):
            advantages = np.full(n, np.nan)
        right, wrong = advantages[rewards == 1], advantages[rewards == 0]
        mean = [float(part.mean()) if part.size else np.nan for part in (right, wrong)]
        table.append((mean[0], mean[1]))
    return tuple(table)


def no_contrast(check: str, name: str, why: str, advantages: np.ndarray | Exception) -> Finding:
    """What is said of a group in which no sample is better than another."""
    if isinstance(advantages, Exception):
        return Finding(check, "bad", f"raises where {name}: {described(advantages)}")
    if not np.isfinite(advantages).all():
        return Finding(check, "bad", f"not finite where {name}: {_numbers(advantages)}")
    if _same(advantages, np.zeros_like(advantages)):
        return Finding(check, "ok", f"all advantages 0 where {name}")
    if _same(advantages, np.full_like(advantages, advantages.mean())):
        text = f"every sample gets {advantages.mean():.3g} where {name}: noise without signal"
        return Finding(check, "note", text)
    return Finding(check, "note", f"advantages {_numbers(advantages)} where {name}, {why}")


def counts(estimator: JudgedFunction, k: int, n: int) -> list[Finding]:
    """c = 0, c = n, and fewer than k wrong samples, where every k-set succeeds."""
    even = "though the samples do not differ"
    cases = [("c = 0", "none is right", even, 0), ("c = n", "all are right", even, n)]
    if 1 < k < n or (k == n and n > 2):
        some = f"{k - 1} < k are wrong", "though every k-set has a success"
        cases.append(("N_neg < k", *some, n - k + 1))
    return [
        no_contrast(check, name, why, tried(estimator, _group(n, right), moved=True))
        for check, name, why, right in cases
    ]


def too_few(estimator: JudgedFunction, k: int, n: int, own_k: bool) -> list[Finding]:
    """n < k must raise: the best of k cannot be estimated from fewer samples, so any number lies.

    `own_k`: the function is known to look at k samples; otherwise (k = n, or another objective) its
    k may be n itself, and an answer is only noted.
    """
    if k < 2:
        return []
    advantages = tried(estimator, _group(k - 1, 1))
    if isinstance(advantages, Exception):
        names = all(str(number) in str(advantages) for number in (k, k - 1))
        text = "raises" + (" and names both numbers" if names else f": {described(advantages, 90)}")
        return [Finding("n < k", "ok", text)]
    answer = "all zeros" if not np.any(advantages) else _numbers(advantages)
    if not np.isfinite(advantages).all():
        answer = "NaN" if np.isnan(advantages).all() else answer
        return [
            Finding("n < k", "bad", f"answers {k - 1} samples with {answer} instead of an error")
        ]
    if not own_k:
        why = "with n = k its k may follow n" if n == k else "its objective is not max@k"
        return [Finding("n < k", "note", f"answers {k - 1} samples with {answer}: {why}")]
    text = f"answers {k - 1} samples with {answer}; best of {k} needs at least {k}: it must raise"
    return [Finding("n < k", "bad", text)]


def distinct(n: int, seed: int = 3) -> np.ndarray:
    """Distinct real rewards in (0, 1)."""
    return np.random.default_rng(seed).permutation(np.linspace(0.1, 0.9, n) ** 1.3)


def order(estimator: JudgedFunction, n: int, real: bool) -> list[Finding]:
    """Two calls agree; and rearranged samples get rearranged advantages."""
    rng = np.random.default_rng(11)
    groups = [_group(n, c) for c in sorted({1, n // 2})] + ([distinct(n)] if real else [])
    for rewards in groups:
        logs = 0.2 * rng.standard_normal(n)
        try:
            first = estimator.one(rewards, logs)
            again = [estimator.one(rewards, logs) for _ in range(REPEATS)]
            if not all(np.array_equal(first, each, equal_nan=True) for each in again):
                text = (
                    "two calls with the same rewards differ: means over several draws were judged"
                )
                return [Finding("random", "bad", text)]
            for _ in range(12):
                shuffle = rng.permutation(n)
                moved = estimator.one(rewards[shuffle], logs[shuffle])
                if not np.allclose(moved, first[shuffle], rtol=1e-5, atol=1e-6, equal_nan=True):
                    text = (
                        f"the order of samples matters: {_numbers(rewards)} → {_numbers(first)}, "
                        f"but {_numbers(rewards[shuffle])} → {_numbers(moved)}"
                    )
                    return [Finding("order", "bad", text)]
        except Exception:  # what it raises on is reported by the enumeration
            continue
    return [Finding("order", "ok", "rearranged samples get rearranged advantages")]


def ties(estimator: JudgedFunction, n: int, real: bool) -> list[Finding]:
    """Equal rewards (and ratios) should get equal advantages; a tied best should not be silent."""
    if n < 3:
        return []
    rewards = _group(n, 2)
    if real:
        rewards = np.array([0.2, 0.2, 0.9, 0.9, *np.linspace(0.3, 0.7, n)])[:n]
        rewards = rewards if n > 3 else np.array([0.2, 0.9, 0.9])
    advantages = tried(estimator, rewards)
    if isinstance(advantages, Exception):
        return [Finding("ties", "bad", f"raises on {_numbers(rewards)}: {described(advantages)}")]
    spread = max(np.ptp(advantages[rewards == level]) for level in np.unique(rewards))
    if spread > 1e-6 * max(1.0, float(np.abs(advantages).max())):
        text = (
            f"equal rewards get different advantages: {_numbers(rewards)} → {_numbers(advantages)}"
        )
        return [Finding("ties", "note", text)]
    if not np.any(np.abs(advantages) > 1e-12):
        return [Finding("ties", "note", "no signal at all when the best is tied")]
    return [Finding("ties", "ok", "equal rewards get equal advantages")]


def padding(estimator: JudgedFunction, n: int) -> list[Finding]:
    """A dead sample (NaN reward) beside n live ones must not count."""
    alive = _group(n, 1)
    alone = tried(estimator, alive)
    if isinstance(alone, Exception):
        return []
    if estimator.takes_live:
        return _masked(estimator, alive, alone)
    padded = tried(estimator, np.append(alive, np.nan))
    if isinstance(padded, Exception):
        return [Finding("padding", "note", f"raises on a NaN reward: {described(padded, 90)}")]
    live, dead = padded[:n], padded[n]
    if not np.isfinite(live).all():
        text = "one NaN reward makes the advantages of its live siblings NaN: it cannot stay unseen"
        return [Finding("padding", "note", text)]
    if _same(live, alone):
        text = "a NaN reward is not counted, the n live samples get their own advantages"
        if _is_zero(dead, live):
            return [Finding("padding", "ok", text)]
        status: Status = "note" if np.isnan(dead) else "bad"  # NaN cannot stay unseen
        return [Finding("padding", status, f"{text}, but the dead sample gets {dead:.3g}, not 0")]
    zero = tried(estimator, np.append(alive, 0.0))
    like = " as a sample with reward 0" if not isinstance(zero, Exception) else ""
    like = like if like and _same(live, np.asarray(zero)[:n]) else ""
    return [Finding("padding", "bad", f"a NaN reward counts in n{like}: live advantages change")]


def _masked(estimator: JudgedFunction, alive: np.ndarray, alone: np.ndarray) -> list[Finding]:
    """The same for a function with live=: the dead sample has a reward, which must not count."""
    live = np.append(np.ones(len(alive), bool), False)
    try:
        padded = estimator.one(np.append(alive, 1.0), live=live)
    except Exception as error:
        return [Finding("padding", "bad", f"raises with live=: {described(error, 90)}")]
    if _same(padded[:-1], alone) and _is_zero(padded[-1], alone):
        return [Finding("padding", "ok", "a sample that live= marks as dead does not count")]
    return [Finding("padding", "bad", "a sample that live= marks as dead changes the advantages")]


def numbers(estimator: JudgedFunction, n: int) -> list[Finding]:
    """Integer and boolean rewards must be read as 0 and 1; the input must survive."""
    result = []
    floats = _group(n, 1)
    expected = tried(estimator, floats)
    if isinstance(expected, Exception):
        return []
    for name, kind in (("integers", np.int64), ("booleans", np.bool_)):
        advantages = tried(estimator, floats.astype(kind))
        if isinstance(advantages, Exception):
            text = f"raises on {name}: {described(advantages, 90)}"
            result.append(Finding(name, "note", text))
        elif not np.allclose(advantages, expected, rtol=1e-5, atol=1e-8, equal_nan=True):
            text = f"0/1 as {name} gets {_numbers(advantages)}, as floats {_numbers(expected)}"
            result.append(Finding(name, "bad", text))
    if not result:
        result.append(
            Finding("integers", "ok", "integer and boolean rewards get the same advantages")
        )
    if estimator.writes_into_input(floats):
        result.append(Finding("input", "bad", "writes into the rewards it is given"))
    return result


def shift_and_scale(estimator: JudgedFunction, n: int) -> list[Finding]:
    """How advantages answer r + 10 and 3 r."""
    rewards = distinct(n)
    answers = [tried(estimator, r, moved=True) for r in (rewards, rewards + 10, 3 * rewards)]
    finite = [a for a in answers if not isinstance(a, Exception) and np.isfinite(a).all()]
    if len(finite) < len(answers):
        return []
    plain, shifted, scaled = finite
    result = []
    if _same(shifted, plain, 1e-4):
        result.append(Finding("shift", "ok", "adding a constant to all rewards changes nothing"))
    else:
        text = "adding a constant to all rewards changes the advantages: the offset adds variance"
        result.append(Finding("shift", "note", text))
    if not np.any(np.abs(plain) > 1e-12):
        return result
    if _same(scaled, 3 * plain, 1e-4):
        result.append(_clipping(estimator, rewards, plain))
    elif _same(scaled, plain, 1e-3):
        text = "advantages do not change with the scale of rewards: a normaliser"
        result.append(Finding("scale", "note", text))
    else:
        text = (
            "advantages neither grow with the scale of rewards nor ignore it: rewards are clipped, "
            "or the function is not linear in them"
        )
        result.append(Finding("scale", "note", text))
    return result


def _clipping(estimator: JudgedFunction, rewards: np.ndarray, plain: np.ndarray) -> Finding:
    """Advantages that are linear up to some size of rewards and not beyond: a clipped reward."""
    linear = 3.0  # by `shift_and_scale`
    for size in (10.0, 100.0, 10_000.0):
        grown = tried(estimator, size * rewards, moved=True)
        if isinstance(grown, Exception) or not _same(grown / size, plain, 1e-4):
            text = (
                f"advantages grow with the rewards up to {linear * rewards.max():.3g} and "
                f"not up to {size * rewards.max():.3g}: rewards or advantages are clipped"
            )
            return Finding("scale", "bad", text)
        linear = size
    return Finding("scale", "ok", "advantages are linear in the scale of rewards")
