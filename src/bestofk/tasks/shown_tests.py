"""MBPP's tests: which to show in the prompt, which to grade, and what they are about."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence
from itertools import combinations


def shown_and_graded(tests: Sequence[str], shown: int) -> tuple[list[str], list[str]]:
    """Tests to show and tests to grade, so that no constant passes all that is graded.

    What is shown can be copied, so it is not graded. The first ones are shown, unless the rest
    would have one answer for every input; where that is so whichever are shown, the first are shown
    and graded too. Where all tests have one answer, `prepare` does not accept the task.

    Args:
        tests: assert statements.
        shown: how many to show.

    >>> yes, no, never = "assert f(1) == True", "assert f(2) == False", "assert f(3) == False"
    >>> shown_and_graded([yes, no, never], 1)
    (['assert f(2) == False'], ['assert f(1) == True', 'assert f(3) == False'])
    """
    for chosen in combinations(range(len(tests)), min(shown, len(tests))):
        examples = [tests[at] for at in chosen]
        graded = [test for test in tests if test not in examples]
        if graded and not _has_one_answer(graded):
            return examples, graded
    solvable = _has_one_answer(tests)
    return list(tests[:shown]), list(tests[shown:] if solvable else tests)


def _has_one_answer(tests: Sequence[str]) -> bool:
    """Whether every test reads `assert call == literal`, all with the same literal."""
    answers = [_answer(test) for test in tests]
    return None not in answers and all(answer == answers[0] for answer in answers)


def _answer(test: str) -> tuple[object] | None:
    """The literal that a test compares with, in a tuple; None where it reads otherwise."""
    try:
        match ast.parse(test).body:
            case [ast.Assert(ast.Compare(left, [ast.Eq() | ast.Is()], [right]))]:
                literals = [side for side in (left, right) if not isinstance(side, ast.Call)]
                return (ast.literal_eval(literals[0]),) if len(literals) == 1 else None
        return None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def shadowed_builtin(tests: Sequence[str], code: str) -> dict[str, str]:
    """The function under test, where it has the name of a builtin (MBPP 126 asks for `sum`)."""
    defined = re.findall(r"^def (\w+)", code, re.MULTILINE)
    builtin_names = [
        n for n in defined if hasattr(builtins, n) and any(f"{n}(" in t for t in tests)
    ]
    return {"entry_point": builtin_names[0]} if builtin_names else {}
