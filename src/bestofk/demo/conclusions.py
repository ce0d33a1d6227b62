"""What the numbers say: the table, and one sentence computed from it.

A difference between two runs is called one only where its 95% interval, paired over worlds,
excludes 0, and where it is large enough to be seen in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bestofk.evaluation.intervals import t_quantile

from .experiment import KS, Results

SMALLEST = 0.001
"""The last digit shown of pass@k, a tenth of a point: no word is made of less."""


@dataclass(frozen=True)
class Row:
    """One measure at the end of training: its mean over worlds and the interval's half-width."""

    label: str
    means: tuple[float, ...]
    halves: tuple[float, ...]
    best: tuple[bool, ...]
    """Highest of the runs, or no different from the highest. Entropy has no best."""
    percent: bool = True
    """pass@k is shown in %, entropy in nats."""

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(
            f"{100 * mean:.1f} ± {100 * half:.1f}" if self.percent else f"{mean:.2f} ± {half:.2f}"
            for mean, half in zip(self.means, self.halves)
        )


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis (worlds) and the half-width of its 95% t-interval.

    >>> mean, half = interval(np.array([1.0, 2.0, 3.0]))
    >>> float(mean), round(float(half), 3)
    (2.0, 2.484)
    """
    count = len(values)
    spread = values.std(axis=0, ddof=1) / np.sqrt(count)
    return values.mean(axis=0), t_quantile(0.975, count - 1) * spread


def rows(results: Results) -> list[Row]:
    """pass@k for every k, then entropy: the table, on the terminal and on the page alike."""
    table = []
    for place, k in enumerate(KS):
        values = results.pass_at_k[:, :, -1, place]
        table.append(_row(f"pass@{k}", values, _best(values)))
    entropy = results.entropy[:, :, -1]
    table.append(_row("entropy", entropy, [False] * len(entropy), percent=False))
    return table


def _row(label: str, values: np.ndarray, best: Sequence[bool], percent: bool = True) -> Row:
    means, halves = interval(values.T)
    return Row(label, tuple(means.tolist()), tuple(halves.tolist()), tuple(best), percent)


def _best(values: np.ndarray) -> list[bool]:
    top = int(values.mean(axis=1).argmax())
    return [compare(run, values[top]) == "no different" for run in values]


def compare(ours: np.ndarray, theirs: np.ndarray) -> str:
    """'higher', 'lower' or 'no different', by the 95% interval of the paired difference.

    >>> compare(np.array([0.5, 0.6, 0.7]), np.array([0.1, 0.2, 0.4]))
    'higher'
    """
    mean, half = map(float, interval(ours - theirs))
    if abs(mean) <= max(half, SMALLEST):
        return "no different"
    return "higher" if mean > 0 else "lower"


def percentage(share: float) -> str:
    return f"{100 * share:.1f}%"


def sentence(results: Results) -> str:
    """What this run shows at the first and the last k, every verb and number of it computed."""
    start, mean, *others = np.moveaxis(results.pass_at_k[:, :, -1, [0, -1]], -1, 1)
    verbs = {"higher": "raised", "lower": "lowered", "no different": "did not measurably move"}
    moved = (
        f"{verbs[compare(after, before)]} pass@{k} "
        f"({percentage(before.mean())} → {percentage(after.mean())})"
        for k, before, after in zip((KS[0], KS[-1]), start, mean)
    )
    reached = (
        f"{name} reached "
        + " and ".join(
            f"{percentage(run.mean())} ({compare(run, theirs)})" for run, theirs in zip(ends, mean)
        )
        for name, ends in zip(results.names[2:], others)
    )
    return (
        f"Training for the mean {' and '.join(moved)}. With as many samples from the same start, "
        f"{', '.join(reached)}."
    )


def conditions(results: Results) -> str:
    """The line that goes under every figure: n, k, prompts, seeds, interval."""
    chosen = results.settings
    return (
        f"n = {chosen.n} samples per prompt, k = {chosen.k}, {chosen.prompts:,} prompts, "
        f"{chosen.samples:,} samples per run; evaluated exactly on {chosen.held_out:,} held-out "
        f"prompts; mean ± 95% t-interval over {chosen.worlds} worlds, seed {chosen.seed}"
    )
