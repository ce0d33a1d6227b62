"""Which calls of the program an assert makes, so that they can be made before it is judged.

A test that runs as it stands compares while the program waits for the next call, and a program can
hear from the clock whether its last answer was wrong. So the checker makes the calls of all such
tests first and runs what is left of them afterwards. A call counts when it is made whatever else
happens and when no other call of the program is among its arguments; a test that needs more than
such calls is run as it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from bestofk.rewards.code.statements import parse

Hoisted = tuple[list[tuple[str, str]], str]
"""Calls as (path, expression for its arguments), and the assert over `__answer_0__`, ..."""


def with_plans(
    statements: Sequence[tuple[str, bool]], names: Mapping[str, str]
) -> list[tuple[str, bool, Hoisted | None]]:
    """Statements and whether they are tests, each with its plan.

    Tests before another kind of statement are run as they stand: it may change what they use.
    """
    others = [at for at, (_, is_test) in enumerate(statements) if not is_test]
    settled = max(others, default=-1)
    return [
        (source, is_test, hoisted(source, names) if at > settled else None)
        for at, (source, is_test) in enumerate(statements)
    ]


def hoisted(source: str, names: Mapping[str, str]) -> Hoisted | None:
    """The plan of one test, where it is an assert that can be taken apart.

    Args:
        source: the test's statement.
        names: what is called in the program: name in the test → path in the program.

    >>> hoisted("assert f(1, key=2) == 3", {"f": "f"})
    ([('f', '__given__(1, key=2)')], 'assert __answer_0__ == 3')
    >>> hoisted("assert f(f(1)) == 3", {"f": "f"}) is None
    True
    """
    [statement] = parse(source).body
    if not isinstance(statement, ast.Assert):
        return None
    hoister = _Hoister(names)
    statement.test = hoister.visit(statement.test)
    if statement.msg is not None and _mentions(statement.msg, names):
        statement.msg = None  # asking again because an answer was wrong would tell it
    if not hoister.calls or _mentions(statement, names):
        return None
    return hoister.calls, ast.unparse(statement)


def _mentions(node: ast.AST, names: Collection[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


class _Hoister(ast.NodeTransformer):
    """Replaces calls that are always made, and goes nowhere else."""

    def __init__(self, programs: Mapping[str, str]) -> None:
        self.programs = programs
        self.calls: list[tuple[str, str]] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not (isinstance(node.func, ast.Name) and node.func.id in self.programs):
            return self.generic_visit(node)
        path, node.func = self.programs[node.func.id], ast.Name("__given__", ast.Load())
        if _mentions(node, self.programs):
            return node
        self.calls.append((path, ast.unparse(node)))
        return ast.Name(f"__answer_{len(self.calls) - 1}__", ast.Load())

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """A chain stops at the first comparison that fails."""
        node.left, node.comparators[0] = self.visit(node.left), self.visit(node.comparators[0])
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        node.values[0] = self.visit(node.values[0])
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self.visit(node.test)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        return node

    def _first_iterable(self, node: ast.AST) -> ast.AST:
        first = node.generators[0]  # type: ignore[attr-defined]
        first.iter = self.visit(first.iter)
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _first_iterable
