"""Environments that are called, in TRL: its `rollout_func`, which TRL itself does not bring.

TRL makes the instances, resets them with their rows and asks for rewards, as for environments with
tools. What is played in between is the same code as in `bestofk.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import torch

from bestofk.adapters.inner_steps import check_version
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
            OpenTrajectory(Prompt(str(at), prompt, "trl"), self.limits, environment, text=text)
            for at, (prompt, environment) in enumerate(zip(prompts, trainer.environments))
        ]
        longest = [longest_after(trainer, start) for start in starts]
        training = trainer.model.training
        siblings = trainer.num_generations if training else trainer.num_generations_eval
        drawn, reported = trainer._generate_single_turn(starts, images, fields, siblings)

        def answer(at: int, ids: list[int], log_probs: list[float]) -> None:
            rows[at].take(ids, log_probs, longest=longest[at], ends=trainer.eos_token_ids)

        active = list(range(len(rows)))
        with ThreadPoolExecutor(AT_ONCE, "bestofk environment") as threads:
            while True:
                log_probs = reported or [[0.0] * len(ids) for ids in drawn]
                list(threads.map(answer, active, drawn, log_probs))
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


def called_environments(factory: Any, tools: Any) -> list[Any]:
    """An instance of each environment of a factory, where they are called; else none.

    Raises:
        ValueError: some are called and some have tools.
    """
    made = [make() for make in (factory.values() if isinstance(factory, Mapping) else [factory])]
    called = [type(each).__name__ for each in made if callable(each)]
    if not called:
        return []
    as_environment(factory)  # its signature
    names = [name for each in made for name in tools_of(each)]
    names += [getattr(tool, "__name__", str(tool)) for tool in tools or ()]
    if names or len(called) < len(made):
        other = f"tools ({', '.join(names)})" if names else "environments that are not called"
        raise ValueError(
            f"environment {called[0]} is called with the model's text, and there are {other} "
            "beside it: a trainer of TRL plays one kind; take them apart, or use bestofk.train"
        )
    return made


def take_environments(arguments: dict[str, Any], args: Any) -> tuple[Any, Any] | None:
    """Take environments that are called, and their rollout_func, out of a trainer's arguments;
    their rewards join those of `arguments` and `args`. None where no environment is called."""
    factory = arguments.get("environment_factory")
    called = called_environments(factory, arguments.get("tools")) if factory else []
    if not called:
        return None
    rewards, own = arguments.get("reward_funcs") or [], own_rewards(called)
    rewards = rewards if isinstance(rewards, list) else [rewards]
    if args.reward_weights is not None:
        args.reward_weights = [*args.reward_weights, *(1.0 for _ in own)]
    rollouts = arguments.get("rollout_func") or RolloutsWithReplies()
    del arguments["environment_factory"]
    arguments |= {"reward_funcs": [*rewards, *own], "rollout_func": None}
    return factory, rollouts


def own_rewards(made: list[Any]) -> list[Callable[..., Any]]:
    """A reward function for each class that gives rewards, as TRL makes them."""

    def reward_of(kind: Any) -> Callable[..., Any]:
        def rewards(environments: list[Any], **_: Any) -> list[float | None]:
            return [each.get_reward() if type(each) is kind else None for each in environments]

        rewards.__name__ = kind.__name__
        return rewards

    return [
        reward_of(kind) for kind in dict.fromkeys(map(type, made)) if hasattr(kind, "get_reward")
    ]


def let_play(trainer: Any, factory: Any, rollouts: Any) -> None:
    """Give a trainer environments that are called. As its argument TRL takes them only with a chat
    template that shows tools, which they do not need."""
    trainer._multi_environment = isinstance(factory, Mapping)
    trainer.environment_factories = (
        dict(factory) if isinstance(factory, Mapping) else {None: factory}
    )
    trainer._env_tools = {name: [] for name in trainer.environment_factories}
    trainer._environment_pool = {name: [] for name in trainer.environment_factories}
    trainer.rollout_func = rollouts


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
