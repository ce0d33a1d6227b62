"""What TRL's settings, trainer class and model mean for an objective: errors and warnings.

The update must stay the gradient that the objective's advantages stand for:

    (1/B) Σ_rows A_i Σ_t ∇log π(y_it)

up to a constant factor, where A_i is made on policy (one optimiser step per batch) or from the
log-ratios of all siblings (several steps).
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from trl import GRPOTrainer

from bestofk.adapters.inner_steps import needs_sibling_ratios
from bestofk.messages import unknown
from bestofk.objectives import Objective, ObjectiveWarning, objective

logger = logging.getLogger(__name__)

UNBIASED = {
    "dr_grpo": "divides by the constant max_completion_length",
    "luspo": "divides by nothing",
}
_OWN_LENGTH = "divides by each completion's own length: favours short right and long wrong answers"
_ALL_TOKENS = "divides by the tokens of the batch: a batch of long completions weighs less"
BIASED = {
    "grpo": _OWN_LENGTH,
    "sapo": _OWN_LENGTH,
    "bnpo": "divides by the tokens of the micro-batch: one of long completions weighs less",
    "dapo": _ALL_TOKENS,
    "cispo": _ALL_TOKENS,
    "vespo": _ALL_TOKENS,
}
CHOSEN = "dr_grpo"
"""The unbiased loss type that replaces TRL's default."""
NEUTRAL = {
    "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None,
}  # fmt: skip
"""Sampling settings under which TRL samples from the model's own distribution."""
ONE_STEP = "take one optimiser step per batch (num_iterations=1, steps_per_generation left out)"
NO_DROPOUT = (
    "set disable_dropout=True in the GRPOConfig, attention_dropout=0 in the model's config, and "
    "lora_dropout=0"
)
NAME_SCORER = "name one of reward_funcs with scorer='NAME'; it chooses, and the others pay"


def scorer_column(scorer: str | None, reward_functions: Sequence[str]) -> int | None:
    """The place of the reward function that chooses and does not pay."""
    if scorer is None:
        return None
    if scorer not in reward_functions:
        raise unknown("scorer", scorer, reward_functions)
    if reward_functions.count(scorer) > 1:
        raise ValueError(f"scorer={scorer!r} names several reward functions: rename one of them")
    return reward_functions.index(scorer)


def as_objective(chosen: str | Objective | None) -> Objective:
    """The objective of an argument or of the class's attribute."""
    if chosen is None:
        raise ValueError(
            "objective= is needed, a string such as 'max@8' (`bestofk objectives` lists them), "
            "as an argument or as the attribute `training_objective` of the class"
        )
    return chosen if isinstance(chosen, Objective) else objective(chosen)


def prepared(objective: Objective, args: Any, loss_type: str | None) -> Any:
    """A copy of the GRPOConfig under which TRL trains this objective.

    Raises:
        ValueError: a setting would make the update something else than the objective's gradient.
    """
    objective.require_samples(args.num_generations)
    args = copy.copy(args)
    args.loss_type = _loss_type(args, loss_type)
    for error in _errors(objective, args):
        raise ValueError(error)
    args.scale_rewards = "none"  # the scale of the advantages is the objective's
    main = args.process_index == 0
    if exact_steps(objective, args) and args.use_bias_correction_kl:
        args.use_bias_correction_kl = False
        if args.beta and main:
            logger.warning(
                "use_bias_correction_kl is False: it multiplies the KL term with ratios, which the "
                "exact loss does not have; the KL is that of the samples as they were drawn"
            )
    for caution in _biasing(objective, args) if main else ():
        warnings.warn(
            f"{caution}; the update is biased for the gradient of {objective.text}",
            ObjectiveWarning,
            stacklevel=3,
        )
    return args


