"""Reward functions as people write them, for one completion or for a batch as in TRL: how each is
called follows from the names of its parameters (`bestofk.rewards.from_function`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bestofk.messages import unknown
from bestofk.rewards.base import (
    BatchVerifier,
    PairVerifier,
    UnusableFunction,
    WrongKind,
    as_verdict,
)
from bestofk.rewards.time_limit import CallTimeout, limited_call
from bestofk.types import Prompt, Verdict

EXAMPLE = "myreward.py:reward"


def load_function(path: str, what: str = "verifier") -> Any:
    """What "package.module:name" or "folder/file.py:name" names.

    Raises:
        ValueError: no such file or module, it does not import, or it has no such name.
    """
    source, _, name = path.rpartition(":")
    if not source:
        raise ValueError(f"cannot load {what} {path!r}: write FILE.py:NAME, as in {EXAMPLE!r}")
    file = Path(source).expanduser().resolve() if source.endswith(".py") else None
    if file is not None and not file.is_file():
        raise ValueError(f"cannot load {what} {path!r}: there is no file {file}")
    try:
        module = importlib.import_module(source) if file is None else _module_of_file(file)
        return getattr(module, name)
    except AttributeError:
        if source == "__main__" or "<" in name:  # <lambda>, <locals>
            raise ValueError(
                f"cannot load {what} {path!r}: a script or a function defined it, where no import "
                "finds it: state it again in Python (bestofk.train(..., resume=FOLDER, "
                f"{'reward' if what == 'verifier' else what}=...)), or move it into a file"
            ) from None
        rest = unknown(f"name in {source}", name, [key for key in vars(module) if key[0] != "_"])
        raise ValueError(f"cannot load {what} {path!r}: {rest}") from None
    except ModuleNotFoundError as error:
        missing = f"; or name its file, for example {EXAMPLE!r}" if error.name == source else ""
        raise ValueError(
            f"cannot load {what} {path!r}: no module {error.name!r} in the working folder, the "
            f"recipe's folder or the environment{missing}"
        ) from error
    except Exception as error:
        raise ValueError(
            f"cannot load {what} {path!r}: importing it raised {type(error).__name__}: {error}"
        ) from error


def _module_of_file(file: Path) -> ModuleType:
    """A Python file as a module under its own name, so that it may import its neighbours."""
    name = file.stem
    imported = sys.modules.get(name)
    if imported is not None:
        if getattr(imported, "__file__", None) == str(file):
            return imported
        name = f"{name}_{abs(hash(str(file))):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


_OWN = ("prompt", "completion", "prompts", "completions")
"""Names that are not fields of the row."""


@dataclass(frozen=True)
class Arguments:
    """How a reward function is called, read once from its signature."""

    written: str
    """Name and signature, for errors."""
    name: str
    is_batch: bool
    is_async: bool
    with_prompt: bool
    fields: tuple[str, ...]
    """Fields of the row that it names."""
    needed: frozenset[str]
    """Those among them without a default."""
    with_all: bool
    """It has `**kwargs` and gets every field."""

    def of_row(self, prompt: Prompt) -> dict[str, Any]:
        """The fields of the row that it takes."""
        row = prompt.spec
        if self.with_all:
            return {key: value for key, value in row.items() if key not in _OWN}
        return {key: row[key] for key in self.fields if key in row}

    def of_pair(self, prompt: Prompt, text: str) -> dict[str, Any]:
        """All its arguments, where it judges one completion."""
        arguments = self.of_row(prompt)
        arguments["completion"] = text
        if self.with_prompt:
            arguments["prompt"] = prompt
        return arguments

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Raise where a row lacks a field that the function needs."""
        for prompt in prompts:
            if not self.needed <= prompt.spec.keys():
                have = [key for key in prompt.spec if key not in _OWN]
                missing = ", ".join(key for key in self.fields if key in self.needed - set(have))
                first = "completions" if self.is_batch else "completion"
                raise UnusableFunction(
                    f"reward function {self.written} takes {missing}, and the row of {prompt.id} "
                    f"has {', '.join(have) or 'no fields'}: arguments are passed by name; write "
                    f"def {self.name}({', '.join([first, *have])}) with the fields you need, or "
                    "give the parameter a default"
                )


