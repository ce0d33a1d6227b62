"""Signs that the learner or the sampler computes something wrong; each stops the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from bestofk.common import base_model
from bestofk.config import Config
from bestofk.learning import Learner
from bestofk.rare_settings import engine_options
from bestofk.sampling import Sampler, WeightHolder
from bestofk.sampling.prompts import encode
from bestofk.training.batch import ProcessGroup
from bestofk.training.statistics import sampler_gap
from bestofk.types import Group, Prompt

AGREEMENT = {"fp32": 1e-3, "bf16": 0.1}
"""Largest mean |log-prob difference| per token, by the precision of the run."""


@contextmanager
def memory_named(phase: str, tokens: int) -> Iterator[None]:
    """Where the GPU's memory is full, say in which phase, and what takes less.

    Args:
        tokens: of a micro-batch, at most.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        less = (
            f"lower model.options.tokens_per_micro_batch (now {tokens:,}), or set "
            "model.options.gradient_checkpointing"
            if phase == "learn"
            else "lower sampling.engine_options.max_rows"
        )
        cause = str(error).partition(". GPU ")[0].rstrip(".")
        raise ValueError(
            f"the GPU's memory is full ({phase}: {cause}): {less}; or end what else runs on this "
            "GPU (nvidia-smi lists it). Then go on with --resume"
        ) from error


def gap_limit(config: Config) -> float:
    """The largest gap between sampler and learner that a run goes on with."""
    return engine_options(config).agreement or AGREEMENT[config.model.precision]


def check_gap(
    gap: float,
    limit: float,
    sampler: Sampler,
    learner: Learner,
    groups: Sequence[Group],
    processes: ProcessGroup,
) -> None:
    """Raise where the sampler's log-probs are not those of the learner; all processes call it.

    Args:
        gap: Mean |log-prob difference| per token over all processes.
        groups: Some groups that were sampled with the present weights, to find the cause with.
    """
    if gap <= limit:
        return
    cause = likely_cause(sampler, learner, groups, limit, processes)
    raise ValueError(
        f"the sampler's log-probs are {gap:.2g} per token away from the learner's, more than "
        f"{limit:g}, so the learner would train on another policy than the one that was sampled. "
        f"Likely cause: {cause}. Where such a difference is expected, raise "
        "sampling.engine_options.agreement"
    )


def likely_cause(
    sampler: Sampler,
    learner: Learner,
    groups: Sequence[Group],
    limit: float,
    processes: ProcessGroup,
) -> str:
    """Why sampler and learner disagree, by scoring the same tokens again in other ways."""
    model = type(base_model(learner.model)).__name__
    first, again = (learner.score(groups).log_prob for _ in range(2))
    if processes.gather(bool(np.abs(first - again).max() > limit))[0]:
        return f"{model} gives other log-probs each time it is asked: its forward pass is random"
    alone = sampler_gap(scored_alone(learner, groups), groups, processes)["sampler_gap_mean"]
    if learner.layout != "single" and alone <= limit:
        return (
            f"the learner's {learner.layout} layout: completions scored one by one agree with the "
            f"sampler to {alone:.2g}. {model} needs something that this layout leaves out"
        )
    if isinstance(sampler, WeightHolder):
        return "the engine computes another model: other weights, quantisation, rope or precision"
    return (
        f"{model} decodes step by step with its cache and gets other logits than in one pass over "
        "the text; the code of the model handles its cache or its positions wrongly"
    )


def scored_alone(learner: Learner, groups: Sequence[Group]) -> Any:
    """Scores with each completion in a forward pass of its own, whatever the learner's layout."""
    layout, learner.layout = learner.layout, "single"
    try:
        return learner.score(groups)
    finally:
        learner.layout = layout


def unsound_weight(model: torch.nn.Module) -> str | None:
    """The name of a weight that is not finite in this process's part of the model, or None."""
    for name, weight in model.named_parameters():
        part = weight.to_local() if hasattr(weight, "to_local") else weight
        if part.requires_grad and not bool(torch.isfinite(part).all()):
            return name
    return None


@torch.no_grad()
def check_output(model: Any, tokenizer: Any, prompt: Prompt, step: int) -> None:
    """Raise where the model gives logits that are not finite: it must not be sampled or saved."""
    ids = torch.tensor([encode(tokenizer, prompt)], device=model.device)
    if not bool(torch.isfinite(model(input_ids=ids).logits).all()):
        raise ValueError(
            f"after step {step} the model gives logits that are NaN or infinite: the weights have "
            "become too large. The last checkpoint may be good; in a new run, lower "
            "optimizer.learning_rate"
        )
