"""The training loop: sample → score → (log-ratios → weights → learner step) × inner steps → record.

Everything else stands around it in `Session`: resuming, signals, processes, evaluation, display.
A step depends on the weights, its number and the position in the data alone, and every seed is made
from those; so an interrupted run ends exactly like an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from bestofk.config import Config, OffPolicySection
from bestofk.learning import Learner, Loss, Scores
from bestofk.objectives import Objective, trust_region_mask
from bestofk.training.batch import ProcessGroup, RolloutBatch, rewards_of, slots_of, whole_groups
from bestofk.training.group_weights import generators_for, group_entropies, has_signal, weigh
from bestofk.training.session import TrainingEnd, open_session, seed_of
from bestofk.training.statistics import (
    merge_statistics,
    ratio_statistics,
    sampled_entropy,
    sampler_gap,
    sampler_log_probs,
    share_of,
)
from bestofk.types import Group, Prompt, Verdict, Verifier

LARGEST_SAMPLER_CORRECTION = float(np.log(2.0))
"""Bound on the log of the learner-to-sampler ratio in the clipped loss, unless truncate says."""


def train(
    config: Config,
    *,
    resume: bool = False,
    checkpoint: str | None = None,
    verifier: Verifier | None = None,
) -> TrainingEnd:
    """Train as the config says, in the folder it names.

    Args:
        resume: Continue the run in that folder where it stopped.
        checkpoint: Continue from this checkpoint instead of the newest.
        verifier: Judges instead of the verifier that the config names.
    """
    with open_session(config, resume=resume, checkpoint=checkpoint, verifier=verifier) as session:
        for step in session.steps():  # between steps it evaluates and saves
            batch = sample_and_score(
                session.prompt_at,
                partial(session.sample, step),
                session.score,
                session.objective,
                session.processes,
                position=session.state.position,
                prompts=config.sampling.prompts_per_step,
                refill=config.sampling.refill,
                progress=session.progress,
                seed=seed_of(config.run.seed, step),
            )
            if session.leaving():
                continue  # before the weights change: this step will be repeated
            with session.learning(step, batch):
                weights, stats = learn(
                    session.learner,
                    session.objective,
                    batch,
                    session.processes,
                    loss=config.loss,
                    off_policy=config.off_policy,
                    progress=session.progress,
                    seed=(config.run.seed, step),
                    watch_sampler=session.sampler_has_own_weights,
                )
            session.record(step, batch, weights, stats)
    return session.end


def sample_and_score(
    prompt_at: Callable[[int], Prompt],
    sample: Callable[[Sequence[Prompt], int], Sequence[Group]],
    score: Callable[[Sequence[Group]], Sequence[Sequence[Verdict]]],
    objective: Objective,
    processes: ProcessGroup,
    *,
    position: int,
    prompts: int,
    refill: int = 0,
    progress: float = 0.0,
    seed: int = 0,
) -> RolloutBatch:
    """Draw n completions for each of a step's prompts and score them: this process's groups.

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
        verdicts.update(zip(own, score(sampled)))
        if attempt == refill:
            break
        rewards = rewards_of([verdicts[slot] for slot in mine])
        generators = generators_for(objective, mine, seed)
        weights = weigh(objective, rewards, progress=progress, generators=generators)
        signal = np.concatenate(processes.gather(has_signal(weights)))
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
    against the learner's own log-probs before the first step or, with `correct_sampler`, against
    the sampler's: then the difference between the two is corrected as well.

    Args:
        seed: With a slot, fixes what objectives that draw random sets draw for its group.
        watch_sampler: Compare the sampler's log-probs with the learner's on every group.

    Returns:
        The first weights of every group (P, n), and statistics.
    """
    groups, rewards = batch.groups, batch.rewards
    live = batch.live(max(term.least for term in objective.at(progress)))
    by_ratio = loss.name == "exact" and objective.off_policy != "none"
    old = None
    if watch_sampler or needs_old_scores(objective, loss, off_policy):
        old = learner.score(groups)
    reference = learner.score(groups, reference=True) if loss.kl > 0 else None
    entropy = threshold = None
    if "entropy" in objective.needs:
        assert old is not None
        entropy, threshold = group_entropies(old, live, processes)
    slots = slots_of(processes, len(groups) * processes.size)
    generators = generators_for(objective, slots, *seed)

    first_weights = np.zeros_like(rewards)
    history: list[dict[str, float]] = []
    parts = whole_groups(len(groups), off_policy.passes, off_policy.mini_batches)
    for inner_step, (rows, is_first) in enumerate(parts):
        part, stats = batch.take(rows), dict[str, float]()
        log_ratio = None
        if by_ratio and (inner_step > 0 or off_policy.correct_sampler):
            assert old is not None
            now = learner.sequence_log_probs(part) if inner_step else old.log_prob[rows]
            before = sampler_log_probs(part) if off_policy.correct_sampler else old.log_prob[rows]
            log_ratio = now - before
            stats |= ratio_statistics(
                log_ratio, live[rows], objective, processes, progress=progress
            )
            if inner_step and stats.get("ess", 1.0) < off_policy.ess_floor:
                break  # the policy has moved too far from these samples
        weights = weigh(
            objective,
            rewards[rows],
            live=live[rows],
            log_ratio=log_ratio,
            entropy=None if entropy is None else entropy[rows],
            entropy_threshold=threshold,
            progress=progress,
            generators=None if generators is None else [generators[row] for row in rows],
        )
        if log_ratio is not None and off_policy.trust_region is not None:
            inside = trust_region_mask(weights, log_ratio, *off_policy.trust_region)
            stats["masked"] = share_of(~inside, live[rows], processes)
            weights = np.where(inside, weights, 0.0)
        if off_policy.correct_sampler and not by_ratio:
            assert old is not None
            limit = LARGEST_SAMPLER_CORRECTION if objective.truncate is None else objective.truncate
            gap = old.log_prob[rows] - sampler_log_probs(part)
            weights = weights * np.exp(np.minimum(gap, limit))
        stats |= learner.step(
            part,
            weights,
            loss=loss,
            old=None if old is None else rows_of_scores(old, rows),
            reference=None if reference is None else rows_of_scores(reference, rows),
            live=live[rows],
        )
        if is_first:
            first_weights[rows] = weights
        history.append(stats)

    merged = merge_statistics(history)
    merged["inner_steps"] = len(history)
    if old is not None:
        merged |= sampler_gap(old, groups, processes)
    elif "sampler_gap_mean" not in merged:  # no row entered a step: look at one group
        merged |= sampler_gap(learner.score(groups[:1]), groups[:1], processes)
    signal = np.concatenate(processes.gather(has_signal(first_weights)))
    merged["entropy"] = sampled_entropy(groups, processes)
    merged["groups_with_signal"] = int(signal.sum())
    merged["groups_no_signal"] = int((~signal).sum())
    return first_weights, merged


def needs_old_scores(objective: Objective, loss: Loss, off_policy: OffPolicySection) -> bool:
    """Whether the log-probs before the first step enter a weight or the loss.

    On policy with the exact loss they do not: all ratios are 1.
    """
    return (
        off_policy.inner_steps > 1
        or loss.name != "exact"
        or off_policy.correct_sampler
        or "entropy" in objective.needs
    )


def rows_of_scores(scores: Scores, rows: Sequence[int]) -> Scores:
    """The scores of some of the groups."""
    return Scores(tuple(scores.tokens[i] for i in rows), tuple(scores.entropies[i] for i in rows))
