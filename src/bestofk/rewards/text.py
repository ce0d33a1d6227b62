"""The answer in a completion, and judges of plain text.

Finding it is linear in the length of the text, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial as bind

from bestofk.rewards.base import PairVerifier, right, wrong
from bestofk.types import Prompt, Verdict, plain_text


def final_text(text: str) -> str:
    """What follows the thinking; nothing when the thinking never ends.

    >>> final_text("<think>2 or 3?</think> 3")
    ' 3'
    >>> final_text("<think>2 or 3? it must be")
    ''
    """
    start, end = text.rfind("<think>"), text.rfind("</think>")
    if start > end:
        return ""
    return text[end + len("</think>") :] if end >= 0 else text


def tagged(text: str) -> str | None:
    """The inside of the answer tag that closes last, or None where there is none or the last is
    never closed. Of nested tags that is the outer one: what stands beside the inner one counts.

    >>> tagged("<answer>1</answer> no, <answer>2</answer>")
    '2'
    >>> tagged("<answer>1</answer> no, <answer>2"), tagged("<answer><answer>1</answer> 2</answer>")
    (None, '<answer>1</answer> 2')
    """
    if text.rfind("<answer>") > text.rfind("</answer>"):
        return None
    starts: list[int] = []
    inside = None
    for mark in re.finditer("</?answer>", text):
        if mark[0] == "<answer>":
            starts.append(mark.end())
        elif starts:
            inside = text[starts.pop() : mark.start()]
    return inside


_PAIRS = (
    ("```", "```"), ("`", "`"), ("$$", "$$"), ("$", "$"), ("\\[", "\\]"), ("\\(", "\\)"),
    ("**", "**"), ("__", "__"), ('"', '"'), ("'", "'"), ("“", "”"), ("\\boxed{", "}"),
    ("\\text{", "}"),
)  # fmt: skip
_SAID = re.compile(
    r"(?:so |thus |therefore,? )?(?:the |my )?(?:final )?answer(?: is\b|\s*[:=])[: ]*", re.I
)
_GROUPED = re.compile(r"-?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_FIRST_OF_SET = re.compile(r"""[stmfa`$\\*_"'“]""", re.I)
"""How whatever `_SAID` and `_PAIRS` match begins."""


def unset(answer: str) -> str:
    """An answer without what only sets it in type: a fence, bold, backticks, a box, dollar signs,
    quotes, "The answer is", a full stop, commas between groups of three digits.

    >>> unset("The answer is **$3*8$**."), unset("```python\\n3*8\\n```"), unset("3,525")
    ('3*8', '3*8', '3525')
    >>> unset('\\\\boxed{1} or \\\\boxed{2}')
    '\\\\boxed{1} or \\\\boxed{2}'
    """
    text = answer.strip()
    if not _FIRST_OF_SET.match(text) and not text.endswith(".") and "," not in text:
        return text  # most answers: what follows takes several times as long as judging them
    for _ in range(8):  # layers; honest answers have two or three
        if not text.endswith(".."):
            text = text.removesuffix(".").rstrip()
        said = _SAID.match(text)
        text = text[said.end() :] if said else text
        for opened, closed in _PAIRS:
            if len(text) <= len(opened) + len(closed):
                continue
            inside = text[len(opened) : -len(closed)]
            if text.startswith(opened) and text.endswith(closed) and _is_one(inside, closed):
                language, line, rest = inside.partition("\n")
                is_language = opened == "```" and line and language.strip().isalpha()
                text = (rest if is_language else inside).strip()
                break
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def readings(answer: str) -> list[str]:
    """An answer, and what is left of it without what only sets it in type."""
    return list(dict.fromkeys((answer, unset(answer) or answer)))


def _is_one(inside: str, closed: str) -> bool:
    """Whether a closing mark ends the first thing that was opened, not a second one."""
    if closed != "}":
        return closed not in inside
    depth = 0
    for sign in inside:
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return False
    return depth == 0


def answer_of(prompt: Prompt, text: str) -> str | None:
    """The answer part of a completion, as the prompt asked for it.

    `spec["answer"]` is "tag" (the last `<answer>...</answer>` after the thinking, the default) or
    "whole" (the completion is the answer and nothing else, for compact prompts).
    """
    if prompt.spec.get("answer", "tag") == "whole":
        return text.strip()
    inside = tagged(final_text(text))
    return None if inside is None else inside.strip()


_TAG = re.compile(r"\w[\w-]*")


def judge_exact(prompt: Prompt, text: str, *, ignore_case: bool) -> Verdict:
    """1 when the answer is `spec["expected"]`, up to outer and repeated white space."""
    answer = answer_of(prompt, text)
    if not answer:
        return wrong("no answer", "unparsed")
    expected = plain_text(prompt.spec["expected"])
    if len(answer) > 4 * len(expected) + 1000:
        return wrong("longer than the expected answer")
    for candidate in readings(answer):
        one, other = " ".join(candidate.split()), " ".join(expected.split())
        if one == other or (ignore_case and one.casefold() == other.casefold()):
            return right()
    return wrong("another answer")


def exact(*, ignore_case: bool = False) -> PairVerifier:
    """The answer equals the expected text."""
    exactly = bind(judge_exact, ignore_case=ignore_case)
    return PairVerifier(exactly, name="exact", needed=("expected",))


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
