"""The training loop: sample → judge → (log-ratios → advantages → step) × inner steps → record.

Everything else stands around it in `Session`: resuming, signals, processes, evaluation, display.
A step depends on the weights, its number and the position in the data alone, and every seed is made
from those; so an interrupted run ends exactly like an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bestofk import metrics
from bestofk.agreement.log_prob_gaps import sampler_gap
from bestofk.config import OffPolicySection
from bestofk.environments.author_class import EnvironmentClasses
from bestofk.learning import Learner, LogProbs, Loss
from bestofk.objectives import Objective, has_signal, trust_region_mask
from bestofk.training.batch import (
    ProcessGroup,
    RolloutBatch,
    advantages_of,
    choices_of,
    generators_for,
    group_entropies,
    merge_statistics,
    ratio_statistics,
    recorded,
    rewards_for,
    sampled_entropy,
    sampler_log_probs,
    share_of,
    slots_of,
    whole_groups,
    with_log_probs,
)
from bestofk.training.resolve import RunSettings
from bestofk.training.rollouts import Rollouts
from bestofk.training.session import TrainingEnd, open_session
from bestofk.types import Group, Prompt, Verdict, Verifier

LARGEST_SAMPLER_CORRECTION = float(np.log(2.0))
"""Bound on the log of the learner-to-sampler ratio in the clipped loss, unless truncate says."""
FACTOR_OF_TWO = (LARGEST_SAMPLER_CORRECTION, LARGEST_SAMPLER_CORRECTION)
"""Trust region of a first step below `ess_floor`, unless `trust_region` says."""


def train(
    settings: RunSettings,
    *,
    verifier: Verifier | None = None,
    environment: EnvironmentClasses | None = None,
    callback: Callable[[Mapping[str, Any]], object] | None = None,
) -> TrainingEnd:
    """Train as the settings say, in the folder they name.

    Args:
        verifier: Judges instead of the verifier that the settings name.
        environment: Answers instead of the one that the settings name.
        callback: Gets every line of metrics once it is written; where it returns True, the run ends
            there as if that step were the last.
    """
    with open_session(
        settings, verifier=verifier, environment=environment, callback=callback
    ) as session:
        context, rollouts = session.context, session.rollouts
        for step in session.steps():  # between steps it evaluates and saves
            draw(rollouts, step)
            if rollouts.is_lost() or session.leaving():
                continue  # before the weights change: the queue is part of the checkpoint
            batch = rollouts.queue[0].result()
            with session.learning(step, batch):
                advantages, stats = learn(
                    context.learner,
                    context.objective,
                    batch,
                    context.processes,
                    loss=settings.loss,
                    off_policy=settings.off_policy,
                    progress=context.progress,
                    seed=(settings.run.seed, step),
                    watch_sampler=rollouts.has_own_weights,
                )
            session.record(step, batch, advantages, stats)
    return session.end


def draw(rollouts: Rollouts, step: int) -> None:
    """Start the rollouts that are due with the weights after step - 1, into the queue.

    On policy that is the batch of this step. With `off_policy.ahead` = s it is that of step + s:
    it is drawn in turns with learning or, from a server, while the learner works.
    """
    context, queue = rollouts.context, rollouts.queue
    settings = context.settings
    while (number := step + len(queue)) <= settings.run.steps:
        if settings.off_policy.drawn_after(number, settings.optimizer.warmup_steps) >= step:
            return
        place = context.state.position + len(queue) * settings.sampling.prompts_per_step
        queue.append(rollouts.executor.submit(roll_out, rollouts, number, place, step - 1))


def roll_out(rollouts: Rollouts, number: int, position: int, drawn_after: int) -> RolloutBatch:
    """The batch of a step, sampled and judged; with its log-probs, if the weights will move."""
    context, settings = rollouts.context, rollouts.context.settings
    batch = sample_and_judge(
        context.prompt_at,
        partial(rollouts.sample, number),
        rollouts.judge,
        context.objective,
        context.processes,
        position=position,
        prompts=settings.sampling.prompts_per_step,
        refill=settings.sampling.refill,
        progress=context.progress,
        seed=context.seed(number),
    )
    batch = replace(batch, drawn_after=drawn_after)
    if number == drawn_after + 1:
        return batch
    if rollouts.overlaps:  # the learner is at work: the gap is that of the probe
        return replace(batch, gap=rollouts.probed_gap)
    with context.timed("learn"):
        now = context.learner.log_probs(batch.groups)
    return for_later(batch, now, context.processes, settings.off_policy.correct_sampler)


def for_later(
    batch: RolloutBatch, now: LogProbs, processes: ProcessGroup, against_sampler: bool
) -> RolloutBatch:
    """A batch whose weights will have moved: ratios are measured against what is recorded now.

    Args:
        now: the learner's log-probs of its groups, while the weights that drew it are there.
        against_sampler: keep the sampler's log-probs instead.
    """
    groups = batch.groups if against_sampler else with_log_probs(batch.groups, now)
    return replace(
        batch, groups=groups, gap=sampler_gap(now.tokens, batch.groups, processes.gather)
    )


def sample_and_judge(
    prompt_at: Callable[[int], Prompt],
    sample: Callable[[Sequence[Prompt], int], Sequence[Group]],
    judge: Callable[[Sequence[Group]], Sequence[Sequence[Verdict]]],
    objective: Objective,
    processes: ProcessGroup,
    *,
    position: int,
    prompts: int,
    refill: int = 0,
    progress: float = 0.0,
    seed: int = 0,
) -> RolloutBatch:
    """Draw n completions for each of a step's prompts and judge them: this process's groups.

    With `refill`, slots whose group has no signal are filled again, in order, with the prompts that
    come next in the stream, for at most that many rounds.

    Args:
        prompt_at: The prompt at a position of the training stream.
        sample: (prompts, round) → groups. A later round of a step draws with another seed.
        position: Where in the stream the step begins.
        prompts: P, over all processes.
    """
    start, mine = position, slots_of(processes, prompts)
    groups: dict[int, Group] = {}
    verdicts: dict[int, Sequence[Verdict]] = {}
    empty = list(range(prompts))  # slots, of all processes, that wait for a group
    for attempt in range(refill + 1):
        place = {slot: position + i for i, slot in enumerate(empty)}
        position += len(empty)
        own = [slot for slot in mine if slot in place]
        sampled = sample([prompt_at(place[slot]) for slot in own], attempt)
        groups.update(zip(own, sampled))
        verdicts.update(zip(own, judge(sampled)))
        if attempt == refill:
            break
        judged = [verdicts[slot] for slot in mine]
        advantages = advantages_of(
            objective,
            rewards_for(objective, judged, progress),
            progress=progress,
            generators=generators_for(objective, mine, seed),
            **choices_of([groups[slot] for slot in mine], judged),
        )
        signal = np.concatenate(processes.gather(has_signal(advantages)))
        empty = np.flatnonzero(~signal).tolist()
        if not empty:
            break
    return RolloutBatch(
        groups=tuple(groups[slot] for slot in mine),
        verdicts=tuple(tuple(verdicts[slot]) for slot in mine),
        position=position,
        refilled=position - start - prompts,
    )


def learn(
    learner: Learner,
    objective: Objective,
    batch: RolloutBatch,
    processes: ProcessGroup,
    *,
    loss: Loss,
    off_policy: OffPolicySection,
    progress: float,
    seed: Sequence[int],
    watch_sampler: bool = False,
) -> tuple[np.ndarray, dict[str, float]]:
    """Take the optimiser steps on one batch.

    Before each step the objective gets the current log-ratios of all siblings. They are measured
    against the log-probs recorded when the batch was drawn, if that was before the last step;
    else against the learner's own before the first step or, with `correct_sampler`, the sampler's.

    Args:
        seed: With a slot, fixes what objectives that draw random sets draw for its group.
        watch_sampler: Compare the sampler's log-probs with the learner's on every group.

    Returns:
        The first advantages of every group (P, n), and statistics.
    """
    rewards = rewards_for(objective, batch.verdicts, progress)
    live = batch.live(max(term.least for term in objective.at(progress)))
    needed = watch_sampler or needs_old_log_probs(objective, loss, off_policy)
    old = old_log_probs(learner, batch, needed)
    reference = learner.log_probs(batch.groups, reference=True) if loss.kl > 0 else None
    by_group: dict[str, Any] = {"live": live, **choices_of(batch.groups, batch.verdicts)}
    of_batch: dict[str, Any] = {"progress": progress}
    if "entropy" in objective.needs:
        by_group["entropy"], of_batch["entropy_threshold"] = group_entropies(old, live, processes)
    generators = generators_for(objective, slots_of(processes, len(live) * processes.size), *seed)

    first, steps_before = np.zeros_like(rewards), learner.steps
    history: list[dict[str, float]] = []
    parts = whole_groups(len(rewards), off_policy.passes, off_policy.mini_batches)
    for inner_step, (rows, is_first) in enumerate(parts):
        groups, old_here = batch.take(rows), old and old.take(rows)
        moved = inner_step > 0 or batch.gap is not None
        log_ratio = None  # on policy all ratios are 1
        if (moved or off_policy.correct_sampler) and by_ratio(objective, loss):
            now = learner.log_probs(groups) if moved else old_here
            log_ratio = log_ratio_of(now, old_here, groups, off_policy.correct_sampler)
        stats = ratio_statistics(log_ratio, live[rows], objective, processes, progress=progress)
        history.append(stats)
        if inner_step and stats.get(metrics.ESS, 1.0) < off_policy.ess_floor:
            break  # the policy has moved too far from these samples
        advantages = advantages_of(
            objective,
            rewards[rows],
            generators=generators and [generators[row] for row in rows],
            log_ratio=log_ratio,
            **{name: each[rows] for name, each in by_group.items()},
            **of_batch,
        )
        if log_ratio is not None:
            advantages, bounds = inside(
                off_policy, advantages, log_ratio, stats.get(metrics.ESS, 1.0)
            )
            stats |= {name: share_of(each, live[rows], processes) for name, each in bounds.items()}
        elif off_policy.correct_sampler:
            advantages = advantages * sampler_correction(old_here, groups, objective.truncate)
        stats |= learner.step(
            groups,
            advantages,
            loss=loss,
            live=live[rows],
            old=old_here,
            reference=reference and reference.take(rows),
        )
        if is_first:
            first[rows] = advantages
    stats = merge_statistics(history) | {metrics.INNER_STEPS: learner.steps - steps_before}
    return first, stats | statistics_of_batch(learner, batch, first, old, stats, processes)


def by_ratio(objective: Objective, loss: Loss) -> bool:
    """Whether the advantages are made from ratios; other losses have ratios of their own."""
    return loss.name == "exact" and objective.off_policy != "none"


def old_log_probs(learner: Learner, batch: RolloutBatch, needed: bool) -> LogProbs | None:
    """Log-probs under the policy that drew the batch: recorded, or the learner's own now."""
    if batch.gap is not None:
        return recorded(batch.groups)
    return learner.log_probs(batch.groups) if needed else None


