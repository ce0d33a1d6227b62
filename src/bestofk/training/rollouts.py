"""One batch of rollouts: prompts by position, groups, verdicts; what the objective sees in them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from bestofk.objectives import DroppedGroups, Objective, ObjectiveWarning, max_at_k
from bestofk.types import Group, Prompt, Verdict, Verifier


class Crowd(Protocol):
    """The processes of a run, as far as rollouts need them."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, on every process."""
        ...


@dataclass(frozen=True)
class Batch:
    """This process's groups of one step, judged."""

    groups: tuple[Group, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]
    position: int
    """Where the next step takes its prompts from."""
    refilled: int = 0
    """Groups of all processes that dynamic sampling drew in the place of others."""

    @property
    def rewards(self) -> np.ndarray:
        """(P, n); NaN where scoring broke."""
        return np.array([[verdict.reward for verdict in row] for row in self.verdicts])

    def live(self, least: int) -> np.ndarray:
        """(P, n): True where a sample counts. A group with too few of them is dropped whole."""
        scored = ~np.isnan(self.rewards)
        return scored & (scored.sum(axis=1, keepdims=True) >= least)

    def take(self, rows: Sequence[int]) -> Batch:
        """Some of the groups."""
        return replace(
            self,
            groups=tuple(self.groups[i] for i in rows),
            verdicts=tuple(self.verdicts[i] for i in rows),
        )


Sample = Callable[[Sequence[Prompt], int], list[Group]]
"""(prompts, round) → groups. A later round of the same step draws with another seed."""


Signal = Callable[[np.ndarray, range], np.ndarray]
"""(rewards (P, n), the groups' slots) → which of the groups move the policy."""


