"""Environments that are called, in TRL: its `rollout_func`, which TRL itself does not bring.

TRL makes the instances, resets them with their rows and asks for rewards, as for environments with
tools. What is played in between is the same code as in `bestofk.train`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.metadata import version
from typing import Any

import torch
from trl.trainer import grpo_trainer

from bestofk.adapters.inner_steps import check_version
from bestofk.environments.author_calls import AuthorThreads
from bestofk.environments.author_class import AT_ONCE, as_environment, tools_of
from bestofk.environments.chat_turns import ChatTurns
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import OpenTrajectory
from bestofk.types import Message, Prompt


class RolloutsWithReplies:
    """A `rollout_func`: `GRPOTrainer(..., environment_factory=Game, rollout_func=this)`.

    Reward functions also get `messages`: what model and environment said, for each row.
    """

    def __init__(self, limits: TurnLimits | None = None) -> None:
        check_version("TRL", version("trl"), (1, 16))
        self.limits = limits or TurnLimits()

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play all rows, turn by turn together; tokens are appended and never tokenised again."""
        if trainer.environments is None:
            raise ValueError("RolloutsWithReplies plays environments: give environment_factory=")
        starts, images, fields = trainer._tokenize_prompts(prompts)
        if images:
            raise ValueError("environments that are called answer text: leave out images")
        text = ChatTurns(
            trainer._tokenizer,
            trainer.model.config._name_or_path or type(trainer.model).__name__,
            {},
            chat=not isinstance(prompts[0], str),
            options=trainer.chat_template_kwargs,
        )
        rows = [
            OpenTrajectory(
                Prompt("", prompt, "trl"), self.limits, environment, text=text,
                longest=longest_after(trainer, start),
            )
            for prompt, environment, start in zip(prompts, trainer.environments, starts)
        ]  # fmt: skip
        training = trainer.model.training
        siblings = trainer.num_generations if training else trainer.num_generations_eval
        drawn, reported = trainer._generate_single_turn(starts, images, fields, siblings)

        active = list(range(len(rows)))
        at_once = min(getattr(each, "at_once", AT_ONCE) for each in trainer.environments)
        with closing(AuthorThreads(at_once)) as threads:
            while True:
                log_probs = reported or [[0.0] * len(ids) for ids in drawn]
                threads.results(
                    rows[at].take(*turn, ends=trainer.eos_token_ids)
                    for at, *turn in zip(active, drawn, log_probs)
                )
                active = [at for at in active if rows[at].ended_by is None]
                if not _anywhere(trainer, bool(active)):
                    break
                # a process whose rows have ended draws along: generation may be collective
                texts = [[*starts[at], *rows[at].tokens] for at in active] or starts[:1]
                drawn, reported = trainer._generate_single_turn(texts, None, {}, 1)
        return {
            "prompt_ids": starts,
            "completion_ids": [row.tokens for row in rows],
            "logprobs": None if reported is None else [row.log_probs for row in rows],
            "env_mask": [list(map(int, row.own)) for row in rows],
            "messages": [row.messages for row in rows],
        }


def longest_after(trainer: Any, start: list[int]) -> int:
    """Tokens that a trajectory may have after its prompt."""
    places = trainer.model.config.get_text_config().max_position_embeddings
    if trainer.use_vllm and trainer.args.vllm_max_model_length:
        places = min(places, trainer.args.vllm_max_model_length)
    return int(min(trainer.max_completion_length or places, places - len(start)))


def take_rollouts(arguments: dict[str, Any]) -> Any:
    """Take the rollout_func that plays called environments out of a trainer's arguments, by default
    ours; None where no environment is called.

    Raises:
        ValueError: some are called and some have tools.
    """
    factory, tools = arguments.get("environment_factory"), arguments.get("tools") or ()
    makers = factory.values() if isinstance(factory, Mapping) else [factory] if factory else []
    made = [make() for make in makers]
    called = [type(each).__name__ for each in made if callable(each)]
    if not called:
        return None
    as_environment(factory)  # its signature
    names = [name for each in made for name in tools_of(each)]
    names += [getattr(tool, "__name__", str(tool)) for tool in tools]
    if names or len(called) < len(made):
        other = f"tools ({', '.join(names)})" if names else "environments that are not called"
        raise ValueError(
            f"environment {called[0]} is called with the model's text, and there are {other} "
            "beside it: a trainer of TRL plays one kind; take them apart, or use bestofk.train"
        )
    return arguments.pop("rollout_func", None) or RolloutsWithReplies()


@contextmanager
def any_template() -> Iterator[None]:
    """Let TRL make a trainer whose chat template does not show tools: environments that are called
    need none, and TRL asks for it wherever there is an environment."""
    theirs = grpo_trainer.supports_tool_calling
    grpo_trainer.supports_tool_calling = lambda processing_class: True
    try:
        yield
    finally:
        grpo_trainer.supports_tool_calling = theirs


def conversations(rows: list[dict[str, Any]], completions: list[Any]) -> list[Any]:
    """What reward functions judge, as after tools: the messages, or the last text of plain text."""
    talks: list[list[Message]] = [row["messages"] for row in rows]
    if isinstance(completions[0], str):
        return [talk[-1]["content"] for talk in talks]
    return talks


def _anywhere(trainer: Any, mine: bool) -> bool:
    """Whether it is so on any process."""
    flag = torch.tensor(mine, device=trainer.accelerator.device)
    return bool(trainer.accelerator.gather(flag).any())
