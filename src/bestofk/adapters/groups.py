"""What every host needs: advantages of its rows by their group ids, and unbiased figures to log."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bestofk.objectives import Objective, max_at_k, pass_at_k
from bestofk.objectives import objective as objective_of
from bestofk.objectives.arrays import as_float64, as_numpy, constant, is_array

OFF_POLICY = {"off_policy", "truncate", "trust_region", "self_normalise", "clamp"}


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
    found = chosen(values, groups=group_ids, live=live, log_ratio=log_ratio, **inputs)
    counts = ~np.isnan(as_numpy(values))
    if live is not None:
        counts = counts & as_numpy(live).astype(bool)
    ids = np.unique(as_numpy(group_ids), return_inverse=True)[1]
    sizes = np.bincount(ids[counts], minlength=len(ids))
    least = max(term.least for term in chosen.at(inputs.get("progress")))
    whole = max(int((sizes >= least).sum()), 1)
    share = (rows or len(ids)) / (whole * np.maximum(sizes[ids], 1))
    return restore(found * constant(share, found))


def on_policy_objective(host: str, text: str, options: Mapping[str, Any]) -> Objective:
    """The objective, for a host that gives its estimators rewards and groups alone."""
    chosen = objective_of(text, **options)
    missing = sorted((chosen.needs - {"rng"}) | (OFF_POLICY & options.keys()))
    if missing:
        raise ValueError(f"objective {text}: {host} gives estimators nothing for {missing[0]}")
    return chosen


def best_of_k_metrics(
    rewards: Iterable[Any], group_ids: Iterable[Any], *, k: int = 1, passing: float = 1.0
) -> dict[str, float]:
    """Unbiased pass@k and max@k, averaged over prompts, each with a band of 95 %.

    Keys are `pass@4`, `pass@4/low`, `pass@4/high` and the same for max, for 1, 2, 4, … up to the
    samples of a prompt, and k. A prompt with fewer scored samples than a size is left out of it.

    The band is over prompts as if they were drawn at random. That of pass@k is Wilson's, which
    holds for any values in [0, 1] and does not close where all prompts agree; that of max@k is
    Student's, and needs two prompts.

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
    by_size: dict[int, list[list[float]]] = defaultdict(list)
    for values in groups.values():
        by_size[len(values)].append(values)  # one call for all groups of a size
    figures: dict[str, list[np.ndarray]] = defaultdict(list)
    for n, rows in by_size.items():
        for size in logged_sizes(n, k):
            figures[f"max@{size}"].append(max_at_k(rows, size))
            figures[f"pass@{size}"].append(pass_at_k(rows, size, threshold=passing))
    result = {}
    for name, pieces in figures.items():
        by_prompt = np.concatenate(pieces)
        result[name] = float(by_prompt.mean())
        band = _wilson(by_prompt) if name.startswith("pass") else _student(by_prompt)
        result |= {f"{name}/{end}": bound for end, bound in zip(("low", "high"), band)}
    return result


def _wilson(values: np.ndarray) -> Sequence[float]:
    mean, z2 = float(values.mean()), 1.96**2 / len(values)
    half = math.sqrt(z2 * max(mean * (1 - mean), 0.0) + z2 * z2 / 4)
    return [(mean + z2 / 2 - half) / (1 + z2), (mean + z2 / 2 + half) / (1 + z2)]


def _student(values: np.ndarray) -> Sequence[float]:
    if len(values) < 2:
        return []
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return [float(values.mean()) - half, float(values.mean()) + half]


def logged_sizes(n: int, k: int) -> list[int]:
    """The k of the logged metrics: powers of two up to n, and the objective's own."""
    return sorted({2**i for i in range(n.bit_length())} | ({k} if k <= n else set()))