def slots_of(crowd: Crowd, prompts: int) -> range:
    """This process's slots of a batch of so many prompts: a block."""
    return range(crowd.rank * prompts // crowd.size, (crowd.rank + 1) * prompts // crowd.size)


def collect(
    prompt_at: Callable[[int], Prompt],
    start: int,
    prompts: int,
    sample: Sample,
    judge: Callable[[Sequence[Group]], list[list[Verdict]]],
    crowd: Crowd,
    *,
    refill: int = 0,
    has_signal: Signal | None = None,
) -> Batch:
    """The groups of `prompts` prompts from position `start` of the stream, this process's share.

    Slots 0..prompts-1 are dealt to the processes in blocks, so what is in a slot does not depend on
    how many processes there are. With `refill`, slots whose group has no signal are filled again,
    in order, with the prompts that come next in the stream, for at most so many rounds.
    """
    mine = slots_of(crowd, prompts)
    groups = sample([prompt_at(start + slot) for slot in mine], 0)
    verdicts = judge(groups)
    position, refilled = start + prompts, 0
    for again in range(1, refill + 1):
        assert has_signal is not None
        signal = has_signal(np.array([[v.reward for v in row] for row in verdicts]), mine)
        everywhere = np.concatenate(crowd.gather(signal))
        empty = np.flatnonzero(~everywhere)
        if not empty.size:
            break
        places = {int(slot): position + i for i, slot in enumerate(empty)}
        position += len(places)
        refilled += len(places)
        own = [slot for slot in mine if slot in places]
        fresh = sample([prompt_at(places[slot]) for slot in own], again) if own else []
        judged = judge(fresh)
        for slot, group, row in zip(own, fresh, judged):
            groups[slot - mine.start], verdicts[slot - mine.start] = group, row
    return Batch(tuple(groups), tuple(map(tuple, verdicts)), position, refilled)


def weigh(
    goal: Objective,
    rewards: np.ndarray,
    *,
    rng: Sequence[np.random.Generator] | None = None,
    **inputs: Any,
) -> np.ndarray:
    """The objective's weights, without its warnings: the loop counts and shows what they say.

    Args:
        rng: a generator for each group (`generators`), for objectives that draw.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DroppedGroups)
        warnings.simplefilter("ignore", ObjectiveWarning)
        if rng is None:
            return np.asarray(goal(rewards, **inputs))
        rows = []
        for p, own in enumerate(rng):
            given: dict[str, Any] = {
                name: value[p : p + 1] if isinstance(value, np.ndarray) else value
                for name, value in inputs.items()
            }
            rows.append(np.asarray(goal(rewards[p : p + 1], rng=own, **given)))
        return np.concatenate(rows)


def generators(
    goal: Objective, slots: Iterable[int], *seed: int
) -> list[np.random.Generator] | None:
    """One for the group in each slot of the batch, where the objective draws at all.

    What a slot draws does not depend on how many processes share the batch.
    """
    if "rng" not in goal.needs:
        return None
    return [np.random.default_rng([*seed, slot]) for slot in slots]


def signal_of(goal: Objective, *, seed: int = 0, **inputs: Any) -> Signal:
    """Which groups move the policy: the objective's word, for dynamic sampling."""

    def has_signal(rewards: np.ndarray, slots: range) -> np.ndarray:
        if not len(rewards):
            return np.zeros(0, dtype=bool)
        rng = generators(goal, slots, seed)
        return with_signal(weigh(goal, rewards, rng=rng, **inputs))

    return has_signal


def with_signal(weights: np.ndarray) -> np.ndarray:
    """(P,): groups that move the policy at all, by the objective's own weights."""
    return np.abs(weights).max(axis=1) > 1e-12


def summary(
    rewards: np.ndarray, verdicts: Sequence[Sequence[Verdict]], k: int, least: int, passing: float
) -> dict[str, float]:
    """What a batch of groups (all processes') is worth, and what of it counts."""
    scored = ~np.isnan(rewards)
    counts = scored.sum(axis=1)
    statuses = Counter(verdict.status for row in verdicts for verdict in row)
    enough = counts >= k
    best = max_at_k(rewards[enough], k, live=scored[enough]).mean() if enough.any() else np.nan
    passed = np.where(scored, rewards >= passing, np.nan)
    any_scored = scored.any()
    return {
        "reward": float(np.nanmean(rewards)) if any_scored else np.nan,
        "pass@1": float(np.nanmean(passed)) if any_scored else np.nan,
        f"max@{k}": float(best),
        "groups": int(rewards.shape[0]),
        "groups_dropped": int((counts < least).sum()),
        "unscored": int((~scored).sum()),
        **{f"status_{name}": count for name, count in sorted(statuses.items())},
    }


def sample_rows(
    step: int, batch: Batch, weights: np.ndarray | None = None, *, tokens: bool = False
) -> list[dict[str, Any]]:
    """A batch as JSON lines for the run's folder; with `tokens`, ids and log-probs too."""
    rows: list[dict[str, Any]] = []
    for p, (group, verdicts) in enumerate(zip(batch.groups, batch.verdicts)):
        for i, (completion, verdict) in enumerate(zip(group.completions, verdicts)):
            row: dict[str, Any] = {
                "step": step,
                "prompt_id": group.prompt.id,
                "sample": i,
                "prompt": group.prompt.text,
                "completion": completion.text,
                "reward": verdict.reward,
                "status": verdict.status,
                "tokens": len(completion.tokens),
                "logprob": float(sum(completion.logprobs)),
                "finish_reason": completion.finish_reason,
            }
            if weights is not None:
                row["weight"] = float(weights[p, i])
            if tokens:
                row["prompt_token_ids"] = group.prompt_tokens
                row["token_ids"], row["logprobs"] = completion.tokens, completion.logprobs
            rows.append(row)
    return rows


def scorer(verifier: Verifier, guard: Any) -> Callable[[Sequence[Group]], list[list[Verdict]]]:
    """Judge whole groups as one batch, and stop the run when too much could not be scored."""
    from bestofk.rewards import score

    def judge(groups: Sequence[Group]) -> list[list[Verdict]]:
        if not groups:
            return []
        verdicts = score(groups, verifier)
        guard.check(verdict for row in verdicts for verdict in row)
        return verdicts

    return judge
