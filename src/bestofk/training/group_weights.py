"""The objective's weights for a batch of groups, and the inputs they need beside rewards."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import numpy as np

from bestofk.learning import Scores
from bestofk.objectives import DroppedGroups, Objective, ObjectiveWarning
from bestofk.training.batch import ProcessGroup

Generators = Sequence[np.random.Generator]


def weigh(
    objective: Objective,
    rewards: np.ndarray,
    *,
    live: np.ndarray | None = None,
    log_ratio: np.ndarray | None = None,
    entropy: np.ndarray | None = None,
    entropy_threshold: float | None = None,
    progress: float | None = None,
    generators: Generators | None = None,
) -> np.ndarray:
    """The objective's weights (P, n), without its warnings: the loop counts what they say.

    Args:
        rewards, live, log_ratio: (P, n).
        entropy: (P,), mean response entropy of each group (adaptive design).
        generators: one for each group (`generators_for`), for objectives that draw random sets.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedGroups)
        warnings.simplefilter("ignore", ObjectiveWarning)
        if generators is None:
            weights = objective(
                rewards,
                live=live,
                log_ratio=log_ratio,
                entropy=entropy,
                entropy_threshold=entropy_threshold,
                progress=progress,
            )
            return np.asarray(weights)
        rows = [
            objective(
                rewards[p : p + 1],
                live=None if live is None else live[p : p + 1],
                log_ratio=None if log_ratio is None else log_ratio[p : p + 1],
                entropy=None if entropy is None else entropy[p : p + 1],
                entropy_threshold=entropy_threshold,
                progress=progress,
                rng=own,
            )
            for p, own in enumerate(generators)
        ]
        return np.concatenate([np.asarray(row) for row in rows])


def generators_for(
    objective: Objective, slots: Iterable[int], *seed: int
) -> list[np.random.Generator] | None:
    """A generator for the group in each slot, where the objective draws random sets at all.

    The draws of a slot do not depend on how many processes share the batch.
    """
    if "rng" not in objective.needs:
        return None
    return [np.random.default_rng([*seed, slot]) for slot in slots]


def has_signal(weights: np.ndarray) -> np.ndarray:
    """(P,): groups that move the policy at all, by the objective's own weights (P, n)."""
    return np.abs(weights).max(axis=1) > 1e-12 if len(weights) else np.zeros(0, dtype=bool)


def group_entropies(
    old: Scores, live: np.ndarray, processes: ProcessGroup
) -> tuple[np.ndarray, float]:
    """Mean response entropy of each group (P,), and its median over the groups of all processes."""
    counts = np.maximum(live.sum(axis=1), 1)
    entropy = np.where(live, old.entropy, 0.0).sum(axis=1) / counts
    counted = np.concatenate(processes.gather(entropy[live.any(axis=1)]))
    return entropy, float(np.median(counted)) if counted.size else 0.0
