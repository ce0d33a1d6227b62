"""What TRL's settings mean for an objective: which are set, which get a warning, which are errors.

The update must stay the gradient that the objective's weights stand for:

    (1/B) Σ_rows A_i Σ_t ∇log π(y_it)

up to a constant factor, where A_i is made on policy (one optimiser step per batch) or from the
log-ratios of all siblings (several steps). Pure: a config comes in, another one goes out.
"""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trl import GRPOTrainer

from bestofk.adapters.inner_steps import needs_sibling_ratios
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
"""The unbiased loss type that replaces TRL's default."""


def as_objective(given: str | Objective | None, **options: Any) -> Objective:
    """The objective; `options` of `bestofk.objective` that are None are left out."""
    if given is None:
        raise ValueError(
            "objective= is needed, a string such as 'max@8' (`bestofk objectives` lists them), "
            "as an argument or as the attribute `training_objective` of the class"
        )
    options = {name: value for name, value in options.items() if value is not None}
    if not isinstance(given, Objective):
        return objective(given, **options)
    for name, value in options.items():
        raise ValueError(
            f"{name}={value} beside an Objective ({given}): give it to bestofk.objective(...)"
        )
    return given


def by_name(others: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Positional arguments after model, reward_funcs and args, by the names TRL gives them."""
    names = list(inspect.signature(GRPOTrainer.__init__).parameters)[4:]
    if len(others) > len(names):
        raise TypeError(f"GRPOTrainer takes {len(names) + 3} arguments, got {len(others) + 3}")
    given = dict(zip(names, others))
    for name in given.keys() & named.keys():
        raise TypeError(f"{name} was given twice, by position and by name")
    return given


def prepared(objective: Objective, args: Any, loss_type: str | None) -> Any:
    """A copy of the GRPOConfig under which TRL trains this objective.

    Args:
        objective: what is trained for.
        args: the user's config; it is not changed.
        loss_type: overrides TRL's option of that name. None replaces TRL's default by the unbiased
            one, and keeps any other value of `args`.

    Raises:
        ValueError: a setting would make the update something else than the objective's gradient.
    """
    objective.require_samples(args.num_generations)
    _check_rewards(objective, args)
    args = copy.copy(args)
    args.scale_rewards = "none"  # the scale of the weights is the objective's
    args.loss_type = _loss_type(args, loss_type)
    if exact_steps(objective, args):
        _check_steps(objective, args)
    else:
        _check_one_step(objective, args)
    if args.process_index == 0:
        for caution in cautions(objective, args):
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
                "loss_type is %r, which %s, instead of TRL's default %r, which %s; "
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


def exact_steps(objective: Objective, args: Any) -> bool:
    """Whether a batch takes several optimiser steps and the objective has off-policy weights."""
    return not on_policy(args) and objective.takes_log_ratio and objective.off_policy != "none"


def floor_of(ess_floor: float, args: Any, *, several_steps: bool) -> float:
    """The effective share below which the inner steps on a batch end.

    Raises:
        ValueError: not in [0, 1].
    """
    if not 0 <= ess_floor <= 1:
        raise ValueError(f"ess_floor is a share of the samples, in [0, 1], got {ess_floor}")
    if several_steps and ess_floor and args.fp16:
        if args.process_index == 0:
            warnings.warn(
                "fp16=True: its gradient scaler does not accept an optimiser step without "
                f"gradients, so inner steps do not end at ess_floor={ess_floor}; use bf16=True, "
                "or watch effective_share and pass ess_floor=0",
                ObjectiveWarning,
                stacklevel=3,
            )
        return 0.0
    return ess_floor


ONE_STEP = "take one optimiser step per batch (num_iterations=1, steps_per_generation left out)"


def _check_steps(objective: Objective, args: Any) -> None:
    """Several steps per batch: what would keep the off-policy weights from being exact."""
    accumulated, n = args.gradient_accumulation_steps, args.num_generations
    rows = args.per_device_train_batch_size * accumulated
    if args.steps_per_generation % accumulated:
        raise ValueError(
            f"objective {objective.text} off policy: every optimiser step "
            "must be a part of one batch, "
            f"but steps_per_generation = {args.steps_per_generation} is not a multiple of "
            f"gradient_accumulation_steps = {accumulated}; change one of them, or {ONE_STEP}"
        )
    if rows % n:
        raise ValueError(
            f"objective {objective.text} off policy: an optimiser step "
            "must have whole groups on each "
            f"process, but per_device_train_batch_size = {args.per_device_train_batch_size} times "
            f"gradient_accumulation_steps = {accumulated} is {rows} rows, not a multiple of "
            f"num_generations = {n}; change one of them, or {ONE_STEP}"
        )
    settings = {
        f"loss_type={args.loss_type!r}": (
            args.loss_type in BIASED,
            f"{BIASED.get(args.loss_type)}; choose {' or '.join(map(repr, UNBIASED))}",
        ),
        f"off_policy_mask_threshold={args.off_policy_mask_threshold}": (
            args.off_policy_mask_threshold is not None,
            "leaves samples of negative weight out of the loss; leave it out, or use trust_region=",
        ),
        f"top_entropy_quantile={args.top_entropy_quantile}": (
            args.top_entropy_quantile < 1.0,
            "leaves tokens out of the loss; set it to 1.0",
        ),
        "use_bias_correction_kl=True": (
            args.use_bias_correction_kl and args.beta != 0.0,
            "multiplies the KL term with ratios that this loss does not have; set it to False",
        ),
        "vllm_importance_sampling_correction=True": (
            args.use_vllm and args.vllm_importance_sampling_correction,
            "multiplies the loss with each sample's own ratio, and the weights would need its "
            "siblings' too; set it to False",
        ),
    }
    for setting, (chosen, why) in settings.items():
        if chosen:
            raise ValueError(
                f"objective {objective.text} with several optimiser steps "
                f"per batch: {setting} {why}"
            )


def _check_one_step(objective: Objective, args: Any) -> None:
    """Without log-ratios: on policy, or TRL's clipped loss."""
    forms = {
        "truncate": objective.truncate is not None,
        "trust_region": objective.trust_region is not None,
        "self_normalise": objective.self_normalise,
        f"off_policy={objective.off_policy!r}": objective.off_policy
        in ("first-order", "own-ratio"),
    }
    for name, requested in forms.items():
        if requested and on_policy(args):
            raise ValueError(
                f"objective {objective.text} with {name}: one optimiser step "
                "per batch has no ratios "
                "for it to act on; leave it out, or raise num_iterations or steps_per_generation"
            )
    if needs_sibling_ratios(objective) and objective.off_policy != "none" and not on_policy(args):
        raise ValueError(
            f"objective {objective.text} has no off-policy form, and num_iterations = "
            f"{args.num_iterations} with steps_per_generation = {args.steps_per_generation} takes "
            "several optimiser steps per batch (gradient_accumulation_steps = "
            f"{args.gradient_accumulation_steps}): {ONE_STEP}, or choose max@k, pass@k or mean; "
            "bestofk.objective(..., off_policy='none') accepts TRL's clipped loss, which is biased"
        )


def _check_rewards(objective: Objective, args: Any) -> None:
    if args.scale_rewards == "batch":
        raise ValueError(
            "scale_rewards='batch' divides by the standard deviation of the whole batch, but the "
            f"scale of the weights belongs to the objective "
            f"({objective.text}): leave scale_rewards "
            "out, or choose a normalised objective such as passk-training@8 or grpo"
        )
    if args.multi_objective_aggregation != "sum_then_normalize":
        raise ValueError(
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} standardises each "
            "reward inside its group before they are added, and the best of k by such a sum is not "
            "the best of k by reward: use 'sum_then_normalize' with reward_weights"
        )


