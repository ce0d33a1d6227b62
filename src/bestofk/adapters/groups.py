"""What every host needs: advantages of its rows by their group ids, and unbiased figures to log."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np

from bestofk.evaluation import Metric, samples
from bestofk.evaluation.curves import reward_bounds
from bestofk.evaluation.intervals import draws_for, over_problems
from bestofk.evaluation.per_problem import MetricRules, values_by_k
from bestofk.objectives import Objective
from bestofk.objectives import objective as objective_of
from bestofk.procedures.arrays import as_float64, as_numpy, constant, is_array


def group_advantages(
    rewards: Any,
    group_ids: Any,
    objective: str | Objective,
    log_ratio: Any = None,
    *,
    live: Any = None,
    rows: int | None = None,
    **inputs: Any,
) -> Any:
    """The advantages of a host's rows, (B,), so that its mean over rows is the mean over prompts.

        A_i · rows / (groups · live rows of i's group)

    A host's loss divides by all of its rows. Rows that do not count leave their share to their
    siblings, and a group that is too small leaves its own to the other groups; where every group
    has n live rows the factor is 1. Rows that do not count get 0.

    Args:
        rewards: one per row, in any order; None or NaN where a row could not be scored.
        group_ids: the prompt that each row answers: numbers or strings.
        objective: "max@8", or an Objective.
        log_ratio: log π_θ - log π_old of each whole completion, for steps off policy.
        live: False for rows that do not count, such as padding.
        rows: by what the host's mean divides; by default the number of rewards.
        inputs: of `Objective.__call__`: progress, rng, entropy.

    Returns:
        One number per row: NumPy, or the library of `rewards`.

    >>> group_advantages([1, 0, 0, 1, 0, None], list("aaabbb"), "max@2:loo-1")
    array([2., 0., 0., 3., 0., 0.])
    """
    chosen = objective_of(objective) if isinstance(objective, str) else objective
    if not is_array(rewards):
        rewards = np.array([math.nan if reward is None else reward for reward in rewards], float)
    values, restore = as_float64(rewards, "rewards")
    advantages = chosen(values, groups=group_ids, live=live, log_ratio=log_ratio, **inputs)
    counts = ~np.isnan(as_numpy(values))
    if live is not None:
        counts = counts & as_numpy(live).astype(bool)
    ids = np.unique(as_numpy(group_ids), return_inverse=True)[1]
    sizes = np.bincount(ids[counts], minlength=len(ids))
    groups = max(int((sizes >= smallest_group(chosen, inputs.get("progress"))).sum()), 1)
    share = (rows or len(ids)) / (groups * np.maximum(sizes[ids], 1))
    return restore(advantages * constant(share, advantages))


def smallest_group(objective: Objective, progress: float | None) -> int:
    """The live samples that a prompt needs at a share of the run; with fewer it is dropped."""
    return max(term.least for term in objective.at(progress))


def best_of_k_metrics(
    rewards: Iterable[Any], group_ids: Iterable[Any], *, k: int = 1, passing: float = 1.0
) -> dict[str, float]:
    """Unbiased pass@k and max@k, averaged over prompts, each with its interval of 95 %.

    Keys are `pass@4`, `pass@4/low`, `pass@4/high` and the same for max, for 1, 2, 4, … up to the
    samples of a prompt, and k. A prompt with fewer scored samples than a size is left out of it.
    Intervals are those of `bestofk.evaluation`, over prompts as if they were drawn at random: they
    do not close where all prompts agree. Where rewards leave [0, 1] their range is guessed.

    Args:
        rewards: one per sample; None or NaN where it could not be scored.
        group_ids: the prompt of each sample.
        k: the objective's own k, which is added to the sizes.
        passing: a reward of at least this is a pass.
    """
    groups: dict[Any, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, group_ids, strict=True):
        if reward is not None and not math.isnan(float(reward)):
            groups[group].append(float(reward))
    if not groups:
        return {}
    table = samples(list(groups.values()))
    by_prompts: dict[int, list[int]] = defaultdict(list)  # sizes that the same prompts answer
    for size in logged_sizes(int(table.live.max()), k):
        by_prompts[int((table.live >= size).sum())].append(size)
    result: dict[str, float] = {}
    metrics: tuple[Metric, ...] = ("pass@k", "max@k")
    for metric, sizes in product(metrics, by_prompts.values()):
        chosen = np.flatnonzero(table.live >= sizes[-1])
        values = values_by_k(table, metric, chosen, np.array(sizes), MetricRules(passing))
        interval = over_problems(
            values,
            reward_bounds([table], metric, None)[0],
            confidence=0.95,
            resamples=draws_for(len(chosen)),
            rng=np.random.default_rng(0),
        ).interval
        columns = (values.mean(axis=0), interval.low, interval.high)
        for size, *figures in zip(sizes, *columns):
            name = f"{metric[:-1]}{size}"
            result |= zip([name, f"{name}/low", f"{name}/high"], map(float, figures))
    return result


def logged_sizes(n: int, k: int) -> list[int]:
    """The k of the logged metrics: powers of two up to n, and the objective's own."""
    return sorted({2**i for i in range(n.bit_length())} | ({k} if k <= n else set()))
