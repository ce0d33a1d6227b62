"""The plain form of a mathematical answer: typography gone, what means something kept.

Pure functions, no sympy. They run in the caller's process on what a model wrote, so their work
grows with the length of the text and no faster; the caller cuts long texts first.
"""

from __future__ import annotations

import re

MAX_DEPTH = 20
"""Nested brackets in an answer."""

_SIGNS = str.maketrans(
    {chr(sign + 0xFEE0): chr(sign) for sign in range(0x21, 0x7F)}  # as Chinese is typed
    | {"、": ",", "。": ".", "\u3000": " "}
    | {"−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty "}
    | {"≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "∪": "\\cup ", "∈": "\\in "}
    | {"∅": "\\emptyset ", "ℝ": "\\mathbb{R}", "√": "\\sqrt", "°": "^\\circ ", "²": "^{2}"}
    | {"³": "^{3}"}
    | dict.fromkeys("$＄~€£¥₹¢", " ")
    | dict.fromkeys("\xa0\u2002\u2003\u2009\u202f", " ")
    | dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", "")
)
_BARE_NUMBER = re.compile(r"-?[0-9,]*[0-9](?:\.[0-9]+)?")
_ABOUT = re.compile(r"^[ $]*~(?=[ $]*\d)|~=")
_LONG_ROOT = re.compile(r"√ ?(\d{1,100}(?:\.\d{1,100})?|[A-Za-z])")
_THOUSANDS = re.compile(r"(?<=\d)(?:\\, ?|,? ?\\! ?|\{,\})(?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(
    r"(?<![\w.,^/})\] ])(?<![\w.,^/})\]] )\d{1,3}(?: \d{3})+(?! ?[\d/^(])"
)
_LAYOUT = re.compile(
    r"\\\\|\\(?:left|right)(?:\.|(?![A-Za-z]))|\\! *"
    r"|\\(?:displaystyle|textstyle|limits|[bB]igg?[lr]?)(?![A-Za-z])"
    r"|(\\(?:[,;: ()\[\]]|q?quad(?![A-Za-z])))"
)
_COMMANDS = {
    **dict.fromkeys(("leq", "leqslant"), "\\le "),
    **dict.fromkeys(("geq", "geqslant"), "\\ge "),
    **dict.fromkeys(("neq", "not="), "\\ne "),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), "\\frac"),
    **dict.fromkeys(("varnothing", "empty"), "\\emptyset "),
    **dict.fromkeys(("dbinom", "tbinom"), "\\binom"),
    "lt": "<",
    "gt": ">",
    "lbrace": "\\{",
    "rbrace": "\\}",
    "degree": "^\\circ ",
    "R": "\\mathbb{R}",
    "backslash": "\\setminus ",
}
_COMMAND = re.compile(
    r"\\(not ?=|" + "|".join(name for name in _COMMANDS if "=" not in name) + r")(?![A-Za-z])"
)
_ASCII = {"<=": "\\le ", ">=": "\\ge ", "!=": "\\ne ", "==": "=", "=>": "\\Rightarrow "}
_ASCII_SIGN = re.compile("<=|>=|!=|==|=>")
_ASCII_NAME = re.compile(r"(?<![\\A-Za-z{])(sqrt|pi|sin|cos|tan|ln|log)(?![A-Za-z}])")
_TEXT = re.compile(
    r"\\(text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|math(?:rm|bf|it|sf)|boldsymbol|bm|operatorname)"
    r"\*? ?\{([^{}]*)\}"
)
_NESTED_TEXT = re.compile(r"\\text[a-z]* ?\{ ?(\\text\{[^{}]*\}) ?\}")
_POWER_OF_TEN = re.compile(r"(?<![\w.^])(\d{1,100}(?:\.\d{1,100})?)[eE]([+-]?\d{1,3})(?![\w.])")
_LARGE = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LARGE_NUMBER = re.compile(
    rf"(?<![\w.,^])(\d[\d,]{{0,100}}(?:\.\d{{1,100}})?) ?(?:\\text\{{ ?)?({'|'.join(_LARGE)})"
    r"(?![A-Za-z])(?:([^{}\\]*)\})?"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z ./-]*")
