"""Everything that can be refused before a model is loaded, is."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from bestofk.common import unknown
from bestofk.config import Config, differences, leaves
from bestofk.objectives import Objective, objective
from bestofk.sampling.openai_wire import local

SECRET = re.compile(r"(api_?key|secret|passw(or)?d|credentials?|(^|_)token)$", re.IGNORECASE)


def check(config: Config) -> Objective:
    """The run's objective, when the config makes sense.

    Raises:
        ValueError: the rule that is broken, the value, and the way out.
    """
    _numbers(config)
    _secrets(config)
    goal = make_objective(config)
    goal.require_samples(config.sampling.samples_per_prompt)
    _loss(config, goal)
    if config.sampling.refill and "entropy" in goal.needs:
        raise ValueError(
            f"objective {goal.text} ranks the whole batch by entropy before a group has weights: "
            f"nothing can be refilled: sampling.refill is 0, got {config.sampling.refill}"
        )
    _engine(config)
    _evaluation(config)
    _trackers(config)
    return goal


def check_installed(config: Config) -> None:
    """Refuse a sampler or a tracker that is not here; a dry run may name it."""
    asked = config.sampling
    if asked.engine == "group":
        raise ValueError(
            "sampling.engine = 'group' is not in this version; 'transformers' works with every "
            "model: --sampling.engine transformers"
        )
    needed = "httpx" if asked.server else "vllm"
    if asked.engine == "vllm" and importlib.util.find_spec(needed) is None:
        raise ValueError(
            f"sampling.engine = 'vllm' needs {needed}: pip install 'bestofk[vllm,api]'; on CPU, "
            "see docs/adapters/vllm.md"
        )
    for name in config.run.trackers:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"run.trackers asks for {name}: pip install 'bestofk[{name}]'")


def make_objective(config: Config) -> Objective:
    """The objective by its string, with its options and its off-policy form."""
    off, options = config.off_policy, dict(config.objective_options)
    for name in ("off_policy", "truncate", "self_normalise", "clamp"):
        if name in options:
            place = "form" if name == "off_policy" else name
            raise ValueError(f"objective_options.{name} has a place of its own: off_policy.{place}")
    form: Any = config.off_policy_form
    return objective(
        config.objective,
        off_policy=form,
        truncate=off.truncate,
        self_normalise=off.self_normalise,
        clamp=off.clamp,
        **options,
    )


_AT_LEAST_ONE = (
    "sampling.prompts_per_step", "sampling.samples_per_prompt", "sampling.max_new_tokens",
    "sampling.batch_size", "off_policy.passes", "off_policy.mini_batches", "run.steps",
    "run.checkpoint_every", "run.keep_last", "optimiser.tokens_per_micro_batch",
    "evaluation.prompts", "evaluation.samples_per_prompt",
)  # fmt: skip
_POSITIVE = ("sampling.temperature", "optimiser.learning_rate", "optimiser.epsilon",
             "optimiser.stop_grad_norm", "run.samples_megabytes")  # fmt: skip
_NOT_NEGATIVE = (
    "sampling.top_k", "sampling.refill", "loss.clip_low", "loss.clip_high", "loss.kl",
    "loss.entropy_bonus", "optimiser.warmup_steps", "optimiser.weight_decay",
    "optimiser.max_grad_norm", "evaluation.every", "model.lora_rank", "model.lora_alpha",
    "run.seed",
)  # fmt: skip
_SHARES = ("sampling.top_p", "task.unscored_share", "optimiser.beta1", "optimiser.beta2")


def _numbers(config: Config) -> None:
    values = dict(leaves(config))
    rules = [(_AT_LEAST_ONE, "at least 1", lambda v: v >= 1),
             (_POSITIVE, "above 0", lambda v: v > 0),
             (_NOT_NEGATIVE, "0 or more", lambda v: v >= 0),
             (_SHARES, "between 0 and 1", lambda v: 0 <= v <= 1)]  # fmt: skip
    for names, rule, holds in rules:
        for name in names:
            if not holds(values[name]):
                raise ValueError(f"{name} is {rule}, got {values[name]}")
    prompts, parts = config.sampling.prompts_per_step, config.off_policy.mini_batches
    if prompts % parts:
        raise ValueError(
            f"off_policy.mini_batches are of equal size and whole groups: {parts} does not divide "
            f"sampling.prompts_per_step = {prompts}"
        )


def _secrets(config: Config) -> None:
    """A run's folder is shown around: it holds no secrets, so neither does the config."""
    for name, value in leaves(config):
        if SECRET.search(name.rpartition(".")[2]) and isinstance(value, str):
            raise ValueError(
                f"{name} looks like a secret, and a config is kept in the run's folder: put it "
                "into the environment, where the libraries look for it (HF_TOKEN, WANDB_API_KEY, …)"
            )