def arguments_of(function: Any) -> Arguments:
    """How a reward function is called.

    Raises:
        ValueError: it cannot be called by name with a completion, or does not return a value.
    """
    name = name_of(function)
    if isinstance(function, type) and issubclass(function, BatchVerifier):
        raise ValueError(f"{name} is a class of verifiers; make one and name that: {name}(...)")
    if not callable(function):
        raise ValueError(f"a reward function was expected, got {function!r}: it cannot be called")
    inner = function.func if isinstance(function, functools.partial) else function
    body = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise ValueError(f"reward function {name} yields; let it return")
    try:
        signature: Any = inspect.signature(function)
        parameters = signature.parameters
    except (TypeError, ValueError):  # written in C, and silent about what it takes
        signature, parameters = "(…)", {}
    kinds = {key: each.kind for key, each in parameters.items()}
    named = [key for key, kind in kinds.items() if kind not in (_ARGS, _KWARGS)]
    own = set(_OWN).intersection(named)
    one, many = own & {"prompt", "completion"}, own & {"prompts", "completions"}
    positional = [key for key in named if kinds[key] is inspect.Parameter.POSITIONAL_ONLY]
    if (one and many) or not own & {"completion", "completions"} or positional:
        raise ValueError(
            f"reward function {name}{signature} cannot be called: arguments are passed by name; "
            f"write def {name}(completion, answer), where answer stands for fields of the row, def "
            f"{name}(prompt, completion), or def {name}(prompts, completions, **columns) for a "
            "batch"
        )
    fixed = function.keywords if isinstance(function, functools.partial) else {}
    fields = [key for key in named if key not in own and key not in fixed]
    return Arguments(
        f"{name}{signature}",
        name,
        is_batch=bool(many),
        is_async=inspect.iscoroutinefunction(body),
        with_prompt=bool(own & {"prompt", "prompts"}) or _KWARGS in kinds.values(),
        fields=tuple(fields),
        needed=frozenset(key for key in fields if parameters[key].default is _NO_DEFAULT),
        with_all=_KWARGS in kinds.values(),
    )


_ARGS, _KWARGS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_NO_DEFAULT = inspect.Parameter.empty


ASYNC_CALLS = 16
"""Calls of an async function at once, unless stated."""


class FunctionVerifier(PairVerifier):
    """A user's function of one completion, called with the fields of the row that it names."""

    def __init__(
        self, function: Any, *, threads: int | None = None, time_limit: float | None = None
    ) -> None:
        self.function, self.arguments = function, arguments_of(function)
        self.reads_messages = "messages" in self.arguments.fields
        if threads is None:
            threads = ASYNC_CALLS if self.arguments.is_async else 1
        super().__init__(self._call, name=name_of(function), threads=threads, time_limit=time_limit)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        self.arguments.check(prompts)

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        self.arguments.check(prompts)
        return super().judge_batch(prompts, texts)

    def _call(self, prompt: Prompt, text: str) -> Any:
        return self.function(**self.arguments.of_pair(prompt, text))


class BatchFunctionVerifier(BatchVerifier):
    """A user's function of a batch: `(prompts, completions, **columns) -> list of numbers`.

    Prompts and completions are strings; where the data's `prompt` field is a list of messages, both
    are lists of messages, as in TRL. None in the answer means that the completion has no score. The
    time limit is per completion.
    """

    def __init__(self, function: Any, *, time_limit: float = 60.0) -> None:
        if not time_limit > 0:
            raise ValueError(f"time_limit is a positive number of seconds, got {time_limit}")
        self.function, self.time_limit, self.name = function, time_limit, name_of(function)
        self._has_judged = False
        self.arguments = arguments_of(function)
        self.reads_messages = "messages" in self.arguments.fields

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        self.arguments.check(prompts)

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        self.arguments.check(prompts)
        rows = [self.arguments.of_row(prompt) for prompt in prompts]
        columns: dict[str, Any] = {
            key: [row.get(key) for row in rows] for key in dict.fromkeys(k for r in rows for k in r)
        }
        pairs = [_as_in_trl(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        columns["completions"] = [completion for _, completion in pairs]
        if self.arguments.with_prompt:
            columns["prompts"] = [prompt for prompt, _ in pairs]
        try:
            limit = self.time_limit * len(texts)
            result = limited_call(lambda: self.function(**columns), limit, self.name)
        except CallTimeout as error:
            late = f"{self.name} timed out on {len(texts)} completions: {error}"
            return [Verdict.unscored(late)] * len(texts)
        rewards = self._one_each(result, len(texts))
        try:
            verdicts = [
                Verdict.unscored(f"{self.name} returned None on {prompt.id}")
                if reward is None
                else as_verdict(reward)
                for prompt, reward in zip(prompts, rewards, strict=True)
            ]
        except WrongKind as error:
            if self._has_judged:
                raise
            raise UnusableFunction(f"{self.name}: {error}") from error
        self._has_judged = True
        return verdicts

    def _one_each(self, result: Any, count: int) -> list[Any]:
        """The rewards, if there is one for each completion: no smaller batch mends that."""
        try:
            rewards = list(result)
        except TypeError:
            what = type(result).__name__
        else:
            if len(rewards) == count:
                return rewards
            what = f"{len(rewards)} rewards"
        raise UnusableFunction(
            f"reward function {self.name} returned {what} for {count} completions; a function that "
            "takes `completions` returns a list with one reward for each, None where it has none"
        )


def _as_in_trl(prompt: Prompt, text: str) -> tuple[Any, Any]:
    """Prompt and completion in the form of the data: messages where its `prompt` field has them."""
    question = prompt.spec.get("prompt")
    if isinstance(question, list):
        return question, [{"role": "assistant", "content": text}]
    if isinstance(question, str):
        return question, text
    return prompt.text if isinstance(prompt.text, str) else prompt.text[-1]["content"], text


def name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
