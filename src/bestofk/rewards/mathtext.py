"""Mathematical answers as text: where one stands, its plain form, its parts, its number.

Pure functions, linear in the length of the text (long texts are cut first), no sympy. What they
cannot decide is left to `maths_worker`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fractions import Fraction

from bestofk.rewards.extract import final_text, tagged

MAX_ANSWER = 2000
"""Characters of an answer. Longer ones are not read."""
MAX_DEPTH = 20
"""Nested brackets in an answer."""
_MARKERS = ("Answer:", "answer:", "ANSWER:", "nswer is", "nswer is:", "nswer**:", "nswer:**")


def extract(text: str) -> str | None:
    """The answer of a completion: the last of a balanced box, `#### x`, "Answer: x", or a tag.

    What is thought is not an answer, and of several answers only the last counts.

    >>> extract(r"<think>\\boxed{1}</think> so \\boxed{2}, no: \\boxed{\\frac{3}{4}}")
    '\\\\frac{3}{4}'
    >>> extract("18 - 5 = 13\\n#### 13"), extract("The answer is 13."), extract("13")
    ('13', '13.', None)
    """
    final = final_text(text)
    found: list[tuple[int, str]] = []
    box = last_box(final)
    if box is not None:
        found.append(box)
    hashes = final.rfind("####")
    if hashes >= 0:
        found.append((hashes, _line(final, hashes + 4)))
    for marker in _MARKERS:
        place = final.rfind(marker)
        if place >= 0:
            found.append((place + len(marker), _line(final, place + len(marker))))
    inside = tagged(final)
    if inside is not None:
        place = final.rfind(f"<answer>{inside}</answer>")
        found.append((place, inside[: MAX_ANSWER + 1]))
    answer = max(found)[1].strip() if found else ""
    return answer or None


def _line(text: str, start: int) -> str:
    end = text.find("\n", start)
    line = text[start : min(end if end >= 0 else len(text), start + MAX_ANSWER + 1)]
    return line.replace("**", "").strip()


def last_box(text: str) -> tuple[int, str] | None:
    """Place and inside of the last `\\boxed{...}` whose braces close; at most 50 are tried."""
    place = len(text)
    for _ in range(50):
        place = text.rfind("\\boxed", 0, place)
        if place < 0:
            return None
        window = text[place + 6 : place + 6 + MAX_ANSWER].lstrip(" ")
        if not window.startswith("{"):
            continue
        depth, escaped = 0, False
        for i, sign in enumerate(window):
            if escaped:
                escaped = False
            elif sign == "\\":
                escaped = True
            elif sign == "{":
                depth += 1
            elif sign == "}":
                depth -= 1
                if depth == 0:
                    return place, window[1:i]
    return None


_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "π": "\\pi ", "°": " ", "∞": "\\infty "}
    | {"$": "", "~": " ", "√": "\\sqrt", "≤": "\\le ", "≥": "\\ge ", "∪": "\\cup ", "\xa0": " "}
)
_LAYOUT = re.compile(
    r"\\(?:left|right)(?:\.|(?![A-Za-z]))|\\(?:displaystyle|textstyle|[bB]igg?[lr]?)(?![A-Za-z])"
    r"|\\[!;:]|\^ ?\{? ?\\circ ?\}?|\\degree(?![A-Za-z])"
)
_SPACE = re.compile(r"\\(?:,| |quad|qquad)(?![A-Za-z])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname) ?\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac ?(\d|[a-zA-Z]|\\[a-zA-Z]+)(?=[\da-zA-Z{\\ ])")
_SHORT_BOTTOM = re.compile(
    r"(\\frac\{(?:[^{}]|\{[^{}]*\})*\}) ?(\d|[a-zA-Z]|\\[a-zA-Z]+)(?![a-zA-Z{])"
)
_SHORT_ROOT = re.compile(r"\\sqrt ?(\d)")
_PAREN_ROOT = re.compile(r"\\sqrt ?\(([^()]*)\)")
_SOLVED = re.compile(r"[A-Za-z\\][A-Za-z0-9_{}()'\\ ]{0,60}= ?(?=[^=]+$)")
_LOOSE = re.compile(r"(?<!\w) | (?!\w)")


def plain(text: str) -> str:
    """An answer without typography: spacing, sizes, dollar signs, degree signs, text commands.

    >>> plain(r"$\\left( \\dfrac12,\\, \\text{ 5 cm} \\right)$.")
    '( \\\\frac{1}{2}, 5 cm )'
    """
    text = text.replace("\\$", "").replace("\\%", "%").replace("{,}", ",").translate(_SIGNS)
    text = _LAYOUT.sub("", text)
    text = _SPACE.sub(" ", text)
    text = _TEXT.sub(r" \1 ", text)
    text = _FRACTION.sub(r"\\frac", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}", text)
    text = _SHORT_BOTTOM.sub(r"\1{\2}", text)
    text = _PAREN_ROOT.sub(r"\\sqrt{\1}", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    return " ".join(text.split()).rstrip(".,; ")


def is_balanced(text: str) -> bool:
    """Whether brackets are balanced in number and not too deep."""
    depth = 0
    for sign in text:
        if sign in "({[":
            depth += 1
            if depth > MAX_DEPTH:
                return False
        elif sign in ")}]":
            depth -= 1
    return depth == 0


def is_readable(text: str) -> bool:
    """Whether it may be one formula: balanced, no two numbers side by side, no quotes or lines."""
    return is_balanced(text) and not _UNREADABLE.search(text)


_UNREADABLE = re.compile(
    r"\d \.?\d+(?!\d| ?/)|\d\.\d*\.|['\"`]|\\(?:approx|sim|simeq|cong|equiv)(?![A-Za-z])|\d ?_"
)
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,400})"
_DECIMAL = re.compile(rf"([+-]?) ?({_INTEGER})?(?:\.([0-9]{{0,400}}))?")
_RATIO = re.compile(
    rf"([+-]?) ?(?:({_INTEGER}) ?)??"
    rf"(?:\\frac ?\{{ ?([+-]?{_INTEGER}) ?\}} ?\{{ ?([+-]?{_INTEGER}) ?\}}"
    rf"|({_INTEGER}) ?/ ?({_INTEGER}))"
)
_UNITS = re.compile(r"(?: ?[A-Za-z]{2,20}){1,3}(?: ?\^ ?\{?[23]\}?)?$")
_NOT_UNITS = re.compile(
    r"\b(?:or|and|pi|sqrt|log|ln|sin|cos|tan|exp|times|plus|minus|over|by|to|mod|choose|not|if"
    r"|dozen|half|hundred|thousand|[mbtr]{1,2}illion|quarter|third|zero|one|two|three|four|five|six"
    r"|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty)\b",
    re.IGNORECASE,
)


def number(text: str) -> Fraction | None:
    """The exact value of a plain answer that is one number, perhaps with a unit; else None.

    >>> number("1,250.50"), number(r"-\\frac{3}{4}"), number("2 1/2"), number("18 dollars")
    (Fraction(2501, 2), Fraction(-3, 4), Fraction(5, 2), Fraction(18, 1))
    >>> number("2 or 3"), number("1,2"), number("5x"), number("3 thousand"), number("٣")
    (None, None, None, None, None)
    """
    if len(text) > 500:
        return None
    unit = _UNITS.search(text)
    if unit:
        if _NOT_UNITS.search(unit[0]):
            return None
        text = text[: unit.start()]
    text = text.rstrip("% ")
    match = _DECIMAL.fullmatch(text)
    if match and (match[2] or match[3]):
        digits = (match[2] or "").replace(",", "")
        behind = match[3] or ""
        value = Fraction(int(digits + behind or "0"), 10 ** len(behind))
        return -value if match[1] == "-" else value
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    top, bottom = (int((match[i] or match[i + 2]).replace(",", "")) for i in (3, 4))
    if bottom == 0 or (match[2] and (top < 0 or bottom < 0)):
        return None
    value = int((match[2] or "0").replace(",", "")) + Fraction(top, bottom)
    return -value if match[1] == "-" else value


_BASE = re.compile(r"([0-9A-Fa-f]{1,100})_ ?\{? ?([0-9]{1,2}) ?\}?")
_WORDS = re.compile(r"[A-Za-z]{3,}(?:[' -][A-Za-z]+)*")
_CHOICE = re.compile(r"\(? ?([A-Z]) ?\)?")


def same_scalar(gold: str, answer: str) -> bool | None:
    """Whether two plain answers without parts are equal; None where it takes algebra to tell."""
    gold, answer = unsolved(gold, answer)
    if gold == answer or _LOOSE.sub("", gold) == _LOOSE.sub("", answer):
        return True
    expected, value = number(gold), number(answer)
    if expected is not None and value is not None:
        if "%" in gold and "%" not in answer and value * 100 == expected:
            return True
        return expected == value
    base = _BASE.fullmatch(gold)
    if base:
        said = _BASE.fullmatch(answer)
        digits = said[1] if said and said[2] == base[2] else answer
        return digits.lower() == base[1].lower()
    letter, said_letter = _CHOICE.fullmatch(gold), _CHOICE.fullmatch(answer)
    if letter and said_letter:
        return letter[1] == said_letter[1]
    if _WORDS.fullmatch(gold):
        if gold.casefold() == answer.strip("() ").casefold():
            return True
        if len(gold) > 3:  # three letters may be a product
            return False
    if expected is not None and _WORDS.fullmatch(answer):
        return False
    return None


def unsolved(gold: str, answer: str) -> tuple[str, str]:
    """The two without what stands before the last "=", where only one of them has any.

    >>> unsolved("5", "x = 2 + 3 = 5"), unsolved("y = 2x", "2x")
    (('5', '5'), ('2x', '2x'))
    """
    if ("=" in gold) != ("=" in answer):
        gold, answer = (text.rpartition("=")[2].strip() for text in (gold, answer))
    return gold, answer


_BETWEEN = re.compile(r",| or | and |;")
_OPEN, _CLOSE = "([{", ")]}"


def parts(text: str) -> tuple[str, list[str]]:
    """Brackets and parts of a plain answer: ("(]", two parts) for an interval, ("", one) else.

    Braces of a set count as no brackets: a set and a list are the same, in any order.

    >>> parts("(1, 2]"), parts("2 or 3"), parts(r"\\{1,2\\}"), parts("1,234")
    (('(]', ['1', '2']), ('', ['2', '3']), ('', ['1', '2']), ('', ['1,234']))
    """
    if number(text) is not None:
        return "", [text]
    inner, brackets = text, ""
    if text.startswith("\\{") and text.endswith("\\}"):
        inner = text[2:-2]
    elif text[:1] in "([" and text[-1:] in ")]" and _is_wrapped(text):
        inner, brackets = text[1:-1], text[0] + text[-1]
    pieces = [piece.strip() for piece in _split(inner)]
    if len(pieces) == 1:
        whole = inner if not brackets else text
        if "\\pm" in whole and not brackets:
            return "", [whole.replace("\\pm", "+").lstrip("+ "), whole.replace("\\pm", "-")]
        return "", [whole.strip()]
    return brackets, pieces


def _is_wrapped(text: str) -> bool:
    """Whether the first bracket closes with the last one."""
    depth = 0
    for i, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth == 0:
            return i == len(text) - 1
    return False


def _split(text: str) -> list[str]:
    """Split at commas, semicolons, "or" and "and" outside all brackets."""
    pieces, depth, start, i = [], 0, 0, 0
    while i < len(text):
        sign = text[i]
        if sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif depth == 0:
            match = _BETWEEN.match(text, i)
            if match:
                pieces.append(text[start:i])
                start = i = match.end()
                continue
        i += 1
    return [*pieces, text[start:]]


def same(
    gold: str, answer: str, scalar: Callable[[str, str], bool | None] = same_scalar
) -> bool | None:
    """Whether two plain, balanced answers are equal: part by part, in order inside ( ) and [ ].

    None when `scalar` could not tell and it matters.
    """
    if gold == answer:
        return True
    if "=" not in gold:
        solved = _SOLVED.match(answer)
        answer = answer[solved.end() :] if solved else answer
    kind, wanted = parts(gold)
    said_kind, said = parts(answer)
    if kind != said_kind or len(wanted) != len(said):
        return False
    if len(wanted) == 1:
        return scalar(wanted[0], said[0])
    if kind:
        return _all(same(a, b, scalar) for a, b in zip(wanted, said, strict=True))
    unknown = False
    for part in wanted:
        for candidate in said:
            equal = same(part, candidate, scalar)
            unknown = unknown or equal is None
            if equal:
                said.remove(candidate)
                break
        else:
            return None if unknown else False
    return True


def _all(results: Iterable[bool | None]) -> bool | None:
    seen = list(results)
    return False if False in seen else None if None in seen else True