_CONNECTIVE = re.compile(r",? ?(?:or|and) ?", re.IGNORECASE)
_FUNCTION = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)|gcd|lcm|ln|log|max|min|det")
_SHORT_FRACTION = re.compile(r"\\frac ?(\d|[a-zA-Z]|\\[a-zA-Z]+)(?=[\da-zA-Z{\\ ])")
_SHORT_BOTTOM = re.compile(
    r"(\\frac\{(?:[^{}]|\{[^{}]*\})*\}) ?(\d|[a-zA-Z]|\\[a-zA-Z]+)(?![a-zA-Z{])"
)
_MIXED = re.compile(r"(?<![\d.,/^}])(\d{1,100}) (\d{1,100}) ?/ ?(\d{1,100})(?![\d.])")
_SHORT_ROOT = re.compile(
    r"\\sqrt {0,2}(\d(?!\d|\.\d)|[A-Za-z](?![A-Za-z\d])"
    r"|\\(?:pi|theta|alpha|beta|gamma|lambda|mu|sigma|omega|phi|rho)(?![A-Za-z]))"
)
_DOUBLE_BRACES = re.compile(r"(?<!\\)\{ ?\{([^{}]*)(?<!\\)\} ?\}")
_SHORT_INDEX = re.compile(r"(\\(?:log|ln|sin|cos|tan|cot|sec|csc)) ?([_^]) ?(\d)(?!\d)")
_PAREN_ROOT = re.compile(r"\\sqrt ?\(([^()]*)\)")
_ODD_ROOT = re.compile(
    r"\\sqrt ?\[ ?(\d?[13579]) ?\] ?\{ ?- ?(\d{1,100}(?:\.\d{1,100})?|\\frac\{\d+\}\{\d+\}) ?\}"
)
_REPEATING = re.compile(
    r"(?<![\d.])(\d{0,100})\.(\d{0,100})(?:\\(?:overline|bar) ?\{ ?(\d{1,100}) ?\}"
    r"|\\dot ?\{? ?(\d) ?\}?(?:(\d{0,100})\\dot ?\{? ?(\d) ?\}?)?)"
)
_DEGREES = re.compile(r"\^ ?(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})(?: ?([CF])(?![A-Za-z]))?")
_ANGLE = re.compile(
    r"(\d{1,100}(?:\.\d{1,100})?|[A-Za-z]) ?\^ ?(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})"
)
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_REALS = re.compile(r"\\mathbb ?(?:\{ ?R ?\}|R)(?! ?[\^_])")
_EMPTY = re.compile(r"\\\{ ?\\\}")
_PLUS_INFINITY = re.compile(r"(?<=[,(\[]) ?\+ ?(?=\\infty)")
_PREFACE = re.compile(
    r"(?:\\text\{)?(?:the )?(?:final |correct )?answer(?: is)?\}? ?:? ?(?=\S)", re.IGNORECASE
)
_PYTHON_POWER = re.compile(
    r"(?<=[\w)]) ?\*\* ?(?:(-?\d{1,100}(?:\.\d{1,100})?|[A-Za-z])(?![\w.])|\(([^()]*)\))"
)
_INFINITY = re.compile(r"(?<![^(\[,+-])( ?)infinity(?= ?(?:$|[)\],]))", re.IGNORECASE)
_UNIT_WITH_POWER = re.compile(r"\\(?:mathrm|text) ?\{([^{}^]*\^ ?\{ ?-\d ?\})\}")
_ORDINAL = re.compile(r"(\d{1,100})(?: ?\^ ?\{? ?(?:\\text\{)?)?(?:st|nd|rd|th)\}{0,2}")
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_IN_WORDS = (  # answers that are words as a whole
    dict.fromkeys(("no solution", "no solutions", "empty set", "the empty set"), "\\emptyset")
    | dict.fromkeys(("all real numbers", "all reals"), "(-\\infty,\\infty)")
    | {"no real solution": "\\text{no real solutions}", "infinity": "\\infty"}
    | {word: str(value) for value, word in enumerate(_ONES)}
    | {
        tens + (f"{tie}{_ONES[value]}" if value else ""): str(10 * place + value)
        for place, tens in enumerate(_TENS, 2)
        for value in range(10)
        for tie in "- "
    }
)