def inside(
    off_policy: OffPolicySection, advantages: np.ndarray, log_ratio: np.ndarray, ess: float
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The advantages, 0 outside the trust region; and which samples are `masked`, `below_floor`.

    A first step below `ess_floor` has a region even where none is set, and is taken: if batches
    were skipped there, rounding alone (bf16, long answers) could end all learning in silence.
    """
    below = ess < off_policy.ess_floor
    region = off_policy.trust_region or (FACTOR_OF_TWO if below else None)
    if region is None:
        return advantages, {}
    is_inside = trust_region_mask(advantages, log_ratio, *region)
    statistics = {metrics.MASKED: ~is_inside, metrics.BELOW_FLOOR: np.full_like(is_inside, below)}
    return np.where(is_inside, advantages, 0.0), statistics


def needs_old_log_probs(objective: Objective, loss: Loss, off_policy: OffPolicySection) -> bool:
    """Whether the log-probs before the first step enter an advantage or the loss.

    On policy with the exact loss they do not: all ratios are 1.
    """
    return (
        off_policy.inner_steps > 1
        or loss.name != "exact"
        or off_policy.correct_sampler
        or "entropy" in objective.needs
    )


def log_ratio_of(
    now: LogProbs | None, old: LogProbs | None, groups: Sequence[Group], against_sampler: bool
) -> np.ndarray:
    """log π_θ / π_old of each completion (P, n), or log π_θ / π_sampler."""
    assert now is not None
    assert old is not None
    return now.log_prob - (sampler_log_probs(groups) if against_sampler else old.log_prob)


def sampler_correction(
    old: LogProbs | None, groups: Sequence[Group], truncate: float | None
) -> np.ndarray:
    """π_learner / π_sampler of each completion (P, n), bounded: for losses with own ratios."""
    assert old is not None
    limit = LARGEST_SAMPLER_CORRECTION if truncate is None else truncate
    return np.exp(np.minimum(old.log_prob - sampler_log_probs(groups), limit))


def statistics_of_batch(
    learner: Learner,
    batch: RolloutBatch,
    advantages: np.ndarray,
    old: LogProbs | None,
    steps: Mapping[str, float],
    processes: ProcessGroup,
) -> dict[str, float]:
    """Statistics of the whole batch, beside those of its optimiser steps."""
    groups, signal = batch.groups, np.concatenate(processes.gather(has_signal(advantages)))
    stats = {
        metrics.ENTROPY: sampled_entropy(groups, processes),
        metrics.GROUPS_WITH_SIGNAL: int(signal.sum()),
        metrics.GROUPS_NO_SIGNAL: int((~signal).sum()),
    }
    if batch.gap is not None:
        stats |= batch.gap
    elif old is not None:
        stats |= sampler_gap(old.tokens, groups, processes.gather)
    elif metrics.GAP_MEAN not in steps:  # no row entered a step: look at one group
        first = learner.log_probs(groups[:1]).tokens
        stats |= sampler_gap(first, groups[:1], processes.gather)
    return stats
