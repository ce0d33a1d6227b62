"""What sign flips cannot see: a rare large loss among many small gains.

Sign flips assume that differences are symmetric where two runs are equally good. Two kinds of
skewness break that, and a difference has to withstand both. With d the mean difference of P
problems, s its standard error, L the largest difference there can be and h(c) the chance of so
large a mean if the true one is c,

    p = max( 2 h(0),  max_c (L / (L + c))^P · h(c) ).

The first term is about losses that were seen: h is Student's t, with Hall's correction for a long
tail on the other side of the mean. The second is about losses that were not: if a share q of
problems loses L and the others gain c on average, the runs are equally good for q = c / (L + c),
and P problems show none of the losses with probability (1 - q)^P = (L / (L + c))^P. P equal gains g
therefore have p = (1 + g/L)^-P, and no test that allows for such losses can have less.

References: P. Hall, On the removal of skewness by transformation, JRSS B 54 (1992), 221-228.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .results import Interval

GRID = np.arange(-6.0, 8.05, 0.1)
"""Values of c that are tried, in standard errors from the mean."""


@dataclass(frozen=True)
class RareLossTest:
    """What the differences allow once rare losses are thought of, per column."""

    p_value: np.ndarray
    interval: Interval
    """Excludes 0 exactly where p ≤ 1 - confidence."""
    smallest_gain: np.ndarray
    """The smallest mean difference that would pass, were the spread the same."""


def rare_loss_test(gaps: np.ndarray, size: float, confidence: float) -> RareLossTest:
    """Test the columns of gaps (P, C).

    Args:
        size: L, the largest difference there can be.

    >>> rare_loss_test(np.full((12, 1), 0.5), 1.0, 0.95).p_value.round(4)  # 1.5^-12
    array([0.0077])
    """
    problems, columns = gaps.shape
    if problems < 2:
        ends = np.full(columns, size)
        return RareLossTest(np.ones(columns), Interval(-ends, ends), np.full(columns, np.inf))
    mean, centred = gaps.mean(axis=0), gaps - gaps.mean(axis=0)
    spread = np.sqrt((centred**2).mean(axis=0))
    skew = (centred**3).mean(axis=0) / np.where(spread > 1e-9 * size, spread, size) ** 3
    error = np.maximum(spread / np.sqrt(problems - 1), 1e-9 * size)
    level = 1.0 - confidence
    up, down = (
        _OneSide(problems, sign * mean, error, np.minimum(sign * skew, 0.0), size)
        for sign in (1.0, -1.0)
    )
    return RareLossTest(
        p_value=np.where(mean < 0, down.p_value(), up.p_value()),
        interval=Interval(up.lower_end(level), -down.lower_end(level)),
        smallest_gain=np.where(mean < 0, down.smallest_gain(level), up.smallest_gain(level)),
    )


@dataclass(frozen=True)
class _OneSide:
    """The question whether the mean is above 0; `skew` ≤ 0 is that of the losses."""

    problems: int
    mean: np.ndarray
    error: np.ndarray
    skew: np.ndarray
    size: float

    def tail(self, t: np.ndarray) -> np.ndarray:
        """Chance of a studentised mean of t (C, ...) or more."""
        from scipy.special import stdtr

        a = (self.skew / np.sqrt(self.problems))[:, None]
        bent = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6  # Hall's: rises with t
        return np.asarray(stdtr(self.problems - 1, -bent))

    def quantile(self, level: float) -> np.ndarray:
        """(C,) the t whose tail is level / 2: Hall's transformation, inverted."""
        from scipy.special import stdtrit

        a = self.skew / np.sqrt(self.problems)
        y = float(stdtrit(self.problems - 1, 1 - level / 2))
        safe = np.where(a < -1e-9, a, 1.0)
        bent = 3 * (np.cbrt(1 + safe * (y - safe / 6)) - 1) / safe
        return np.where(a < -1e-9, bent, y)

    def p_value(self) -> np.ndarray:
        c = self.mean[:, None] + self.error[:, None] * GRID
        unseen = (self.size / (self.size + np.maximum(c, 0.0))) ** self.problems
        hidden = np.where(c >= 0, unseen * self.tail(-GRID), 0.0).max(axis=1)
        by_tail = self.tail((self.mean / self.error)[:, None])[:, 0]
        return np.minimum(1.0, np.maximum(2 * by_tail, hidden))

    def lower_end(self, level: float) -> np.ndarray:
        """(C,) where p would be `level`, if differences were counted from there."""
        room = (level / np.maximum(self.tail(-GRID), level)) ** (1 / self.problems)
        c = self.mean[:, None] + self.error[:, None] * GRID
        hidden = np.where(room < 1, (c + self.size) * room - self.size, np.inf).min(axis=1)
        return np.minimum(self.mean - self.error * self.quantile(level), hidden)

    def smallest_gain(self, level: float) -> np.ndarray:
        """(C,) the smallest mean whose lower end is 0."""
        room = (level / np.maximum(self.tail(-GRID), level)) ** (1 / self.problems)
        hidden = self.size * (1 / room - 1) - self.error[:, None] * GRID
        hidden = np.where(room < 1, hidden, 0.0).max(axis=1)
        return np.maximum(self.error * self.quantile(level), hidden)


def least_gain(error: float, problems: int, size: float, level: float) -> float:
    """The smallest mean difference that passes, if the differences are not skewed.

    >>> round(least_gain(0.0, 12, 1.0, 0.05), 3), round(least_gain(0.0, 30, 1.0, 0.05), 3)
    (0.284, 0.105)
    """
    one = np.array([max(error, 1e-9 * size)])
    return float(_OneSide(problems, one, one, np.zeros(1), size).smallest_gain(level)[0])
