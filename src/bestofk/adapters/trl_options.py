"""What TRL's options mean for an objective: which are set, which named as biased, which refused.

The update must stay the gradient that the objective's weights stand for:

    (1/B) Σ_rows A_i Σ_t ∇log π(y_it),   samples of π itself, one optimiser step per batch,

up to a constant factor. Pure: a config comes in, another one goes out.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from bestofk.common import unknown
from bestofk.objectives import Objective, ObjectiveWarning, objective

logger = logging.getLogger(__name__)

UNBIASED = {
    "dr_grpo": "divides by the constant max_completion_length",
    "luspo": "divides by nothing",
}
BIASED = {
    "grpo": "divides by each completion's own length: favours short right and long wrong answers",
    "sapo": "divides by each completion's own length: favours short right and long wrong answers",
    "bnpo": "divides by the tokens of the micro-batch: one of long completions weighs less",
    "dapo": "divides by the tokens of the batch: a batch of long completions weighs less",
    "cispo": "divides by the tokens of the batch: a batch of long completions weighs less",
    "vespo": "divides by the tokens of the batch: a batch of long completions weighs less",
}
CHOSEN = "dr_grpo"
"""The unbiased loss type that takes the place of TRL's default."""


def as_objective(given: str | Objective | None) -> Objective:
    """The objective, when it is one that TRL's loss can train."""
    if given is None:
        raise ValueError(
            "objective= is needed, a string such as 'max@8' (`bestofk objectives` lists them), "
            "as an argument or as the attribute `goal` of the class"
        )
    goal = given if isinstance(given, Objective) else objective(given)
    forms = {
        "truncate": goal.truncate is not None,
        "self_normalise": goal.self_normalise,
        f"off_policy={goal.off_policy!r}": goal.off_policy in ("first-order", "own-ratio"),
    }
    for name, asked in forms.items():
        if asked:
            raise ValueError(
                f"objective {goal.text} with {name} is made for the siblings' current ratios, "
                "which TRL's shuffled micro-batches do not have: leave it out, or use "
                "`bestofk train`, which keeps groups whole"
            )
    return goal


def prepared(goal: Objective, args: Any, loss_type: str | None) -> Any:
    """A copy of the GRPOConfig under which TRL trains this objective.

    Args:
        goal: the objective.
        args: the user's config, left as it is.
        loss_type: the user's word on TRL's option of that name. None takes the unbiased one in the
            place of TRL's default, and keeps any other value of `args`.

    Raises:
        ValueError: an option would make the update something else than the objective's.
    """
    goal.require_samples(args.num_generations)
    _refuse(goal, args)
    args = copy.copy(args)
    args.scale_rewards = "none"  # the scale of the weights is the objective's
    args.loss_type = _loss_type(args, loss_type)
    if args.process_index == 0:
        for caution in cautions(goal, args):
            warnings.warn(caution, ObjectiveWarning, stacklevel=3)
    return args


def _loss_type(args: Any, wanted: str | None) -> str:
    known = {**UNBIASED, **BIASED}
    if wanted is not None and wanted not in known:
        raise unknown("loss_type", wanted, known)
    default = type(args).__dataclass_fields__["loss_type"].default
    if wanted is None and args.loss_type == default not in UNBIASED:
        if args.process_index == 0:
            logger.warning(
                "loss_type is %r, which %s, in the place of TRL's default %r, which %s; "
                "loss_type=%r as an argument of the trainer keeps it",
                CHOSEN, UNBIASED[CHOSEN], default, BIASED.get(default, "is not known"), default,
            )  # fmt: skip
        wanted = CHOSEN
    wanted = wanted or args.loss_type
    if wanted == "dr_grpo" and args.max_completion_length is None:
        raise ValueError(
            "loss_type 'dr_grpo' divides by max_completion_length, got None: give it, or "
            "loss_type='luspo'"
        )
    return wanted


def on_policy(args: Any) -> bool:
    """Whether every optimiser step uses samples of the policy it changes: TRL's own condition."""
    every = args.steps_per_generation * args.num_iterations
    return bool(args.gradient_accumulation_steps % every == 0)


def _refuse(goal: Objective, args: Any) -> None:
    siblings = [
        term.text
        for term in goal.terms
        if term.entry.unbiased and (term.k > 1 or term.entry.baseline is None)
    ]
    if siblings and goal.off_policy != "none" and not on_policy(args):
        exact = "or use `bestofk train`, which has it" if goal.takes_log_ratio else ""
        raise ValueError(
            f"objective {goal.text} off policy needs the current ratios of all siblings, and TRL "
            f"shuffles them over micro-batches: num_iterations = {args.num_iterations} and "
            f"steps_per_generation = {args.steps_per_generation} make several optimiser steps of "
            f"one batch (gradient_accumulation_steps = {args.gradient_accumulation_steps}). Take "
            f"one step per batch (num_iterations=1, steps_per_generation left out) {exact}; "
            "bestofk.objective(..., off_policy='none') accepts the inexact clipped loss"
        )
    if args.scale_rewards == "batch":
        raise ValueError(
            "scale_rewards='batch' divides by the standard deviation of the whole batch, but the "
            f"scale of the weights belongs to the objective ({goal.text}): leave scale_rewards "
            "out, or choose a normalised objective such as passk-training@8 or grpo"
        )
    if args.multi_objective_aggregation != "sum_then_normalize":
        raise ValueError(
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} standardises each "
            "reward inside its group before they are added, and the best of k by such a sum is not "
            "the best of k by reward: use 'sum_then_normalize' with reward_weights"
        )


def cautions(goal: Objective, args: Any) -> Iterator[str]:
    """Options that were chosen and make the update a biased one, each by name."""
    if args.loss_type in BIASED:
        yield (
            f"loss_type={args.loss_type!r} {BIASED[args.loss_type]}: the update is biased for the "
            f"gradient of {goal.text}; {' and '.join(map(repr, UNBIASED))} are not"
        )
    cut = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0,
           "generation_kwargs": None}  # fmt: skip
    for name, neutral in cut.items():
        value = getattr(args, name)
        if value != neutral and value is not None and value != {}:
            yield (
                f"{name}={value} changes what is sampled, and TRL's loss assumes it does not: the "
                f"update is biased for the gradient of {goal.text}"
            )
    if args.top_entropy_quantile < 1.0:
        yield (
            f"top_entropy_quantile={args.top_entropy_quantile} leaves tokens out of the loss: the "
            f"update is biased for the gradient of {goal.text}"
        )
    if args.off_policy_mask_threshold is not None:
        yield (
            f"off_policy_mask_threshold={args.off_policy_mask_threshold} leaves samples of "
            f"negative weight out of the loss: the update is biased for the gradient of {goal.text}"
        )
    if args.use_vllm and args.vllm_importance_sampling_correction and goal.k > 1:
        yield (
            f"TRL corrects what vLLM and the learner differ by with each sample's own ratio; "
            f"{goal.text} would need its siblings' too: watch sampling/importance_sampling_ratio, "
            "which should stay near 1"
        )
