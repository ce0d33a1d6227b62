"""Whether two plain answers are equal: equations, lists, tuples and intervals, then each part.

Pure functions, no sympy. What they cannot decide is left to `maths_worker`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import gcd

from bestofk.rewards.maths.plain_form import is_wrapped
from bestofk.rewards.maths.quantities import CHANGES_MEANING, is_word, number, quantity

Scalar = Callable[[str, str], bool | None]
MAX_SIDES = 8
"""Sides of an equation that are compared."""
_LOOSE = re.compile(r"(?<!\w) | (?!\w)")
_BASE = re.compile(r"\(? ?([0-9A-Fa-f]{1,100}) ?\)?_ ?\{? ?([0-9]{1,2}) ?\}?")
_CHOICE = re.compile(r"([A-Z])|\( ?([A-Za-z]) ?\)|\\text\{([A-Za-z])\}")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}")
_HOUR = re.compile(r"\d ?[ap]\.?m\.?", re.IGNORECASE)
_SPOKEN = frozenset(("no", "yes", "odd", "one", "two", "six", "ten"))
_HYPHEN = re.compile(r"(?<=[\w}])\s*-")
"""Between words; elsewhere it is a sign."""
_DATE = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\6((?:\d\d)?\d\d)")
_CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)(?::[0-5]\d)?")
_CAPITALS = re.compile("[A-Z]{2,}|[A-Z][a-z]{2}")


def same_scalar(gold: str, answer: str) -> bool | None:
    """Whether two plain answers without parts are equal; None where it takes algebra to tell."""
    if gold == answer or _LOOSE.sub("", gold) == _LOOSE.sub("", answer):
        return True
    reference, response = quantity(gold), quantity(answer)
    if reference.unit and response.unit and reference.unit != response.unit:
        return False
    if reference.core == response.core and reference.percent == response.percent:
        return True
    expected, value = number(reference.core), number(response.core)
    if expected is not None and value is not None:
        return _same_number(expected, reference.percent, value, response.percent)
    base = _BASE.fullmatch(gold)
    if base and _is_in_base(base[1], int(base[2])):
        written = _BASE.fullmatch(answer)
        digits = written[1] if written and written[2] == base[2] else answer
        return digits.lower() == base[1].lower()
    if _is_date(gold) or _is_date(answer):
        return _date(gold) == _date(answer)
    letter, chosen = _CHOICE.fullmatch(gold), _CHOICE.fullmatch(answer)
    if letter and chosen:
        a, b = letter[letter.lastindex or 0], chosen[chosen.lastindex or 0]
        return a == b or (chosen[1] is None and a == b.upper())
    if _is_spoken(reference.core):
        return _spoken(gold) == _spoken(answer)
    if reference.percent != response.percent or "\\text{" in response.core:
        return False
    if expected is not None and response.core.isalpha() and is_word(response.core):
        return False
    return None


def _is_date(text: str) -> bool:
    """Whether it is a date or a time of day, not a difference or a ratio in lowest terms."""
    if date := _DATE.fullmatch(text):
        year, month_and_day = date[1] or date[8], (date[3] or date[5], date[4] or date[7])
        month, day = sorted(map(int, month_and_day))
        stroke_ratio = date[6] == "/" and len(year) == 2
        return 1 <= month <= 12 and day <= 31 and not stroke_ratio
    clock = _CLOCK.fullmatch(text)
    return bool(clock and int(clock[1]) <= 24 and gcd(int(clock[1]), int(clock[2])) > 1)


def _date(text: str) -> list[int | str]:
    """Its figures and marks: 2023-1-2 is 2023-01-02."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([^0-9])", text)]


def _same_number(a: Fraction, a_percent: bool, b: Fraction, b_percent: bool) -> bool:
    """Equal numbers; 50% is 0.5, and 50 too, as the question may have named the percent.

    Below one percent only the value counts: 0.5 is not 0.5%.
    """
    if a_percent == b_percent:
        return a == b
    percent, value = (a, b) if a_percent else (b, a)
    return value == percent / 100 or (abs(percent) >= 1 and value == percent)


def _is_in_base(digits: str, base: int) -> bool:
    """Whether it can be a number in that base: F_2 and a_1 are names."""
    is_name = len(digits) == 1 and digits.isalpha()
    return base >= 2 and not is_name and all(int(digit, 16) < base for digit in digits)


