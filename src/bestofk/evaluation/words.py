"""Numbers in words: the verdict of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .results import Comparison

POWER = 0.84
"""The normal quantile of 80% power."""


def spans(mask: np.ndarray) -> list[tuple[int, int]]:
    """Runs of True as (first, last) k, counted from 1.

    >>> spans(np.array([True, False, True, True]))
    [(1, 1), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return [(int(start) + 1, int(stop)) for start, stop in zip(edges[::2], edges[1::2])]


def at_k(mask: np.ndarray, k: np.ndarray | None = None) -> str:
    """The k where mask holds, in words.

    Args:
        k: of each entry of mask; by default 1, 2, 3, ...

    >>> at_k(np.array([True, False, True, True]))
    'k = 1 and k ≥ 3'
    >>> at_k(np.array([True, True]), np.array([1, 64]))
    'k = 1 and k = 64'
    """
    if k is not None and not np.array_equal(k, np.arange(1, len(mask) + 1)):
        return " and ".join(f"k = {each}" for each in k[mask])
    last = len(mask)
    parts = []
    for start, stop in spans(mask):
        if start == stop:
            parts.append(f"k = {start}")
        elif (start, stop) == (1, last):
            parts.append(f"every k ≤ {last}")
        elif stop == last:
            parts.append(f"k ≥ {start}")
        elif start == 1:
            parts.append(f"k ≤ {stop}")
        else:
            parts.append(f"k = {start} to {stop}")
    return " and ".join(parts)


def verdict(
    names: tuple[str, str],
    k: np.ndarray,
    difference: np.ndarray,
    p_value: np.ndarray,
    visible: np.ndarray,
    level: float,
    problems: int,
    identical: bool = False,
) -> str:
    """What the comparison shows, in one or two sentences.

    Args:
        p_value: corrected; only these count.
        visible: the difference that would have been found four times out of five.
        identical: no problem differs at any k.
    """
    a, b = names
    if identical:
        return f"{a} and {b} are identical on every one of the {problems} common problems."
    sure = p_value <= level
    contiguous = np.array_equal(k, np.arange(1, len(k) + 1))
    scope = f"any k ≤ {k[-1]}" if contiguous and len(k) > 1 else at_k(np.ones(len(k), bool), k)
    how = f"p ≤ {level:.2g}, corrected over all k" if len(k) > 1 else f"p ≤ {level:.2g}"
    if not sure.any():
        top = int(np.abs(difference).argmax())
        where = f"largest {difference[top]:+.3f} at k = {k[top]}"
        size = where if len(k) > 1 else f"{difference[top]:+.3f}"
        result = (
            f"No significant difference between {a} and {b} at {scope} "
            f"({size}, p = {p_value[top]:.2g})"
        )
        if not np.isfinite(visible[top]):
            return f"{result}; {problems} problems are too few for this test (6 or more)."
        if visible[top] > 1:
            return f"{result}; {problems} problems are too few to show any but a complete change."
        return f"{result}; {problems} problems would have shown one of about {visible[top]:.3f}."
    parts = []
    for word, mask in (("better", sure & (difference > 0)), ("worse", sure & (difference < 0))):
        if mask.any():
            top = int(np.where(mask, np.abs(difference), -1.0).argmax())
            parts.append(f"{word} at {at_k(mask, k)} ({difference[top]:+.3f} at k = {k[top]})")
    text = f"{b} is {', '.join(parts)} than {a} ({problems} problems, {how})"
    if not sure.all():
        text += f"; no significant difference at {at_k(~sure, k)}"
    return text + "."


def effects(comparison: Comparison) -> str:
    """The sizes of the difference at the first and the last k, and where the curves cross.

    An effect that is not significant says so; where both are not, the largest significant one
    between them is told too. "b against a: +0.195 at pass@1, −0.185 at pass@64; crossing at
    k ≈ 11."
    """
    level = 1.0 - comparison.confidence
    if comparison.metric == "mean":
        places = [(0, "mean reward")]
    else:
        sure = comparison.p_value <= level
        shown = {0, len(comparison.k) - 1}
        if sure.any() and not sure[[*shown]].any():
            shown.add(int(np.where(sure, np.abs(comparison.difference), -1.0).argmax()))
        named = comparison.metric.replace
        places = [(at, named("k", str(comparison.k[at]))) for at in sorted(shown)]
    parts = []
    for at, name in places:
        note = "" if comparison.p_value[at] <= level else " (not significant)"
        parts.append(f"{comparison.difference[at]:+.3f} at {name}{note}".replace("-", "\u2212"))
    text = f"{comparison.b} against {comparison.a}: {', '.join(parts)}"
    if comparison.crossing is not None:
        text += f"; crossing at k ≈ {comparison.crossing.k:.2g}"
    return text + "."
