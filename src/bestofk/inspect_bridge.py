"""Tasks of the inspect_ai package, run one sample at a time with completions from elsewhere.

The task's own solver makes the prompt and its own scorer judges. Where the solver calls
`generate`, it gets the completion at hand; a second call, tools and sandboxes are errors.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODEL = "bestofk/completion"


class UnsupportedTask(ValueError):
    """The task needs more than one turn of plain text."""


class _CompletionRequested(Exception):
    """The solver has asked for the first completion."""

    def __init__(self, messages: Sequence[Any]) -> None:
        super().__init__("asked for a completion")
        self.messages = messages


def load_task(reference: str, arguments: Mapping[str, Any]) -> Any:
    """The task of "FILE.py@NAME" or "package.module@NAME".

    Raises:
        ValueError: inspect_ai, the file or the task is missing; it needs tools or a sandbox.
    """
    where, at, name = reference.rpartition("@")
    if not at or not where or not name:
        raise ValueError(
            "a task of inspect_ai reads inspect:FILE.py@TASK or inspect:MODULE@TASK, got "
            f"{reference!r}"
        )
    try:
        import inspect_ai
    except ImportError as error:
        raise ValueError(
            f"task inspect:{reference} needs inspect_ai ({error}): pip install inspect-ai"
        ) from error
    function = getattr(_module(where), name, None)
    if not callable(function):
        raise ValueError(f"{where} has no task {name!r}")
    task = function(**arguments)
    if not isinstance(task, inspect_ai.Task):
        raise ValueError(f"{reference} gives a {type(task).__name__}, not a Task of inspect_ai")
    if task.sandbox is not None:
        raise UnsupportedTask(f"task {reference} needs a sandbox, which is not supported yet")
    if not task.scorer:
        raise ValueError(f"task {reference} has no scorer, so completions cannot be judged")
    return task


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"no file {where} with a task of inspect_ai")
    name = f"bestofk_inspect_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def sample_of(row: Mapping[str, Any]) -> Any:
    """The Sample that `row_of` wrote down."""
    from inspect_ai.dataset import Sample

    return Sample.model_validate(dict(row))


def row_of(sample: Any) -> dict[str, Any]:
    """A Sample as JSON."""
    return sample.model_dump(mode="json", exclude_none=True)


def messages_of(task: Any, sample: Any) -> list[dict[str, str]]:
    """What the solver shows to the model when it asks for the first completion."""

    async def first(state: Any, *_: Any, **__: Any) -> Any:
        _check_plain(state)
        raise _CompletionRequested(state.messages)

    try:
        asyncio.run(_solved(task, sample, first))
    except _CompletionRequested as request:
        return [{"role": message.role, "content": message.text} for message in request.messages]
    raise UnsupportedTask("the solver does not call generate, so there is nothing to complete")


def score_of(task: Any, sample: Any, text: str, scorer: str | None) -> float:
    """The score of a completion, as a number; NaN where the scorer gives none.

    Raises:
        UnsupportedTask: The solver asks for a second completion, or for tools.
        ValueError: The score is a list or a mapping.
    """
    return asyncio.run(_scored(task, sample, text, scorer))


async def _scored(task: Any, sample: Any, text: str, scorer: str | None) -> float:
    from inspect_ai.scorer import Target, value_to_float

    state = await _solved(task, sample, _giving(text))
    score = await chosen_scorer(task, scorer)(state, Target(sample.target))
    if score is None:
        return math.nan
    if isinstance(score.value, list | dict):
        raise ValueError(f"the score is a {type(score.value).__name__}, a number is needed")
    return float(value_to_float()(score.value))


def check_single_turn(task: Any, sample: Any) -> None:
    """Run the solver on an empty completion.

    Raises:
        UnsupportedTask: It asks for a second completion, for tools or for a sandbox.
    """
    asyncio.run(_solved(task, sample, _giving("")))


def _giving(text: str) -> Any:
    """What a solver gets as `generate`: the completion, once."""
    from inspect_ai.model import ChatMessageAssistant, ModelOutput

    calls = 0

    async def given(state: Any, *_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise UnsupportedTask(
                "the solver asks for a second completion: several turns are not supported yet"
            )
        _check_plain(state)
        state.output = ModelOutput.from_content(MODEL, text)
        state.messages.append(ChatMessageAssistant(content=text, source="generate"))
        return state

    return given


def chosen_scorer(task: Any, name: str | None) -> Any:
    """The task's scorer, by name where it has several."""
    by_name = {scorer_name(each): each for each in task.scorer}
    if name is None and len(by_name) == 1:
        return task.scorer[0]
    if name not in by_name:
        raise ValueError(f"the task has the scorers {', '.join(by_name)}: choose one as `scorer`")
    return by_name[name]


def scorer_name(scorer: Any) -> str:
    from inspect_ai._util.registry import registry_log_name

    return registry_log_name(scorer)


async def _solved(task: Any, sample: Any, generate: Any) -> Any:
    """The state after the task's solver, which gets `generate`."""
    from inspect_ai.model import ChatMessageUser, ModelName
    from inspect_ai.scorer import Target
    from inspect_ai.solver import TaskState

    if sample.sandbox is not None or sample.files:
        raise UnsupportedTask("the sample needs a sandbox or files, which are not supported yet")
    is_text = isinstance(sample.input, str)
    messages = [ChatMessageUser(content=sample.input)] if is_text else list(sample.input)
    state = TaskState(
        model=ModelName(MODEL),
        sample_id=sample.id or 0,
        epoch=1,
        input=sample.input,
        messages=messages,
        target=Target(sample.target),
        choices=sample.choices,
        metadata=dict(sample.metadata or {}),
    )
    for step in filter(None, (task.setup, task.solver)):
        state = await step(state, generate)
    return state


def _check_plain(state: Any) -> None:
    if state.tools:
        raise UnsupportedTask("the solver gives the model tools, which are not supported yet")
    for message in state.messages:
        if not isinstance(message.content, str) and any(
            part.type != "text" for part in message.content
        ):
            raise UnsupportedTask("a message holds more than text, which is not supported yet")
