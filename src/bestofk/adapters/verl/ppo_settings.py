"""What verl's settings mean for an objective. Pure: a configuration comes in, sentences go out.

With `policy_loss.loss_mode=bestofk` every optimiser step gets exact off-policy advantages. With any
other loss they are those of samples that were just drawn: one optimiser step per batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from bestofk.adapters.inner_steps import check_floor, check_inputs, needs_sibling_ratios
from bestofk.environments.author_class import load_environment
from bestofk.environments.limits import TurnLimits
from bestofk.objectives import Objective, objective
from bestofk.objectives.options import finite_number

NAME = "bestofk"
MODULE = "bestofk.adapters.verl.plugin"
FORMS = ("off_policy", "truncate", "trust_region", "self_normalise", "clamp", "ess_floor",
         "correct_sampler")  # fmt: skip
OWN = ("objective", "passing", "scorer", "ess_floor", "correct_sampler", "environment", "limits")
"""Entries of `algorithm.bestofk` that are not options of `bestofk.objective`."""
FLOOR, ESS_FLOOR = "algorithm.bestofk.ess_floor", 0.5
"""Inner steps on a batch end below this effective share."""
LEAST = (0, 9)
"""The first verl with the V1 trainer, which this adapter extends."""
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
WITHOUT_LENGTHS = ("seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum")
NAME_SCORER = (
    "return {'score': ..., 'NAME': ...} as the reward and add +algorithm.bestofk.scorer=NAME"
)
LEGACY = (
    f"trainer.use_v1=False chooses verl's legacy trainer, in which adv_estimator={NAME} would "
    "train without its checks, schedules and groups: set trainer.use_v1=True"
)


def options_of(algorithm: Mapping[str, Any] | None) -> dict[str, Any]:
    """The table `algorithm.bestofk`; empty if there is none."""
    table = (algorithm or {}).get(NAME)
    options = OmegaConf.to_container(table) if OmegaConf.is_config(table) else table
    if options is not None and not isinstance(options, dict):
        raise ValueError(
            f"algorithm.bestofk is a table, got {options!r}: add "
            f"+algorithm.bestofk.objective={options}"
        )
    return options or {}


def chosen(algorithm: Mapping[str, Any] | None) -> Objective:
    """The objective of `algorithm.bestofk`: `objective` and the options of `bestofk.objective`."""
    options = options_of(algorithm)
    if "objective" not in options:
        raise ValueError(
            "adv_estimator=bestofk needs an objective: add +algorithm.bestofk.objective=max@8 "
            f"(algorithm.bestofk is {options})"
        )
    named = {key: value for key, value in options.items() if key not in OWN}
    built = objective(options["objective"], **named)
    check_inputs(
        built, "verl", {"answers", "tokens", "entropy"}, options.get("scorer"), NAME_SCORER
    )
    return built


def ess_floor_of(options: Mapping[str, Any]) -> float:
    """The effective share below which the inner steps on a batch end."""
    return check_floor(options.get("ess_floor", ESS_FLOOR), FLOOR)


def check_environment(config: Any) -> None:
    """Raise a ValueError for an environment that would not be played, or cannot be loaded."""
    options = options_of(config.algorithm)
    name, loop = options.get("environment"), config.actor_rollout_ref.rollout.agent
    if name is None and loop.default_agent_loop == NAME:
        raise ValueError(
            f"{ROLLOUT}.agent.default_agent_loop={NAME} plays an environment: add "
            "+algorithm.bestofk.environment=file.py:Class"
        )
    if name is not None:
        if loop.default_agent_loop != NAME:
            raise ValueError(
                f"algorithm.bestofk.environment={name} is played by an agent loop of ours: set "
                f"{ROLLOUT}.agent.default_agent_loop={NAME}"
            )
        load_environment(name)
    TurnLimits(**options.get("limits", {}))


def exact_loss(config: Any) -> bool:
    """Whether optimiser steps get exact off-policy advantages."""
    loss = config.actor_rollout_ref.actor.get("policy_loss") or {}
    return bool(loss.get("loss_mode") == NAME)


def steps_per_batch(config: Any) -> int:
    """Optimiser steps that verl takes with the rollouts of one batch."""
    actor = config.actor_rollout_ref.actor
    return int(-(-config.data.train_batch_size // actor.ppo_mini_batch_size) * actor.ppo_epochs)


def check_settings(config: Any) -> tuple[Objective, list[str]]:
    """The objective, and a sentence for every setting that makes the update biased.

    Args:
        config: verl's whole configuration.

    Raises:
        ValueError: a setting under which the update is not the objective's gradient at all.
    """
    if config.algorithm.adv_estimator != NAME:
        loss = f", and {ACTOR}.policy_loss.loss_mode=bestofk needs it" if exact_loss(config) else ""
        raise ValueError(
            f"algorithm.adv_estimator is {config.algorithm.adv_estimator}{loss}: set it to {NAME}"
        )
    if not config.trainer.get("use_v1", True):
        raise ValueError(LEGACY)
    built = chosen(config.algorithm)
    check_environment(config)
    options = options_of(config.algorithm)
    ess_floor_of(options)
    finite_number("algorithm.bestofk.passing", options.get("passing", 1.0))
    n = config.actor_rollout_ref.rollout.n
    try:
        built.require_samples(n)
    except ValueError as error:
        raise ValueError(f"{ROLLOUT}.n={n}: {error}") from error
    inexact = list(_inexact(config, built))
    if exact_loss(config):
        sentences = [*_unsupported(config, built), *inexact]
        errors = [f"{ACTOR}.policy_loss.loss_mode=bestofk: {each}" for each in sentences]
    else:
        errors = list(_without_ratios(config, built))
    if errors:
        raise ValueError(errors[0])
    return built, [*inexact, *_biasing(config)]


def _without_ratios(config: Any, objective: Objective) -> Iterator[str]:
    """Errors where advantages are those of fresh samples, and the loss is not ours."""
    steps, actor = steps_per_batch(config), config.actor_rollout_ref.actor
    options = options_of(config.algorithm)
    for name in FORMS:
        if options.get(name) is not None and (name, options[name]) != ("off_policy", "none"):
            yield (
                f"algorithm.bestofk.{name}={options[name]} acts on ratios that the loss "
                f"{actor.policy_loss.loss_mode!r} does not give: leave it out, or set "
                f"{ACTOR}.policy_loss.loss_mode=bestofk"
            )
    if steps > 1 and needs_sibling_ratios(objective) and objective.off_policy != "none":
        exact = f"or set {ACTOR}.policy_loss.loss_mode=bestofk; "
        yield (
            f"verl takes {steps} optimiser steps per batch (data.train_batch_size="
            f"{config.data.train_batch_size}, {ACTOR}.ppo_mini_batch_size="
            f"{actor.ppo_mini_batch_size}, ppo_epochs={actor.ppo_epochs}), and the advantages of "
            f"{objective} are those of the first: set ppo_mini_batch_size to train_batch_size and "
            f"ppo_epochs=1, {exact if objective.takes_log_ratio else ''}"
            "+algorithm.bestofk.off_policy=none accepts the clipped loss"
        )


def _unsupported(config: Any, objective: Objective) -> Iterator[str]:
    """What would keep the advantages of an optimiser step from being exact."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    batch, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    sharded = actor.get("fsdp_config") or {}
    ulysses = max(each.get("ulysses_sequence_parallel_size", 1) for each in (actor, sharded))
    mode = config.trainer.v1.trainer_mode
    if not objective.takes_log_ratio or objective.off_policy == "none":
        form = "off_policy=none" if objective.takes_log_ratio else "no off-policy form"
        yield f"objective {objective} has {form}; set loss_mode=vanilla, or choose max@k or mean"
    if batch % mini:
        yield (
            f"data.train_batch_size={batch} is not a multiple of {ACTOR}.ppo_mini_batch_size="
            f"{mini}, so groups would not stay whole; change one of them"
        )
    if actor.shuffle:
        yield f"{ACTOR}.shuffle=True scatters groups; set it to False"
    if (config.algorithm.get("rollout_correction") or {}).get("bypass_mode"):
        yield (
            "algorithm.rollout_correction.bypass_mode=True replaces the learner's old "
            "log-probabilities; set it to False"
        )
    if options_of(config.algorithm).get("correct_sampler") and not rollout.calculate_log_probs:
        yield f"algorithm.bestofk.correct_sampler needs {ROLLOUT}.calculate_log_probs=True"
    if mode != "sync":
        yield f"trainer.v1.trainer_mode={mode} is not supported; set it to sync"
    if actor.strategy not in ("fsdp", "fsdp2"):
        yield f"{ACTOR}.strategy={actor.strategy} is not supported; set it to fsdp2"
    if ulysses > 1:
        name = f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"
        yield f"{name}={ulysses} is not supported; set it to 1"


