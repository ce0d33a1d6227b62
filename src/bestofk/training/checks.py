"""Settings that cannot work together, found before a model is loaded."""

from __future__ import annotations

import importlib.util
import math
import os
import re

from bestofk.common import unknown
from bestofk.config import Config, differences, leaves
from bestofk.objectives import Objective, objective
from bestofk.rare_settings import engine_options, model_options, run_options
from bestofk.sampling.openai_wire import local

SECRET = re.compile(r"(api_?key|secret|passw(or)?d|credentials?|(^|_)token)$", re.IGNORECASE)


def check(config: Config) -> Objective:
    """The run's objective, when the config makes sense. Bounds of fields are checked before.

    Raises:
        ValueError: the rule that is broken, the value, and the way out.
    """
    _no_secrets(config)
    model_options(config), run_options(config)
    _lora(config)
    objective = make_objective(config)
    objective.require_samples(config.sampling.samples_per_prompt)
    _loss(config, objective)
    _truncate(objective)
    _steps(config)
    if config.sampling.refill and "entropy" in objective.needs:
        raise ValueError(
            f"objective {objective.text} ranks the whole batch by entropy before a group has "
            f"weights, so groups cannot be refilled: set sampling.refill = 0, got "
            f"{config.sampling.refill}"
        )
    _engine(config)
    best_metric(config, objective)
    _trackers(config)
    return objective


def check_installed(config: Config) -> None:
    """Raise for a sampler or a tracker that is not installed; a dry run may name it."""
    needed = "httpx" if engine_options(config).server else "vllm"
    if config.sampling.engine == "vllm" and importlib.util.find_spec(needed) is None:
        raise ValueError(
            f"sampling.engine = 'vllm' needs {needed}: pip install 'bestofk[vllm,api]'; on CPU, "
            "see docs/adapters/vllm.md"
        )
    for name in config.run.trackers:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"run.trackers names {name}: pip install 'bestofk[{name}]'")


BYTES_PER_TOKEN = 80
"""Of host memory for a sampled token: its random number, its id and its log-prob as objects."""
GIB = 2.0**30


def check_memory(config: Config, processes: int = 1, room: float | None = None) -> None:
    """Raise where the tokens of one step, or of one evaluation, do not fit into this machine.

    Args:
        room: Bytes; by default the machine's memory.
    """
    have = machine_memory() if room is None else room
    requested, shown = config.sampling, config.evaluation
    drawn = {
        "a step": {
            "sampling.prompts_per_step": requested.prompts_per_step,
            "sampling.samples_per_prompt": requested.samples_per_prompt,
            "sampling.max_new_tokens": requested.max_new_tokens,
        },
        "an evaluation": {
            "evaluation.prompts": shown.prompts if shown.every else 0,
            "evaluation.samples_per_prompt": shown.samples_per_prompt,
            "sampling.max_new_tokens": requested.max_new_tokens,
        },
    }
    for what, sizes in drawn.items():
        need = math.prod(sizes.values()) * BYTES_PER_TOKEN / processes
        if need > have:
            listed = " × ".join(f"{name} = {size:,}" for name, size in sizes.items())
            largest = max(sizes, key=lambda name: sizes[name])
            raise ValueError(
                f"{what} draws up to {listed} tokens, which take about {need / GIB:,.0f} GiB of "
                f"memory, and this machine has {have / GIB:,.0f} GiB: lower {largest}"
            )


def machine_memory() -> float:
    """Bytes."""
    return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")


def make_objective(config: Config) -> Objective:
    """The objective by its string, with its options; weights by ratio with the exact loss only."""
    form = "exact" if config.loss.name == "exact" else "none"
    return objective(config.objective, **{"off_policy": form, **config.objective_options})


def best_metric(config: Config, objective: Objective) -> str:
    """The metric that picks the best checkpoint."""
    ks = config.evaluation.ks
    chosen = run_options(config).best_by
    known = [f"{name}@{k}" for name in ("max", "pass") for k in ks]
    if chosen is None:
        return f"max@{max(k for k in ks if k <= max(objective.k, 1))}"
    if chosen not in known and config.evaluation.every:
        raise ValueError(f"run.options.best_by is one of {', '.join(known)}, got {chosen!r}")
    return chosen


def _steps(config: Config) -> None:
    prompts, parts = config.sampling.prompts_per_step, config.off_policy.mini_batches
    if prompts % parts:
        raise ValueError(
            f"off_policy.mini_batches are of equal size and whole groups: {parts} does not divide "
            f"sampling.prompts_per_step = {prompts}"
        )
    if not config.sampling.temperature:
        raise ValueError("sampling.temperature is above 0 in training, got 0")


def _lora(config: Config) -> None:
    options = model_options(config)
    if not config.model.lora_rank and (options.lora_alpha or options.lora_targets):
        raise ValueError(
            "model.options.lora_alpha and lora_targets belong to LoRA, and model.lora_rank = 0 "
            "trains every weight: set model.lora_rank, for example 16"
        )


