"""Sampler and learner must compute the same policy: their log-probs are compared.

Every probe and every step measures the gap, mean |log π_learner − log π_sampler| per sampled token.
Where it exceeds the limit, the run stops and names the likely cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bestofk import metrics
from bestofk.agreement.log_prob_gaps import sampler_gap
from bestofk.model_facts import base_model
from bestofk.types import Group, Prompt, Trajectory

PROBED = 32
"""Tokens of each of a probe's completions, at most."""


@dataclass
class Agreement:
    """A sampler and a learner that must agree. All processes call its methods together."""

    sampler: Any
    learner: Any
    processes: Any
    sampling: Any
    """How the run samples; a probe is drawn from the whole distribution at its temperature."""
    limit: float
    """The largest gap that a run goes on with."""
    weights_to_send: Callable[[Any], Iterable[tuple[str, Any]]] | None
    """(name, tensor) of each of the policy's weights, where the sampler has a copy of its own."""
    several_turns: bool = False
    """Whether trajectories are continued after an environment's reply; then a probe's are too."""

    def whole_policy(self) -> AbstractContextManager[Any]:
        """What sampling is done inside: the whole model, if that is what is sampled from."""
        gathered: AbstractContextManager[Any] = self.learner.gathered()
        return nullcontext() if self.weights_to_send else gathered

    def probe(self, prompt: Prompt) -> tuple[float, list[Group]]:
        """The gap over a small group drawn now from the whole distribution, and that group."""
        length = min(PROBED, self.sampling.max_new_tokens) // (1 + self.several_turns) or 1
        short = self.sampling.changed(
            samples_per_prompt=4, max_new_tokens=length, top_p=1.0, top_k=0, stop=()
        )
        with self.whole_policy():
            groups = list(self.sampler.sample([prompt], seed=self.learner.steps, sampling=short))
            if self.several_turns:
                groups = [self.continued(group, short) for group in groups]
        return self.gap(groups), groups

    def continued(self, group: Group, sampling: Any) -> Group:
        """The same trajectories, each drawn on from its token ids as after a reply."""
        texts = [(*group.prompt_tokens, *each.tokens.tolist()) for each in group.trajectories]
        draws = np.random.default_rng(0).random((len(texts), 1, sampling.max_new_tokens))
        one = sampling.changed(samples_per_prompt=1)
        rows = dict(self.sampler.continue_from(texts, draws, one))
        longer = tuple(
            Trajectory(
                [*each.tokens, *rows[place][0][0]],
                log_probs=[*each.log_probs, *rows[place][0][1]],
            )
            for place, each in enumerate(group.trajectories)
        )
        return replace(group, trajectories=longer)

    def gap(self, groups: Sequence[Group]) -> float:
        log_probs = self.learner.log_probs(groups).tokens
        return sampler_gap(log_probs, groups, self.processes.gather)[metrics.GAP_MEAN]

    def refresh(self, prompt: Prompt) -> dict[str, float]:
        """Give a sampler with weights of its own the learner's, and check that it took them.

        A probe is drawn before and after: `probe_before` is how far the policy has moved from the
        sampler's copy, and `probe_after` the difference between the two engines.
        """
        sampler, steps = self.sampler, self.learner.steps
        if self.weights_to_send is None or sampler.version == steps:
            return {}
        before = self.probe(prompt)[0] if sampler.version is not None else float("nan")
        self.processes.wait()  # nobody is sampling now
        with self.learner.gathered():
            if self.processes.main:
                sampler.update(self.weights_to_send(self.learner.policy), version=steps)
        self.processes.wait()
        sampler.version = steps
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
        layout, learner.batching.layout = learner.batching.layout, "single"
        try:
            alone = self.gap(groups)
        finally:
            learner.batching.layout = layout
        if layout != "single" and alone <= self.limit:
            return (
                f"the learner's {layout} layout: completions scored one by one agree with the "
                f"sampler to {alone:.2g}. {model} needs something that this layout leaves out"
            )
        if self.weights_to_send:
            if gap > before / 2:
                return f"the engine did not take the weights: before it was {before:.2g} away"
            return "the engine computes another model: other weights, quantisation, rope, precision"
        return (
            f"{model} decodes step by step with its cache and gets other logits than in one pass "
            "over the text; the code of the model handles its cache or its positions wrongly"
        )
