"""The task of a run and the function that judges it; needs no model, and nothing that one needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bestofk import tasks
from bestofk.config import Config
from bestofk.rare_settings import run_options
from bestofk.rewards import BatchVerifier, UnscoredGuard, score, verifier
from bestofk.rewards.user_functions import BatchFunctionVerifier, FunctionVerifier
from bestofk.types import Group, Verdict, Verifier

Score = Callable[[Sequence[Group]], list[list[Verdict]]]
"""Judges whole groups as one batch."""


def make_task(config: Config, own: Verifier | None = None) -> tuple[tasks.Task, Score]:
    """The task and the function that judges its groups: `own`, or what the config names."""
    options = run_options(config)
    task = make_prompts(config)
    judge: Verifier = make_verifier(config, task) if own is None else own
    guard = UnscoredGuard(options.unscored_share)
    first = task.split(options.split).at(0)
    if isinstance(judge, FunctionVerifier | BatchFunctionVerifier):
        judge.check_prompt(first)
    if config.evaluation.every:
        task.split(config.evaluation.split)

    def score_groups(groups: Sequence[Group]) -> list[list[Verdict]]:
        if not groups:
            return []
        verdicts = score(groups, judge)
        guard.check(verdict for row in verdicts for verdict in row)
        return verdicts

    return task, score_groups


def make_prompts(config: Config) -> tasks.Task:
    """The task, with the training prompts that the run's options keep."""
    stated, options = dict(config.task.options), run_options(config)
    if config.task.name == "dataset" and config.task.verifier and ":" in config.task.verifier:
        stated.setdefault("verifier", config.task.verifier)  # its rows keep every field then
    task = tasks.task(config.task.name, **stated)
    if options.pass_rates is None:
        return task
    from bestofk.training.prompt_filter import with_pass_rates

    low, high = options.pass_rate_range
    threshold = 1.0 if config.evaluation.threshold is None else config.evaluation.threshold
    return with_pass_rates(
        task,
        options.split,
        options.pass_rates,
        low=low,
        high=high,
        threshold=threshold,
        seed=config.run.seed,
    )


def make_verifier(config: Config, task: tasks.Task) -> BatchVerifier:
    """The verifier that the config names, or the task's own."""
    name = config.task.verifier or task.verifier
    own = {} if config.task.verifier else task.verifier_options
    return verifier(name, **{**own, **config.task.verifier_options})
