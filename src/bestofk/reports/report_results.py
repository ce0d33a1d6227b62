"""Everything a report shows, computed once: curves, comparisons, diversity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bestofk import evaluation
from bestofk.evaluation import Comparison, Curve, Diversity, Metric
from bestofk.evaluation.per_problem import is_zero_one, options_of, rules_of
from bestofk.samples import Samples
from bestofk.types import reaches

from .sources import Source, words

MOST_PAIRED = 6
"""Every two of so many runs are compared; of more, each with the first."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was found in the samples of the sources; each result carries its source's name."""

    sources: tuple[Source, ...]
    curves: dict[Metric, tuple[Curve, ...]]
    means: tuple[Curve, ...]
    """Mean rewards, where rewards are not just 0 and 1 (there the mean is pass@1)."""
    by_turns: tuple[tuple[int, Curve], ...]
    """The first metric with at most so many turns, where trajectories have several."""
    comparisons: tuple[Comparison, ...]
    diversities: tuple[Diversity, ...]
    problems: tuple[str, ...]
    """Every problem of any run, sorted."""
    passes: np.ndarray
    """(runs with samples, problems) passing samples of each problem; NaN where the run has none."""
    threshold: float | None
    notes: tuple[str, ...] = ()
    """On the findings, and on how the files were read."""


def evaluate(
    sources: Sequence[Source],
    *,
    metrics: Sequence[Metric] | None = None,
    threshold: float | None = None,
    k_max: int | None = None,
    confidence: float = 0.95,
    price: float = 0.0,
    value: Callable[..., float] | None = None,
    say: Callable[[str], None] = lambda _: None,
    **numbers: Any,
) -> Findings:
    """Compute what the page shows.

    Args:
        metrics: which curves; by default pass@k, and max@k where rewards are graded.
        threshold: reward ≥ threshold passes; by default 1 where rewards lie in [0, 1].
        k_max: the largest k; problems with fewer scored samples are then left out and counted.
        price, value: as in `curve`, for those metrics that take them.
        say: told what is being computed, for a progress line.
        numbers: bounds, resamples, seed: as in `curve`.

    Raises:
        ValueError: runs without a common problem; no scored sample; n < k.
    """
    runs = [source.samples for source in sources if source.samples is not None]
    problems = tuple(sorted(set().union(*(run.problems for run in runs))))
    notes = list(differing(runs))
    graded = any(not is_zero_one(run) for run in runs)
    if threshold is None and graded:
        threshold, doubt = default_threshold(runs)
        notes += doubt
    is_judged = threshold is not None or not graded
    passing: tuple[Metric, ...] = ("pass@k",) if is_judged else ()
    shown = metrics if metrics is not None else ("max@k", *passing) if graded else passing
    numbers |= {"threshold": threshold, "confidence": confidence}
    depth: dict[str, Any] = {"k_max": k_max, "small": "drop" if k_max else "error"}
    curves: dict[Metric, tuple[Curve, ...]] = {}
    comparisons: list[Comparison] = []
    rules_of(shown, price=price, value=value)
    for metric in shown if runs else ():
        say(metric)
        made = {**numbers, **depth, **options_of(metric, price, value)}
        curves[metric] = tuple(evaluation.curve(run, metric, **made) for run in runs)
        if len(runs) > 1:
            say(f"{metric}, paired")
            pairs: Literal["first", "all"] = "all" if len(runs) <= MOST_PAIRED else "first"
            comparisons += evaluation.compare(runs, metric, pairs=pairs, **made)
    by_turns = [
        each
        for run in runs
        for each in evaluation.curves_by_turns(run, shown[0], **numbers, **depth).items()
    ]
    say("diversity")
    return Findings(
        sources=tuple(sources),
        curves=curves,
        means=tuple(evaluation.curve(run, "mean", **numbers) for run in runs if graded),
        by_turns=tuple(by_turns),
        comparisons=tuple(comparisons),
        diversities=diversities(runs, threshold, confidence) if is_judged else (),
        problems=problems,
        passes=passes(runs, problems, threshold) if is_judged else np.empty((0, len(problems))),
        threshold=threshold if graded or threshold is not None else 1.0,
        notes=(*notes, *(note for source in sources for note in source.notes)),
    )


def default_threshold(runs: Sequence[Samples]) -> tuple[float | None, list[str]]:
    """What counts as passing where nobody said it (every figure states it), and what to warn of."""
    rewards = np.concatenate([run.rewards for run in runs])
    if np.nanmin(rewards) >= 0 and np.nanmax(rewards) <= 1:
        return 1.0, []
    return None, [
        f"Rewards reach from {np.nanmin(rewards):g} to {np.nanmax(rewards):g} and no --threshold "
        "says which of them pass: pass@k is not shown."
    ]


def differing(runs: Sequence[Samples]) -> list[str]:
    """A sentence for every run that has problems which another lacks."""
    everywhere = set.intersection(*(set(run.problems) for run in runs)) if runs else set()
    notes = []
    for run in runs:
        own = sorted(set(run.problems) - everywhere)
        if own:
            notes.append(
                f"{run.name} has {len(own)} of its {len(run.problems)} problems that not every run "
                f"has ({words(own)}): its curve counts them, the comparisons leave them out."
            )
    return notes


def passes(runs: Sequence[Samples], problems: Sequence[str], threshold: float | None) -> np.ndarray:
    """(runs, problems) passing samples; NaN where a run has no scored sample of a problem."""
    row = {problem: i for i, problem in enumerate(problems)}
    table = np.full((len(runs), len(problems)), np.nan)
    threshold = 1.0 if threshold is None else threshold
    for number, run in enumerate(runs):
        at = np.array([row[problem] for problem in run.problems], dtype=int)
        passing = run.count(reaches(run.rewards, threshold))
        table[number, at] = np.where(run.live > 0, passing, np.nan)
    return table


def diversities(
    runs: Sequence[Samples], threshold: float | None, confidence: float
) -> tuple[Diversity, ...]:
    """Diversity of every run, counted at the same number of samples so that they compare."""
    if not runs:
        return ()
    m = min(int(run.sizes[run.sizes > 0].min()) for run in runs)
    return tuple(
        evaluation.diversity(run, m=m, threshold=threshold, confidence=confidence) for run in runs
    )
