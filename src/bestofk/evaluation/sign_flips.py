"""The test of paired differences: sign flips, max-T, and the intervals that the same test gives.

If two runs are equally good, A and B could as well have been swapped on any problem, so the sign of
each problem's difference can be flipped. With d the mean difference and s its standard error,

    T_k = |d_k| / s_k,        p_k = P(max_j T*_j ≥ T_k),        band_k = d_k ± c · s_k,

where T* are the statistics after flips, the maximum runs over all k and all comparisons made
together (Westfall & Young's max-T), and c is the value that the maximum exceeds with probability
1 - confidence. One reference gives both: p_k ≤ 1 - confidence exactly where the band excludes 0.
The test at one k that was chosen beforehand is the same with that one column.

All flips are enumerated where there are few problems, else drawn. The test is exact if differences
are symmetric where the runs are equally good; `rare_losses` is for where that is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

SAME = 1e-9
"""Per-problem values that differ by no more than this share of the range of rewards are a tie."""
LEAST_ERROR = 0.5
"""A standard error is at least this share of the largest possible difference, over problems."""
LEAST_FLIPS = 4000
"""Drawn at any number of problems, unless a number is stated."""
CELLS = 1 << 23
TOLERANCE = 1e-5


@dataclass(frozen=True)
class FlipTests:
    """Tests of all differences together, columns (comparison, k) side by side."""

    p_value: np.ndarray
    """(C,) two-sided p-value, corrected over all columns."""
    critical: float
    """Half the width of the simultaneous band, in standard errors; infinity below 6 problems."""
    error: np.ndarray
    """(C,) standard error of each mean difference."""

    def of(self, columns: slice) -> FlipTests:
        """The part of one comparison; the correction stays that of all."""
        return FlipTests(self.p_value[columns], self.critical, self.error[columns])


def sign_flip_tests(
    gaps: np.ndarray, confidence: float, resamples: int, rng: np.random.Generator, size: float = 1.0
) -> FlipTests:
    """Sign-flip tests of all columns together.

    Args:
        gaps: (P, C) each problem's difference at each column.
        confidence: of the intervals that the tests give; 1 - confidence is the test's level.
        resamples: flips that are drawn, where there are too many to enumerate.
        size: the largest difference there can be.
    """
    problems, columns = gaps.shape
    mean, squares = gaps.mean(axis=0), (gaps**2).mean(axis=0)
    smallest_error = LEAST_ERROR * size / problems
    error = _errors(mean, squares, problems, smallest_error)
    observed = np.abs(mean) / error
    exact = problems <= 30 and 2 ** (problems - 1) <= resamples
    count = 2 ** (problems - 1) if exact else resamples
    # Enumerated flips hold the data themselves; drawn flips are counted with them.
    rank = int(np.floor((1.0 - confidence) * (count if exact else count + 1) + 1e-9)) - (not exact)
    able = rank >= (1 if exact else 0)  # else no flip is rare enough to exclude anything
    rank = rank if able else 0
    pieces = max(1, min(CELLS // problems, CELLS // columns))
    narrow = gaps.astype(np.float32)
    times_reached, top = np.zeros(columns), np.empty(0)  # by the largest statistic of each flip
    for signs in _signs(problems, count, exact, pieces, rng):
        flipped = (signs @ narrow).astype(float) / problems
        statistic = np.abs(flipped) / _errors(flipped, squares, problems, smallest_error)
        largest = np.sort(statistic.max(axis=1))
        times_reached += len(largest) - np.searchsorted(largest, observed * (1 - TOLERANCE))
        top = np.sort(np.concatenate([top, largest]))[-rank - 1 :]
    more = 0 if exact else 1
    return FlipTests(
        p_value=(more + times_reached) / (more + count),
        critical=float(top.min()) / (1 - TOLERANCE) if able else np.inf,
        error=error,
    )


def _errors(mean: np.ndarray, squares: np.ndarray, problems: int, floor: float) -> np.ndarray:
    """Standard errors of means whose second moment is `squares`, none below `floor`."""
    variance = np.maximum(squares - mean**2, 0.0) / max(problems - 1, 1)
    return np.maximum(np.sqrt(variance), floor)


def _signs(
    problems: int, count: int, exact: bool, at_once: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Rows of ±1 (float32): all that differ by more than the sign of the whole, or a draw."""
    for start in range(0, count, at_once):
        rows = min(at_once, count - start)
        if exact:
            numbers = np.arange(start, start + rows)[:, None]
            bits = (numbers >> np.arange(problems)) & 1
        else:
            bits = rng.integers(0, 2, (rows, problems), dtype=np.int8)
        yield (bits * 2 - 1).astype(np.float32)