def _loss(config: Config, goal: Objective) -> None:
    loss, off, sampling = config.loss, config.off_policy, config.sampling
    truncated = sampling.top_p < 1 or sampling.top_k > 0
    if loss.name == "exact":
        if loss.normaliser != "none":
            raise ValueError(
                f"the exact loss has no length normaliser, got loss.normaliser = "
                f"{loss.normaliser!r}: use loss.name = 'clipped', or normaliser = 'none'"
            )
        if truncated:
            raise ValueError(
                f"the exact loss assumes samples from the whole distribution, got top_p = "
                f"{sampling.top_p:g}, top_k = {sampling.top_k}: take both off, or use the clipped "
                "loss with off_policy.correct_sampler = true"
            )
        weighed = config.inner_steps > 1 or off.correct_sampler
        if weighed and config.off_policy_form != "none" and not goal.takes_log_ratio:
            raise ValueError(
                f"objective {goal.text} has no exact off-policy form, and off_policy asks for "
                f"{config.inner_steps} optimiser steps per batch: use loss.name = 'clipped', one "
                "step per batch, or max@k, pass@k or mean"
            )
    else:
        if off.form not in (None, "none"):
            raise ValueError(
                f"the clipped loss has its own ratios and takes on-policy weights, got "
                f"off_policy.form = {off.form!r}: the two are never mixed; use loss.name = 'exact'"
            )
        if truncated and not off.correct_sampler:
            raise ValueError(
                f"top_p = {sampling.top_p:g}, top_k = {sampling.top_k} change what is sampled, and "
                "the learner assumes they do not: set off_policy.correct_sampler = true"
            )


def _engine(config: Config) -> None:
    asked = config.sampling
    if asked.engine != "vllm":
        for name in ("server", "engine_options", "agreement"):
            if getattr(asked, name):
                raise ValueError(
                    f"sampling.{name} is for sampling.engine = 'vllm', got {asked.engine!r}"
                )
        return
    if asked.server:
        local(asked.server)
        if asked.engine_options:
            raise ValueError(
                "sampling.engine_options are for the engine in each process; those of "
                f"{asked.server} are given where it is started"
            )
    if asked.agreement is not None and asked.agreement <= 0:
        raise ValueError(f"sampling.agreement is above 0, got {asked.agreement}")


def cautions(goal: Objective) -> list[str]:
    """What a user should hear once, before the run."""
    said = [f"{term.text}: {term.entry.caution}" for term in goal.terms if term.entry.caution]
    if not goal.unbiased:
        said.append(f"{goal.text} is normalised: its weights are not unbiased for a gradient")
    return said


def _evaluation(config: Config) -> None:
    asked = config.evaluation
    if not asked.every:
        return
    if not asked.ks or min(asked.ks) < 1 or max(asked.ks) > asked.samples_per_prompt:
        raise ValueError(
            f"evaluation.ks lie between 1 and evaluation.samples_per_prompt = "
            f"{asked.samples_per_prompt}, got {list(asked.ks)}"
        )
    known = [f"{name}@{k}" for name in ("max", "pass") for k in asked.ks]
    if asked.metric not in known:
        raise ValueError(f"evaluation.metric is one of {', '.join(known)}, got {asked.metric!r}")


TRACKERS = ("tensorboard", "wandb", "trackio")


def _trackers(config: Config) -> None:
    for name in config.run.trackers:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)


def check_resumed(old: Config, new: Config) -> None:
    """Refuse to go on with a config under which the steps already taken would have differed."""
    changed = differences(old, new)
    depends = old.optimiser.schedule != "constant" or "progress" in make_objective(old).needs
    if depends and old.run.steps != new.run.steps:
        changed.append(
            f"run.steps: {old.run.steps} → {new.run.steps} (the learning rate or the objective "
            "depends on the share of the run done)"
        )
    if changed:
        raise ValueError(
            "the config changed since the run was started, and a resumed run must equal one never "
            f"stopped: {'; '.join(changed)}; change it back, or start a run of its own"
        )