def _loss_type(args: Any, chosen: str | None) -> str:
    default = type(args).__dataclass_fields__["loss_type"].default
    if chosen is not None and chosen not in UNBIASED | BIASED:
        raise unknown("loss_type", chosen, UNBIASED | BIASED)
    if chosen is None and args.loss_type == default not in UNBIASED:
        if args.process_index == 0:
            logger.warning(
                "loss_type is %r, which %s, instead of TRL's default %r, which %s; "
                "loss_type=%r as an argument of the trainer keeps it",
                CHOSEN, UNBIASED[CHOSEN], default, BIASED.get(default, "is not known"), default,
            )  # fmt: skip
        chosen = CHOSEN
    return chosen or str(args.loss_type)


def on_policy(args: Any) -> bool:
    """Whether every optimiser step uses samples of the policy it changes: TRL's own condition."""
    every = args.steps_per_generation * args.num_iterations
    return bool(args.gradient_accumulation_steps % every == 0)


def exact_steps(objective: Objective, args: Any) -> bool:
    """Whether a batch takes several optimiser steps and the objective has an off-policy form."""
    return not on_policy(args) and objective.takes_log_ratio and objective.off_policy != "none"


def _errors(objective: Objective, args: Any) -> Iterator[str]:
    """Settings under which the update is not the objective's gradient at all."""
    aggregation, text = args.multi_objective_aggregation, objective.text
    if args.loss_type == "dr_grpo" and args.max_completion_length is None:
        yield "loss_type 'dr_grpo' divides by max_completion_length, got None: give it, or 'luspo'"
    if args.scale_rewards == "batch":
        yield (
            "scale_rewards='batch' divides by the standard deviation of the whole batch, but the "
            f"scale belongs to the objective ({text}): leave scale_rewards out, or choose a "
            "normalised objective such as passk-training@8 or grpo"
        )
    if aggregation != "sum_then_normalize":
        yield (
            f"multi_objective_aggregation={aggregation!r} standardises each reward inside its "
            "group before they are added, and the best of k by such a sum is not the best of k by "
            "reward: use 'sum_then_normalize' with reward_weights"
        )
    if exact_steps(objective, args):
        for error in [*_split_groups(args), *_inexact(objective, args)]:
            yield f"objective {text} with several optimiser steps per batch: {error}"
    elif not on_policy(args) and needs_sibling_ratios(objective) and objective.off_policy != "none":
        yield (
            f"objective {text} has no off-policy form, and num_iterations = "
            f"{args.num_iterations} with steps_per_generation = {args.steps_per_generation} takes "
            "several optimiser steps per batch (gradient_accumulation_steps = "
            f"{args.gradient_accumulation_steps}): {ONE_STEP}, or choose max@k, pass@k or mean; "
            "bestofk.objective(..., off_policy='none') accepts TRL's clipped loss, which is biased"
        )


def _split_groups(args: Any) -> Iterator[str]:
    """Several steps per batch: each must have whole groups of one batch."""
    accumulated, n = args.gradient_accumulation_steps, args.num_generations
    rows = args.per_device_train_batch_size * accumulated
    if args.steps_per_generation % accumulated:
        yield (
            f"each must be a part of one batch, but steps_per_generation = "
            f"{args.steps_per_generation} is not a multiple of gradient_accumulation_steps = "
            f"{accumulated}; change one of them, or {ONE_STEP}"
        )
    if rows % n:
        yield (
            "each must have whole groups on each process, but per_device_train_batch_size = "
            f"{args.per_device_train_batch_size} times gradient_accumulation_steps = {accumulated} "
            f"is {rows} rows, not a multiple of num_generations = {n}; change one of them, or "
            f"{ONE_STEP}"
        )


def _inexact(objective: Objective, args: Any) -> Iterator[str]:
    """Settings of the loss that bias the update: errors with several steps, else warnings."""
    threshold, quantile = args.off_policy_mask_threshold, args.top_entropy_quantile
    if args.loss_type in BIASED:
        unbiased = " or ".join(map(repr, UNBIASED))
        yield f"loss_type={args.loss_type!r} {BIASED[args.loss_type]}; choose {unbiased}"
    if threshold is not None:
        yield (
            f"off_policy_mask_threshold={threshold} leaves samples of negative advantage out of "
            "the loss; leave it out"
        )
    if quantile < 1.0:
        yield f"top_entropy_quantile={quantile} leaves tokens out of the loss; set it to 1.0"
    if args.use_vllm and args.vllm_importance_sampling_correction and objective.k > 1:
        yield (
            "vllm_importance_sampling_correction=True multiplies the loss with each sample's own "
            f"ratio, and {objective.text} would need its siblings' too; set it to False, and watch "
            "that sampler and learner agree"
        )