def plain(text: str) -> str:
    """An answer without typography: spacing, sizes, dollar signs, degree signs, fonts.

    Words keep their `\\text{...}`, whatever command they came in, so that a unit is never taken for
    a product of letters; what is written as text but has figures or brackets in it is unpacked.

    >>> plain(r"$\\left( \\dfrac12,\\, \\text{ 5 cm} \\right)$."), plain(r"3\\mathrm{ cm}")
    ('( \\\\frac{1}{2}, 5 cm )', '3\\\\text{cm}')
    """
    if _BARE_NUMBER.fullmatch(text):
        return text
    text = text.replace("\\$", "").replace("\\%", "%")
    text = _PYTHON_POWER.sub(lambda m: f"^{{{m[1] or m[2]}}}", text)
    text = _ABOUT.sub(r"\\sim ", text)
    text = _LONG_ROOT.sub(r"\\sqrt{\1}", text).translate(_SIGNS)
    text = _THOUSANDS.sub("", text).replace("{,}", ",")
    text = _LAYOUT.sub(lambda m: " " if m[1] else m[0] if m[0] == "\\\\" else "", text)
    text = _COMMAND.sub(lambda m: _COMMANDS[m[1].replace(" ", "")], text)
    text = _ASCII_SIGN.sub(lambda m: _ASCII[m[0]], text)
    text = _ASCII_NAME.sub(r"\\\1 ", text)
    text = _UNIT_WITH_POWER.sub(r" \1", text)
    for _ in range(3):
        text = _NESTED_TEXT.sub(r"\1", _TEXT.sub(_worded, text))
    text = _LARGE_NUMBER.sub(_written_out, text)
    text = _values(text)
    text = _EMPTY.sub(r"\\emptyset", _REALS.sub(r"(-\\infty,\\infty)", text))
    text = _PLUS_INFINITY.sub("", _INFINITY.sub(r"\1\\infty", text))
    text = " ".join(text.split())
    text = _SPACED_THOUSANDS.sub(lambda m: m[0].replace(" ", ""), text)
    text = _without_groups(text)
    preface = _PREFACE.match(text)
    text = text[preface.end() :] if preface else text
    text = text if text.endswith("..") else text.rstrip(".,; ")
    if ordinal := _ORDINAL.fullmatch(text):
        return ordinal[1]
    return _IN_WORDS.get(text.removeprefix("\\text{").removesuffix("}").strip().casefold(), text)


def _without_groups(text: str) -> str:
    """Without braces that only group: {{3}} and {3} are 3. A list in braces is a set."""
    for _ in range(3):
        text = _DOUBLE_BRACES.sub(r"{\1}", text)
    while (inside := _inside_braces(text)) is not None and (
        "," not in inside or _inside_braces(inside) is not None
    ):
        text = inside
    return text if inside is None else f"\\{{{inside}\\}}"


def _inside_braces(text: str) -> str | None:
    """What one pair of braces around the whole text holds; None where there is no such pair."""
    is_group = text.startswith("{") and text.endswith("}") and not text.endswith("\\}")
    return text[1:-1].strip() if is_group and is_wrapped(text) else None


