# ruff: noqa: E501 - programs, one per line
"""The value codec, and frames written by somebody who means harm."""

from __future__ import annotations

import collections
import contextlib
import enum
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits, Sandbox
from bestofk.sandbox.guest.codec import MAX_DEPTH, CodecError, decode, encode
from bestofk.types import Prompt, Verdict

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 400), 1 << 400)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4),
    max_leaves=6,
)
plain = st.recursive(
    hashable | st.complex_numbers(allow_nan=False) | st.sets(hashable, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.dictionaries(hashable, inner, max_size=4)
    ),
    max_leaves=12,
)
PLAIN_TYPES = {
    type(None), bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, range,
    collections.deque, type(iter([])), type({}.keys()), type({}.values()), type({}.items()),
}  # fmt: skip


def types_in(value: Any) -> set[type]:
    """Every type in a decoded value."""
    found = {type(value)}
    if isinstance(value, dict):
        parts: list[Any] = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        parts = list(value)
    else:
        parts = []
    return found.union(*map(types_in, parts))


@given(plain)
def test_a_plain_value_comes_back_the_same(value: Any) -> None:
    again = decode(encode(value))
    assert again == value
    assert repr(types_in(again)) == repr(types_in(value)) or types_in(again) == types_in(value)


@given(st.binary(max_size=200), plain, st.data())
@settings(max_examples=150)
def test_damaged_bytes_are_a_plain_value_or_an_error(
    arbitrary: bytes, value: Any, data: st.DataObject
) -> None:
    good = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (arbitrary, bytes(good), bytes(good[:cut]), bytes(good) + b"N"):
        with contextlib.suppress(CodecError):
            assert types_in(decode(damaged)) <= PLAIN_TYPES


def test_special_floats_survive() -> None:
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode([math.inf, -math.inf])) == [math.inf, -math.inf]
    assert math.copysign(1, decode(encode(-0.0))) == -1


class Sly(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__

    def __index__(self) -> int:
        return 99


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.IntEnum):
    RED = 1


def test_subclasses_arrive_as_their_plain_base() -> None:
    again = decode(encode([Sly(7), Point(1, 2), Colour.RED, collections.Counter("aa")]))
    assert again == [7, (1, 2), 1, {"a": 2}]
    assert types_in(again) == {list, int, tuple, dict, str}


def test_iterators_and_views_arrive_as_their_kind() -> None:
    assert list(decode(encode(i * i for i in range(4)))) == [0, 1, 4, 9]
    assert decode(encode(map(abs, [1]))) != [1]
    assert decode(encode(range(2, 9, 3))) == range(2, 9, 3)
    assert decode(encode({1: 2}.keys())) == {1}
    assert sorted(decode(encode({1: 2}.values()))) == [2]


def test_what_is_not_plain_is_refused() -> None:
    for value in (object(), len, lambda: 0, type, Exception("x"), open, memoryview(b"")):
        with pytest.raises(CodecError, match="is not plain"):
            encode([value])


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_capped_on_both_sides() -> None:
    assert decode(encode(nested(MAX_DEPTH - 1))) == nested(MAX_DEPTH - 1)
    with pytest.raises(CodecError, match="nests"):
        encode(nested(MAX_DEPTH))
    bomb = b"l\x01\x00\x00\x00" * 100_000 + b"N"
    with pytest.raises(CodecError, match="nests"):
        decode(bomb)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CodecError, match="nests"):
        encode(loop)


def test_size_is_capped_on_both_sides() -> None:
    with pytest.raises(CodecError, match="at most 1000 bytes"):
        encode("x" * 1000, 1000)
    with pytest.raises(CodecError, match="at most"):
        encode(1 << 10_000, 1000)
    with pytest.raises(CodecError, match="at most"):
        encode((i for i in iter(int, 1)), 1000)  # an endless generator
    with pytest.raises(CodecError, match="at most"):
        decode(b"s" + struct.pack("<I", 2000) + b"x" * 2000, 1000)
    for tag in (b"l", b"t", b"d", b"S", b"s", b"b", b"i"):  # an announced length allocates nothing
        with pytest.raises(CodecError):
            decode(tag + b"\xff\xff\xff\xff")
    shared: list[Any] = ["x" * 50]
    for _ in range(40):  # 2^40 strings if it were written out
        shared = [shared, shared]
    with pytest.raises(CodecError):
        encode(shared, 100_000)


