"""Settings that cannot work together stop a run before a model is loaded; some get a note."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator, Mapping
from os.path import exists
from typing import Any, cast

from bestofk.config import (
    Config,
    EvaluationSection,
    OffPolicySection,
    SamplingSection,
    differences,
    leaves,
)
from bestofk.evaluation import Metric, plan
from bestofk.evaluation.per_problem import check_metric
from bestofk.evaluation.verdict_words import metric_at
from bestofk.learning.settings import Loss, usual_rate
from bestofk.objectives import Objective, objective
from bestofk.objectives.options import INPUTS
from bestofk.rewards import load_function
from bestofk.sampling.openai_wire import local
from bestofk.tasks import TASKS

SECRET = re.compile(r"(api_?key|secret|passw(or)?d|credentials?|(^|_)token)$", re.IGNORECASE)
FAR = 10.0
"""A learning rate so many times the usual one is worth a word."""


def check(config: Config) -> Objective:
    """The run's objective, when the config makes sense. Bounds of fields are checked before.

    Raises:
        ValueError: the rule that is broken, the value, and the way out.
    """
    objective = make_objective(config.objective, config.objective_options, config.loss.name)
    objective.require_samples(config.sampling.samples_per_prompt)
    if config.sampling.server:
        local(config.sampling.server)
    _check_sections(config)
    _check_batches(config, objective)
    _check_ratios(config, objective)
    return objective


def _check_sections(config: Config) -> None:
    """What settings of a section need of each other."""
    model, sampling = config.model, config.sampling
    options = model.advanced
    zone, limit = config.task.advanced.overlong_tokens, sampling.max_new_tokens
    for name, value in leaves(config):
        if SECRET.search(name.rpartition(".")[2]) and isinstance(value, str):
            raise ValueError(
                f"{name} looks like a secret, and a config is kept in the run's folder: put it "
                "into the environment, where the libraries look for it (HF_TOKEN, WANDB_API_KEY, …)"
            )
    of_lora = options.lora_alpha, options.lora_targets, options.lora_nf4, options.lora_fp8
    if not model.lora_rank and any(of_lora):
        raise ValueError(
            "model.advanced.lora_alpha, lora_targets, lora_nf4 and lora_fp8 belong to LoRA, and "
            "model.lora_rank = 0 trains every weight: set model.lora_rank, for example 16"
        )
    if options.lora_nf4 + options.lora_fp8 + options.fsdp > 1:
        raise ValueError(
            "model.advanced.lora_nf4 holds the weights in 4 bits, lora_fp8 in 8, and "
            "model.advanced.fsdp can share out neither over processes: leave one of them out"
        )
    if options.lora_fp8 and (model.precision != "bf16" or sampling.server):
        raise ValueError(
            "with model.advanced.lora_fp8 sampler and learner compute in FP8 and bf16, got "
            f"model.precision = {model.precision!r}, sampling.server = {sampling.server!r}: set "
            "model.precision = 'bf16' and leave sampling.server out"
        )
    if not sampling.temperature:
        raise ValueError("sampling.temperature is above 0 in training, got 0")
    if sampling.server and sampling.engine != "vllm":
        raise ValueError(
            f"sampling.server is for sampling.engine = 'vllm', got {sampling.engine!r}"
        )
    if sampling.engine == "vllm" and not sampling.server:
        raise ValueError(
            "sampling.engine = 'vllm' draws from a server that you start: set sampling.server, for "
            "example 'http://127.0.0.1:8000'; --dry-run prints the command that starts it"
        )
    if zone > limit:
        raise ValueError(
            f"task.advanced.overlong_tokens = {zone} is the last part of sampling.max_new_tokens = "
            f"{limit}, so it cannot be longer: every completion would be penalised; lower it"
        )
    for name, source in config.evaluation.sets.items():
        if not re.fullmatch(r"[\w.-]+", name) or name == "final":
            raise ValueError(
                "evaluation.sets names folders and metrics, by letters, digits, - and _ (and not "
                f"final), got {name!r}"
            )
        rows = isinstance(source, str) and (re.search(r"[./:]", source) or exists(source))
        if not rows and source not in TASKS:
            raise ValueError(
                f"evaluation.sets.{name} is a task (bestofk tasks lists them), or a source of rows "
                f"such as 'aime.jsonl' or 'hub:owner/name'; got {source!r}"
            )


def _check_batches(config: Config, objective: Objective) -> None:
    """What the batches of a run need."""
    off, refill = config.off_policy, config.sampling.refill
    prompts = config.sampling.prompts_per_step
    if prompts % off.mini_batches:
        raise ValueError(
            f"off_policy.mini_batches are of equal size and whole groups: {off.mini_batches} does "
            f"not divide sampling.prompts_per_step = {prompts}"
        )
    if refill and "entropy" in objective.needs:
        raise ValueError(
            f"objective {objective.text} ranks the whole batch by entropy before a group has "
            f"weights, so groups cannot be refilled: set sampling.refill = 0, got {refill}"
        )
    if refill and off.ahead:
        raise ValueError(
            f"off_policy.ahead = {off.ahead} fixes the prompts of a batch before the batches in "
            "front of it are judged, and sampling.refill takes more prompts by their verdicts: set "
            f"sampling.refill = 0, got {refill}"
        )
    if config.sampling.server and off.ahead and not off.correct_sampler:
        raise ValueError(
            f"off_policy.ahead = {off.ahead} with sampling.server draws while the learner works, "
            "so ratios are measured against the server's log-probs: set off_policy.correct_sampler "
            "= true"
        )


def _check_ratios(config: Config, objective: Objective) -> None:
    """What the loss and the objective need of the samples."""
    loss, off, sampling = config.loss, config.off_policy, config.sampling
    exact, form, truncate = loss.name == "exact", objective.off_policy, objective.truncate
    truncated = sampling.top_p < 1 or sampling.top_k > 0
    distribution = f"top_p = {sampling.top_p:g}, top_k = {sampling.top_k}"
    uses_ratios = off.inner_steps > 1 or off.correct_sampler or off.ahead > 0
    if exact and truncated:
        raise ValueError(
            f"the exact loss assumes samples from the whole distribution, got {distribution}: "
            "leave both out, or use the clipped loss with off_policy.correct_sampler = true"
        )
    if exact and uses_ratios and form != "none" and not objective.takes_log_ratio:
        raise ValueError(
            f"objective {objective.text} has no exact off-policy form, and off_policy sets "
            f"{off.inner_steps} optimiser steps per batch, {off.ahead} batches ahead: use "
            "loss.name = 'clipped', one step per batch and ahead = 0, or max@k, pass@k or mean"
        )
    if not exact and form != "none":
        raise ValueError(
            f"the {loss.name} loss has its own ratios and takes on-policy weights, got "
            f"objective_options.off_policy = {form!r}: the two are never mixed; use loss.name = "
            "'exact'"
        )
    if not exact and truncated and not off.correct_sampler:
        raise ValueError(
            f"{distribution} change the sampling distribution, and the learner assumes they do "
            "not: set off_policy.correct_sampler = true"
        )
    if truncate is not None and truncate <= 0:
        raise ValueError(
            f"objective_options.truncate is above 0 in training, got {truncate}: it is the largest "
            "log-ratio, and at 0 or below it also changes samples whose probability did not"
        )


def check_installed(config: Config) -> None:
    """Raise for a sampler or a tracker that is not installed; a dry run may name it."""
    if config.sampling.server and importlib.util.find_spec("httpx") is None:
        raise ValueError(
            "sampling.engine = 'vllm' needs httpx: pip install 'bestofk[api]'; the server needs "
            "vLLM, see docs/adapters/vllm.md"
        )
    for name in config.run.trackers:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"run.trackers names {name}: pip install 'bestofk[{name}]'")


def make_objective(text: str, options: Mapping[str, Any], loss: str) -> Objective:
    """The objective by its string, with its options; weights by ratio with the exact loss only.

    `value` of subsets@k is a function, which a recipe names: "package.module:name", "file.py:name".
    """
    form = "exact" if loss == "exact" else "none"
    for name in options.keys() & {*INPUTS, "trust_region"}:
        way = "set off_policy.trust_region" if name == "trust_region" else "leave it out"
        raise ValueError(
            f"objective_options.{name} is not an option of the objective, the run itself gives it "
            f"at every step: {way}"
        )
    functions = {"value": load_function(options["value"], "function")} if "value" in options else {}
    return objective(text, **{"off_policy": form, **options, **functions})


ALWAYS_SHOWN = ("max@k", "pass@k", "subsets@k")
"""Metrics of every evaluation; the values of subsets are known to their objective alone."""


def metrics_of(section: EvaluationSection, objective: Objective) -> list[Metric]:
    """The metrics to evaluate beside pass@k and max@k: the objective's own first."""
    own = [term.metric for term in reversed(objective.terms)]
    for each in section.metrics:
        check_metric(each)
        if each in ("mean", "subsets@k"):
            why = "it is max@1" if each == "mean" else "bestofk eval measures it, with --value"
            raise ValueError(f"evaluation.metrics cannot have {each}: {why}")
        if each.startswith("retry") and section.price is None and each not in own:
            raise ValueError(
                f"evaluation.metrics has {each}, whose price is not known: set evaluation.price to "
                "what one draw (with :tokens, one token) costs in reward"
            )
    names = dict.fromkeys([*own, *section.metrics])
    return [cast(Metric, name) for name in names if name not in ALWAYS_SHOWN]


