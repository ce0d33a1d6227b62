"""Prompts and completions against the positions a model has, before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bestofk.config import Config
from bestofk.models import Policy
from bestofk.models.causal import context_length
from bestofk.rare_settings import run_options
from bestofk.sampling.prompts import encode
from bestofk.tasks import Task
from bestofk.types import Prompt


def check_task_context(config: Config, task: Task, model_config: Any, tokenizer: Any) -> None:
    """Raise where a prompt and `max_new_tokens` exceed the positions the model has.

    Looks at the prompts of the evaluation and of all training steps; of a task that makes its own
    problems, at those of the first step. Later ones are checked before they are sampled.
    """
    limit = context_length(model_config)
    if limit is None:
        return
    new = config.sampling.max_new_tokens
    train = task.split(run_options(config).split)
    first = config.sampling.prompts_per_step
    wanted = first if task.licence.startswith("generated") else first * config.run.steps
    check_lengths((train.at(i) for i in range(min(wanted, len(train)))), tokenizer, limit, new)
    if config.evaluation.every:
        split = task.split(config.evaluation.split)
        shown = (split[i] for i in range(min(config.evaluation.prompts, len(split))))
        check_lengths(shown, tokenizer, limit, new)


def check_context(prompts: Iterable[Prompt], policy: Policy, new: int) -> None:
    """Raise for a prompt that leaves the policy fewer than `new` positions."""
    limit = context_length(policy.model.config)
    if limit is not None:
        check_lengths(prompts, policy.tokenizer, limit, new)


def check_lengths(prompts: Iterable[Prompt], tokenizer: Any, limit: int, new: int) -> None:
    """Raise for the first prompt that leaves fewer than `new` of `limit` positions."""
    for prompt in prompts:
        length = len(encode(tokenizer, prompt))
        if length + new > limit:
            left = limit - length
            lower = f"lower it to at most {left}, or take" if left > 0 else "take"
            raise ValueError(
                f"prompt {prompt.id!r} has {length} tokens, sampling.max_new_tokens = {new}, and "
                f"the model has positions for {limit}: {lower} shorter prompts or a model with a "
                "longer context"
            )
