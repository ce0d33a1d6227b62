"""Numbers in plain answers, exactly, and the units that stand after them.

Letters after a number are a unit only where they cannot be anything else: "6xy" is a product,
"5 squared" and "3 tenths" are other numbers, and 5 cm are not 5 km.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from string import ascii_letters
from typing import NamedTuple

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,400})"
_DECIMAL = re.compile(rf"([+-]?) ?({_INTEGER})?(?:\.([0-9]{{0,400}}))?")
_TIMES_TEN = re.compile(
    r"(.{1,100}?) ?\\(?:times|cdot) ?10 ?\^ ?(?:\{ ?([+-]?[0-9]{1,3}) ?\}|([0-9]))"
)
_RATIO = re.compile(
    rf"([+-]?) ?(?:({_INTEGER})(?: | ?(?=\\)))??"
    rf"(?:\\frac ?\{{ ?([+-]?{_INTEGER}) ?\}} ?\{{ ?([+-]?{_INTEGER}) ?\}}"
    rf"|({_INTEGER}) ?/ ?({_INTEGER}))"
)


def number(text: str) -> Fraction | None:
    """The exact value of a plain answer that is one number; else None.

    >>> number("1,250.50"), number(r"-\\frac{3}{4}"), number("2 1/2")
    (Fraction(2501, 2), Fraction(-3, 4), Fraction(5, 2))
    >>> number(r"2.5\\times 10^{3}")
    Fraction(2500, 1)
    >>> number("2 or 3"), number("1,2"), number("5x"), number("٣")
    (None, None, None, None)
    """
    if len(text) > 500:
        return None
    match = _DECIMAL.fullmatch(text)
    if match and (match[2] or match[3]):
        digits = (match[2] or "").replace(",", "")
        behind = match[3] or ""
        value = Fraction(int(digits + behind or "0"), 10 ** len(behind))
        return -value if match[1] == "-" else value
    if match := _TIMES_TEN.fullmatch(text):
        before = number(match[1])
        return None if before is None else before * Fraction(10) ** int(match[2] or match[3])
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    top, bottom = (int((match[i] or match[i + 2]).replace(",", "")) for i in (3, 4))
    if bottom == 0 or (match[2] and (top < 0 or bottom < 0)):
        return None
    value = int((match[2] or "0").replace(",", "")) + Fraction(top, bottom)
    return -value if match[1] == "-" else value


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# How a unit may be written, and its one name here.
_SPELLINGS = {
    "centimeter": "cm centimetre",
    "millimeter": "mm millimetre",
    "kilometer": "km kilometre",
    "meter": "m metre",
    "inch": "in inches",
    "foot": "ft feet",
    "yard": "yd",
    "mile": "mi",
    "kilogram": "kg",
    "milligram": "mg",
    "gram": "g",
    "pound": "lb lbs",
    "ounce": "oz",
    "liter": "l litre",
    "milliliter": "ml millilitre",
    "hour": "h hr hrs",
    "minute": "min mins",
    "second": "s sec secs",
    "square": "sq",
    "cubic": "cu",
    "mile per hour": "mph",
    "kilometer per hour": "kph kmh",
    "cent": "cents",
    "unit": "units",
    "degree": "degrees deg",
    "radian": "radians rad",
    "person": "people",
    "": "of",
} | dict.fromkeys(_set("dollar euro day week month year acre gallon quart pint cup volt watt"), "")
_ONE_NAME = {
    spelling: name
    for name, spellings in _SPELLINGS.items()
    for spelling in (name, *spellings.split())
}
_GLUED = _set(
    "cm mm km kg mg ml in ft yd mi lb lbs oz hr hrs min mins sec secs mph kph cents dollars "
    "degrees meters inches feet miles units"
)
_SYMBOLS = frozenset("mgshlLCFVWNJA")  # one letter is a unit only where it is written as text
_SHORT_WORDS = _set("pie egg ice eye ewe owl ant ape ear elf inn oak urn tie")
_LINKS = _set("a an of per in the each for from")
_WORD_SHAPE = re.compile(r"[a-z]{4,20}|[^aeiou][aeiou][^aeiou]")
_VOWEL = re.compile("[aeiou]")
CHANGES_MEANING = _set(
    "or and not no never false untrue wrong incorrect isnt cannot unless except if than least most "
    "less below above under over about around approximately roughly nearly almost plus minus "
    "times negative by to mod modulo choose twice thrice double triple half halves "
    "quarter quarters third thirds fourth fourths fifth fifths sixth sixths seventh sevenths "
    "eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths "
    "squared cubed factorial root power inverse dozen dozens score gross hundred hundreds "
    "thousand thousands lakh lakhs crore crores million millions billion billions trillion "
    "trillions bn mn mln mil zero one two three four five six seven eight nine ten eleven "
    "twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty "
    "fifty sixty seventy eighty ninety pi sqrt log ln sin cos tan cot csc exp sinx cosx tanx "
    "logx lnx am pm infinity undefined"
)
_TAIL_SIGNS = frozenset(ascii_letters + " ./")
_POWER = re.compile(r" ?\^ ?\{? ?([23]) ?\}?$")
_TEXT_UNIT = re.compile(r"((?:\\text\{[^{}]*\} ?/? ?){1,3})$")
_INVERSE = re.compile(
    r" ?(?:\\text\{)?(?<![A-Za-z])([A-Za-z]{1,4}) ([A-Za-z]{1,4})\}? ?\^ ?\{ ?-([12]) ?\}$"
)
"""m s^{-1} is m/s."""
_POWER_NAMES = {"2": "square ", "3": "cubic "}


_MEASURES = {
    "dollar": r"(?<!\\)\$|\\\$|\b(?:dollars?|USD)\b",
    "euro": r"€|\b(?:euros?|EUR)\b",
    "pound": r"£|\b(?:pounds?|GBP)\b",
    "yen or yuan": r"¥|\b(?:yen|yuan|JPY|CNY|RMB)\b",
    "rupee": r"₹|\b(?:rupees?|INR|Rs)\b",
    "cent": r"¢|\b(?:cents?|pence|penny|pennies)\b",
    "degree": r"°|\\circ\b|\\degree\b|\b(?:degrees?|deg)\b",
    "radian": r"\b(?:radians?|rad)\b",
}
_MEASURE = re.compile(
    "|".join(f"({pattern})" for pattern in _MEASURES.values()), flags=re.IGNORECASE
)
_ANGLES = {"degree", "radian"}


@lru_cache(maxsize=4096)
def measures(text: str) -> frozenset[str]:
    """Currencies and units of angle that an answer names, before its typography is taken away.

    Dollar signs around a formula are no currency.

    >>> measures("$18"), measures("$18$"), measures(r"90^\\circ")
    (frozenset({'dollar'}), frozenset(), frozenset({'degree'}))
    """
    names = list(_MEASURES)
    measured = {names[(match.lastindex or 1) - 1] for match in _MEASURE.finditer(text)}
    if "dollar" in measured and "\\$" not in text and not _DOLLAR_WORD.search(text):
        signs = text.count("$")
        if signs % 2 == 0 and signs != len(_PRICE.findall(text)):
            measured.discard("dollar")
    return frozenset(measured)


_DOLLAR_WORD = re.compile(r"dollar|USD", re.IGNORECASE)
_PRICE = re.compile(r"\$ ?[0-9.]")


def other_measure(gold: str, answer: str) -> bool:
    """Whether two answers, typography and all, are in different currencies or units of angle.

    Where one of them names none, it is taken for the other's; but a multiple of π is in radians.

    >>> other_measure("$18", "€18"), other_measure("$18", "18"), other_measure("90°", "90 rad")
    (True, False, True)
    """
    a, b = measures(gold), measures(answer)
    if not a and not b:
        return False
    for kind in (a | b) & _ANGLES, (a | b) - _ANGLES:
        if kind & a and kind & b and not kind & a & b:
            return True
    in_degrees, other = (gold, answer) if "degree" in a else (answer, gold)
    if "degree" in a ^ b and not (a | b) & {"radian"}:
        return _has_pi(in_degrees) and _has_pi(other)
    return False


def _has_pi(text: str) -> bool:
    """Whether it is a multiple of π; 180/π is a number of degrees."""
    return ("\\pi" in text or "π" in text) and "180" not in text


class Quantity(NamedTuple):
    """A plain answer without its unit, and the unit in one spelling ("" where it names none)."""

    core: str
    unit: str
    percent: bool


def quantity(text: str) -> Quantity:
    """Take the unit and the percent sign off a plain answer.

    Words in `\\text` are a unit after a number whatever they are, unless they change its meaning;
    bare words only after a space. After anything else than a number only known units are.

    >>> quantity(r"5\\text{cm}^2")
    Quantity(core='5', unit='square centimeter', percent=False)
    >>> quantity("50%"), quantity("18 dollars").unit
    (Quantity(core='50', unit='', percent=True), 'dollar')
    >>> quantity("6xy").unit, quantity("5 squared").unit, quantity("3 tenths").unit
    ('', '', '')
    """
    core, unit = _split_unit(text)
    if unit == "percent" or core.endswith("%"):
        return Quantity(core.rstrip("% "), "" if unit == "percent" else unit, True)
    return Quantity(core, unit, False)


def _split_unit(text: str) -> tuple[str, str]:
    if not text[-1:].isalpha() and text[-1:] not in "}.23":
        return text, ""
    inverse = _INVERSE.search(text)
    if inverse and inverse[1] in _ONE_NAME and inverse[2] in _ONE_NAME:
        square = "^2" if inverse[3] == "2" else ""
        text = f"{text[: inverse.start()]} {inverse[1]}/{inverse[2]}{square}"
    power = _POWER.search(text)
    body = text[: power.start()] if power else text
    worded = _TEXT_UNIT.search(body)
    start = worded.start() if worded else _bare_tail(body)
    core, tail = body[:start].rstrip(), body[start:]
    if not core or not tail or "\\text{" in core:
        return text, ""
    if worded:
        tail = tail.replace("\\text{", " ").replace("}", " ")
    words = tail.replace(".", "").replace("/", " per ").replace("per cent", "percent").split()
    is_number = number(core.rstrip("% ")) is not None
    glued = not worded and body[start] != " "
    rate = "/" in tail and not glued and all(word in _ONE_NAME or word == "per" for word in words)
    if not (rate and is_number) and not _is_unit(words, bool(worded), glued, is_number):
        return text, ""
    name = (_POWER_NAMES[power[1]] if power else "") + " ".join(map(_one_name, words))
    return core, " ".join(name.split())


def _bare_tail(text: str) -> int:
    """Where the letters, spaces, points and strokes at the end begin, after a whole command."""
    start = len(text)
    while start and text[start - 1] in _TAIL_SIGNS:
        start -= 1
    if start and text[start - 1] == "\\":
        space = text.find(" ", start)
        return space if space >= 0 else len(text)
    while start < len(text) and text[start] == ".":
        start += 1
    return start


def _is_unit(words: list[str], worded: bool, glued: bool, is_number: bool) -> bool:
    if not words or len(words) > 6:
        return False
    if words != ["times"] and any(word.lower() in CHANGES_MEANING for word in words):
        return False
    if glued and words[0].lower() not in _GLUED:
        return False
    if not is_number:
        return all(_one_name(word) in _SPELLINGS or word in _LINKS for word in words)
    if worded:
        return all(word in _SYMBOLS or (len(word) > 1 and set(word) - set("xyz")) for word in words)
    return is_word(words[0]) and all(
        is_word(word) or word in _LINKS or word in _ONE_NAME for word in words[1:]
    )


def is_word(text: str) -> bool:
    """Whether letters are a word, not a product of variables.

    >>> is_word("apples"), is_word("cup"), is_word("kg"), is_word("xy"), is_word("abc")
    (True, True, True, False, False)
    """
    word = text.lower()
    if len(word) > 1 and (word in _ONE_NAME or word in _SHORT_WORDS):
        return True
    return bool(_WORD_SHAPE.fullmatch(word)) and bool(_VOWEL.search(word))


def _one_name(word: str) -> str:
    word = word.lower()
    name = _ONE_NAME.get(word)
    if name is None and word.endswith("s"):
        name = _ONE_NAME.get(word[:-1], word[:-1] if len(word) > 3 else word)
    return word if name is None else name
