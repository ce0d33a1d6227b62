"""What an author wrote, as what a rollout needs: instances, their tools, what reset takes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bestofk.messages import unknown
from bestofk.rewards import BatchVerifier, load_function
from bestofk.types import Prompt, Verdict

SHIPPED = {
    "python": "bestofk.environments.python:Python",
    "repair": "bestofk.environments.repair:Repair",
}
NOT_TOOLS = ("reset", "get_reward")
SEED = "trajectory_seed"
"""A parameter of `reset` that gets a number of the trajectory's own."""
AT_ONCE = 256
"""Instances that answer at once, unless the class has a number `at_once`."""


def tools_of(environment: Any) -> dict[str, Callable[..., Any]]:
    """The public methods of an instance, without `reset` and `get_reward`."""
    if isinstance(environment, PlainTools):
        return environment.tools
    names = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
    public = [name for name in names if name[0] != "_" and name not in NOT_TOOLS]
    return {name: getattr(environment, name) for name in public}


class PlainTools:
    """Functions as tools, without a class."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self.tools = {function.__name__: function for function in functions}

    def reset(self) -> None:
        """Functions have no state."""


class UnfitRow(ValueError):
    """A row lacks what its environment needs: a fault of the data, not of one trajectory."""


@dataclass(frozen=True)
class EnvironmentClasses:
    """One environment for all prompts, or some by name, which a row chooses with `environment`."""

    makers: Mapping[str, Callable[[], Any]]
    """By name; the name is empty where there is one for all."""

    def __post_init__(self) -> None:
        for make in self.makers.values():
            about, environment = class_name(make), _made(make)
            if not callable(getattr(environment, "reset", None)):
                raise ValueError(f"environment {about} has no reset(self, **row)")
            if not tools_of(environment) and not callable(environment):
                raise ValueError(
                    f"environment {about} has nothing that answers the model: give it public "
                    "methods (tools), or def __call__(self, text), which returns the reply or None"
                )
            at_once = getattr(make, "at_once", AT_ONCE)
            if type(at_once) is not int or at_once < 1:
                raise ValueError(
                    f"environment {about} has at_once = {at_once!r}: it is how many instances "
                    "answer at once, a whole number of at least 1"
                )
            try:
                if callable(environment):
                    inspect.signature(environment).bind(text="")
            except TypeError as error:
                raise ValueError(
                    f"environment {about} is called with the model's message as text: write "
                    f"def __call__(self, text) ({error})"
                ) from None

    @property
    def has_rewards(self) -> bool:
        """Whether every environment gives its own reward."""
        return all(hasattr(_made(make), "get_reward") for make in self.makers.values())

    @property
    def at_once(self) -> int:
        """Instances that answer at once: as many as the most careful class takes."""
        return min(getattr(make, "at_once", AT_ONCE) for make in self.makers.values())

    def name_of(self, prompt: Prompt) -> str:
        """Which environment a prompt belongs to."""
        if "" in self.makers:
            return ""
        name = prompt.spec.get("environment")
        if name not in self.makers:
            raise unknown(f"environment of {prompt.id!r}", str(name), self.makers)
        return str(name)

    def maker_of(self, prompt: Prompt) -> Callable[[], Any]:
        return self.makers[self.name_of(prompt)]

    def make(self, prompt: Prompt) -> Any:
        return _made(self.maker_of(prompt))

    def reset_arguments(self, environment: Any, prompt: Prompt, seed: int) -> dict[str, Any]:
        """Copies of the fields of the row that its `reset` names, or of all where it has **row.

        Raises:
            UnfitRow: it lacks one.
        """
        parameters = inspect.signature(environment.reset).parameters
        row = {SEED: seed, **prompt.spec} if SEED in parameters else dict(prompt.spec)
        if "" not in self.makers:
            del row["environment"]
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        named = {name: each for name, each in parameters.items() if each.kind.name[:3] != "VAR"}
        for name, each in named.items():
            if each.default is each.empty and name not in row:
                raise UnfitRow(
                    f"reset of {type(environment).__name__} takes {name}, and the row of "
                    f"{prompt.id!r} has {', '.join(row) or 'no fields'}"
                )
        taken = row if takes_all else {name: row[name] for name in named if name in row}
        return copy.deepcopy(taken)  # siblings get the same row, and so does a later step


class OwnReward(BatchVerifier):
    """Judges where the environment does: what it left open is unscored."""

    name = "environment"

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        return [Verdict.unscored("get_reward returned None")] * len(texts)


def _made(make: Callable[[], Any]) -> Any:
    """An instance.

    Raises:
        ValueError: its class raises.
    """
    try:
        return make()
    except Exception as error:
        raise ValueError(
            f"environment {class_name(make)} is made without arguments, once for each trajectory, "
            f"and that raised {type(error).__name__}: {error}"
        ) from error


def class_name(make: Any) -> str:
    return getattr(make, "__name__", type(make).__name__)


def as_environment(source: Any) -> EnvironmentClasses:
    """A class, a list of functions (tools), a name, or a dict of those by name, as one object.

    A function with parameters is a tool; one without makes an instance.

    Raises:
        ValueError: anything else.
    """
    if isinstance(source, str):
        return load_environment(source)
    if isinstance(source, Mapping):
        makers = {str(name): as_environment(each).makers[""] for name, each in source.items()}
        return EnvironmentClasses(makers)
    if inspect.isfunction(source) and inspect.signature(source).parameters:
        source = [source]
    if isinstance(source, Sequence) and all(map(inspect.isroutine, source)):
        functions = tuple(source)
        names = [function.__name__ for function in functions]
        if len(set(names)) < max(len(names), 1):
            raise ValueError(f"tools are functions with different names, got {names}")
        return EnvironmentClasses({"": lambda: PlainTools(functions)})
    if hasattr(source, "reset") and not isinstance(source, type):
        raise ValueError(
            "an environment is a class, of which each trajectory has an instance of its own: pass "
            f"{type(source).__name__}, not one made of it"
        )
    if not callable(source):
        raise ValueError(
            "an environment is a class, a list of functions, or several of those with names "
            f"(a=file.py:A,b=file.py:B; in Python a dict), got {source!r}"
        )
    return EnvironmentClasses({"": source})


def load_environment(names: str) -> EnvironmentClasses:
    """What a recipe names: "file.py:Class", "package.module:Class", or one that is shipped.

    Several functions (tools) are separated by commas, and so are environments among which rows
    choose: "a=file.py:A,b=file.py:B".
    """
    loaded = []
    for each in names.split(","):
        key, _, name = each.strip().rpartition("=")
        path = SHIPPED.get(name, name)
        if path.endswith(".py"):
            raise ValueError(f"environment {name!r} names no class: write {name}:Class")
        if ":" not in path:
            raise unknown("environment", name, SHIPPED)
        loaded.append((key, load_function(path, what="environment")))
    if loaded[0][0]:
        return as_environment(dict(loaded))
    sources = [source for _, source in loaded]
    return as_environment(sources[0] if len(sources) == 1 else sources)


def recorded_name(source: Any) -> str:
    """What a recipe records of an environment that was given in Python."""
    if isinstance(source, str):
        return source
    if isinstance(source, Mapping):
        return ",".join(f"{name}={recorded_name(each)}" for name, each in source.items())
    if isinstance(source, Sequence):
        return ",".join(map(recorded_name, source))
    return f"{source.__module__}:{source.__qualname__}"