def _inexact(config: Any, objective: Objective) -> Iterator[str]:
    """Settings of the loss that bias the update: errors with exact steps, else warnings."""
    actor = config.actor_rollout_ref.actor
    own_ratio = (config.algorithm.get("rollout_correction") or {}).get("rollout_is")
    unscaled = actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None
    if actor.loss_agg_mode not in WITHOUT_LENGTHS or unscaled:
        yield (
            f"{ACTOR}.loss_agg_mode={actor.loss_agg_mode} weighs a sample by sampled lengths; set "
            "it to seq-mean-token-sum, or to seq-mean-token-sum-norm with actor.loss_scale_factor"
        )
    if config.algorithm.use_kl_in_reward:
        yield (
            "algorithm.use_kl_in_reward=True makes the penalty a part of what is maximised over k; "
            f"use {ACTOR}.use_kl_loss"
        )
    if own_ratio and (objective.k > 1 or exact_loss(config)):
        yield (
            f"algorithm.rollout_correction.rollout_is={own_ratio} multiplies the loss with each "
            f"sample's own ratio, and {objective} would need its siblings' too; set it to null"
        )


def _biasing(config: Any) -> Iterator[str]:
    """Further settings that make the update a biased one, each by name."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    steps, exact = steps_per_batch(config), exact_loss(config)
    for name, neutral in (("top_p", (1, 1.0)), ("top_k", (-1, 0))):
        if rollout[name] not in neutral:
            yield (
                f"{ROLLOUT}.{name}={rollout[name]} changes what is sampled, and the learner "
                f"assumes it does not; set it to {neutral[0]}"
            )
    if (config.algorithm.get("filter_groups") or {}).get("enable"):
        yield "algorithm.filter_groups.enable=True changes how often each prompt counts"
    if exact and actor.ppo_epochs > 1:
        yield (
            f"{ACTOR}.ppo_epochs={actor.ppo_epochs} reuses samples that the policy has already "
            "learnt from; one pass in mini-batches (ppo_mini_batch_size) is exact"
        )
    if steps > 1 and not exact:
        yield (
            f"verl takes {steps} optimiser steps per batch, and the advantages are those of the "
            "first"
        )
