"""Countdown: numbers, a target, and an expression that reaches it: always solvable."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from bestofk.messages import one_of
from bestofk.tasks.definition import (
    STYLES,
    Draw,
    Task,
    answer,
    answer_kind,
    below,
    generated,
    identity,
    wording,
)
from bestofk.types import Prompt

_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_TEXT = """Using the numbers {numbers}, make an expression that equals {target}. \
{use} Use only {operators} and parentheses. Think first if you like, then give the expression \
alone between <answer> and </answer>, for example <answer>(1 + 2) * 3</answer>."""
_USE = {"all": "Use every number exactly once.", "any": "Use each number at most once."}

Term = tuple[int, str, int]  # value, text, rank of its outermost operator (3: a number)


def join(one: Term, operator: str, other: Term) -> Term | None:
    """`one operator other` with as few parentheses as needed; None unless a natural number."""
    a, b = one[0], other[0]
    if operator == "/" and (b == 0 or a % b):
        return None
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[operator]
    if value < 0:
        return None
    rank = _RANK[operator]
    first = one[1] if one[2] >= rank else f"({one[1]})"
    strict = operator in "-/"
    second = other[1] if other[2] > rank or (other[2] == rank and not strict) else f"({other[1]})"
    return value, f"{first}{operator}{second}", rank


def solution(numbers: list[int], operators: str, rng: random.Random) -> Term | None:
    """Some expression over all the numbers, made by joining two at random until one is left."""
    terms: list[Term] = [(number, str(number), 3) for number in numbers]
    while len(terms) > 1:
        first = terms.pop(below(rng, len(terms)))
        second = terms.pop(below(rng, len(terms)))
        joined = join(first, operators[below(rng, len(operators))], second)
        if joined is None:
            return None
        terms.append(joined)
    return terms[0]


def countdown(
    *,
    numbers: int = 4,
    low: int = 1,
    high: int = 25,
    operators: str = "+-*/",
    target_low: int = 10,
    target_high: int = 100,
    use: str = "all",
    style: str = "chat",
    reward: str = "exact",
    seed: int = 0,
    train_size: int = 20_000,
    validation_size: int = 500,
    test_size: int = 1000,
    ood_size: int = 500,
) -> Task:
    """Reach the target with the given numbers.

    Args:
        numbers: how many; the split "ood" has one more.
        low, high: range of the numbers.
        operators: some of + - * /.
        target_low, target_high: range of the target.
        use: "all" (each number exactly once) or "any" (at most once).
        style: "chat", "text", or "compact" ("3 5 7 2 = 24:" answered by the expression alone).
        reward: "exact" or "closeness".
    """
    _check(numbers, low, high, operators, target_low, target_high)
    one_of("style", style, STYLES)
    one_of("use", use, tuple(_USE))

    rules = {"operators": operators, "use": use, "answer": answer_kind(style)}

    def drawing(split: str) -> tuple[Draw, tuple[Any, ...]]:
        count = numbers + (split == "ood")

        def draw(rng: random.Random) -> tuple[str, Callable[[], Prompt | None]] | None:
            values = [low + below(rng, high - low + 1) for _ in range(count)]
            solved = solution(values, operators, rng)
            if solved is None or not target_low <= solved[0] <= target_high:
                return None
            key = f"countdown {sorted(values)} {solved[0]}"
            return key, lambda: _prompt(key + _rules(operators, use), values, solved, rules, style)

        return draw, (count,)

    return generated(
        "countdown",
        drawing,
        (train_size, validation_size, test_size, ood_size),
        seed=seed,
        reward=reward,
        summary=f"{numbers} numbers in {low}..{high}, target in {target_low}..{target_high}",
    )


def _check(
    numbers: int, low: int, high: int, operators: str, target_low: int, target_high: int
) -> None:
    if numbers < 2 or not 0 <= low <= high or not target_low <= target_high:
        raise ValueError(
            "countdown needs numbers >= 2, 0 <= low <= high and target_low <= target_high, got "
            f"numbers={numbers}, low={low}, high={high}, targets {target_low}..{target_high}"
        )
    if not operators or not set(operators) <= set(_RANK) or len(set(operators)) < len(operators):
        raise ValueError(f"operators are different ones of + - * /, got {operators!r}")


def _rules(operators: str, use: str) -> str:
    """What an id must say of the rules: nothing of the usual ones."""
    is_standard = set(operators) == set(_RANK) and use == "all"
    return "" if is_standard else f" {''.join(sorted(operators))} {use}"


def _prompt(
    problem: str, numbers: list[int], solved: Term, rules: dict[str, str], style: str
) -> Prompt:
    """A problem is its numbers in any order, its target and its rules; its id names no more."""
    target, expression, _ = solved
    text = _TEXT.format(
        numbers=", ".join(map(str, numbers)),
        target=target,
        use=_USE[rules["use"]],
        operators=", ".join(rules["operators"]),
    )
    return Prompt(
        id=identity("countdown", problem),
        text=wording(style, text, f"{' '.join(map(str, numbers))} = {target}:"),
        task="countdown",
        spec={"numbers": numbers, "target": target, **rules},
        reference=answer(style, expression),
    )