def _biasing(objective: Objective, args: Any) -> Iterator[str]:
    """Options that were chosen and make the update a biased one, each by name."""
    yield from _inexact(objective, args)
    for name, neutral in NEUTRAL.items():
        value = getattr(args, name)
        if value not in (neutral, None, {}):
            yield f"{name}={value} changes what is sampled, and TRL's loss assumes it does not"
    if args.num_iterations > 1 and exact_steps(objective, args):
        yield (
            f"num_iterations={args.num_iterations} reuses samples that the policy has already "
            "learnt from: one pass in mini-batches (steps_per_generation) does not"
        )


def check_scaler(ess_floor: float, args: Any) -> None:
    """Raise where the inner steps on a batch cannot end below this effective share."""
    if ess_floor and args.fp16:
        raise ValueError(
            "fp16=True: its gradient scaler does not accept an optimiser step without gradients, "
            f"so inner steps cannot end at ess_floor={ess_floor}: use bf16=True, or pass "
            "ess_floor=0 and watch effective_share"
        )


def check_trainer(trainer: type, mixin: type, *, several_steps: bool) -> list[str]:
    """Warnings about a trainer class that replaces what the advantages rely on.

    Raises:
        ValueError: several steps per batch, and the class has a loss or a splitting of its own.
    """
    result = []
    for method in ("compute_loss", "_compute_loss", "_prepare_inputs"):
        owner = next(each for each in trainer.__mro__ if each is not mixin and method in vars(each))
        name = f"{owner.__module__}.{owner.__qualname__}.{method}"
        if owner is GRPOTrainer:
            continue
        if several_steps:
            raise ValueError(
                f"{name} replaces TRL's own, and exact advantages for several optimiser steps per "
                f"batch need that: {ONE_STEP}, or put the mixin in front of GRPOTrainer itself"
            )
        if method != "_prepare_inputs":
            result.append(
                f"{name} replaces TRL's loss: the advantages are the objective's, but whether the "
                "update is its gradient depends on that loss, which is not checked"
            )
    return result


def check_model(model: nn.Module, *, several_steps: bool) -> list[str]:
    """A warning if the model has dropout.

    Raises:
        ValueError: several steps per batch: the ratio of two passes would be noise.
    """
    for rate in dropout(model):
        text = f"dropout is active in the model ({rate})"
        if several_steps:
            raise ValueError(
                f"{text}: the ratio of two passes over a completion would be noise, and several "
                f"optimiser steps per batch need it; {NO_DROPOUT}"
            )
        return [f"{text}: samples and gradient come from different random networks; {NO_DROPOUT}"]
    return []


def check_data(arguments: Mapping[str, Any]) -> list[str]:
    """A warning where environments get no data, so that samples of a group share no problem."""
    if arguments.get("environment_factory") is None or arguments.get("train_dataset") is not None:
        return []
    return [
        "environment_factory without train_dataset: reset() does not know which samples form a "
        "group, and they must be of one problem, hidden parts included: give train_dataset a row "
        "for each problem, which reset() takes"
    ]


def dropout(model: nn.Module) -> Iterator[str]:
    """Every dropout rate above 0: modules, and rates that attention layers keep as numbers."""
    for name, module in model.named_modules():
        kind = isinstance(module, nn.modules.dropout._DropoutNd)
        for key, value in vars(module).items():
            if ((kind and key == "p") or "drop" in key) and isinstance(value, float) and value > 0:
                yield f"{name}.{key} = {value}"
