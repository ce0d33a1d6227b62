"""One batch of rollouts: its groups, verdicts and slots; its weights; what is measured on it."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from bestofk import metrics
from bestofk.learning import LogProbs
from bestofk.objectives import (
    DroppedGroups,
    Objective,
    ObjectiveWarning,
    effective_share,
    ratio_divergence,
)
from bestofk.types import Group, Verdict


class ProcessGroup(Protocol):
    """The processes of a run, as far as a batch needs them."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, on every process."""
        ...


@dataclass(frozen=True)
class RolloutBatch:
    """This process's groups of one step, with their verdicts."""

    groups: tuple[Group, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    position: int = 0
    """Where the next step takes its prompts from."""
    refilled: int = 0
    """Groups of all processes that dynamic sampling drew instead of others."""
    drawn_after: int = 0
    """The step whose weights drew it."""
    gap: Mapping[str, float] | None = None
    """Where the weights have moved since: how far the sampler was from the learner when the batch
    was drawn. The completions have the log-probs that ratios are measured against."""

    @property
    def rewards(self) -> np.ndarray:
        """(P, n), without penalties; NaN where scoring broke."""
        return rewards_of(self.verdicts)

    def live(self, min_live: int) -> np.ndarray:
        """(P, n): True where a sample counts. A group with too few of them is dropped whole."""
        scored = ~np.isnan(self.rewards)
        return scored & (scored.sum(axis=1, keepdims=True) >= min_live)

    def take(self, rows: Sequence[int]) -> tuple[Group, ...]:
        """Some of the groups."""
        return tuple(self.groups[i] for i in rows)


def recorded(groups: Sequence[Group]) -> LogProbs:
    """The log-probs that completions were recorded with; -log π is the estimate of an entropy."""
    tokens = tuple(tuple(each.own_log_probs for each in group.trajectories) for group in groups)
    return LogProbs(tokens, tuple(tuple(-row for row in group) for group in tokens))


def sampler_log_probs(groups: Sequence[Group]) -> np.ndarray:
    """Σ_t of the log-probs the sampler drew with, (P, n)."""
    return np.array([[each.log_prob for each in group.trajectories] for group in groups])


def with_log_probs(groups: Sequence[Group], log_probs: LogProbs) -> tuple[Group, ...]:
    """The groups with other log-probs of their tokens."""
    return tuple(
        replace(
            group,
            trajectories=tuple(
                trajectory.with_log_probs(row)
                for trajectory, row in zip(group.trajectories, rows, strict=True)
            ),
        )
        for group, rows in zip(groups, log_probs.tokens, strict=True)
    )


def rewards_of(verdicts: Sequence[Sequence[Verdict]]) -> np.ndarray:
    """(P, n), without penalties; NaN where scoring broke."""
    return np.array([[verdict.reward for verdict in row] for row in verdicts])


def rewards_for(
    objective: Objective, verdicts: Sequence[Sequence[Verdict]], progress: float
) -> np.ndarray:
    """(P, n): the rewards that the objective is computed from, less their penalties.

    An objective that counts passes (0/1 rewards, or a threshold) gets the rewards as they are: a
    right answer stays right however long it is.
    """
    rewards = rewards_of(verdicts)
    if objective.threshold is not None or any(
        term.entry.zero_one for term in objective.at(progress)
    ):
        return rewards
    return rewards - np.array([[verdict.penalty for verdict in row] for row in verdicts])


def choices_of(
    groups: Sequence[Group], verdicts: Sequence[Sequence[Verdict]]
) -> dict[str, np.ndarray]:
    """What a procedure may look at beside rewards, (P, n): the answers that vote, the tokens that
    cost, and the scores, where there are any. Objectives that do not need them ignore them."""
    answers = np.empty((len(verdicts), len(verdicts[0]) if verdicts else 0), dtype=object)
    for row, judged in zip(answers, verdicts):
        row[:] = [verdict.answer for verdict in judged]
    scores = scores_of(verdicts)
    tokens = np.array([[float(each.drawn) for each in group.trajectories] for group in groups])
    return {"answers": answers, "tokens": tokens} | (
        {} if np.isnan(scores).all() else {"scores": scores}
    )


def scores_of(verdicts: Sequence[Sequence[Verdict]]) -> np.ndarray:
    """(P, n); NaN where nobody gave a score."""
    return np.array([[np.nan if v.score is None else v.score for v in row] for row in verdicts])


def unscored_without_score(
    verdicts: Sequence[Sequence[Verdict]], objective: Objective
) -> list[list[Verdict]]:
    """The verdicts of a run whose objective chooses by scores. A sample without one is unscored:
    nobody knows whether it would be chosen."""
    judged = [verdict for row in verdicts for verdict in row if verdict.status != "unscored"]
    if judged and all(verdict.score is None for verdict in judged):
        raise ValueError(
            f"objective {objective.text} chooses by scores, and the verifier gives none: name what "
            "chooses as task.scorer, return Verdict(reward, status, score=...) or, where prompts "
            "show tests, set task.verifier_options.score = 'shown'"
        )
    lost = Verdict.unscored("it has a reward and no score")
    return [
        [lost if v.score is None and v.status != "unscored" else v for v in row] for row in verdicts
    ]


def slots_of(processes: ProcessGroup, prompts: int) -> range:
    """This process's slots of a batch of P prompts: a block.

    What is in a slot does not depend on how many processes there are.
    """
    rank, size = processes.rank, processes.size
    return range(rank * prompts // size, (rank + 1) * prompts // size)


def whole_groups(groups: int, passes: int, mini_batches: int) -> Iterator[tuple[list[int], bool]]:
    """Rows of each optimiser step, and whether it is their first; groups stay whole.

    Slot s belongs to mini-batch s mod M, so that each process gives the same share to every one.

    >>> [rows for rows, _ in whole_groups(4, passes=1, mini_batches=2)]
    [[0, 2], [1, 3]]
    """
    for number in range(passes):
        for part in range(mini_batches):
            yield list(range(part, groups, mini_batches)), number == 0


Generators = Sequence[np.random.Generator]


def advantages_of(
    objective: Objective,
    rewards: np.ndarray,
    *,
    generators: Generators | None = None,
    **inputs: Any,
) -> np.ndarray:
    """The objective's advantages (P, n), without its warnings: the loop counts what they say.

    Args:
        rewards: (P, n).
        generators: one for each group (`generators_for`), for objectives that draw random sets.
        inputs: of `Objective.__call__`; arrays have a row for each group.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedGroups)
        warnings.simplefilter("ignore", ObjectiveWarning)
        if generators is None:
            return np.asarray(objective(rewards, **inputs))
        rows = []
        for p, own in enumerate(generators):
            of_group: dict[str, Any] = {
                name: value[p : p + 1] if isinstance(value, np.ndarray) else value
                for name, value in inputs.items()
            }
            rows.append(np.asarray(objective(rewards[p : p + 1], rng=own, **of_group)))
        return np.concatenate(rows)


def generators_for(
    objective: Objective, slots: Iterable[int], *seed: int
) -> list[np.random.Generator] | None:
    """A generator for the group in each slot, where the objective draws random sets at all.

    The draws of a slot do not depend on how many processes share the batch.
    """
    if "rng" not in objective.needs:
        return None
    return [np.random.default_rng([*seed, slot]) for slot in slots]


def group_entropies(
    old: LogProbs | None, live: np.ndarray, processes: ProcessGroup
) -> tuple[np.ndarray, float]:
    """Mean response entropy of each group (P,), and its median over the groups of all processes."""
    assert old is not None
    counts = np.maximum(live.sum(axis=1), 1)
    entropy = np.where(live, old.entropy, 0.0).sum(axis=1) / counts
    counted = np.concatenate(processes.gather(entropy[live.any(axis=1)]))
    return entropy, float(np.median(counted)) if counted.size else 0.0


def ratio_statistics(
    log_ratio: np.ndarray | None,
    live: np.ndarray,
    objective: Objective,
    processes: ProcessGroup,
    *,
    progress: float,
) -> dict[str, float]:
    """How far the policy has moved from the samples of a coming step, over all processes.

    Returns:
        log_ratio_std, log_ratio_max; truncated (the share above `truncate`); ess, the effective
        share of the samples. Nothing on policy, or without live samples.
    """
    if log_ratio is None:
        return {}
    used = np.concatenate(processes.gather(log_ratio[live]))
    if not used.size:
        return {}
    k = max(term.k for term in objective.at(progress))
    limit = objective.truncate
    return {
        metrics.LOG_RATIO_STD: float(used.std()),
        metrics.LOG_RATIO_MAX: float(used.max()),
        metrics.TRUNCATED: 0.0 if limit is None else float((used > limit).mean()),
        metrics.ESS: effective_share(ratio_divergence(used), k, live.shape[1]),
    }


def share_of(chosen: np.ndarray, live: np.ndarray, processes: ProcessGroup) -> float:
    """The share of live samples that were chosen, over all processes."""
    counts = processes.gather((int((chosen & live).sum()), int(live.sum())))
    return sum(count[0] for count in counts) / max(sum(count[1] for count in counts), 1)


def merge_statistics(history: Sequence[dict[str, float]]) -> dict[str, float]:
    """Statistics of one batch's optimiser steps as one: totals, worst cases, means."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for stats in history for name in stats):
        values = [stats[name] for stats in history if name in stats]
        if name in metrics.SUMMED:
            merged[name] = sum(values)
        elif name in metrics.LARGEST:
            merged[name] = max(values)
        elif name in metrics.SMALLEST:
            merged[name] = min(values)
        elif name in metrics.LAST:
            merged[name] = values[-1]
        else:
            merged[name] = float(np.mean(values))
    return merged


def sampled_entropy(groups: Sequence[Group], processes: ProcessGroup) -> float:
    """Mean of -log π per sampled token over all processes: unbiased for the policy's entropy."""
    rows = [each.own_log_probs for group in groups for each in group.trajectories]
    total = sum(float(row.sum(dtype=np.float64)) for row in rows)
    gathered = processes.gather((-total, sum(map(len, rows))))
    count = sum(part[1] for part in gathered)
    return sum(part[0] for part in gathered) / count if count else float("nan")


def overlong_penalty(tokens: int, *, limit: int, buffer: int, penalty: float) -> float:
    """What a completion of so many tokens loses.

    0 up to limit - buffer, then linear, and `penalty` at the limit:
    penalty · max(0, tokens - (limit - buffer)) / buffer.

    >>> [overlong_penalty(t, limit=100, buffer=20, penalty=1.0) for t in (80, 90, 100)]
    [0.0, 0.5, 1.0]

    References:
        DAPO (Yu et al., 2025), soft overlong punishment, eq. 13, with penalty = 1.
    """
    over = max(0, tokens - (limit - buffer))
    return penalty * min(over / buffer, 1.0)


def with_penalties(
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    *,
    limit: int,
    buffer: int,
    penalty: float,
) -> list[list[Verdict]]:
    """The verdicts, each with the penalty for its completion's length."""
    if not buffer:
        return [list(row) for row in verdicts]
    loss = partial(overlong_penalty, limit=limit, buffer=buffer, penalty=penalty)
    return [
        [
            replace(verdict, penalty=loss(each.drawn))
            for each, verdict in zip(group.trajectories, row, strict=True)
        ]
        for group, row in zip(groups, verdicts, strict=True)
    ]


class JudgingAside:
    """One thread judges what was submitted, all that waits as one batch.

    Groups are known by identity: `collect` takes the objects that were submitted, in any order.
    """

    def __init__(self, judge: Callable[[Sequence[Group]], list[list[Verdict]]]) -> None:
        self.judge = judge
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bestofk-judge")
        self._waiting = deque[Group]()
        self._running: list[Future[dict[int, list[Verdict]]]] = []

    def submit(self, group: Group) -> None:
        """Judge it when the thread is free."""
        self._waiting.append(group)
        self._running.append(self._thread.submit(self._judge_waiting))

    def collect(self, groups: Sequence[Group]) -> list[list[Verdict]]:
        """The verdicts of these groups; waits for them, and judges those never submitted."""
        running, self._running = self._running, []
        verdicts = {place: row for each in running for place, row in each.result().items()}
        verdicts |= self._judged([group for group in groups if id(group) not in verdicts])
        return [verdicts[id(group)] for group in groups]

    def _judge_waiting(self) -> dict[int, list[Verdict]]:
        return self._judged([self._waiting.popleft() for _ in range(len(self._waiting))])

    def _judged(self, batch: Sequence[Group]) -> dict[int, list[Verdict]]:
        return dict(zip(map(id, batch), self.judge(batch), strict=True)) if batch else {}
