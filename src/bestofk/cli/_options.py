"""The options of a verb, declared as a dataclass: parsed, and explained within 80 columns.

The string under a field is its help. `groups` names the options that `--help` shows, by heading;
`--help-all` shows the others too. A true default makes the flag `--no-NAME`.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from bestofk.common import choices, did_you_mean

WIDTH, COLUMN = 79, 30
EVERY_VERB = "Every verb: --json, --quiet (no progress), --verbose (tracebacks), --help"
METAVARS = {int: "N", float: "X", Path: "FILE", str: "TEXT"}
KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerbOptions:
    """What the options of every verb have."""

    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Heading: the options under it, as `--help` shows them; all of them where it is empty."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Lines that `--help` shows under the first paragraph."""

    json: bool = False
    """Print the result as JSON."""


Options = TypeVar("Options", bound=VerbOptions)


def argument(metavar: str, **kind: Any) -> Any:
    """A field that is given without a flag."""
    return dataclasses.field(metadata={"metavar": metavar, "positional": True}, **kind)


def option(metavar: str = "", *aliases: str, **kind: Any) -> Any:
    """A field with a stated metavar, or with further flags."""
    return dataclasses.field(metadata={"metavar": metavar, "aliases": aliases}, **kind)


def parsed(kind: type[Options], argv: Sequence[str], prog: str) -> Options:
    """The options that the words of a command line state.

    Raises:
        ValueError: An unknown flag, a value of the wrong kind, a missing argument.
        SystemExit: Help was asked for, and was printed.
    """
    stated, rest = _stated(kind, argv, prog)
    if rest:
        flags = [flag for each in dataclasses.fields(kind) for flag in flags_of(each)]
        if not rest[0].startswith("-"):
            raise ValueError(f"unexpected argument {rest[0]!r}; {prog} --help says what it takes")
        guess = did_you_mean(rest[0].partition("=")[0], flags)
        raise ValueError(f"unknown option {rest[0]}; {guess}{prog} --help-all lists all")
    return _complete(kind, stated, prog)


def known(kind: type[Options], argv: Sequence[str], prog: str) -> tuple[Options, list[str]]:
    """The options stated, and the words that are none of them."""
    stated, rest = _stated(kind, argv, prog)
    return _complete(kind, stated, prog), rest


def _stated(
    kind: type[Options], argv: Sequence[str], prog: str
) -> tuple[dict[str, Any], list[str]]:
    if {"-h", "--help", "--help-all"} & set(argv):
        print(help_text(kind, prog, everything="--help-all" in argv))
        raise SystemExit(0)
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False)
    hints = get_type_hints(kind, include_extras=True)
    for each in dataclasses.fields(kind):
        _add(parser, each, hints[each.name])
    parsed, rest = parser.parse_known_intermixed_args([_hyphens(word) for word in argv])
    stated = {name: value for name, value in vars(parsed).items() if value is not None}
    for each in dataclasses.fields(kind):
        if isinstance(stated.get(each.name), list):
            stated[each.name] = tuple(stated[each.name])
    return stated, rest


def _complete(kind: type[Options], stated: dict[str, Any], prog: str) -> Options:
    hints = get_type_hints(kind, include_extras=True)
    missing = [
        each
        for each in dataclasses.fields(kind)
        if each.name not in stated
        and each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    ]
    if missing and get_origin(hints[missing[0].name]) is tuple:
        stated[missing.pop(0).name] = ()
    if missing:
        name = missing[0].metadata.get("metavar") or flags_of(missing[0])[0]
        raise ValueError(f"{name} is missing; {prog} --help says what it takes")
    return kind(**stated)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(message.removeprefix("argument ").replace(": takes", " takes", 1))


def _hyphens(word: str) -> str:
    """--task_option → --task-option; values stay."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if word.startswith("--") else word


def flags_of(each: dataclasses.Field[Any]) -> list[str]:
    """The flags of a field; the first is the one that is shown."""
    if each.metadata.get("positional"):
        return []
    name = each.name.replace("_", "-")
    shown = f"--no-{name}" if each.default is True else f"--{name}"
    return [shown, *each.metadata.get("aliases", ())]


def _add(parser: argparse.ArgumentParser, each: dataclasses.Field[Any], hint: Any) -> None:
    plain, count = _plain(hint)
    settings: dict[str, Any] = {"default": None}
    if plain is bool:
        parser.add_argument(
            *flags_of(each),
            dest=each.name,
            action="store_const",
            const=not each.default,
            **settings,
        )
        return
    if count == 0:
        settings |= {"nargs": "*", "action": "extend"}
    elif count:
        settings |= {"nargs": count}
    elif each.metadata.get("positional"):
        settings |= {"nargs": "?"}
    settings["type"] = _converter(plain)
    if each.metadata.get("positional"):
        parser.add_argument(each.name, **settings)
    else:
        parser.add_argument(*flags_of(each), dest=each.name, **settings)


def _plain(hint: Any) -> tuple[Any, int | None]:
    """The kind of one value, and how many there are: None for one, 0 for any number."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _plain(next(part for part in inside if part is not type(None)))
    if origin is tuple:
        return inside[0], 0 if inside[-1] is Ellipsis else len(inside)
    return hint, None