def _is_spoken(text: str) -> bool:
    """Whether it is words, which are never algebra: "yes", CAT and HHT are not products."""
    if "\\text{" in text or text.lower() in _SPOKEN or _CAPITALS.fullmatch(text):
        return True
    if len(text) == 3 and text.isalpha() and is_word(text):
        return True
    return bool(_LONG_WORD.search(text) or _HOUR.search(text))


def _spoken(text: str) -> str:
    words = _HYPHEN.sub(" ", text).replace("\\text{", " ").replace("}", " ").replace(".", "")
    return " ".join(words.casefold().split()).strip("() ")


_OPEN, _CLOSE = "([{", ")]}"
_BETWEEN = re.compile(r",? (?:or|and) |,|;")
_COMMA = re.compile("[,;]")
_EQUALS = re.compile("=")


def _split(text: str, between: re.Pattern[str]) -> list[str]:
    """Split at what stands between parts, outside all brackets."""
    pieces, depth, start, i = [], 0, 0, 0
    while i < len(text):
        sign = text[i]
        if sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif depth == 0:
            match = between.match(text, i)
            if match:
                pieces.append(text[start:i].strip())
                start = i = match.end()
                continue
        i += 1
    return [*pieces, text[start:].strip()]


def parts(text: str) -> tuple[str, list[str]]:
    """Brackets and parts of a plain answer: ("(]", two parts) for an interval, ("", one) else.

    Braces of a set count as no brackets: a set and a list are the same, in any order.

    >>> parts("(1, 2]"), parts("2 or 3"), parts(r"\\{1,2\\}"), parts("1,234")
    (('(]', ['1', '2']), ('', ['2', '3']), ('', ['1', '2']), ('', ['1,234']))
    """
    if number(quantity(text).core) is not None:
        return "", [text]
    inner, brackets = text, ""
    if text.startswith("\\{") and text.endswith("\\}"):
        inner = text[2:-2].strip()
        if inner == "\\emptyset":
            return "{}", [inner]  # {∅} is not ∅
    elif text[:1] in "([" and text[-1:] in ")]" and is_wrapped(text):
        inner, brackets = text[1:-1], text[0] + text[-1]
    pieces = _split(inner, _COMMA if brackets else _BETWEEN)
    if len(pieces) == 1:
        undivided = inner if not brackets else text
        if undivided.count("\\pm") == 1 and not brackets:
            return "", [undivided.replace("\\pm", "+").lstrip("+ "), undivided.replace("\\pm", "-")]
        return "", [undivided.strip()]
    return brackets, pieces


_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma"
    "|tau|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|ell"
)
_SYMBOL = rf"(?:[A-Za-z]|\\(?:{_GREEK}))(?: ?_ ?(?:\w|\{{[^{{}}]{{1,20}}\}}))?'{{0,3}}"
_ARGUMENT = rf"(?:{_SYMBOL}|-?\d{{1,10}})"
_NAME = re.compile(
    rf"{_SYMBOL}"
    rf"|{_SYMBOL}(?: ?\^ ?\{{ ?-1 ?\}})? ?\( ?{_ARGUMENT}(?: ?, ?{_ARGUMENT}){{0,3}} ?\)"
    rf"|(?:[PEV]|\\Pr|\\text\{{(?:Var|Pr)\}}) ?\([^()]{{1,60}}\)"
    rf"|\( ?{_SYMBOL}(?: ?, ?{_SYMBOL}){{1,5}} ?\)"
    r"|\|[A-Z]{1,3}\||(?:m ?)?(?:\\(?:angle|triangle) ?)?[A-Z]{1,4}"
    r"|\\(?:overline|vec|overrightarrow|widehat|hat|bar) ?\{ ?[A-Za-z]{1,3} ?\}"
)
_MEMBER = re.compile(rf"{_SYMBOL} ?\\in(?![A-Za-z]) ?")


