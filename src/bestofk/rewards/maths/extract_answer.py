"""Where the answer of a mathematical completion stands. Linear, whatever the text."""

from __future__ import annotations

import re

from bestofk.rewards.maths.plain_form import plain
from bestofk.rewards.text import answer_of, final_text, tagged
from bestofk.types import Prompt, Verdict

MAX_ANSWER = 2000
"""Characters of an answer. Longer ones are not read."""
_TRIES = 50  # boxes, and mentions of an answer, that are looked at from the end
_BOX = re.compile(r"\\(?:boxed|fbox) {0,9}\{")
_LABEL = re.compile(r"(?:\*\*)? ?[:：](?:\*\*)?")
_SENTENCE = re.compile(r" is(?::(?:\*\*)?|(?![A-Za-z]))")
_OF_SOMETHING_SAID = ("this ", "that ", "your ")
_CLOSING = " I hope it is correct."
_MARKS = ("**", "*", "`")
_DISPLAYED = re.compile(r"(?:\\\[|\$\$)\s*\n")


def extract(text: str) -> str | None:
    """The answer of a completion: the last of a balanced box, `#### x`, "Answer: x", or a tag.

    What is thought is not an answer, and of several answers only the last counts. The sentence "the
    answer is x" is read only where there is none of these: prose after a box is seldom an answer
    ("this answer is reasonable").

    >>> extract(r"<think>\\boxed{1}</think> so \\boxed{2}, no: \\boxed{\\frac{3}{4}}")
    '\\\\frac{3}{4}'
    >>> extract("18 - 5 = 13\\n#### 13"), extract("The answer is 13."), extract("13")
    ('13', '13', None)
    """
    final = final_text(text)
    candidates: list[tuple[int, str]] = []
    box = last_box(final)
    if box is not None:
        candidates.append(box)
    hashes = final.rfind("####")
    if hashes >= 0:
        candidates.append((hashes, _line(final, hashes + 4)))
    inside = tagged(final)
    if inside is not None:
        candidates.append((final.rfind(f"<answer>{inside}</answer>"), inside[: MAX_ANSWER + 1]))
    label = _last_mention(final, _LABEL, box)
    if label is not None:
        candidates.append((label[0], _line(final, label[1])))
    candidates = [(place, answer) for place, answer in candidates if answer.strip()]
    if not candidates:
        sentence = _last_mention(final, _SENTENCE, None)
        candidates = [(sentence[0], _line(final, sentence[1]))] if sentence else [(0, "")]
    return _bare(max(candidates)[1]) or None


def last_box(text: str) -> tuple[int, str] | None:
    r"""Place and inside of the last `\boxed{...}` or `\fbox{...}` that closes; of nested boxes
    the outer one, unless it holds nothing else. At most 50 are tried.

    >>> last_box(r"\boxed{1} or \boxed{\fbox{2} or 3}"), last_box(r"\boxed{\fbox{2}}")
    ((13, '\\fbox{2} or 3'), (7, '2'))
    """
    place, end, box = len(text), 0, None
    for _ in range(_TRIES):
        place = max(text.rfind(r"\boxed", 0, place), text.rfind(r"\fbox", 0, place))
        if place < 0:
            break
        opening = _BOX.match(text, place)
        start = opening.end() - 1 if opening else len(text)
        size = _braced(text[start : start + MAX_ANSWER])
        inside = text[start + 1 : start + size - 1]
        if size and (box is None or (start + size > end and inside.strip() != text[box[0] : end])):
            box, end = (place, inside), start + size
    return box


def _braced(text: str) -> int:
    """How long the group in braces is that a text begins with; 0 where there is none."""
    depth, escaped = 0, False
    for at, sign in enumerate(text if text.startswith("{") else ""):
        if escaped:
            escaped = False
        elif sign == "\\":
            escaped = True
        elif sign in "{}":
            depth += 1 if sign == "{" else -1
            if depth == 0:
                return at + 1
    return 0


def _last_mention(
    text: str, follows: re.Pattern[str], box: tuple[int, str] | None
) -> tuple[int, int] | None:
    """Place and end of the last "answer" before what `follows`; one inside the box is part of it.

    At most 50 mentions are looked at.
    """
    place = len(text)
    for _ in range(_TRIES):
        place = max(text.rfind("nswer", 0, place), text.rfind("NSWER", 0, place))
        if place < 0:
            return None
        match = follows.match(text, place + 5)
        in_box = box is not None and box[0] < place < box[0] + 7 + len(box[1])
        said_before = text[max(0, place - 6) : max(0, place - 1)].lower() in _OF_SOMETHING_SAID
        if match and not in_box and not said_before:
            return place, match.end()
    return None


def _line(text: str, start: int) -> str:
    """The rest of the line, or the next one that is not empty; of a displayed formula its first."""
    rest = text[start : start + 2 * MAX_ANSWER].partition("</answer>")[0].lstrip()
    opening = _DISPLAYED.match(rest)
    rest = rest[opening.end() :].lstrip() if opening else rest
    return rest.partition("\n")[0][: MAX_ANSWER + 1]


def _bare(answer: str) -> str:
    """An answer without the full stop, the emphasis and the code marks around it.

    Only marks in pairs are taken away, and one that was opened before "Answer:": `2**3` is not 23.
    """
    answer = answer.strip().removesuffix(_CLOSING).strip()
    if answer.endswith("**") and answer.count("**") == 1:
        answer = answer[:-2].rstrip()
    if answer.startswith("**") and answer.count("**") == 2:
        answer = answer.replace("**", "")
    answer = _unstopped(answer)
    for mark in _MARKS:
        inner = answer[len(mark) : -len(mark)]
        if answer == mark + inner + mark and inner and mark not in inner:
            answer = inner.strip()
    return _unstopped(answer)


def _unstopped(answer: str) -> str:
    """Without a full stop, but with an ellipsis: 0.33... is not 0.33."""
    return answer if answer.endswith("..") else answer.removesuffix(".").rstrip()


def given_answer(prompt: Prompt, text: str, verdict: Verdict) -> str | None:
    r"""As the prompt asked for it: between tags, or the whole text; for an `expected` answer also
    where mathematics writes it (a box, `####`, "Answer:"), without typography. None without one,
    and where the verifier found none in such places.

    >>> given_answer(
    ...     Prompt("p", "", "t", {"expected": "5"}), r"so \boxed{\dfrac{1}{2}}",
    ...     Verdict(0.0, "incorrect"),
    ... )
    '\\frac{1}{2}'
    """
    answer = answer_of(prompt, text)
    if not answer and "expected" in prompt.spec and verdict.status != "unparsed":
        answer = extract(text)
        if answer and len(answer) <= MAX_ANSWER:
            answer = plain(answer)
    return answer or None


def answer_in(text: str) -> str | None:
    """What a vote counts where nothing says how the answer was asked for: in a box, a tag, after
    "Answer:", else all that follows the thinking.

    >>> answer_in("so \\\\boxed{4}"), answer_in("<think>5?</think> It is  4. "), answer_in("")
    ('4', 'It is 4.', None)
    """
    answer = extract(text)
    if answer is None or len(answer) > MAX_ANSWER:
        return " ".join(final_text(text).split()) or None
    return plain(answer) or None
