"""The command line of `bestofk train`: a recipe, and settings as flags such as `--run.steps 50`.

A list takes several values (`--loss.clip 0.2 0.3`), an entry of an open mapping any TOML value
(`--task.options.numbers 5`). Hyphens and underscores are the same.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from bestofk.cli._options import KINDS
from bestofk.common import choices, closest
from bestofk.config import OPTION_FIELDS, Config, literal, merged
from bestofk.moved_keys import KEYS, with_moved_keys

OWN_FLAGS = ("resume", "dry-run", "json")
MORE = "bestofk train --help-all lists all"


@dataclass(frozen=True)
class TrainArguments:
    """What a command line states."""

    recipe: str | None = None
    resume: str | None = None
    dry_run: bool = False
    json: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    """Values by dotted name; None where `None` was given for a setting that may have no value."""
    earlier: dict[str, Any] = field(default_factory=dict)
    """Flags of earlier versions, by section and key."""


def split(argv: Sequence[str]) -> TrainArguments:
    """Read a command line.

    Raises:
        ValueError: An unknown flag, a missing value, a value of the wrong kind, a second recipe.
    """
    words = list(argv)
    parsed: dict[str, Any] = {}
    settings, earlier = dict[str, Any](), dict[str, Any]()
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            if word.startswith("-") or "recipe" in parsed:
                raise ValueError(_not_expected(word, parsed.get("recipe")))
            parsed["recipe"] = word
            continue
        flag, joined, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        given = [value] if joined else _until_flag(words)
        if name in ("dry_run", "json"):
            parsed[name], used = True, 0
        elif name == "resume":
            parsed[name], used = _one(flag, given), 1
        elif name in KEYS:
            section, _, key = name.partition(".")
            earlier.setdefault(section, {})[key] = literal(given[0] if given else "true")
            used = min(1, len(given))
        elif entry := _entry(name):
            settings[entry], used = literal(_one(flag, given)), 1
        else:
            name, value, used = _setting(flag, name, given)
            settings[name] = value
        if joined and not used:
            raise ValueError(f"{flag} takes no value, got {value!r}")
        if not joined:
            del words[:used]
    return TrainArguments(settings=settings, earlier=earlier, **parsed)


def override(config: Config, words: TrainArguments) -> Config:
    """The config with the values that the flags state.

    Raises:
        ValueError: A value out of its bounds.
    """
    if words.earlier:
        config = merged(config, with_moved_keys(words.earlier))
    stated: dict[str, Any] = {}
    for name, value in words.settings.items():
        *sections, key = name.split(".")
        table = stated
        for section in sections:
            table = table.setdefault(section, {})
        table[key] = value
    return merged(config, stated) if stated else config


@cache
def _kinds() -> Mapping[str, Any]:
    """The type of every setting by dotted name; the open mappings are left out."""

    def of(kind: type, where: str) -> Iterator[tuple[str, Any]]:
        hints = get_type_hints(kind, include_extras=True)
        for each in dataclasses.fields(kind):
            hint, name = hints[each.name], where + each.name
            if isinstance(hint, type) and dataclasses.is_dataclass(hint):
                yield from of(hint, f"{name}.")
            elif name not in OPTION_FIELDS:
                yield name, hint

    return dict(of(Config, ""))


def _until_flag(words: list[str]) -> list[str]:
    """The words before the next flag."""
    end = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return words[:end]


def _one(flag: str, given: list[str]) -> str:
    if not given:
        raise ValueError(f"{flag} needs a value")
    return given[0]


def _entry(name: str) -> str:
    """The name, where it is an entry of an open mapping; else empty."""
    mapping = next((each for each in OPTION_FIELDS if f"{name}.".startswith(f"{each}.")), None)
    if mapping is None:
        return ""
    key = name.removeprefix(mapping).removeprefix(".")
    if not key or "." in key:
        raise ValueError(f"--{name} names no entry of {mapping}: write --{mapping}.NAME value")
    return name


def _setting(flag: str, name: str, given: list[str]) -> tuple[str, Any, int]:
    """Name and value of a setting, and how many words were used."""
    turned_off = name.replace(".no_", ".", 1)
    if name not in _kinds() and _kinds().get(turned_off) is bool:
        return turned_off, False, 0
    if name not in _kinds():
        raise ValueError(f"unknown setting {flag}; {_suggestion(name)}{MORE}")
    kind, is_optional = _plain(_kinds()[name])
    if kind is bool and (not given or given[0] not in ("true", "false")):
        return name, True, 0
    if not given:
        raise ValueError(f"{flag} needs a value")
    if is_optional and given[0] == "None":
        return name, None, 1
    if get_origin(kind) is not tuple:
        return name, _value(kind, given[0], flag), 1
    inside = get_args(kind)
    words = sum(1 for _ in takewhile(lambda word: not word.endswith(".toml"), given))
    count = words if inside[-1] is Ellipsis else len(inside)
    if len(given) < count:
        raise ValueError(f"{flag} needs {count} values, got {' '.join(given)}")
    return name, [_value(_plain(inside[0])[0], each, flag) for each in given[:count]], count


def _plain(hint: Any) -> tuple[Any, bool]:
    """A type without its bounds and without None, and whether None was among its values."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return _plain(next(part for part in get_args(hint) if part is not type(None)))[0], True
    return hint, False


def _value(kind: Any, text: str, flag: str) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            message = choices(text, get_args(kind))
            raise ValueError(f"{flag} takes one of its values, got {text!r}; {message}")
        return text
    if kind is bool and text in ("true", "false"):
        return text == "true"
    try:
        return text if kind is str else kind(text)
    except ValueError:
        raise ValueError(f"{flag} takes {KINDS[kind]}, got {text!r}") from None


def _not_expected(word: str, recipe: str | None) -> str:
    if word.startswith("-"):
        return f"unknown flag {word}; {_suggestion(word.strip('-'))}{MORE}"
    return f"unexpected argument {word!r}; the recipe is {recipe}, settings begin with --"


def _suggestion(name: str) -> str:
    """The settings that were probably meant: by their last part, then by the whole name."""
    from bestofk.cli._settings import settings

    names = [*OWN_FLAGS, *(each.name for each in settings() if each.name not in OPTION_FIELDS)]
    if inside := [each for each in names if each.startswith(f"{name}.")]:
        return f"{name} is a section, write --{inside[0]}; "
    last = name.rpartition(".")[2]
    ends = {each: each.rpartition(".")[2] for each in names}
    meant = [each for each, end in ends.items() if end == last]
    if not meant and (near := closest(name, names, cutoff=0.7)):
        meant = [near]
    if not meant and (near := closest(last, ends.values(), cutoff=0.7)):
        meant = [each for each, end in ends.items() if end == near]
    return f"did you mean {' or '.join(f'--{each}' for each in meant)}? " if meant else ""
