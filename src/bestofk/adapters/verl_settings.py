"""What verl's settings mean for an objective. Pure: a configuration comes in, sentences go out.

With `policy_loss.loss_mode=bestofk` every optimiser step gets exact off-policy weights. With any
other loss the weights are those of samples that were just drawn: one optimiser step per batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from bestofk.adapters.inner_steps import needs_sibling_ratios
from bestofk.objectives import Objective, objective

NAME = "bestofk"
MODULE = "bestofk.adapters.verl"
FORMS = ("off_policy", "truncate", "trust_region", "self_normalise", "clamp", "ess_floor")
OWN = ("objective", "passing", "ess_floor")
"""Entries of `algorithm.bestofk` that are not options of `bestofk.objective`."""
ESS_FLOOR = 0.5
"""Inner steps on a batch end below this effective share, unless `algorithm.bestofk.ess_floor`."""
ACTOR, ALGORITHM, ROLLOUT = "actor_rollout_ref.actor", "algorithm", "actor_rollout_ref.rollout"
WITHOUT_LENGTHS = ("seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum")
LENGTHS = (
    f"{ACTOR}.loss_agg_mode={{}} weighs a sample by sampled lengths; set it to seq-mean-token-sum, "
    "or to seq-mean-token-sum-norm with actor.loss_scale_factor"
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
    if "entropy" in built.needs:
        raise ValueError(
            f"objective {built} needs entropy, which verl does not give: choose another design"
        )
    return built


def ess_floor_of(options: Mapping[str, Any]) -> float:
    """The effective share below which the inner steps on a batch end.

    Raises:
        ValueError: not a number in [0, 1].
    """
    floor = options.get("ess_floor", ESS_FLOOR)
    if not isinstance(floor, int | float) or not 0 <= floor <= 1:
        raise ValueError(
            f"algorithm.bestofk.ess_floor={floor} is a share of the samples, in [0, 1]; 0 never "
            "ends the inner steps on a batch"
        )
    return float(floor)


def exact_loss(config: Any) -> bool:
    """Whether optimiser steps get exact off-policy weights."""
    return bool(config.actor_rollout_ref.actor.policy_loss.loss_mode == NAME)


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
    built = chosen(config.algorithm)
    ess_floor_of(options_of(config.algorithm))
    n = config.actor_rollout_ref.rollout.n
    try:
        built.require_samples(n)
    except ValueError as error:
        raise ValueError(f"{ROLLOUT}.n={n}: {error}") from error
    for error_ in _exact_errors(config, built) if exact_loss(config) else _errors(config, built):
        raise ValueError(error_)
    return built, list(cautions(config, built))


def _errors(config: Any, objective: Objective) -> Iterator[str]:
    """Weights of fresh samples, and a loss that is not ours."""
    steps, actor = steps_per_batch(config), config.actor_rollout_ref.actor
    for name in FORMS:
        value = options_of(config.algorithm).get(name)
        if value is not None and not (name == "off_policy" and value == "none"):
            yield (
                f"algorithm.bestofk.{name}={value} acts on ratios that the loss "
                f"{actor.policy_loss.loss_mode!r} does not give: leave it out, or set "
                f"{ACTOR}.policy_loss.loss_mode=bestofk"
            )
    if steps > 1 and needs_sibling_ratios(objective) and objective.off_policy != "none":
        exact = (
            f"or set {ACTOR}.policy_loss.loss_mode=bestofk; " if objective.takes_log_ratio else ""
        )
        yield (
            f"verl takes {steps} optimiser steps per batch (data.train_batch_size="
            f"{config.data.train_batch_size}, {ACTOR}.ppo_mini_batch_size="
            f"{actor.ppo_mini_batch_size}, ppo_epochs={actor.ppo_epochs}), and the weights of "
            f"{objective} are those of the first: set ppo_mini_batch_size to train_batch_size and "
            f"ppo_epochs=1, {exact}+algorithm.bestofk.off_policy=none accepts the clipped loss"
        )


def _exact_errors(config: Any, objective: Objective) -> Iterator[str]:
    """What would keep the weights of an optimiser step from being exact."""
    actor, why = config.actor_rollout_ref.actor, f"{ACTOR}.policy_loss.loss_mode=bestofk"
    batch, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    correction = config.algorithm.get("rollout_correction") or {}
    ulysses = max(
        actor.get("ulysses_sequence_parallel_size", 1),
        (actor.get("fsdp_config") or {}).get("ulysses_sequence_parallel_size", 1),
    )
    if not objective.takes_log_ratio or objective.off_policy == "none":
        form = "off_policy=none" if objective.takes_log_ratio else "no off-policy form"
        remedy = "set loss_mode=vanilla, or choose max@k or mean"
        yield f"{why}: objective {objective} has {form}; {remedy}"
    rules = [
        (batch % mini, f"data.train_batch_size={batch} is not a multiple of {ACTOR}."
         f"ppo_mini_batch_size={mini}, so groups would not stay whole; change one of them"),
        (actor.shuffle, f"{ACTOR}.shuffle=True scatters groups; set it to False"),
        (_by_length(actor), LENGTHS.format(actor.loss_agg_mode)),
        (correction.get("rollout_is"), f"algorithm.rollout_correction.rollout_is="
         f"{correction.get('rollout_is')} multiplies the loss with each sample's own ratio; set it "
         "to null"),
        (correction.get("bypass_mode"), "algorithm.rollout_correction.bypass_mode=True replaces "
         "the learner's old log-probabilities; set it to False"),
        (config.algorithm.use_kl_in_reward, "algorithm.use_kl_in_reward=True makes the penalty a "
         f"part of what is maximised over k; use {ACTOR}.use_kl_loss"),
        (config.trainer.v1.trainer_mode != "sync", "trainer.v1.trainer_mode="
         f"{config.trainer.v1.trainer_mode} is not supported; set it to sync"),
        (actor.strategy not in ("fsdp", "fsdp2"), f"{ACTOR}.strategy={actor.strategy} is not "
         "supported; set it to fsdp2"),
        (ulysses > 1, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size={ulysses} is not "
         "supported; set it to 1"),
    ]  # fmt: skip
    for wrong, sentence in rules:
        if wrong:
            yield f"{why}: {sentence}"


def cautions(config: Any, objective: Objective) -> Iterator[str]:
    """Settings that make the update a biased one, each by name."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    correction = config.algorithm.get("rollout_correction") or {}
    if _by_length(actor):
        yield LENGTHS.format(actor.loss_agg_mode)
    for name, neutral in {"top_p": (1, 1.0), "top_k": (-1, 0)}.items():
        if rollout[name] not in neutral:
            yield (
                f"{ROLLOUT}.{name}={rollout[name]} changes what is sampled, and the learner "
                f"assumes it does not; set it to {neutral[0]}"
            )
    if config.algorithm.use_kl_in_reward:
        yield (
            "algorithm.use_kl_in_reward=True makes the penalty a part of what is maximised over "
            f"k; use {ACTOR}.use_kl_loss"
        )
    if (config.algorithm.get("filter_groups") or {}).get("enable"):
        yield "algorithm.filter_groups.enable=True changes how often each prompt counts"
    if correction.get("rollout_is") and objective.k > 1:
        yield (
            f"algorithm.rollout_correction.rollout_is={correction.get('rollout_is')} corrects with "
            f"each sample's own ratio, and {objective} would need its siblings' too"
        )
    if exact_loss(config) and actor.ppo_epochs > 1:
        yield (
            f"{ACTOR}.ppo_epochs={actor.ppo_epochs} reuses samples that the policy has already "
            "learnt from; one pass in mini-batches (ppo_mini_batch_size) is exact"
        )
    if steps_per_batch(config) > 1 and not exact_loss(config):
        yield (
            f"verl takes {steps_per_batch(config)} optimiser steps per batch, and the weights are "
            "those of the first"
        )


def _by_length(actor: Any) -> bool:
    unscaled = actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None
    return bool(actor.loss_agg_mode not in WITHOUT_LENGTHS or unscaled)