def _converter(kind: Any) -> Any:
    def convert(text: str) -> Any:
        if get_origin(kind) is Literal:
            if text not in get_args(kind):
                message = choices(text, map(str, get_args(kind)))
                raise argparse.ArgumentTypeError(
                    f"takes one of its values, got {text!r}; {message}"
                )
            return text
        try:
            return kind(text)
        except ValueError:
            message = f"takes {KINDS.get(kind, 'another value')}, got {text!r}"
            raise argparse.ArgumentTypeError(message) from None

    return convert


def help_text(kind: type[VerbOptions], prog: str, *, everything: bool) -> str:
    """What a verb does and its options: the usual ones, or all."""
    fields = {each.name: each for each in dataclasses.fields(kind) if each.name != "json"}
    hints, texts = get_type_hints(kind, include_extras=True), field_texts(kind)
    words = [
        each.metadata["metavar"] for each in fields.values() if each.metadata.get("positional")
    ]
    lines = [
        " ".join(["usage:", prog, *words, "[options]"]),
        "",
        _about(kind),
    ]
    groups = dict(kind.groups) or ({"Options": tuple(fields)} if fields else {})
    shown = {name for names in groups.values() for name in names}
    left = tuple(name for name in fields if name not in shown)
    if everything and left:
        groups["More"] = left
    for heading, names in groups.items():
        lines += ["", f"{heading}:"]
        for name in names:
            lines += _row(fields[name], hints[name], texts.get(name, ""))
    lines.append("")
    if left and not everything:
        lines.append(f"{prog} --help-all explains all {len(fields)} options.")
    return "\n".join([*lines, EVERY_VERB])


def _about(kind: type[VerbOptions]) -> str:
    """The docstring, with the examples under its first paragraph."""
    first, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    examples = "\n".join(f"  {line}" for line in kind.examples)
    return "\n\n".join(filter(None, [first, examples, rest]))


def _row(each: dataclasses.Field[Any], hint: Any, text: str) -> list[str]:
    plain, count = _plain(hint)
    metavar = each.metadata.get("metavar", "")
    if not metavar and plain is not bool:
        is_choice = get_origin(plain) is Literal
        metavar = "|".join(get_args(plain)) if is_choice else METAVARS.get(plain, "TEXT")
        metavar = " ".join([metavar] * count) if count else metavar + " ..." * (count == 0)
    flag = "" if each.metadata.get("positional") else flags_of(each)[0]
    default = "" if plain is bool or each.default is dataclasses.MISSING else shown(each.default)
    left = "  " + " ".join(filter(None, [flag, metavar, f"[{default}]" * bool(default)]))
    right = textwrap.wrap(text, WIDTH - COLUMN, break_on_hyphens=False)
    if len(left) >= COLUMN:
        return [left, *(" " * COLUMN + line for line in right)]
    return [f"{left:<{COLUMN}}{right[0] if right else ''}".rstrip()] + [
        " " * COLUMN + line for line in right[1:]
    ]


def field_texts(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass, of its bases first."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for before, after in zip(node.body, node.body[1:]):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and is_text
            ):
                texts[before.target.id] = " ".join(str(after.value.value).split())  # type: ignore
    return texts


def kind_of(hint: Any) -> str:
    """A type in a word.

    >>> kind_of(int), kind_of(str | None), kind_of(tuple[str, ...]), kind_of(Literal["a", "b"])
    ('integer', 'text', 'list of text', 'a | b')
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return kind_of(inside[0])
    if origin in (Union, UnionType):
        return kind_of(next(part for part in inside if part is not type(None)))
    if origin is Literal:
        return " | ".join(map(str, inside))
    if origin is tuple:
        return f"list of {kind_of(inside[0])}"
    words = {int: "integer", float: "number", str: "text", bool: "true | false"}
    return words.get(hint, "table")


def shown(default: Any) -> str:
    """A default as a recipe would state it; nothing for None and for what is empty.

    >>> shown(None), shown(()), shown(True), shown((0.2, 0.3)), shown(1e-05)
    ('', '', 'true', '0.2 0.3', '1e-05')
    """
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple | list):
        return " ".join(map(str, default))
    if default is None or isinstance(default, Mapping):
        return ""
    return str(default)