def is_wrapped(text: str) -> bool:
    """Whether the first bracket closes with the last one."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return at == len(text) - 1
    return False


def _worded(match: re.Match[str]) -> str:
    """Words stay marked as text; letters of a formula, figures and connectives do not."""
    command, inside = match[1], match[2].strip()
    if command in ("mathbf", "mathit", "boldsymbol", "bm") or not _WORDS.fullmatch(inside):
        return f" {inside} "
    if _CONNECTIVE.fullmatch(inside):
        return f" {inside.lower()} "
    if command in ("mathrm", "operatorname"):
        if _FUNCTION.fullmatch(inside):
            return f"\\{inside} "
        if inside in ("e", "i", "d"):
            return f" {inside} "
    return f"\\text{{{inside}}}"


def _written_out(match: re.Match[str]) -> str:
    """2.5 million in figures, and the unit behind it."""
    integer, _, decimals = match[1].replace(",", "").partition(".")
    places = _LARGE[match[2]]
    figures = integer + decimals.ljust(places, "0")[:places]
    rest = f".{decimals[places:]}" if len(decimals) > places else ""
    unit = (match[3] or "").strip()
    return f"{figures}{rest}" + (f"\\text{{{unit}}}" if unit else "")


def _values(text: str) -> str:
    """Fractions, roots, repeating decimals and angles in one spelling each."""
    text = _POWER_OF_TEN.sub(r"\1\\times 10^{\2}", text)
    if "\\" in text or "/" in text:
        text = _SHORT_FRACTION.sub(r"\\frac{\1}", text)
        text = _SHORT_BOTTOM.sub(r"\1{\2}", text)
        text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
        text = _PAREN_ROOT.sub(r"\\sqrt{\1}", text)
        text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
        text = _SHORT_INDEX.sub(r"\1\2{\3}", text)
        text = _ODD_ROOT.sub(r"(-\\sqrt[\1]{\2})", text)
        text = _REPEATING.sub(_repeating, text)
    if _TRIGONOMETRIC.search(text):
        return _ANGLE.sub(r"(\1\\cdot\\frac{\\pi}{180})", text)
    return _DEGREES.sub(lambda m: f"\\text{{{m[1]}}}" if m[1] else " ", text)


def _repeating(match: re.Match[str]) -> str:
    """The fraction of a decimal whose last figures repeat: 0.08333... is (83 - 8) / 900."""
    integer, before = match[1], match[2]
    period = match[3] or match[4] + (match[5] or "") + (match[6] or "")
    top = int(integer + before + period) - int(integer + before or "0")
    bottom = (10 ** len(period) - 1) * 10 ** len(before)
    return f"\\frac{{{top}}}{{{bottom}}}"


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


_UNREADABLE = re.compile(
    r"\d \.?\d+(?!\d| ?/)|(?<![\\A-Za-z])[A-Za-z]+ ?\d|\d\.\d*\."
    r"|['\"`@#?]|\*\*|\.\.|\d ?_|\\sqrt ?\d|\\circ(?![A-Za-z])"
    r"|\\(?:approx|sim|simeq|cong|equiv|[a-z]*phantom|[bx]?cancel|not|Rightarrow|implies)(?![A-Za-z])"
    r"|/ ?\d+ ?(?:[A-Za-z(]|\\(?:pi|sqrt|frac|sin|cos|tan|ln|log))"
    r"|\^ ?(?:\w|\{[^{}]*\}) ?[!^]|:[^:]*:"
    r"|(?:gcd|lcm) ?\(?[^()]*[A-Za-z]"
)


def is_readable(text: str) -> bool:
    """Whether it may be one formula, and the parser would read all of it as it is meant.

    Not so with two numbers side by side, a letter before a number (x2: a product, an index or a
    power?) or after one below a stroke (1/2x), quotes, primes (dropped in silence),
    "approximately", a root of unmarked length (`\\sqrt12`), a ratio of three, or a greatest common
    divisor of letters (taken for 1).
    """
    return is_balanced(text) and not _UNREADABLE.search(text)
