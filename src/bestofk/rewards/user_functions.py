"""Reward functions as people write them: by pair, by column names, or by batch as in TRL.

def reward(prompt, completion): ...               # prompt.text, prompt.spec["answer"]
def reward(completion, answer): ...               # fields of the row, by name
def reward(prompts, completions, answer, **rest): # a batch: a list for each column (TRL)
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bestofk.common import unknown
from bestofk.rewards.base import BatchVerifier, PairVerifier, as_verdict
from bestofk.rewards.time_limit import CallTimeout, limited_call
from bestofk.types import Prompt, Verdict

EXAMPLE = "myreward.py:reward"


def load_function(path: str) -> Any:
    """What "package.module:name" or "folder/file.py:name" names.

    Raises:
        ValueError: no such file or module, it does not import, or it has no such name.
    """
    source, _, name = path.rpartition(":")
    try:
        is_file = source.endswith(".py")
        module = _module_of_file(Path(source)) if is_file else importlib.import_module(source)
        return getattr(module, name)
    except AttributeError:
        rest = unknown(f"name in {source}", name, [key for key in vars(module) if key[0] != "_"])
        raise ValueError(f"cannot load verifier {path!r}: {rest}") from None
    except ModuleNotFoundError as error:
        missing = f"; or name its file, for example {EXAMPLE!r}" if error.name == source else ""
        raise ValueError(
            f"cannot load verifier {path!r}: no module {error.name!r} in the working folder, the "
            f"recipe's folder or the environment{missing}"
        ) from error
    except Exception as error:
        raise ValueError(
            f"cannot load verifier {path!r}: importing it raised {type(error).__name__}: {error}"
        ) from error


def _module_of_file(file: Path) -> ModuleType:
    """A Python file as a module under its own name, so that it may import its neighbours."""
    file = file.expanduser().resolve()
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    name = file.stem
    there = sys.modules.get(name)
    if there is not None:
        if getattr(there, "__file__", None) == str(file):
            return there
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


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; none where it does not tell."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return {}


def takes_batches(function: Any) -> bool:
    """Whether it is a batch reward function, as TRL has them: it has a parameter `completions`."""
    return "completions" in parameters_of(function)


def takes_columns(function: Any) -> bool:
    """Whether it takes one `completion` and fields of the row by name."""
    names = parameters_of(function)
    return "completion" in names and set(names) != {"prompt", "completion"}


def needed_columns(function: Any) -> list[str]:
    """Fields of the row that the function cannot be called without."""
    given = ("prompt", "completion", "prompts", "completions")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        name
        for name, each in parameters_of(function).items()
        if name not in given and each.kind in named and each.default is inspect.Parameter.empty
    ]


def columns_for(function: Any, prompt: Prompt) -> dict[str, Any]:
    """The fields of the row that the function takes, by name."""
    names = parameters_of(function)
    if any(each.kind is each.VAR_KEYWORD for each in names.values()):
        given = ("prompt", "completion", "prompts", "completions")
        return {key: value for key, value in prompt.spec.items() if key not in given}
    return {name: prompt.spec[name] for name in names if name in prompt.spec}


class FunctionVerifier(PairVerifier):
    """A user's function of one completion, called with the fields of the row that it names."""

    def __init__(self, function: Any, *, threads: int = 1, time_limit: float | None = None) -> None:
        self.function, self._by_name = function, takes_columns(function)
        judge = self._call if self._by_name else function
        super().__init__(judge, name=_name_of(function), threads=threads, time_limit=time_limit)

    def check_prompt(self, prompt: Prompt) -> None:
        """Raise where the row lacks a field that the function needs."""
        if self._by_name:
            check_columns(self.name, self.function, prompt)

    def _call(self, prompt: Prompt, text: str) -> Any:
        columns = {"completion": text, **columns_for(self.function, prompt)}
        if "prompt" in parameters_of(self.function):
            columns["prompt"] = prompt
        return self.function(**columns)


class BatchFunctionVerifier(BatchVerifier):
    """A user's function of a batch: `(prompts, completions, **columns) -> list of numbers`.

    Prompts and completions are strings; where the data's `prompt` field is a list of messages, both
    are lists of messages, as in TRL. None in the answer means that the completion has no score. The
    time limit is per completion.
    """

    def __init__(self, function: Any, *, time_limit: float = 60.0) -> None:
        if not time_limit > 0:
            raise ValueError(f"time_limit is a positive number of seconds, got {time_limit}")
        self.function, self.time_limit, self.name = function, time_limit, _name_of(function)

    def check_prompt(self, prompt: Prompt) -> None:
        """Raise where the row lacks a field that the function needs."""
        check_columns(self.name, self.function, prompt)

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        names = parameters_of(self.function)
        rows = [columns_for(self.function, prompt) for prompt in prompts]
        columns: dict[str, Any] = {
            key: [row.get(key) for row in rows] for key in dict.fromkeys(k for r in rows for k in r)
        }
        pairs = [_as_in_trl(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        columns["completions"] = [completion for _, completion in pairs]
        if "prompts" in names or any(each.kind is each.VAR_KEYWORD for each in names.values()):
            columns["prompts"] = [prompt for prompt, _ in pairs]
        try:
            result = limited_call(
                lambda: self.function(**columns), self.time_limit * len(texts), self.name
            )
        except CallTimeout as error:
            late = f"{self.name} timed out on {len(texts)} completions: {error}"
            return [Verdict.unscored(late)] * len(texts)
        rewards = list(result)
        if len(rewards) != len(texts):
            raise ValueError(f"it returned {len(rewards)} rewards for {len(texts)} completions")
        return [
            Verdict.unscored(f"{self.name} returned None on {prompt.id}")
            if reward is None
            else as_verdict(reward)
            for prompt, reward in zip(prompts, rewards, strict=True)
        ]


def _as_in_trl(prompt: Prompt, text: str) -> tuple[Any, Any]:
    """Prompt and completion in the form of the data: messages where its `prompt` field has them."""
    stated = prompt.spec.get("prompt")
    if isinstance(stated, list):
        return stated, [{"role": "assistant", "content": text}]
    if isinstance(stated, str):
        return stated, text
    return prompt.text if isinstance(prompt.text, str) else prompt.text[-1]["content"], text


def check_columns(name: str, function: Any, prompt: Prompt) -> None:
    """Raise where the row of a prompt lacks a field that a function needs.

    Raises:
        ValueError: which, and which there are.
    """
    missing = (
        [key for key in needed_columns(function) if key not in prompt.spec] if function else []
    )
    if missing:
        have = ", ".join(prompt.spec) or "no fields"
        raise ValueError(
            f"reward function {name} takes {', '.join(missing)}, and the rows have {have}: rename "
            "the parameter, or give it a default"
        )


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
