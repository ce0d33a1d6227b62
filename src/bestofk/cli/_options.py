"""The front of every verb: flags from the fields of a pydantic model, words into values, help.

A verb declares its options as a model, a recipe its settings. The string under a field is its
help; `groups` names the options that `--help` shows, by heading; `--help-all` shows the others too.
A true default makes the flag `--no-NAME`. Hyphens and underscores are alike; a list takes several
words.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from bestofk.messages import similar
from bestofk.sections import in_words, literal, plain, settings

WIDTH = 79
EVERY_VERB = "Every verb: --json, --quiet (no progress), --verbose (tracebacks), --help"
METAVARS = {int: "N", float: "X", Path: "FILE"}


def argument(metavar: str, default: Any = ...) -> Any:
    """A field that is given without a flag."""
    return Field(default, json_schema_extra={"metavar": metavar, "words": []})


def option(metavar: str, *words: str, default: Any = ...) -> Any:
    """A field with a stated metavar, or with further flags."""
    return Field(default, json_schema_extra={"metavar": metavar, "further": list(words)})


class VerbOptions(BaseModel):
    """What the options of every verb have."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Heading: the options under it, as `--help` shows them; all of them where it is empty."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Lines that `--help` shows under the first paragraph."""

    as_json: bool = Field(False, json_schema_extra={"words": ["--json"]})
    """Print the result as JSON."""


Options = TypeVar("Options", bound=VerbOptions)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One option of a verb, or one setting of a recipe."""

    name: str
    words: tuple[str, ...]
    """How it is given; the first is shown. None for an argument."""
    kind: Any
    """Type of a value, of each value where there are several."""
    count: int | None
    """How many values: None is one, 0 any number; -1 is a switch."""
    default: Any
    required: bool
    metavar: str
    text: str

    @property
    def is_table(self) -> bool:
        """Whether its entries are given by name: --task.options.numbers 3."""
        return get_origin(self.kind) is dict


def flags_of(kind: type[BaseModel]) -> list[Flag]:
    """The flags of a verb's options or of a recipe, from the fields."""
    is_verb = issubclass(kind, VerbOptions)
    return [_flag(name, field, is_verb) for name, field in settings(kind).items()]


def _flag(name: str, field: FieldInfo, is_verb: bool) -> Flag:
    extra: Any = field.json_schema_extra or {}
    kind, default = plain(field.annotation), field.get_default(call_default_factory=True)
    count = -1 if kind is bool else None
    if get_origin(kind) is tuple:
        count = 0 if get_args(kind)[-1] is Ellipsis else len(get_args(kind))
        kind = plain(get_args(kind)[0])
    metavar = extra.get("metavar", "")
    if not metavar and kind is not bool:
        choice = "|".join(map(str, get_args(kind))) if get_origin(kind) is Literal else ""
        metavar = choice or METAVARS.get(kind, "TEXT")
        metavar = " ".join([metavar] * count) if count else metavar + " ..." * (count == 0)
    word = "--" + ("no-" * (default is True) + _hyphens(name) if is_verb else name)
    return Flag(
        name=name,
        words=tuple(extra.get("words", [word, *extra.get("further", [])])),
        kind=kind,
        count=count,
        default=None if field.is_required() else default,
        required=field.is_required() and count != 0,
        metavar=metavar,
        text=" ".join((field.description or "").split()),
    )


def collect(
    flags: Sequence[Flag], argv: Sequence[str], prog: str
) -> tuple[dict[str, Any], list[str]]:
    """The values that a command line states, by name, and its words that belong to no flag."""
    by_word = {_hyphens(word): flag for flag in flags for word in flag.words}
    values, loose, words = dict[str, Any](), list[str](), list(argv)
    while words:
        shown, joined, value_text = words.pop(0).partition("=")
        if not _is_flag(shown):
            loose.append(shown + joined + value_text)
            continue
        flag = by_word.get(_hyphens(shown)) or _table(flags, shown)
        if flag is None:
            raise ValueError(
                f"unknown option {shown}; {_meant(flags, shown)}{prog} --help-all lists all"
            )
        end = next((at for at, word in enumerate(words) if _is_flag(word)), len(words))
        value, used = _value(flag, shown, [value_text] if joined else words[:end], bool(joined))
        del words[: 0 if joined else used]
        name = flag.name
        if flag.is_table:
            name += "." + shown.strip("-").replace("-", "_").removeprefix(flag.name)[1:]
        elif flag.count == 0 and isinstance(value, tuple):
            value = (*values.get(name, ()), *value)
        values[name] = value
    return values, loose


def _is_flag(word: str) -> bool:
    return re.match(r"-(?!\d|\.\d|$)", word) is not None


def _hyphens(word: str) -> str:
    return word.replace("_", "-")


def _table(flags: Sequence[Flag], shown: str) -> Flag | None:
    """The table that a flag is an entry of."""
    begins = (
        f for f in flags if f.is_table and _hyphens(shown).startswith(_hyphens(f.words[0]) + ".")
    )
    return next(begins, None)