def _truncate(objective: Objective) -> None:
    if objective.truncate is not None and objective.truncate <= 0:
        raise ValueError(
            f"objective_options.truncate is above 0 in training, got {objective.truncate:g}: it is "
            "the largest log-ratio, and at 0 or below it also changes samples whose probability "
            "did not"
        )


def _no_secrets(config: Config) -> None:
    """A run's folder is shared, so its config must not hold secrets."""
    for name, value in leaves(config):
        if SECRET.search(name.rpartition(".")[2]) and isinstance(value, str):
            raise ValueError(
                f"{name} looks like a secret, and a config is kept in the run's folder: put it "
                "into the environment, where the libraries look for it (HF_TOKEN, WANDB_API_KEY, …)"
            )


def _loss(config: Config, objective: Objective) -> None:
    loss, off, sampling = config.loss, config.off_policy, config.sampling
    truncated = sampling.top_p < 1 or sampling.top_k > 0
    if loss.name == "exact":
        if truncated:
            raise ValueError(
                f"the exact loss assumes samples from the whole distribution, got top_p = "
                f"{sampling.top_p:g}, top_k = {sampling.top_k}: leave both out, or use the clipped "
                "loss with off_policy.correct_sampler = true"
            )
        uses_ratios = off.inner_steps > 1 or off.correct_sampler
        if uses_ratios and objective.off_policy != "none" and not objective.takes_log_ratio:
            raise ValueError(
                f"objective {objective.text} has no exact off-policy form, and off_policy sets "
                f"{off.inner_steps} optimiser steps per batch: use loss.name = 'clipped', one "
                "step per batch, or max@k, pass@k or mean"
            )
        return
    if objective.off_policy != "none":
        raise ValueError(
            f"the {loss.name} loss has its own ratios and takes on-policy weights, got "
            f"objective_options.off_policy = {objective.off_policy!r}: the two are never mixed; "
            "use loss.name = 'exact'"
        )
    if truncated and not off.correct_sampler:
        raise ValueError(
            f"top_p = {sampling.top_p:g}, top_k = {sampling.top_k} change the sampling "
            "distribution, and the learner assumes they do not: set off_policy.correct_sampler = "
            "true"
        )


def _engine(config: Config) -> None:
    options = engine_options(config)
    if config.sampling.engine != "vllm":
        if options.server:
            raise ValueError(
                "sampling.engine_options.server is for sampling.engine = 'vllm', got "
                f"{config.sampling.engine!r}"
            )
        return
    if options.server:
        local(options.server)
        if options.vllm:
            raise ValueError(
                f"sampling.engine_options ({', '.join(options.vllm)}) are for the engine in each "
                f"process; those of {options.server} are given where it is started"
            )


def claim_of_run(config: Config, objective: Objective) -> tuple[str, str]:
    """What the expected update of a run is (exact, scaled or biased), and why."""
    off = config.off_policy
    if objective.claim == "biased":
        return "biased", "its weights are normalised"
    if config.loss.name != "exact":
        return "biased", f"loss.name = {config.loss.name}"
    if off.passes > 1:
        return "biased", f"off_policy.passes = {off.passes} reuse samples already learnt from"
    if off.inner_steps > 1 and objective.off_policy_claim == "biased":
        return "biased", "its off-policy form is bounded or approximate"
    if off.inner_steps > 1 and off.trust_region is not None:
        return "biased", "off_policy.trust_region masks weights"
    if objective.claim == "scaled":
        return "scaled", "a constant multiple of the gradient"
    return "exact", "unbiased for the gradient"


def cautions(config: Config, objective: Objective) -> list[str]:
    """What a user should read once, before the run."""
    notes = [f"{t.text}: {t.entry.caution}" for t in objective.terms if t.entry.caution]
    claim, why = claim_of_run(config, objective)
    if claim == "biased":
        notes.append(f"the expected update is biased for the gradient of {objective.text}: {why}")
    total, warmup = config.run.steps * config.off_policy.inner_steps, config.optimizer.warmup_steps
    if warmup >= total:
        notes.append(
            f"optimizer.warmup_steps = {warmup} and the run has {total} optimiser steps: the "
            "learning rate does not reach optimizer.learning_rate"
        )
    return notes


TRACKERS = ("tensorboard", "wandb", "trackio")


def _trackers(config: Config) -> None:
    for name in config.run.trackers:
        if name not in TRACKERS:
            raise unknown("tracker", name, TRACKERS)


def check_resumed(old: Config, new: Config) -> None:
    """Raise where the steps already taken would have differed under the new config."""
    changed = differences(old, new)
    depends = old.optimizer.schedule != "constant" or "progress" in make_objective(old).needs
    if depends and old.run.steps != new.run.steps:
        changed.append(
            f"run.steps: {old.run.steps} → {new.run.steps} (the learning rate or the objective "
            "depends on the share of the run done)"
        )
    if changed:
        raise ValueError(
            "the config changed since the run was started, and a resumed run must equal one never "
            f"stopped: {'; '.join(changed)}; change it back, or start a new run"
        )
