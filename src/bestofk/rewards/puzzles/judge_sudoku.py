"""Sudoku: fill the blanks, with credit for each. What was given earns nothing."""

from __future__ import annotations

from functools import partial as bind

from bestofk.rewards.base import PairVerifier, one_of, partial, right, wrong
from bestofk.rewards.extract import answer_of
from bestofk.types import Prompt, Verdict

REWARDS = ("exact", "parts")
_SEPARATORS = str.maketrans("", "", " ,|\t\r\n")


def judge(prompt: Prompt, text: str, *, reward: str) -> Verdict:
    """1 for the solution (`spec`: size, puzzle and solution as rows, "." for a blank).

    With reward="parts": (right - wrong / (size - 1)) / blanks, at least 0. Of `size` digits one is
    right, so a guessed digit, a constant one too, earns 0 on average before the floor; a "." left
    standing counts neither way, and a changed given forfeits everything.
    """
    size = prompt.spec["size"]
    puzzle, solution = "".join(prompt.spec["puzzle"]), "".join(prompt.spec["solution"])
    blanks = puzzle.count(".")
    answer = answer_of(prompt, text)
    if not answer:
        return wrong("no answer", "unparsed", blanks)
    if len(answer) > 10 * len(puzzle):
        return wrong("more than a grid", "unparsed", blanks)
    cells = answer.translate(_SEPARATORS)
    if len(cells) != len(puzzle) or not set(cells) <= set(".123456789"[: size + 1]):
        return wrong(f"not a grid of {size} x {size} digits", "unparsed", blanks)
    if any(given not in (".", cell) for given, cell in zip(puzzle, cells, strict=True)):
        return wrong("a given digit was changed", total=blanks)
    filled = [i for i, cell in enumerate(cells) if puzzle[i] == "." and cell != "."]
    passed = sum(cells[i] == solution[i] for i in filled)
    if passed == blanks:
        return right(total=blanks)
    detail = f"{passed} of {blanks} blanks right"
    if reward == "exact":
        return Verdict(0.0, "incorrect", passed=passed, total=blanks, detail=detail)
    return partial((passed - (len(filled) - passed) / (size - 1)) / blanks, passed, blanks, detail)


def verifier(*, reward: str = "parts") -> PairVerifier:
    """Judge sudoku: reward "parts" (per blank, corrected for guessing) or "exact" (0 or 1)."""
    one_of("reward of sudoku", reward, REWARDS)
    return PairVerifier(bind(judge, reward=reward), name="sudoku")
