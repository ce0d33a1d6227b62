"""Countdown: reach the target with the given numbers and + - * /.

The expression is read by a parser of our own, in exact rational arithmetic and without recursion;
nothing is ever evaluated as code. Only the numbers given may occur, so values stay small however
long the text is.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial as bind

from bestofk.messages import one_of
from bestofk.rewards.base import PairVerifier, right, wrong
from bestofk.rewards.text import answer_of, unset
from bestofk.types import ALMOST_ONE, Prompt, Verdict

MAX_EXPRESSION = 2000
"""Characters. Far more than an honest expression over a few numbers needs."""
REWARDS = ("exact", "closeness")

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
_OPERATIONS: dict[str, Callable[..., Fraction]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_TEXT = re.compile(r"[0-9+\-*/() \t\r\n]+")
_TYPOGRAPHY = str.maketrans(
    {"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "−": "-", "\u00a0": " "}
)
_COMMANDS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "\\left": "", "\\right": ""}
_RESULT = re.compile(r"=[ \t]*(-?[0-9]{1,40})(?:\.0{1,10})?$")


class Malformed(ValueError):
    """The text is not an expression of numbers, + - * / and parentheses."""


def tokens_of(text: str) -> list[str]:
    """Numbers, operators and parentheses of an expression.

    >>> tokens_of("(3 + 5)*2")
    ['(', '3', '+', '5', ')', '*', '2']
    """
    if not text.isascii():
        text = text.translate(_TYPOGRAPHY)
    if not _TEXT.fullmatch(text):
        raise Malformed("something else than numbers, + - * / and parentheses")
    return _TOKEN.findall(text)


def value_of(tokens: Sequence[str]) -> Fraction | None:
    """The exact value; None for a division by zero.

    Binary operators only, left to right, * and / before + and -.

    >>> value_of(tokens_of("8/(3-8/3)"))
    Fraction(24, 1)
    """
    values: list[Fraction | None] = []
    operators: list[str] = []
    value_next = True
    for token in tokens:
        if value_next:
            if token == "(":
                operators.append(token)
            elif token.isdigit():
                values.append(Fraction(int(token)))
                value_next = False
            else:
                raise Malformed(f"{token!r} where a number or '(' belongs")
        elif token == ")":
            while operators and operators[-1] != "(":
                _apply(operators.pop(), values)
            if not operators:
                raise Malformed("')' without '('")
            operators.pop()
        elif token in _PRECEDENCE:
            rank = _PRECEDENCE[token]
            while operators and _PRECEDENCE.get(operators[-1], 0) >= rank:
                _apply(operators.pop(), values)
            operators.append(token)
            value_next = True
        else:
            raise Malformed(f"{token!r} where an operator belongs")
    if value_next:
        raise Malformed("it ends where a number belongs")
    while operators:
        sign = operators.pop()
        if sign == "(":
            raise Malformed("'(' without ')'")
        _apply(sign, values)
    return values[0]


def _apply(sign: str, values: list[Fraction | None]) -> None:
    """Combine the two last values; None marks a division by zero, and stays."""
    second, first = values.pop(), values.pop()
    exists = first is not None and second is not None and (sign != "/" or second != 0)
    values.append(_OPERATIONS[sign](first, second) if exists else None)


def judge(prompt: Prompt, text: str, *, reward: str, scale: float) -> Verdict:
    """1 for an expression over the given numbers that equals the target.

    `spec`: numbers, target, operators ("+-*/"), use ("all": each number exactly once; "any": at
    most once). With reward="closeness" a lawful expression that misses earns
    1 / (1 + |value - target| / scale), always below 1; an unlawful one earns nothing. Where the
    prompt asks in words (`spec["answer"]` is "tag"), typography around the expression and a sign
    before it are allowed.
    """
    spec = prompt.spec
    answer = answer_of(prompt, text)
    if not answer:
        return wrong("no answer", "unparsed")
    if len(answer) > MAX_EXPRESSION:
        return wrong(f"longer than {MAX_EXPRESSION} characters", "unparsed")
    target = spec["target"]
    spoken = spec.get("answer", "tag") == "tag"  # a compact prompt is answered by the bare signs
    if spoken:
        answer = unset(answer)
        if "\\" in answer:
            for command, sign in _COMMANDS.items():
                answer = answer.replace(command, sign)
    if "=" in answer:  # "3 * 8 = 24" is fine when it claims the target
        claim = _RESULT.search(answer)
        if claim is None or int(claim[1]) != target:
            return wrong("more than an expression, or '=' and not the target", "unparsed")
        answer = answer[: claim.start()]
    try:
        tokens = tokens_of(answer)
        fault = _unlawful(
            tokens, spec["numbers"], spec.get("operators", "+-*/"), spec.get("use", "all")
        )
        if fault:
            return wrong(fault)
        value = value_of(_with_zeros(tokens) if spoken and "-" in tokens else tokens)
    except Malformed as error:
        return wrong(f"not an expression: {error}", "unparsed")
    if value is None:
        return wrong("division by zero")
    if value == target:
        return right()
    if reward == "exact":
        return wrong("another value")
    try:
        miss = float(abs(value - target))
    except OverflowError:
        return wrong("further from the target than a float can say")
    close = min(1.0 / (1.0 + miss / scale), ALMOST_ONE)
    return Verdict(close, "partial", detail=f"misses the target by {miss:g}")


def _with_zeros(tokens: list[str]) -> list[str]:
    """Signs as subtractions: "-3 + 27" is 0 - 3 + 27, wherever an expression may begin.

    >>> _with_zeros(tokens_of("-3*(-2)"))
    ['0', '-', '3', '*', '(', '0', '-', '2', ')']
    """
    signed: list[str] = []
    for before, token in zip(["(", *tokens], tokens, strict=False):
        signed += ["0", token] if token == "-" and before == "(" else [token]
    return signed


def _unlawful(tokens: list[str], numbers: list[int], operators: str, use: str) -> str:
    """Why the tokens break the rules of the game, or nothing. Compares digits, not values."""
    unused = [str(number) for number in numbers]
    used = [token for token in tokens if token.isdigit()]
    if use == "all":
        if sorted(used) != sorted(unused):
            return "does not use each given number exactly once"
    else:
        for number in used:
            if number not in unused:
                return f"{number[:20]} is not given, or used too often"
            unused.remove(number)
    for token in tokens:
        if token in _PRECEDENCE and token not in operators:
            return f"operator {token} is not allowed"
    return ""


def verifier(*, reward: str = "exact", scale: float = 10.0) -> PairVerifier:
    """Judge countdown answers: reward "exact" (0 or 1) or "closeness" (real-valued)."""
    one_of("reward of countdown", reward, REWARDS)
    if not 0 < scale < math.inf:
        raise ValueError(f"scale is the miss that earns one half, positive and finite, got {scale}")
    needed = ("numbers", "target")
    return PairVerifier(bind(judge, reward=reward, scale=scale), name="countdown", needed=needed)
