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
    """What this run shows, every verb and number of it computed."""
    ends = results.pass_at_k[:, :, -1]
    first, last = (f"pass@{KS[0]}", ends[..., 0]), (f"pass@{KS[-1]}", ends[..., -1])
    return (
        f"Training for the mean {_moved(*first)} and {_moved(*last)}. From the same start, with as "
        f"many samples, {_ended(results.names, *last)}; {_ended(results.names, *first)}."
    )


def _moved(what: str, values: np.ndarray) -> str:
    """'raised pass@1 (10.0% → 40.0%)': the run for the mean against the start."""
    start, mean = values[:2]
    verbs = {"higher": "raised", "lower": "lowered", "no different": "did not measurably move"}
    shares = f"{percentage(start.mean())} → {percentage(mean.mean())}"
    return f"{verbs[compare(mean, start)]} {what} ({shares})"


def _ended(names: Sequence[str], what: str, values: np.ndarray) -> str:
    """'at pass@64 max@8 ended above it (88.0%) and …': the other runs against that for the mean."""
    words = {"higher": "above it", "lower": "below it", "no different": "level with it"}
    each = [
        f"{name} ended {words[compare(run, values[1])]} ({percentage(run.mean())})"
        for name, run in zip(names[2:], values[2:])
    ]
    return f"at {what} {' and '.join(each)}"


def conditions(results: Results) -> str:
    """The line that goes under every figure: n, k, prompts, seeds, interval."""
    chosen = results.settings
    return (
        f"n = {chosen.n} samples per prompt, k = {chosen.k}, {chosen.prompts:,} prompts, "
        f"{chosen.samples:,} samples per run; evaluated exactly on {chosen.held_out:,} held-out "
        f"prompts; mean ± 95% t-interval over {chosen.worlds} worlds, seed {chosen.seed}"
    )
