"""Judges of plain text: an exact answer, and the form of a completion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial as bind

from bestofk.rewards.base import PairVerifier, right, wrong
from bestofk.rewards.extract import answer_of
from bestofk.types import Prompt, Verdict, plain_text

_TAG = re.compile(r"\w[\w-]*")


def judge_exact(prompt: Prompt, text: str, *, ignore_case: bool) -> Verdict:
    """1 when the answer is `spec["expected"]`, up to outer and repeated white space."""
    answer = answer_of(prompt, text)
    if not answer:
        return wrong("no answer", "unparsed")
    expected = plain_text(prompt.spec["expected"])
    if len(answer) > 4 * len(expected) + 1000:
        return wrong("longer than the expected answer")
    answer, expected = " ".join(answer.split()), " ".join(expected.split())
    if ignore_case:
        answer, expected = answer.casefold(), expected.casefold()
    return right() if answer == expected else wrong("another answer")


def exact(*, ignore_case: bool = False) -> PairVerifier:
    """The answer equals the expected text."""
    return PairVerifier(bind(judge_exact, ignore_case=ignore_case), name="exact")


def judge_format(prompt: Prompt, text: str, *, tags: Sequence[str]) -> Verdict:
    """1 when the completion is exactly one of each tag, in order, and nothing between them."""
    rest = text.strip()
    for tag in tags:
        opened, closed = f"<{tag}>", f"</{tag}>"
        if text.count(opened) != 1 or text.count(closed) != 1:
            return wrong(f"{opened}...{closed} must occur exactly once", "unparsed")
        if not rest.startswith(opened) or closed not in rest:
            return wrong(f"{opened} is not where it belongs", "unparsed")
        rest = rest[rest.index(closed) + len(closed) :].strip()
    return wrong("text after the last tag", "unparsed") if rest else right()


def form(*, tags: Sequence[str] = ("think", "answer")) -> PairVerifier:
    """The completion consists of the tags, each once and in order: a gate for other rewards."""
    names = [] if isinstance(tags, str) else list(tags)
    if not names or len(set(names)) != len(names) or not all(map(_TAG.fullmatch, names)):
        raise ValueError(
            f"tags are a list of different names, at least one, got {tags!r}; for example "
            'tags=["think", "answer"]'
        )
    return PairVerifier(bind(judge_format, tags=tuple(names)), name="format")
