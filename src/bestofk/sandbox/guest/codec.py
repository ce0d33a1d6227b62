"""Plain values as bytes, and back: the only thing that crosses a border of the sandbox.

Decoding builds None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict,
range, Fraction, Decimal, iterators over such values, linked lists and binary trees of nodes, and
nothing else; it executes nothing and is bounded in depth and in size before it allocates. It looks
up two names, `ListNode` and `TreeNode`, in the classes that the caller hands over: the checker
hands over none, so that it meets classes of this module alone. Encoding reduces
subclasses to their plain base (an int whose `__eq__` lies arrives as an honest int) and raises for
what has none.

>>> decode(encode({"a": (1, 2.5, None)}))
{'a': (1, 2.5, None)}
"""

from __future__ import annotations

import itertools
import re
import struct
import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_DEPTH = 64
"""Nesting. Far below Python's recursion limit, far above what a test needs."""
MAX_BYTES = 16 << 20
"""Size of one encoded value unless the caller says less."""

_LENGTH = struct.Struct("<I")
_INTEGER = struct.Struct("<cIi")
_SMALL = 1 << 31
_MOST_ALIKE = 64
_LONGEST = 4096
"""Bytes of either part of a Fraction, and figures of a Decimal: reducing them takes time."""
_FIGURES = re.compile(r"-?(?:\d+(?:\.\d+)?(?:E[+-]\d{1,18})?|Infinity|NaN)", re.ASCII)
_NO_CLASSES: Mapping[str, Any] = {}
_DOUBLE = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_SOME_VIEWS: tuple[Any, ...] = ({}.keys(), {}.values(), {}.items())
_ITERATORS: tuple[type, ...] = (
    *(type(iter(kind())) for kind in (list, tuple, set, dict, str)), type(reversed([])), reversed,
    *(type(turn(view)) for turn in (iter, reversed) for view in _SOME_VIEWS), type(iter(range(0))),
    types.GeneratorType, map, filter, zip, enumerate, itertools.chain, itertools.islice,
    itertools.permutations, itertools.combinations, itertools.product, itertools.accumulate,
    itertools.takewhile, itertools.dropwhile, itertools.starmap,
)  # fmt: skip
NODES = {"ListNode": ("val", "next"), "TreeNode": ("val", "left", "right")}
"""Classes whose instances are passed with all that they lead to: a value, then links. They are
known by name, since the tests and the program each define their own."""
_VIEWS = dict(zip(map(type, _SOME_VIEWS), (b"K", b"V", b"M"), strict=True))


class CodecError(ValueError):
    """The value is not plain, or the bytes are not one encoded value."""


class NotPlainError(CodecError):
    """The value has a type that cannot be passed, however small it is."""

    is_builtin = False
    """Whether it is one of Python's own types, which methods of plain values may have made."""


def encode(value: Any, limit: int = MAX_BYTES) -> bytes:
    """Bytes of one plain value.

    Raises:
        CodecError: a type that is not plain, nesting beyond MAX_DEPTH, more than `limit` bytes.
    """
    # the answer of most calls, in one step
    if type(value) is int and -_SMALL <= value < _SMALL and limit > 8:
        return _INTEGER.pack(b"i", 4, value)
    out: list[bytes] = []
    _Encoder(out, limit).put(value, 0)
    return b"".join(out)


