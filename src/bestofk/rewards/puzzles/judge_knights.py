"""Knights and knaves: who is what, with credit for each person."""

from __future__ import annotations

import re
from functools import partial as bind

from bestofk.rewards.base import PairVerifier, one_of, partial, right, wrong
from bestofk.rewards.extract import answer_of
from bestofk.types import Prompt, Verdict

REWARDS = ("exact", "parts")
_CLAUSE = re.compile(
    r"(?:[-*•] ?|[0-9]{1,2}[.)] ?)?(\w{1,40}) ?(?:is|:|=) ?(?:a )?(knight|knave)\.?",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"\sand\s|[,;\n]|(?<=[A-Za-z])\.(?=\s)")


def claims(answer: str) -> dict[str, str] | None:
    """What an answer says of each person; None unless it is clauses like "Ava is a knight" alone.

    Commas, full stops, lines, "and", numbers and bold type around them are as good as any other. A
    person named twice, or "a knight or a knave", makes no claim that could be judged.

    >>> claims("Ava is a knight, Ben: knave and Cy = a knight.")
    {'ava': 'knight', 'ben': 'knave', 'cy': 'knight'}
    >>> claims("1. **Ava** is a knave. 2. **Ben** is a knight.")
    {'ava': 'knave', 'ben': 'knight'}
    >>> claims("Ava is a knight or a knave")
    """
    claimed: dict[str, str] = {}
    for piece in _BETWEEN.split(answer.replace("**", "")):
        clause = " ".join(piece.split())
        if not clause:
            continue
        match = _CLAUSE.fullmatch(clause)
        if match is None or match[1].lower() in claimed:
            return None
        claimed[match[1].lower()] = match[2].lower()
    return claimed or None


def judge(prompt: Prompt, text: str, *, reward: str) -> Verdict:
    """1 when every person is named rightly (`spec["solution"]`: name to kind).

    With reward="parts": (right - wrong) / people, at least 0. A guess is right as often as wrong:
    it earns 0 on average before the floor (3/16 with it, for four people); who is left out counts
    neither way.
    """
    solution = {name.lower(): kind for name, kind in prompt.spec["solution"].items()}
    total = len(solution)
    answer = answer_of(prompt, text)
    if not answer:
        return wrong("no answer", "unparsed", total)
    if len(answer) > 200 * (total + 1):
        return wrong("more than an answer", "unparsed", total)
    claimed = claims(answer)
    if claimed is None:
        return wrong("not a list of clauses, or a person twice", "unparsed", total)
    if not claimed.keys() <= solution.keys():
        return wrong("names somebody who is not there", "unparsed", total)
    passed = sum(solution[name] == kind for name, kind in claimed.items())
    if passed == total:
        return right(total=total)
    detail = f"{passed} of {total} right"
    if reward == "exact":
        return Verdict(0.0, "incorrect", passed=passed, total=total, detail=detail)
    return partial((2 * passed - len(claimed)) / total, passed, total, detail)


def verifier(*, reward: str = "exact") -> PairVerifier:
    """Judge knights and knaves: reward "exact" (0 or 1) or "parts" (corrected for guessing)."""
    one_of("reward of knights", reward, REWARDS)
    return PairVerifier(bind(judge, reward=reward), name="knights")