def is_name(text: str) -> bool:
    """Whether the left side of an equation only names what the right side is.

    A symbol, a function of symbols, a tuple of symbols, a segment, or words that deny nothing.

    >>> [is_name(text) for text in ("x", "f(x)", "(x, y)", "AB", r"\\text{Total cost}")]
    [True, True, True, True, True]
    >>> [is_name(text) for text in ("x^2", "x+y", "xy", "2x", "It is not true that x", "twice x")]
    [False, False, False, False, False, False]
    """
    if _NAME.fullmatch(text):
        return True
    words = text.replace("\\text{", " ").replace("}", " ").replace(":", " ").split()
    if not 0 < len(words) <= 10 or any(word.lower() in CHANGES_MEANING for word in words):
        return False
    links = ("of", "the", "is", "a", "an", "in", "per", "and", "for")
    plain_words = [word for word in words if word.isascii() and word.isalpha()]
    return (
        len(plain_words) == len(words)
        and any(is_word(word) for word in words)
        and all(
            is_word(word) or word.lower() in links or len(word) == 1 or word.isupper()
            for word in words
        )
    )


def _comparable(gold: str, answer: str) -> tuple[str, list[str]]:
    """The expected value, and every value that the answer states for it.

    "x = 5" states 5 and "2 + 3 = 5" states 5 twice. Of an expected equation only a name before "="
    may be left out: the answer to "x^2 + y^2 = 25" is not 25.

    >>> _comparable("5", "x = 2 + 3 = 5"), _comparable("y = 2x", "2x"), _comparable("x+y = 5", "5")
    (('5', ['2 + 3', '5']), ('2x', ['2x']), ('x+y = 5', ['5']))
    """
    if bool(_MEMBER.search(gold)) != bool(_MEMBER.search(answer)):
        gold, answer = (_MEMBER.sub("", text, count=1) for text in (gold, answer))
    reference, response = _sides(gold), _sides(answer)
    if len(reference) == 1 < len(response):
        values = [side for i, side in enumerate(response) if not is_name(side) and (side or i)]
        return gold, values or response[-1:]
    if len(reference) == 2 and is_name(reference[0]):
        if len(response) == 1:
            return reference[1], response
        if _LOOSE.sub("", reference[0]) == _LOOSE.sub("", response[0]):
            return reference[1], response[1:]
    return gold, [answer]


def _sides(text: str) -> list[str]:
    """The sides of one equation; a list of equations is left whole, "x = 1, 2" is not."""
    if "=" not in text:
        return [text]
    first, *more_pieces = _split(text, _BETWEEN)
    sides = _split(first if more_pieces else text, _EQUALS)
    if not more_pieces:
        return sides if len(sides) <= MAX_SIDES else [text]
    if len(sides) == 2 and is_name(sides[0]) and not any("=" in other for other in more_pieces):
        return [sides[0], text[text.index("=") + 1 :].strip()]
    return [text]


def same(gold: str, answer: str, scalar: Scalar = same_scalar) -> bool | None:
    """Whether two plain, balanced answers are equal: part by part, in order inside ( ) and [ ].

    None when `scalar` could not tell and it matters.
    """
    if gold == answer:
        return True
    named_gold, named_answer = _by_name(gold), _by_name(answer)
    if named_gold and named_answer:
        if named_gold.keys() != named_answer.keys():
            return False
        return _all(same(value, named_answer[name], scalar) for name, value in named_gold.items())
    if named_gold or (
        named_answer and parts(gold)[0]
    ):  # without brackets the expected values have no order
        return _same_unnamed(
            named_gold or named_answer, answer if named_gold else gold, bool(named_gold), scalar
        )
    gold, answer = _as_intervals(gold, answer)
    gold, values = _comparable(gold, answer)
    return _all(_same_parts(gold, value, scalar) for value in values)


def _by_name(text: str) -> dict[str, str]:
    """Values by their names, of "x = 1, y = 2" and "(x, y) = (1, 2)"; empty for anything else."""
    if "=" not in text:
        return {}
    pairs = [_split(piece, _EQUALS) for piece in _split(text, _BETWEEN)]
    if len(pairs) == 1 and len(pairs[0]) == 2:
        names, values = map(parts, pairs[0])
        if names[0] != "()" or values[0] != "()" or len(names[1]) != len(values[1]):
            return {}
        pairs = [list(pair) for pair in zip(names[1], values[1], strict=True)]
    if len(pairs) < 2 or any(len(pair) != 2 or not _NAME.fullmatch(pair[0]) for pair in pairs):
        return {}
    values_by_name = {_LOOSE.sub("", name): value for name, value in pairs}
    return values_by_name if len(values_by_name) == len(pairs) else {}


