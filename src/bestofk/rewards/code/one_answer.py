"""Tasks that one constant solves, found by comparing the answers of their tests.

A k-sample objective finds the constant long before it finds the program, and learns nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from bestofk.rewards.code.statements import Statements, parse
from bestofk.sandbox import same, same_text


def constant_of_calls(cases: Sequence[Any], absolute: float, relative: float) -> str:
    """What the constant that passes all of these calls does, or ""."""
    takes_arguments = any(args or kwargs for args, kwargs, _ in cases)
    alike = all(same(cases[0][2], expected, absolute, relative) for *_, expected in cases)
    return f"always returns {cases[0][2]!r:.40}" if takes_arguments and alike else ""


def constant_of_stdio(cases: Sequence[Mapping[str, str]], absolute: float, relative: float) -> str:
    """What the constant that passes all of these cases does, or ""."""
    reads_input = any(case["input"].strip() for case in cases)
    first = cases[0]["output"] if cases else ""
    alike = all(same_text(first, case["output"], absolute, relative) for case in cases)
    return f"always prints {first!r:.40}" if reads_input and alike else ""


def constant_of_asserts(cut: Statements) -> str:
    """What the constant does that all tests compare a call of the program with, or "".

    >>> from bestofk.rewards.code.statements import split_asserts
    >>> constant_of_asserts(split_asserts(["assert f(1) == 7", "assert 7 == f(2)"]))
    'always returns 7'
    """
    tests = [parse(source).body[0] for source, is_test in cut.statements if is_test]
    pairs = [_call_and_answer(test, cut.names) for test in tests]
    if None in pairs or not any(pair[0].args or pair[0].keywords for pair in pairs if pair):
        return ""  # where no call has an argument, the one answer is what is asked for
    answers = [pair[1] for pair in pairs if pair]
    alike = all(same(answers[0], answer) for answer in answers)
    return f"always returns {answers[0]!r:.40}" if alike else ""


def _call_and_answer(test: ast.stmt, program: Mapping[str, str]) -> tuple[ast.Call, Any] | None:
    """The sides of an assert that a call of the program equals a literal."""
    match test:
        case ast.Assert(ast.Compare(left, [ast.Eq() | ast.Is()], [right])):
            pass
        case _:
            return None
    for call, answer in ((left, right), (right, left)):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in program:
            try:
                return call, ast.literal_eval(answer)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                return None
    return None