class _Encoder:
    def __init__(self, out: list[bytes], limit: int) -> None:
        self.out, self.left, self.limit = out, limit, limit

    def emit(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left < 0:
            raise CodecError(f"a value takes at most {self.limit} bytes")
        self.out.append(data)

    def put(self, value: Any, depth: int) -> None:
        kind = type(value)
        if value is None:
            self.emit(b"N")
        elif kind is bool:
            self.emit(b"T" if value else b"F")
        elif isinstance(value, int):
            self.integer(value)
        elif isinstance(value, float):
            self.emit(b"f" + _DOUBLE.pack(float.__float__(value)))
        elif isinstance(value, str):
            self.blob(b"s", str.encode(value, "utf-8", "surrogatepass"))
        elif depth >= MAX_DEPTH:
            raise CodecError(f"a value nests at most {MAX_DEPTH} deep")
        elif isinstance(value, list):
            self.many(b"l", list.__iter__(value), depth)
        elif isinstance(value, tuple):
            self.many(b"t", tuple.__iter__(value), depth)
        elif isinstance(value, dict):
            self.many(b"d", itertools.chain.from_iterable(dict.items(value)), depth)
        else:
            self.rare(value, kind, depth)

    def rare(self, value: Any, kind: type, depth: int) -> None:
        if isinstance(value, set):
            self.many(b"S", set.__iter__(value), depth)
        elif isinstance(value, frozenset):
            self.many(b"Z", frozenset.__iter__(value), depth)
        elif isinstance(value, bytes | bytearray):
            self.blob(b"b", bytes(value))
        elif isinstance(value, complex):
            self.emit(b"c" + _COMPLEX.pack(value.real, value.imag))
        elif kind is range:
            self.many(b"r", iter((value.start, value.stop, value.step)), depth)
        elif isinstance(value, deque):
            self.many(b"q", deque.__iter__(value), depth)
        elif kind in _ITERATORS:
            self.many(b"I", value, depth)
        elif kind in _VIEWS:
            self.many(_VIEWS[kind], iter(value), depth)
        elif kind is loaded("fractions", "Fraction"):
            self.many(b"R", iter((value.numerator, value.denominator)), depth)
        elif kind is loaded("decimal", "Decimal"):
            self.blob(b"D", str(value).encode())
        elif kind.__name__ in NODES:
            self.many(b"O", _parts_of_nodes(value, kind.__name__), depth)
        elif kind.__module__ == "numpy" and hasattr(value, "tolist"):
            self.put(value.tolist(), depth + 1)
        else:
            error = NotPlainError(f"a value of type {kind.__name__} is not plain")
            error.is_builtin = kind.__module__ in ("builtins", "itertools")
            raise error

    def integer(self, value: int) -> None:
        value = int.__index__(value)
        size = (value.bit_length() + 8) // 8
        if size > self.left:
            raise CodecError(f"a value takes at most {self.limit} bytes")
        self.blob(b"i", value.to_bytes(size, "little", signed=True))

    def blob(self, tag: bytes, data: bytes) -> None:
        self.emit(tag + _LENGTH.pack(len(data)))
        self.emit(data)

    def many(self, tag: bytes, items: Iterator[Any], depth: int) -> None:
        at = len(self.out)
        self.emit(tag + _LENGTH.pack(0))
        count = 0
        for count, item in enumerate(items, 1):  # noqa: B007 - count is used below
            self.put(item, depth + 1)
        self.out[at] = tag + _LENGTH.pack(count)


def _parts_of_nodes(first: Any, name: str) -> Iterator[Any]:
    """The name of the class; then each node once: its value, and links as places in this order.

    Flat, so that a list of a thousand nodes is not a value that nests a thousand deep.
    """
    yield name
    value, *links = NODES[name]
    nodes, places = [first], {id(first): 0}
    for node in nodes:  # grows meanwhile
        yield getattr(node, value)
        for link in links:
            other = getattr(node, link)
            if other is not None and type(other).__name__ != name:
                raise NotPlainError(f"{name}.{link} is a {type(other).__name__}, not a {name}")
            if other is not None and id(other) not in places:
                places[id(other)] = len(nodes)
                nodes.append(other)
            yield None if other is None else places[id(other)]


class ListNode:
    """A node that came over a border and whose receiver has no such class."""


class TreeNode:
    """The same for binary trees."""


def _nodes(items: list[Any], classes: Mapping[str, Any]) -> Any:
    name = items[0] if items else None
    if type(name) is not str or name not in NODES:
        raise CodecError(f"nodes are of {' or '.join(NODES)}, got {name!r}")
    fields = NODES[name]
    count, rest = divmod(len(items) - 1, len(fields))
    if rest or not count:
        raise CodecError(f"a {name} is its fields: {', '.join(fields)}")
    kind = classes.get(name) or globals()[name]
    nodes = [object.__new__(kind) for _ in range(count)]
    parts = iter(items[1:])
    for node in nodes:
        for field in fields:
            part = next(parts)
            if field != fields[0] and part is not None:
                if type(part) is not int or not 0 <= part < count:
                    raise CodecError(f"a link leads to one of {count} nodes, got {part!r}")
                part = nodes[part]
            setattr(node, field, part)
    return nodes[0]


def loaded(module: str, name: str) -> Any:
    """A class of a module that whoever made its instances has imported: nothing is imported here,
    since every module makes every fork dearer."""
    return getattr(sys.modules.get(module), name, None)


def decode(data: bytes, limit: int = MAX_BYTES, classes: Mapping[str, Any] = _NO_CLASSES) -> Any:
    """The value that `data` encodes; `classes`: those of the receiver's for nodes, by name.

    Raises:
        CodecError: anything that is not exactly one value within the bounds.
    """
    if len(data) > limit:
        raise CodecError(f"a value takes at most {limit} bytes, got {len(data)}")
    decoder = _Decoder(data, classes)
    try:
        value = decoder.get(0)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise CodecError(f"malformed value: {error}") from None
    if decoder.at != len(data):
        raise CodecError(f"{len(data) - decoder.at} bytes after the value")
    return value


class _Decoder:
    def __init__(self, data: bytes, classes: Mapping[str, Any]) -> None:
        self.data, self.at, self.classes = data, 0, classes

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise CodecError("the value ends early")
        chunk = self.data[self.at : end]
        self.at = end
        return chunk

    def get(self, depth: int) -> Any:
        tag = self.take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag == b"f":
            return _DOUBLE.unpack(self.take(8))[0]
        if tag == b"c":
            return complex(*_COMPLEX.unpack(self.take(16)))
        length = _LENGTH.unpack(self.take(4))[0]
        if tag in _BLOBS:
            return _BLOBS[tag](self.take(length))
        if tag not in _CONTAINERS and tag != b"O":
            raise CodecError(f"unknown tag {tag!r}")
        if depth >= MAX_DEPTH:
            raise CodecError(f"a value nests at most {MAX_DEPTH} deep")
        if length > len(self.data) - self.at:  # every item takes a byte at least
            raise CodecError("more items announced than bytes left")
        items = [self.get(depth + 1) for _ in range(length)]
        return _nodes(items, self.classes) if tag == b"O" else _CONTAINERS[tag](items)


def _members(items: list[Any]) -> list[Any]:
    """What a set or dict is made of, an error where that would take quadratic time."""
    if len(items) > 1024 and max(Counter(map(hash, items)).values()) > _MOST_ALIKE:
        raise CodecError(f"more than {_MOST_ALIKE} members of a set or dict have one hash")
    return items


def _set(items: list[Any]) -> set[Any]:
    built = set(_members(items))
    if len(built) != len(items):
        raise CodecError("a set has each member once")
    return built


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise CodecError("a dict has as many values as keys")
    built = dict(zip(_members(items[::2]), items[1::2], strict=True))
    if 2 * len(built) != len(items):
        raise CodecError("a dict has each key once")
    return built


def _range(items: list[Any]) -> range:
    if len(items) != 3 or not all(type(item) is int for item in items):
        raise CodecError("a range is three integers")
    return range(*items)


def _fraction(items: list[Any]) -> Any:
    from fractions import Fraction

    if len(items) != 2 or not all(type(item) is int for item in items) or items[1] < 1:
        raise CodecError("a fraction is two integers, the second positive")
    if max(item.bit_length() for item in items) > 8 * _LONGEST:
        raise CodecError(f"the parts of a fraction have at most {_LONGEST} bytes")
    return Fraction(*items)


def _decimal(data: bytes) -> Any:
    from decimal import Decimal

    text = data.decode("ascii")
    if len(text) > _LONGEST or not _FIGURES.fullmatch(text):
        raise CodecError(f"a decimal is a number of at most {_LONGEST} figures")
    return Decimal(text)


_CONSTANTS: dict[bytes, Any] = {b"N": None, b"T": True, b"F": False}
_BLOBS: dict[bytes, Callable[[bytes], Any]] = {
    b"i": lambda data: int.from_bytes(data, "little", signed=True),
    b"s": lambda data: data.decode("utf-8", "surrogatepass"),
    b"b": bytes,
    b"D": _decimal,
}
_CONTAINERS: dict[bytes, Callable[[list[Any]], Any]] = {
    b"l": list,
    b"t": tuple,
    b"S": _set,
    b"Z": lambda items: frozenset(_set(items)),
    b"d": _pairs,
    b"r": _range,
    b"R": _fraction,
    b"q": deque,
    b"I": iter,
    b"K": lambda items: dict.fromkeys(_members(items)).keys(),
    b"V": lambda items: dict(enumerate(items)).values(),
    b"M": lambda items: _pairs([part for key, value in items for part in (key, value)]).items(),
}
