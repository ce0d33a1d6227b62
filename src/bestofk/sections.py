"""A section of a recipe: a frozen pydantic model with bounds at its fields, and errors in words.

class Sampling(Section):
    temperature: NonNegative = 1.0
    '''Logits are divided by it.'''
"""

from __future__ import annotations

import inspect
import json
import os
import tomllib
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from bestofk.messages import closest, did_you_mean, similar, unknown

Count = Annotated[int, Field(ge=1, le=10_000_000)]
"""More than ten million prompts, samples or tokens are a slip of the keyboard."""
NaturalNumber = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
FromList = Strict(False)
"""Marks a tuple, which TOML and JSON write as a list: `Annotated[tuple[str, ...], FromList]`."""


class Section(BaseModel):
    """Settings that are checked when they are made.

    Bool, text and NaN are no numbers, a list may stand for a tuple, unknown keys are errors.
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(in_words(type(self), error)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def changed(self, **values: Any) -> Self:
        """The section with these fields replaced, checked again."""
        return type(self)(**{**dict(self), **values})


def plain(annotation: Any) -> Any:
    """A type without its bounds and without None.

    >>> plain(Count | None), plain(Annotated[tuple[str, ...], FromList])
    (<class 'int'>, tuple[str, ...])
    """
    if get_origin(annotation) is Annotated:
        return plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return plain(next(part for part in get_args(annotation) if part is not type(None)))
    return annotation


def settings(kind: type[BaseModel], where: str = "") -> dict[str, FieldInfo]:
    """Every field by its dotted name, those of sections inside too; an open table is one field."""
    fields: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        inside = plain(field.annotation)
        if isinstance(inside, type) and issubclass(inside, BaseModel):
            fields |= settings(inside, f"{where}{name}.")
        else:
            fields[where + name] = field
    return fields


def check_options(what: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise a ValueError for an option that `factory` does not take, or a value of another type."""
    parameters = inspect.signature(factory).parameters
    called: Any = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    hints = get_type_hints(called)
    for option, value in options.items():
        if option not in parameters:
            if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
                continue
            raise unknown(f"option of {what}", option, parameters)
        if not fits(value, hints.get(option, Any)):
            parameter = parameters[option]
            message = f"option {option} of {what} is of type {parameter.annotation}, got {value!r}"
            if parameter.default is not parameter.empty:
                message += f"; it is {parameter.default!r} unless stated"
            raise ValueError(message)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as options state them: lists for tuples, paths for text.

    >>> fits([9, 11], tuple[int, ...]), fits(9, tuple[int, ...]), fits("9", int), fits(True, int)
    (True, False, False, False)
    """
    kind = TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    try:
        kind.validate_python(value)
    except ValidationError:
        try:  # as JSON writes it
            kind.validate_json(json.dumps(value, default=_as_json))
        except (ValidationError, TypeError, ValueError):
            return False
    return True


def _as_json(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else os.fspath(value)


def literal(text: str) -> Any:
    """A flag's value as TOML reads it, or a JSON object; what neither can read is a string.

    >>> literal("3"), literal("true"), literal("compact"), literal("[1, 2]")
    (3, True, 'compact', [1, 2])
    >>> literal("{threads = 1}"), literal('{"threads": 1}')
    ({'threads': 1}, {'threads': 1})
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return json.loads(text) if text.startswith("{") else text
    except json.JSONDecodeError:
        return text


RULES = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "text of at least one character",
    "tuple_type": "a list",
    "dict_type": "a table",
}


def in_words(kind: type[BaseModel], error: ValidationError) -> str:
    """The first error as the field, its rule, the value and the way out."""
    first = error.errors(include_url=False)[0]
    reason, value, told = first["type"], first["input"], first.get("ctx", {})
    keys = [str(key) for key in first["loc"] if not isinstance(key, int)]
    where = ".".join(keys)
    if reason == "value_error":
        return f"{where}: {told['error']}" if where else str(told["error"])
    if reason == "extra_forbidden":
        return _unknown_key(kind, keys)
    if reason == "model_type":
        return f"{where} is a section, [{where}] with keys, got {value!r}"
    inside = plain(settings(kind)[where].annotation) if where in settings(kind) else None
    if reason == "literal_error":
        if get_origin(inside) is tuple:
            inside = get_args(inside)[0]
        words = list(map(str, get_args(inside)))
        guess = did_you_mean(value, words).rstrip()
        message = f"{where} is one of {', '.join(words)}, got {value!r}"
        return f"{message}; {guess}" if guess else message
    if reason in ("missing", "too_long"):
        return f"{where} is a list of {len(get_args(inside))} values, got {value!r}"
    rule = RULES[reason].format(**told) if reason in RULES else first["msg"]
    return f"{where} is {rule}, got {value!r}"


def _unknown_key(kind: type[BaseModel], keys: list[str]) -> str:
    inside: Any = kind
    for key in keys[:-1]:
        inside = plain(inside.model_fields[key].annotation)
    where = ".".join(keys)
    if closest(keys[-1], inside.model_fields) is None and (meant := similar(where, settings(kind))):
        return f"unknown key {where!r}; did you mean {' or '.join(map(repr, meant))}?"
    message = str(unknown("key", keys[-1], inside.model_fields))
    return message.replace(repr(keys[-1]), repr(where), 1)