def cautions(objective: Objective, args: Any) -> Iterator[str]:
    """Options that were chosen and make the update a biased one, each by name."""
    if args.loss_type in BIASED:
        yield (
            f"loss_type={args.loss_type!r} {BIASED[args.loss_type]}: the update is biased for the "
            f"gradient of {objective.text}; {' and '.join(map(repr, UNBIASED))} are not"
        )
    cut = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0,
           "generation_kwargs": None}  # fmt: skip
    for name, neutral in cut.items():
        value = getattr(args, name)
        if value != neutral and value is not None and value != {}:
            yield (
                f"{name}={value} changes what is sampled, and TRL's loss assumes it does not: the "
                f"update is biased for the gradient of {objective.text}"
            )
    if args.top_entropy_quantile < 1.0:
        yield (
            f"top_entropy_quantile={args.top_entropy_quantile} leaves tokens out of the loss: the "
            f"update is biased for the gradient of {objective.text}"
        )
    if args.off_policy_mask_threshold is not None:
        yield (
            f"off_policy_mask_threshold={args.off_policy_mask_threshold} leaves samples of "
            f"negative weight out of the loss: the update is biased "
            f"for the gradient of {objective.text}"
        )
    if args.num_iterations > 1 and exact_steps(objective, args):
        yield (
            f"num_iterations={args.num_iterations} reuses samples that the policy has already "
            f"learnt from: the update is biased for the gradient of {objective.text} from the "
            "second pass on; one pass in mini-batches (steps_per_generation) is not"
        )
    if args.use_vllm and args.vllm_importance_sampling_correction and objective.k > 1:
        yield (
            f"TRL corrects what vLLM and the learner differ by with each sample's own ratio; "
            f"{objective.text} would need its siblings' "
            "too: watch sampling/importance_sampling_ratio, "
            "which should stay near 1"
        )
