"""A run's sampler; one with weights of its own is kept equal to the learner, and seen to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from bestofk.config import Config
from bestofk.models import Policy
from bestofk.sampling import Sampler, Sampling, WeightHolder
from bestofk.training.learn import sampler_gap

if TYPE_CHECKING:
    from bestofk.training.build import Clock, Parts

AGREEMENT = {"fp32": 1e-3, "bf16": 0.2}
"""Largest mean |log-prob difference| per token on a probe, by the precision of the run."""
PROBED = 32
"""Tokens of each of a probe's completions, at most."""


def make_sampler(config: Config, policy: Policy) -> Sampler:
    asked = config.sampling
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[config.model.precision]
    if asked.server:
        from bestofk.sampling.vllm_server import VLLMServer

        return VLLMServer(asked.server, policy.model, policy.tokenizer, dtype=dtype)
    if asked.engine == "vllm":
        from bestofk.sampling.vllm import VLLMEngine

        options = asked.engine_options
        return VLLMEngine(policy.model, policy.tokenizer, dtype=dtype, options=options)
    from bestofk.sampling.decode import ModelSampler

    return ModelSampler(
        policy.model,
        policy.tokenizer,
        max_rows=asked.batch_size,
        precision=config.model.precision,
    )


def refresh(parts: Parts, clock: Clock) -> dict[str, float]:
    """Give the sampler the learner's weights if it holds others, and see that it took them.

    A probe is drawn from the old weights and from the new ones, and the learner says how likely it
    holds each: `probe_before` is how far the policy has moved from the sampler's copy, and
    `probe_after` what the two engines differ by. All processes call it, before anybody samples.

    Raises:
        ValueError: they differ by more than rounding.
    """
    sampler, learner = parts.sampler, parts.learner
    if not isinstance(sampler, WeightHolder) or sampler.version == learner.steps:
        return {}
    from bestofk.sampling.weights import named_weights

    with clock("update"):
        before = probe(parts) if sampler.version is not None else float("nan")
        parts.processes.wait()  # nobody is sampling now
        with learner.whole():
            if parts.processes.main or not sampler.shared:
                sampler.update(named_weights(parts.policy.model), version=learner.steps)
        parts.processes.wait()
        sampler.version = learner.steps
        after = probe(parts)
    limit = parts.config.sampling.agreement or AGREEMENT[parts.config.model.precision]
    if not after <= limit:
        why = (
            f"before it they were {before:.2g} away: the engine did not take the weights"
            if after > before / 2
            else "the engine computes another model than the learner"
        )
        raise ValueError(
            f"after the update to optimiser step {learner.steps} the sampler's log-probs are "
            f"{after:.2g} per token away from the learner's, more than {limit:g}; {why}. Where "
            "such a difference is to be expected, say so: sampling.agreement"
        )
    return {"probe_before": before, "probe_after": after}


def probe(parts: Parts) -> float:
    """Mean |log-prob difference| of sampler and learner over a small group, on all processes."""
    asked = parts.config.sampling
    params = Sampling(
        n=4, max_new_tokens=min(PROBED, asked.max_new_tokens), temperature=asked.temperature
    )
    prompt = parts.prompt_at(parts.learner.steps)
    groups = parts.sampler.sample([prompt], seed=parts.learner.steps, params=params)
    scores = parts.learner.score(groups)
    return sampler_gap(scores, groups, parts.processes)["sampler_gap_mean"]


def own_weights(parts: Parts) -> AbstractContextManager[Any]:
    """What sampling is done inside: the whole model, if that is what is sampled from."""
    return nullcontext() if isinstance(parts.sampler, WeightHolder) else parts.learner.whole()


def rest(parts: Parts) -> None:
    """Let the sampler free its memory while the learner works."""
    if isinstance(parts.sampler, WeightHolder):
        parts.sampler.sleep()


@contextmanager
def closing(parts: Parts) -> Iterator[None]:
    """Free what the sampler holds, at the end of a run."""
    try:
        yield
    finally:
        if isinstance(parts.sampler, WeightHolder):
            parts.sampler.close()
