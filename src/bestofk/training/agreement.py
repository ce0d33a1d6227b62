"""Sampler and learner must compute the same policy: their log-probs are compared.

Every probe and every step measures the gap, mean |log π_learner − log π_sampler| per sampled token.
Where it exceeds the limit, the run stops and names the likely cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from bestofk import metrics
from bestofk.learning import Learner, LogProbs
from bestofk.model_facts import base_model
from bestofk.sampling import Sampler, Sampling, WeightHolder
from bestofk.training.batch import ProcessGroup
from bestofk.types import Group, Prompt

PROBED = 32
"""Tokens of each of a probe's completions, at most."""


def sampler_log_probs(groups: Sequence[Group]) -> np.ndarray:
    """Σ_t of the log-probs the sampler drew with, (P, n)."""
    return np.array([[each.log_prob for each in group.trajectories] for group in groups])


def sampler_gap(
    log_probs: LogProbs, groups: Sequence[Group], processes: ProcessGroup
) -> dict[str, float]:
    """How far the sampler's token log-probs are from the learner's, over all processes.

    Log-probs that are NaN are infinitely far; a sampler that reports none has no gap.
    """
    pairs = [
        np.abs(np.subtract(tokens, trajectory.own_log_probs, dtype=np.float64))
        for row, group in zip(log_probs.tokens, groups)
        for tokens, trajectory in zip(row, group.trajectories)
        if len(trajectory.own_log_probs) == len(tokens)
    ]
    gaps = np.concatenate(pairs) if pairs else np.zeros(0)
    largest = float(gaps.max()) if gaps.size else 0.0
    gathered = processes.gather((float(gaps.sum()), gaps.size, largest))
    total, count = sum(part[0] for part in gathered), sum(part[1] for part in gathered)
    mean = total / count if count else 0.0
    return {
        metrics.GAP_MEAN: float("inf") if np.isnan(mean) else mean,
        metrics.GAP_MAX: max(part[2] for part in gathered),
    }


@dataclass
class Agreement:
    """A sampler and a learner that must agree. All processes call its methods together."""

    sampler: Sampler
    learner: Learner
    processes: Any
    sampling: Sampling
    limit: float
    """The largest gap that a run goes on with."""

    def whole_policy(self) -> AbstractContextManager[Any]:
        """What sampling is done inside: the whole model, if that is what is sampled from."""
        own = isinstance(self.sampler, WeightHolder)
        return nullcontext() if own else self.learner.gathered()

    def probe(self, prompt: Prompt) -> tuple[float, list[Group]]:
        """The gap over a small group drawn now from the whole distribution, and that group."""
        short = Sampling(
            samples_per_prompt=4,
            max_new_tokens=min(PROBED, self.sampling.max_new_tokens),
            temperature=self.sampling.temperature,
        )
        with self.whole_policy():
            groups = list(self.sampler.sample([prompt], seed=self.learner.steps, sampling=short))
        return self.gap(groups), groups

    def gap(self, groups: Sequence[Group]) -> float:
        log_probs = self.learner.log_probs(groups)
        return sampler_gap(log_probs, groups, self.processes)[metrics.GAP_MEAN]

    def refresh(self, prompt: Prompt) -> dict[str, float]:
        """Give a sampler with weights of its own the learner's, and check that it took them.

        A probe is drawn before and after: `probe_before` is how far the policy has moved from the
        sampler's copy, and `probe_after` the difference between the two engines.
        """
        sampler = self.sampler
        if not isinstance(sampler, WeightHolder) or sampler.version == self.learner.steps:
            return {}
        from bestofk.sampling.weights import named_weights

        before = self.probe(prompt)[0] if sampler.version is not None else float("nan")
        self.processes.wait()  # nobody is sampling now
        with self.learner.gathered():
            if self.processes.main:
                sampler.update(named_weights(self.learner.policy), version=self.learner.steps)
        self.processes.wait()
        sampler.version = self.learner.steps
        after, groups = self.probe(prompt)
        self.check(after, groups, before)
        return {metrics.PROBE_BEFORE: before, metrics.PROBE_AFTER: after}

    def check(self, gap: float, groups: Sequence[Group], before: float = float("nan")) -> None:
        """Raise where the sampler's log-probs are not those of the learner.

        Args:
            groups: Some groups that were sampled with the present weights, to find the cause with.
            before: The gap before the sampler got the present weights.
        """
        if gap <= self.limit:
            return
        raise ValueError(
            f"the sampler's log-probs are {gap:.2g} per token away from the learner's, more than "
            f"{self.limit:g}, so the learner would train on another policy than the one that was "
            f"sampled. Likely cause: {self.likely_cause(groups, gap, before)}. Where such a "
            "difference is expected, raise sampling.advanced.agreement"
        )

    def likely_cause(self, groups: Sequence[Group], gap: float, before: float) -> str:
        """Why they disagree, by computing the log-probs of the same tokens in other ways."""
        learner, model = self.learner, type(base_model(self.learner.model)).__name__
        first, again = (learner.log_probs(groups).log_prob for _ in range(2))
        if self.processes.gather(bool(np.abs(first - again).max() > self.limit))[0]:
            return (
                f"{model} gives other log-probs each time it is asked: its forward pass is random"
            )
        layout, learner.layout = learner.layout, "single"
        try:
            alone = self.gap(groups)
        finally:
            learner.layout = layout
        if layout != "single" and alone <= self.limit:
            return (
                f"the learner's {layout} layout: completions scored one by one agree with the "
                f"sampler to {alone:.2g}. {model} needs something that this layout leaves out"
            )
        if isinstance(self.sampler, WeightHolder):
            if gap > before / 2:
                return f"the engine did not take the weights: before it was {before:.2g} away"
            return "the engine computes another model: other weights, quantisation, rope, precision"
        return (
            f"{model} decodes step by step with its cache and gets other logits than in one pass "
            "over the text; the code of the model handles its cache or its positions wrongly"
        )
