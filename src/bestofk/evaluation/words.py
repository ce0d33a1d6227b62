"""Numbers in words: the verdict of a comparison."""

from __future__ import annotations

import numpy as np


def spans(mask: np.ndarray) -> list[tuple[int, int]]:
    """Runs of True as (first, last) k, counted from 1.

    >>> spans(np.array([True, False, True, True]))
    [(1, 1), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return [(int(start) + 1, int(stop)) for start, stop in zip(edges[::2], edges[1::2])]


def at_k(mask: np.ndarray) -> str:
    """The k where mask holds, in words.

    >>> at_k(np.array([True, False, True, True]))
    'k = 1 and k ≥ 3'
    """
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
    difference: np.ndarray,
    p_value: np.ndarray,
    error: np.ndarray,
    level: float,
    problems: int,
) -> str:
    """What the comparison shows, in one or two sentences; only corrected p-values count."""
    a, b = names
    sure = p_value <= level
    better, worse = sure & (difference > 0), sure & (difference < 0)
    last = len(difference)
    scope = f"k ≤ {last}" if last > 1 else "k = 1"
    if not sure.any():
        top = int(np.abs(difference).argmax())
        visible = 2.8 * float(error[top])  # 80 % power at 5 %: z = 1.96 + 0.84
        return (
            f"No difference between {a} and {b} can be told at any {scope} (largest "
            f"{difference[top]:+.3f} at k = {top + 1}, p = {p_value[top]:.2g}); {problems} "
            f"problems would have shown one of about {visible:.3f}."
        )
    parts = []
    if better.any():
        parts.append(f"better at {at_k(better)}")
    if worse.any():
        parts.append(f"worse at {at_k(worse)}")
    text = f"{b} is {', '.join(parts)} (than {a}; {problems} problems, p ≤ {level:.2g} over all k)"
    if not sure.all():
        text += f"; at {at_k(~sure)} no difference can be told"
    return text + "."