def best_metric(evaluation: EvaluationSection, objective: Objective) -> str:
    """The metric that picks the best checkpoint."""
    ks, stated_metric = evaluation.ks, evaluation.best_by
    if stated_metric is None:
        own = [term.metric for term in objective.terms if term.metric not in ALWAYS_SHOWN]
        name = own[-1] if own else "max@k"
        return metric_at(name, max(k for k in ks if k <= max(objective.k, 1)))
    shown = dict.fromkeys((*metrics_of(evaluation, objective), "max@k", "pass@k"))
    names = [metric_at(name, k) for name in shown for k in ks]
    if stated_metric not in names and evaluation.every:
        raise ValueError(f"evaluation.best_by is one of {', '.join(names)}, got {stated_metric!r}")
    return stated_metric


def claim_of_run(objective: Objective, loss: Loss, off: OffPolicySection) -> tuple[str, str]:
    """What the expected update of a run is (exact, scaled or biased), and why."""
    if objective.claim == "biased":
        normalised = any(term.entry.claim == "biased" for term in objective.terms)
        return "biased", (
            "its weights are normalised" if normalised else "a term of the mixture is scaled"
        )
    if loss.name != "exact":
        return "biased", f"loss.name = {loss.name}"
    if off.passes > 1:
        return "biased", f"off_policy.passes = {off.passes} reuse samples already learnt from"
    off_policy = off.inner_steps > 1 or off.ahead > 0
    if off_policy and objective.off_policy_claim == "biased":
        return "biased", "its off-policy form is bounded or approximate"
    if off_policy and off.trust_region is not None:
        return "biased", "off_policy.trust_region masks weights"
    if objective.claim == "scaled":
        return "scaled", "a constant multiple of the gradient"
    return "exact", "unbiased for the gradient"


