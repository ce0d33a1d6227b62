"""Programs without a thought, and whether a task's tests pay them in full.

A k-sample objective finds the constant that passes every test of a task long before it finds the
program. Such a task teaches nothing, so `prepare` does not accept it. For calls and for
stdin/stdout that is a comparison; for asserts most constants are ruled out by looking, and the rest
are run.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bestofk.rewards.code.statements import Statements
from bestofk.sandbox import same, same_text

NOTHING: tuple[Any, ...] = (None, True, False, 0, [], "")
"""What a function that does nothing may return."""
_TRIED = 8
"""Answers of the tests' own that are tried as constants."""
Case = tuple[Sequence[Any], Mapping[str, Any], Any]


@dataclass(frozen=True)
class Null:
    """A program that ignores its input."""

    what: str
    body: str
    """The body of each of its functions; empty when it defines none."""

    def source(self, paths: Iterable[str]) -> str:
        """The program, with a function for each of the paths the tests call."""
        if not self.body:
            return "pass\n"
        functions = []
        for path in paths:
            *owner, name = path.replace("()", "").split(".")
            function = f"def {name}(*args, **kwargs):\n    {self.body}\n"
            for outer in reversed(owner):
                inner = "".join(f"    {line}\n" for line in function.splitlines())
                function = f"class {outer}:\n{inner}"
            functions.append(function)
        return "\n".join(functions)


def reason(what: str, passed: int, total: int) -> str:
    """Why a task that such a program solves is not accepted."""
    if passed < total:
        return f"a program that {what} passes {passed} of {total} tests: let each call the program"
    return f"a program that {what} passes every test: add tests with other answers"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _returning(value: Any) -> Null:
    return Null(f"always returns {_shown(value)}", f"return {value!r}")


# ------------------------------------------------------------------------- calls, stdin and stdout
def constant_of_calls(cases: Sequence[Case], absolute: float, relative: float) -> str:
    """What the constant that passes all of these calls does, or "".

    Where no call has an argument, the one answer is what is asked for.
    """
    has_input = any(args or kwargs for args, kwargs, _ in cases)
    own = [expected for _, _, expected in cases[:_TRIED]]
    for value in [*NOTHING, *own] if has_input else [None]:
        if all(same(value, expected, absolute, relative) for _, _, expected in cases):
            return f"always returns {_shown(value)}"
    return ""


def constant_of_stdio(cases: Sequence[Mapping[str, str]], absolute: float, relative: float) -> str:
    """What the constant that passes all of these cases does, or ""."""
    has_input = any(case["input"].strip() for case in cases)
    own = [case["output"] for case in cases[:_TRIED]] if has_input else []
    for text in ["", *own]:
        if all(same_text(text, case["output"], absolute, relative) for case in cases):
            return f"always prints {_shown(text)}" if text.strip() else "prints nothing"
    return ""


# ---------------------------------------------------------------------------------------- asserts
def null_programs(cut: Statements) -> list[Null]:
    """The programs without a thought that might pass these tests; few, since each must be run.

    An `assert f(1) == 2` leaves only the constant 2, and two such with different answers none.
    """
    answers = _plain_answers(cut)
    first = next(answers, None)
    plain = all(_compared_with(test, cut.names) is not None for test in cut.tests)
    nothing = [] if plain else [Null("defines nothing", "")]
    if first is not None:
        if any(other != first for other in answers):
            return nothing
        constant = [_returning(first[0])] if _has_input(cut) or first[0] is None else []
        return [*nothing, *constant]
    constants: list[Any] = list(NOTHING) if _has_input(cut) else [None]
    if _has_input(cut):
        for statement in cut.body:
            for value in _literals(statement, cut.names):
                if len(constants) < len(NOTHING) + _TRIED and value not in constants:
                    constants.append(value)
    raising = [Null(f"always raises {name}", f"raise {name}") for name in _handled(cut.body)]
    return [*nothing, *map(_returning, constants), *raising]


def _plain_answers(cut: Statements) -> Iterator[tuple[Any]]:
    """The literals that tests compare a call of the program with, each in a tuple."""
    for test in cut.tests:
        answer = _compared_with(test, cut.names)
        if answer is not None:
            try:
                yield (ast.literal_eval(answer),)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue


def _compared_with(test: ast.stmt, program: Collection[str]) -> ast.expr | None:
    """The other side of an assert that a call of the program equals something.

    Such a test calls the program whatever happens, so it fails where there is none.
    """
    condition = test.test if isinstance(test, ast.Assert) else None
    if not isinstance(condition, ast.Compare) or len(condition.ops) != 1:
        return None
    if not isinstance(condition.ops[0], ast.Eq | ast.Is):
        return None
    left, right = condition.left, condition.comparators[0]
    if _is_call_of(left, program):
        return right
    return left if _is_call_of(right, program) else None


def _is_call_of(node: ast.AST, program: Collection[str]) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in program
    )


def _has_input(cut: Statements) -> bool:
    """Whether a test hands the program something; where helpers of the tests do that, it may."""
    calls = [
        node
        for statement in cut.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and _is_call_of(node, cut.names)
    ]
    return not calls or any(call.args or call.keywords for call in calls)


def _literals(node: ast.AST, program: Collection[str]) -> Iterator[Any]:
    """Values written out in a test, but for what the program is called with."""
    if _is_call_of(node, program):
        return
    if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp):
        try:
            yield ast.literal_eval(node)
            return
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
    for child in ast.iter_child_nodes(node):
        yield from _literals(child, program)


def _handled(tests: Sequence[ast.stmt]) -> list[str]:
    """The builtin exceptions that tests catch."""
    handlers = [
        node for test in tests for node in ast.walk(test) if isinstance(node, ast.ExceptHandler)
    ]
    names = {
        name.id
        for handler in handlers
        for name in ast.walk(handler.type or ast.Name("Exception"))
        if isinstance(name, ast.Name) and hasattr(builtins, name.id)
    }
    return sorted(names)