def _value(flag: Flag, shown: str, inputs: list[str], joined: bool) -> tuple[Any, int]:
    """The value of a flag, and how many words it used."""
    if flag.is_table and _hyphens(shown) == _hyphens(flag.words[0]):
        raise ValueError(f"{shown} is a table: write {shown}.NAME value")
    if flag.count == -1:
        bare = flag.default is not True or not flag.words[0].startswith("--no-")
        if inputs and inputs[0] in ("true", "false"):
            return (inputs[0] == "true") is bare, 1
        if joined:
            raise ValueError(f"{shown} takes no value, got {inputs[0]!r}")
        return bare, 0
    need = 1 if flag.count is None else flag.count
    if inputs and inputs[0] == "None" and flag.default is None:
        return None, 1
    if inputs and flag.count is not None and inputs[0].startswith("["):
        return literal(inputs[0]), 1  # a list as one word, "[0.2, 0.3]"
    values = [_read(flag.kind, word) for word in inputs[: need or None]]
    if len(values) < max(need, 1):
        count = "a value" if need < 2 else f"{need} values"
        got = f", got {' '.join(inputs)}" if inputs else ""
        raise ValueError(f"{shown} needs {count}{got}")
    return (values[0] if flag.count is None else tuple(values)), len(values)


def _read(kind: Any, word: str) -> Any:
    """A word as it stands where text is wanted, else the value that it writes down."""
    return word if kind in (str, Path) or get_origin(kind) is Literal else literal(word)


def _meant(flags: Sequence[Flag], shown: str) -> str:
    name = shown.strip("-").replace("-", "_")
    words = {
        flag.words[0].strip("-").replace("-", "_"): flag.words[0] for flag in flags if flag.words
    }
    if inside := [word for each, word in words.items() if each.startswith(f"{name}.")]:
        return f"{name} is a section, write {inside[0]}; "
    near = [words[each] for each in similar(name, words)]
    return f"did you mean {' or '.join(near)}? " if near else ""


def parsed(kind: type[Options], argv: Sequence[str], prog: str) -> Options:
    """The options that the words of a command line state.

    Raises:
        ValueError: An unknown flag, a value of the wrong kind, a missing argument.
        SystemExit: Help was asked for, and was printed.
    """
    if {"-h", "--help", "--help-all"} & set(argv):
        print(help_text(kind, prog, everything="--help-all" in argv))
        raise SystemExit(0)
    return completed(kind, *collect(flags_of(kind), argv, prog), prog)


def completed(
    kind: type[Options], values: dict[str, Any], loose: Sequence[str], prog: str
) -> Options:
    """The options, with the loose words as arguments; nothing may be missing or left over."""
    arguments, flags = list(loose), flags_of(kind)
    for flag in flags:
        if not flag.words and (flag.count == 0 or arguments):
            end = len(arguments) if flag.count == 0 else 1
            values[flag.name] = tuple(arguments[:end]) if flag.count == 0 else arguments[0]
            arguments = arguments[end:]
        if flag.required and flag.name not in values:
            name = flag.words[0] if flag.words else flag.metavar
            raise ValueError(f"{name} is missing; {prog} --help says what it takes")
    if arguments:
        raise ValueError(f"unexpected argument {arguments[0]!r}; {prog} --help says what it takes")
    try:
        return kind(**values)
    except ValidationError as error:
        message = in_words(kind, error)
        words = {flag.name: (*flag.words, flag.metavar)[0] for flag in flags}
        name, _, rule = message.partition(" is ")
        raise ValueError(f"{words.get(name, name)} takes {rule}") from None


def help_text(kind: type[VerbOptions], prog: str, *, everything: bool) -> str:
    """What a verb does and its options: the usual ones, or all."""
    flags = {flag.name: flag for flag in flags_of(kind) if flag.name != "as_json"}
    words = [flag.metavar for flag in flags.values() if not flag.words]
    first, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    examples = "\n".join(f"  {line}" for line in kind.examples)
    about = "\n\n".join(filter(None, [first, examples, rest]))
    lines = [" ".join(["usage:", prog, *words, "[options]"]), "", about]
    groups = dict(kind.groups) or ({"Options": tuple(flags)} if flags else {})
    in_groups = {name for names in groups.values() for name in names}
    ungrouped = tuple(name for name in flags if name not in in_groups)
    if everything and ungrouped:
        groups["More"] = ungrouped
    for heading, names in groups.items():
        lines += ["", f"{heading}:"]
        for name in names:
            lines += row(flags[name], " ".join([*flags[name].words[:1], flags[name].metavar]))
    lines.append("")
    if ungrouped and not everything:
        lines.append(f"{prog} --help-all explains all {len(flags)} options.")
    return "\n".join([*lines, EVERY_VERB])


def row(flag: Flag, begin: str, text: str = "", column: int = 30) -> list[str]:
    """A flag and its text within 80 columns; the text stands at a column."""
    default = shown(flag.default) if flag.count != -1 else ""
    head = f"{begin.strip()} [{default}]" if default else begin.strip()
    right = textwrap.wrap(text or flag.text, WIDTH - column, break_on_hyphens=False)
    if len(head) + 3 > column:
        return [f"  {head}", *(" " * column + line for line in right)]
    rest = [" " * column + line for line in right[1:]]
    return [f"{f'  {head}':<{column}}{right[0]}", *rest]


def shown(default: Any) -> str:
    """A default as a recipe would state it; nothing for None and for what is empty.

    >>> shown(None), shown(()), shown(True), shown((0.2, 0.3)), shown(1e-05)
    ('', '', 'true', '0.2 0.3', '1e-05')
    """
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple | list):
        return " ".join(map(str, default))
    return "" if default is None or isinstance(default, Mapping) else str(default)