def cautions(config: Config, objective: Objective, weights: int | None = None) -> list[str]:
    """What a user should read once, before the run."""
    notes = [f"{t.text}: {t.entry.caution}" for t in objective.terms if t.entry.caution]
    claim, why = claim_of_run(objective, config.loss, config.off_policy)
    if claim == "biased":
        notes.append(f"the expected update is biased for the gradient of {objective.text}: {why}")
    total, warmup = config.run.steps * config.off_policy.inner_steps, config.optimizer.warmup_steps
    if warmup >= total:
        decay = config.optimizer.schedule
        notes.append(
            f"optimizer.warmup_steps = {warmup} and the run has {total} optimiser steps: the "
            "learning rate does not reach optimizer.learning_rate"
            + (f", and the {decay} schedule never starts" if decay != "constant" else "")
        )
    rate, adapters = config.optimizer.learning_rate, bool(config.model.lora_rank)
    by_size = usual_rate(weights, adapters=adapters) if weights else math.inf
    if rate and rate > FAR * by_size:
        notes.append(
            f"optimizer.learning_rate = {rate:g} is {rate / by_size:.0f} times what is usual for "
            f"{weights:,} weights: leave it out for {by_size:g}"
        )
    if config.off_policy.ahead and not warmup:
        notes.append(
            f"off_policy.ahead = {config.off_policy.ahead} without optimizer.warmup_steps: the "
            "first steps of Adam move the policy far, and batches drawn before are worth little"
        )
    if config.evaluation.every and config.evaluation.split == config.task.split:
        notes.append(f"evaluations use the prompts trained on, those of {config.task.split!r}")
    return notes + [f"{name} has no effect: {why}" for name, why in unused(config, objective)]


