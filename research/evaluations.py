"""What the committed counts say: pass@k or max@k of every problem, evaluation by evaluation."""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from count_files import read_counts
from run import arms_of

HERE = Path(__file__).parent
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def best_of_k(counts: Sequence[Any], shares: np.ndarray) -> np.ndarray:
    """(problems, k) max@k from how often each reward came: Σ_v v (P(max ≤ v) - P(max < v)).

    Args:
        counts: of each problem the number of successes, or pairs of a reward and how often it came,
            ascending.
        shares: (n + 1, k) the probability that k of the n samples lie among the t lowest.
    """
    if isinstance(counts[0], int):
        return 1.0 - shares[len(shares) - 1 - np.array(counts)]
    found = []
    for pairs in counts:
        values, times = np.array(pairs, dtype=float).T
        upto = shares[np.cumsum(times.astype(int))]
        found.append(values @ upto - values[1:] @ upto[:-1])
    return np.array(found)


def passing(counts: Sequence[Any]) -> list[int]:
    """Of each problem, how often the reward was 1."""
    if isinstance(counts[0], int):
        return list(counts)
    return [sum(times for reward, times in pairs if reward == 1.0) for pairs in counts]


def shares_of(samples: int, ks: Sequence[int]) -> np.ndarray:
    """(n + 1, k): C(t, k) / C(n, k)."""
    rows = range(samples + 1)
    return np.array([[math.comb(t, k) / math.comb(samples, k) for k in ks] for t in rows])


@dataclass(frozen=True)
class Runs:
    """All evaluations of a study."""

    ks: tuple[int, ...]
    values: dict[tuple[str, int], np.ndarray]
    """(seeds, problems, k) by arm and step."""
    seconds: dict[tuple[str, int], float]
    """Of training until then, on average over seeds, by arm and step."""

    @property
    def arms(self) -> list[str]:
        """In the order of the study."""
        return list(dict.fromkeys(arm for arm, _ in self.values))

    def steps(self, arm: str) -> list[int]:
        """At which it was evaluated, ascending."""
        return sorted(step for name, step in self.values if name == arm)

    def last(self, arm: str) -> np.ndarray:
        """(seeds, problems, k) at the end of training."""
        return self.values[arm, self.steps(arm)[-1]]

    def start(self) -> np.ndarray:
        """(seeds, problems, k) before training, with the seeds of the first arm."""
        return self.values[self.arms[0], 0]

    def only(self, *arms: str) -> Runs:
        """Some of the arms, in this order."""
        chosen = {(a, s): v for name in arms for (a, s), v in self.values.items() if a == name}
        return Runs(self.ks, chosen, self.seconds)

    def joined(self, other: Runs, names: dict[str, str]) -> Runs:
        """With arms of another study, under new names, in front."""
        values = {(names[a], s): v for (a, s), v in other.values.items() if a in names}
        seconds = {(names[a], s): t for (a, s), t in other.seconds.items() if a in names}
        return Runs(self.ks, values | self.values, seconds | self.seconds)

    def path(self, arm: str) -> np.ndarray:
        """(steps, problems, k), the mean over seeds at each evaluation."""
        return np.stack([self.values[arm, step].mean(axis=0) for step in self.steps(arm)])


def stated(study: str) -> dict[str, Any]:
    return tomllib.loads((HERE / "studies" / f"{study}.toml").read_text(encoding="utf-8"))


@functools.cache
def lines_of(study: str, of: str = "") -> list[dict[str, Any]]:
    """The counts of a study, in the order of arms, seeds and steps; where they are counts of other
    problems, the arms are those of the study `of`."""
    order = {arm: place for place, arm in enumerate(arms_of(stated(of or study)))}
    lines = read_counts(HERE / "counts" / f"{study}.parquet")
    return sorted(lines, key=lambda line: (order[line["arm"]], line["seed"], line["step"]))


Checkpoint = tuple[str, int, int]
"""Arm, seed and step of an evaluation."""


def checkpoints(
    study: str, *, solved: bool = False, of: str = ""
) -> tuple[tuple[int, ...], dict[Checkpoint, np.ndarray]]:
    """The k, and (problems, k) of every evaluation: seeds may have ended at different steps. Where
    rewards are graded, `solved` counts those that are 1."""
    lines = lines_of(study, of)
    samples = lines[0]["samples"]
    ks = tuple(k for k in KS if k <= samples)
    shares, found = shares_of(samples, ks), {}
    for line in lines:
        counts = passing(line["counts"]) if solved else line["counts"]
        found[line["arm"], line["seed"], line["step"]] = best_of_k(counts, shares)
    return ks, found


@functools.cache
def read(study: str, *, solved: bool = False, of: str = "") -> Runs:
    """The evaluations of a study whose seeds have the same steps."""
    ks, found = checkpoints(study, solved=solved, of=of)
    values: dict[tuple[str, int], list[np.ndarray]] = {}
    seconds: dict[tuple[str, int], list[float]] = {}
    for (arm, _, step), each in found.items():
        values.setdefault((arm, step), []).append(each)
    for line in lines_of(study, of):
        seconds.setdefault((line["arm"], line["step"]), []).append(line["seconds"])
    means = {key: float(np.mean(spent)) for key, spent in seconds.items()}
    return Runs(ks, {key: np.stack(each) for key, each in values.items()}, means)


def run_name(arm: str) -> str:
    """The objective and the rate, then what was added to it: an arm's name without its kind.

    >>> run_name("grpo with kl kind=sidon learning_rate=1e-06 kl=0.05")
    'grpo 1e-06, KL .05'
    """
    objective, *settings = re.sub(r" (lower|higher|with \w+)", "", arm).split()
    values = dict(setting.split("=") for setting in settings)
    words = {"entropy_bonus": "bonus", "kl": "KL"}
    added = "".join(f", {words[key]} {values[key][1:]}" for key in words if key in values)
    return f"{objective} {values.get('learning_rate', '')}".strip() + added


def ends_of_runs(
    found: Mapping[tuple[str, int], np.ndarray], at: int
) -> Iterator[tuple[str, int, int]]:
    """Of runs with their steps, in the order of their objectives and rates: the name, the last step
    and the best one at one k, the earlier of two."""
    runs = dict[str, list[int]]()
    for run, step in sorted(found):
        if run != "start":
            runs.setdefault(run, []).append(step)

    def rate_last(run: str) -> tuple[str, float, str]:
        name, _, added = run.partition(",")
        objective, rate = name.split()
        return objective, float(rate), added

    for run in sorted(runs, key=rate_last):
        best = max(runs[run], key=lambda step: (found[run, step][:, at].mean(), -step))
        yield run, max(runs[run]), best
