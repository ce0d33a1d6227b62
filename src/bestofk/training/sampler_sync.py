"""A sampler with weights of its own is kept equal to the learner, and checked to be."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bestofk.learning import Learner
from bestofk.sampling import Sampler, Sampling, WeightHolder
from bestofk.training.processes import Processes
from bestofk.training.statistics import sampler_gap
from bestofk.types import Group, Prompt

PROBED = 32
"""Tokens of each of a probe's completions, at most."""


def refresh(
    sampler: Sampler,
    learner: Learner,
    processes: Processes,
    probe: Callable[[], float],
    limit: float,
) -> dict[str, float]:
    """Give the sampler the learner's weights if it holds others, and check that it took them.

    A probe is drawn from the old weights and from the new ones, and the learner scores both:
    `probe_before` is how far the policy has moved from the sampler's copy, and `probe_after` the
    difference between the two engines. All processes call it, before anybody samples.

    Raises:
        ValueError: they differ by more than `limit`.
    """
    if not isinstance(sampler, WeightHolder) or sampler.version == learner.steps:
        return {}
    from bestofk.sampling.weights import named_weights

    before = probe() if sampler.version is not None else float("nan")
    processes.wait()  # nobody is sampling now
    with learner.whole():
        if processes.main or not sampler.shared:
            sampler.update(named_weights(learner.policy), version=learner.steps)
    processes.wait()
    sampler.version = learner.steps
    after = probe()
    if not after <= limit:
        why = (
            f"before it they were {before:.2g} away: the engine did not take the weights"
            if after > before / 2
            else "the engine computes another model than the learner"
        )
        raise ValueError(
            f"after the update to optimiser step {learner.steps} the sampler's log-probs are "
            f"{after:.2g} per token away from the learner's, more than {limit:g}; {why}. Where "
            "such a difference is expected, raise sampling.engine_options.agreement"
        )
    return {"probe_before": before, "probe_after": after}


def probe(
    sampler: Sampler, learner: Learner, processes: Processes, prompt: Prompt, params: Sampling
) -> float:
    """Mean |log-prob difference| of sampler and learner over a small group, on all processes."""
    groups = probe_groups(sampler, learner, prompt, params)
    return sampler_gap(learner.score(groups), groups, processes)["sampler_gap_mean"]


def probe_groups(
    sampler: Sampler, learner: Learner, prompt: Prompt, params: Sampling
) -> list[Group]:
    """A small group from the sampler, drawn from the whole distribution."""
    short = Sampling(
        samples_per_prompt=4,
        max_new_tokens=min(PROBED, params.max_new_tokens),
        temperature=params.temperature,
    )
    with whole_policy(sampler, learner):
        return list(sampler.sample([prompt], seed=learner.steps, params=short))


def whole_policy(sampler: Sampler, learner: Learner) -> AbstractContextManager[Any]:
    """What sampling is done inside: the whole model, if that is what is sampled from."""
    return nullcontext() if isinstance(sampler, WeightHolder) else learner.whole()