def repeated_prompts(sampling: SamplingSection, prompts: int) -> list[str]:
    """A sentence where a step needs more prompts than the training split has."""
    if sampling.prompts_per_step <= prompts:
        return []
    return [
        f"sampling.prompts_per_step = {sampling.prompts_per_step} and the training split has "
        f"{prompts} prompts: a step holds some of them more than once"
    ]


EFFECT, POWER = 0.2, 0.8
"""A gain that an evaluation should show, and how surely."""


def few_problems(problems: int, k: int) -> list[str]:
    """A sentence where an evaluation on so many problems cannot show what a run gains."""
    k = min(k, 16)
    need = plan(k, power=POWER, effect=EFFECT, n=[4 * k], at=True).best.problems
    if problems >= need:
        return []
    return [
        f"an evaluation on {problems} problems can hardly show a gain of {EFFECT} in pass@{k}: "
        f"about {need} problems can ({POWER:.0%} power); give more rows, or a validation set"
    ]


def unused(config: Config, objective: Objective) -> Iterator[tuple[str, str]]:
    """Settings that differ from their defaults and that this run does not look at, and why."""
    loss, off, shown, default = config.loss, config.off_policy, config.evaluation, Config()
    on_policy = off.inner_steps == 1 and not off.correct_sampler and not off.ahead
    ratios = (
        f"with loss.name = {loss.name!r} the loss has its own ratios"
        if loss.name != "exact"
        else "there is one optimizer step per batch, so all ratios are 1"
        if on_policy
        else "objective_options.off_policy = 'none' uses no ratios"
        if objective.off_policy == "none"
        else ""
    )
    if ratios and off.trust_region is not None:
        yield "off_policy.trust_region", ratios
    for name in ("off_policy", "truncate", "self_normalise", "clamp"):
        if on_policy and loss.name == "exact" and name in config.objective_options:
            yield f"objective_options.{name}", ratios
    if loss.name == "exact" and loss.clip != default.loss.clip:
        yield "loss.clip", "the exact loss does not clip; loss.name = 'clipped' or 'gspo' does"
    if not loss.kl and loss.kl_estimator != default.loss.kl_estimator:
        yield "loss.kl_estimator", "loss.kl = 0"
    if not shown.every and shown.best_by is not None:
        yield "evaluation.best_by", "evaluation.every = 0 is never"
    stages = [any(term.entry.zero_one for term in stage.terms) for stage in objective.stages]
    if config.task.advanced.overlong_tokens and (objective.threshold is not None or all(stages)):
        yield "task.advanced.overlong_tokens", f"objective {objective.text} counts passes"


def check_resumed(old: Config, new: Config) -> None:
    """Raise where the steps already taken would have differed under the new config."""
    changed = differences(old, new)
    objective = make_objective(old.objective, old.objective_options, old.loss.name)
    depends = old.optimizer.schedule != "constant" or "progress" in objective.needs
    depends = depends or old.off_policy.ahead > 0  # nothing is drawn ahead of the last step
    if depends and old.run.steps != new.run.steps:
        changed.append(
            f"run.steps: {old.run.steps} → {new.run.steps} (the learning rate, the objective "
            "or the batches drawn ahead depend on the length of the run)"
        )
    if changed:
        raise ValueError(
            "the config changed since the run was started, and a resumed run must equal one never "
            f"stopped: {'; '.join(changed)}; change it back, or start a new run"
        )
