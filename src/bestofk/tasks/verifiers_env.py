"""Single-turn environments of the `verifiers` package as tasks: "verifiers:ENVIRONMENT".

Prompts are the environment's datasets; its rubric judges (`rewards/verifiers_rubric.py`).
"""

from __future__ import annotations

import json
from typing import Any

from bestofk.tasks.dataset import from_prompts
from bestofk.tasks.definition import Task, identity
from bestofk.types import Prompt


def environment(name: str, **arguments: Any) -> Task:
    """The task of an installed environment.

    Args:
        name: as for `verifiers.load_environment`.
        arguments: of the environment. `limit` and `seed` are the task's own.

    Raises:
        ValueError: verifiers or the environment is missing; it needs several turns.
    """
    limit, seed = arguments.pop("limit", None), arguments.pop("seed", 0)
    loaded = load_single_turn(name, arguments)
    loaders = {"train": lambda: _prompts(name, loaded.get_dataset())}
    if _has_evaluation_data(loaded):
        loaders["test"] = lambda: _prompts(name, loaded.get_eval_dataset())
    return from_prompts(
        f"verifiers:{name}",
        loaders,
        verifier="verifiers",
        verifier_options={"environment": name, "arguments": arguments},
        licence="see the environment",
        shares={"validation": 0.05, "test": 0.05},
        limit=limit,
        seed=seed,
        summary=f"environment {name} of the verifiers package, judged by its rubric",
    )


def load_single_turn(name: str, arguments: dict[str, Any]) -> Any:
    """The environment, if it takes one turn."""
    try:
        import verifiers

        single_turn, load = verifiers.SingleTurnEnv, verifiers.load_environment
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"task verifiers:{name} needs the package verifiers with SingleTurnEnv ({error}): "
            "pip install 'verifiers>=0.1.14,<0.2'"
        ) from error
    try:
        loaded = load(name, **arguments)
    except Exception as error:
        raise ValueError(
            f"environment {name!r} could not be loaded: {type(error).__name__}: {error}; "
            "install it first (prime env install), or put its module on the path"
        ) from error
    if not isinstance(loaded, single_turn):
        raise ValueError(
            f"environment {name!r} is a {type(loaded).__name__}: several turns and tools are not "
            "supported yet, only SingleTurnEnv"
        )
    return loaded


def _has_evaluation_data(loaded: Any) -> bool:
    build = getattr(loaded, "build_eval_dataset", None)
    if build is not None:
        build()
    return getattr(loaded, "eval_dataset", None) is not None


def _prompts(name: str, rows: Any) -> list[Prompt]:
    return [_prompt(name, dict(row)) for row in rows]


def _prompt(name: str, row: dict[str, Any]) -> Prompt:
    messages = row["prompt"]
    text: Any = messages
    if not isinstance(messages, str):
        text = tuple({"role": m["role"], "content": m["content"]} for m in messages)
        row["prompt"] = [dict(message) for message in text]
    plain = json.loads(json.dumps(row, default=str))
    return Prompt(
        id=identity(f"verifiers:{name}", json.dumps([plain["prompt"], plain.get("answer")])),
        text=text,
        task=f"verifiers:{name}",
        spec=plain,
    )