_ORDERED = (set("xyz"), set("abcd"))


def _same_unnamed(named: dict[str, str], other: str, is_gold: bool, scalar: Scalar) -> bool | None:
    """Values with names against values without, which are in the order of the names.

    Where the expected answer has no names, its values are those of x, y, z.
    """
    names, (_, values) = list(named), parts(other)
    if not is_gold and any(set(names) <= letters for letters in _ORDERED):
        names = sorted(names)
    if len(values) != len(names):
        return False
    pairs = [(named[name], value) for name, value in zip(names, values, strict=True)]
    return _all(same(*(pair if is_gold else pair[::-1]), scalar) for pair in pairs)


_BOUND = r"[^<>=,\\]{1,40}(?:\\(?!le|ge)[^<>=,]{1,40})?"
_INEQUALITY = re.compile(
    rf"(?:(?P<left>{_BOUND}) ?(?P<left_sign>[<>]|\\le|\\ge) ?)??[A-Za-z]"
    rf"(?: ?(?P<right_sign>[<>]|\\le|\\ge) ?(?P<right>{_BOUND}))?"
)
_MORE, _INCLUDES = (">", "\\ge"), ("\\le", "\\ge")


def _as_intervals(gold: str, answer: str) -> tuple[str, str]:
    """Both as intervals, where one is an interval and the other an inequality of one variable."""
    bare = [_MEMBER.sub("", text, count=1) for text in (gold, answer)]
    brackets = [text[:1] in "([" and text[-1:] in ")]" and "," in text for text in bare]
    if brackets == [True, False]:
        return bare[0], _interval(answer)
    if brackets == [False, True]:
        return _interval(gold), bare[1]
    return gold, answer


def _interval(text: str) -> str:
    """An inequality as an interval, several with "or" as a union; anything else as it is.

    >>> _interval(r"1 < x \\le 2"), _interval("x > 3"), _interval("x < 1 or x > 2")
    ('(1,2]', '(3,\\\\infty)', '(-\\\\infty,1)\\\\cup (2,\\\\infty)')
    """
    pieces = []
    for piece in re.split(r",? or |,", text):
        match = _INEQUALITY.fullmatch(piece.strip())
        if match is None:
            return text
        low, high = (match["left"], match["left_sign"]), (match["right"], match["right_sign"])
        turned = {sign in _MORE for _, sign in (low, high) if sign}
        if len(turned) != 1:  # a name alone, or 1 < x > 2
            return text
        if True in turned:
            low, high = high, low
        opened, start = "[" if low[1] in _INCLUDES else "(", low[0] or "-\\infty"
        closed, end = "]" if high[1] in _INCLUDES else ")", high[0] or "\\infty"
        pieces.append(f"{opened}{start.strip()},{end.strip()}{closed}")
    return "\\cup ".join(pieces)


def _same_parts(gold: str, answer: str, scalar: Scalar) -> bool | None:
    kind, reference = parts(gold)
    response_kind, response = parts(answer)
    if kind and "\\cup" in answer:  # [1,3] is also [1,2] and [2,3] together
        return scalar(f"{gold}\\cup {gold}", answer)
    if response_kind and "\\cup" in gold:
        return scalar(gold, f"{answer}\\cup {answer}")
    if kind != response_kind or len(reference) != len(response):
        return False
    if len(reference) == 1:
        return scalar(reference[0], response[0])
    if kind:
        return _all(_same_part(a, b, scalar) for a, b in zip(reference, response, strict=True))
    unknown = False
    for part in reference:
        for candidate in response:
            equal = _same_part(part, candidate, scalar)
            unknown = unknown or equal is None
            if equal:
                response.remove(candidate)
                break
        else:
            return None if unknown else False
    return True


def _same_part(gold: str, answer: str, scalar: Scalar) -> bool | None:
    """Inside of brackets and lists a set is no number: {1, {2}} is not {1, 2}."""
    sets = [_MEMBER.sub("", text, count=1).startswith("\\{") for text in (gold, answer)]
    return same(gold, answer, scalar) if sets[0] == sets[1] else False


def _all(results: Iterable[bool | None]) -> bool | None:
    outcomes = list(results)
    return False if False in outcomes else None if None in outcomes else True