FUZZER = """
import os, random, struct
r = random.Random({seed})
def piece():
    kind = r.randrange(6)
    if kind == 0: return r.randbytes(r.randrange(40))
    if kind == 1: return struct.pack("<I", r.choice([0, 1, 2**31, 2**32 - 1, r.randrange(100)]))
    if kind == 2: return r.choice([b"N", b"T", b"t", b"l", b"d", b"i", b"s", b"I", b"\\0", b"\\xff"]) * r.randrange(5)
    body = b"t" + struct.pack("<I", 3) + b"i\\1\\0\\0\\0" + bytes([r.randrange(4)]) + b"s\\2\\0\\0\\0ok" + r.choice([b"T", b"N", b"i\\1\\0\\0\\0\\7"])
    return struct.pack("<I", len(body)) + body
def noise():
    for _ in range(r.randrange(1, 20)):
        try: os.write(3, piece())
        except OSError: return
if r.random() < .5: noise()
def f(x):
    noise()
    if r.random() < .3: os._exit(0)
    return 1000 + x
"""  # fmt: skip


def fuzz(verifier: CodeVerifier, seeds: range) -> None:
    """No noise on the channel is worth anything, unscores anything or harms a neighbour."""
    spec = {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}
    prompts = [Prompt("p", "", "code", spec)] * (2 * len(seeds))
    texts = [
        text for seed in seeds for text in (FUZZER.format(seed=seed), "def f(x): return x + 1")
    ]
    verdicts = verifier(prompts, texts)
    assert [v.reward for v in verdicts] == [0.0, 1.0] * len(seeds)
    assert all(v.status != "unscored" for v in verdicts)


@pytest.fixture
def impatient(new_sandbox: Callable[..., Sandbox]) -> Iterator[CodeVerifier]:
    """Half a frame makes the checker wait for the rest: let it not wait long."""
    limits = Limits(cpu_per_test=0.3, cpu_per_program=0.6, blocked_per_program=0.6)
    with CodeVerifier(sandbox=new_sandbox(workers=4, limits=limits)) as judge:
        assert isinstance(judge, CodeVerifier)
        yield judge


def test_noise_on_the_channel_is_worth_nothing(impatient: CodeVerifier) -> None:
    fuzz(impatient, range(60))
    assert len(impatient.sandbox._state.all) == 4


@pytest.mark.slow
def test_much_noise_on_the_channel_is_worth_nothing(impatient: CodeVerifier) -> None:
    fuzz(impatient, range(100, 2100))


Judge = Callable[[dict[str, Any], str], Verdict]


def test_values_meant_to_choke_the_checker_only_cost_their_program(verdict: Judge) -> None:
    """Colliding keys make a dict quadratic: the checker is stopped, not the worker."""
    collide = "def f(x): return {i * (2**61 - 1): 0 for i in range(1, 120000)}"
    assert verdict({"asserts": ["assert f(1) == 2"]}, collide).reward == 0.0
    long = "def f(x): return 10 ** 200000"
    assert verdict({"asserts": ["assert f(1) == 2", "assert f(1) > 0"]}, long).reward == 0.5
    assert verdict({"asserts": ["assert str(f(1))"]}, long).status == "incorrect"
    assert verdict({"asserts": ["assert f(1) == 2"]}, "def f(x): return x + 1").reward == 1.0


def _many(tag: bytes, items: list[bytes]) -> bytes:
    return tag + len(items).to_bytes(4, "little") + b"".join(items)


def test_members_that_collide_are_refused_before_they_cost_anything() -> None:
    collide = [encode(number * (2**61 - 1)) for number in range(1, 3000)]
    pairs = [part for key in collide for part in (key, b"N")]
    views = [_many(b"t", [key, b"N"]) for key in collide]
    for tag, items in (
        (b"S", collide),
        (b"Z", collide),
        (b"K", collide),
        (b"d", pairs),
        (b"M", views),
    ):
        with pytest.raises(CodecError, match="have one hash"):
            decode(_many(tag, items))
    apart = {number << 40 for number in range(3000)} | {-1, -2, 0.5}
    assert decode(encode(apart)) == apart


def test_a_member_twice_is_no_set_and_a_key_twice_no_dict() -> None:
    with pytest.raises(CodecError, match="each member once"):
        decode(_many(b"S", [b"N", b"N"]))
    with pytest.raises(CodecError, match="each key once"):
        decode(_many(b"d", [b"N", b"T", b"N", b"F"]))
