"""Tests in two halves: the calls of the program, and the comparisons after the last call.

A test that compares while the program waits tells it how the comparison went: by the clock, or by
the calls that no longer come. So the checker asks first and judges later:

    for x, y in cases:           for x, y in cases:
        assert f(x) == y   →         __held__(0, ("y",), __answer_0__=f(x))

and, when the program is asked nothing more, `assert __answer_0__ == y` for all that was held. A
call is made early when it is made whatever else happens. A test that needs more is run as it
stands, but a failed assert in it does not end it.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from bestofk.rewards.code.reach import names_in
from bestofk.rewards.code.statements import PURE_BUILTINS, SWALLOW, parse

Plan = tuple[str, list[str]]
"""Statements that ask and hold, and an assert for each kind of what they hold."""

_STEPS = (
    ast.For, ast.If, ast.Assert, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Pass,
    ast.Break, ast.Continue,
)  # fmt: skip
_GATHER = {"add", "append", "extend", "insert", "reverse", "sort", "update"}
_LIBRARIES = {"cmath", "collections", "itertools", "math", "np", "numpy", "operator", "statistics"}
_PURE_NAMES = PURE_BUILTINS | {
    "chr", "complex", "divmod", "enumerate", "isinstance", "ord", "pow", "repr", "reversed", "type",
}  # fmt: skip
_PURE_METHODS = {
    "all", "any", "copy", "count", "difference", "endswith", "format", "get", "index",
    "intersection", "isdigit", "issubset", "issuperset", "items", "join", "keys", "lower", "lstrip",
    "replace", "round", "rstrip", "split", "startswith", "strip", "sum", "tolist", "union", "upper",
    "values",
}  # fmt: skip


def with_plans(
    statements: Sequence[tuple[str, bool]], names: Mapping[str, str]
) -> list[tuple[str, bool, Plan | None]]:
    """Statements and whether they are tests, each with its plan, or so that no failure ends it.

    Args:
        statements: sources, and whether each is a test.
        names: what is called in the program: name in the test → path in the program.
    """
    trees = [parse(source) for source, _ in statements]
    last = max((at for at, tree in enumerate(trees) if not _is_assert(tree)), default=-1)
    stops = any(_catches_failures(tree) for tree in trees)
    planned: list[tuple[str, bool, Plan | None]] = []
    for at, (source, is_test) in enumerate(statements):
        plan = hoisted(source, names, nothing_follows=at > last) if is_test else None
        if plan is None and not stops:
            source = unstopped(source, is_test)
        planned.append((source, is_test, plan))
    return planned


def _is_assert(tree: ast.Module) -> bool:
    return all(isinstance(statement, ast.Assert) for statement in tree.body)


def _catches_failures(tree: ast.AST) -> bool:
    """Whether a test may expect an assert to fail, or catch it."""
    nodes = ast.walk(tree)
    bare = any(isinstance(node, ast.ExceptHandler) and node.type is None for node in nodes)
    return bare or bool(SWALLOW & names_in(tree, kind=ast.Load))


def hoisted(source: str, names: Collection[str], *, nothing_follows: bool = True) -> Plan | None:
    """The plan of one test, where it is an assert, or a loop around asserts, that can be cut.

    An assert that calls functions of the tests is cut only where `nothing_follows` that could
    change what they do.

    >>> hoisted("assert f(1, key=2) == x", ["f"])
    ("__held__(0, ('x',), __answer_0__=f(1, key=2))", ['assert __answer_0__ == x'])
    >>> hoisted("assert math.isclose(f(1), x)", ["f"])[0]  # a library is there later too
    "__held__(0, ('x',), __answer_0__=f(1))"
    >>> hoisted("assert f(1) or f(2) == 3", ["f"]) is None
    True
    """
    [statement] = parse(source).body
    if not isinstance(statement, ast.Assert | ast.For | ast.If) or not all(
        isinstance(node, _STEPS) for node in ast.walk(statement) if isinstance(node, ast.stmt)
    ):
        return None
    repeats = not isinstance(statement, ast.Assert)
    cutter = _Cutter(names, pure_only=repeats or not nothing_follows)
    asking = cutter.visit(statement)
    return (ast.unparse(asking), cutter.later) if cutter.cuts_all else None


class _Cutter(ast.NodeTransformer):
    """Replaces each assert by what asks for it; fails where one cannot be cut."""

    def __init__(self, programs: Collection[str], pure_only: bool) -> None:
        self.programs, self.pure_only = programs, pure_only
        self.later: list[str] = []
        self.cuts_all = True

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        hoister = _Hoister(self.programs, itertools.count())
        node.test = hoister.visit(node.test)
        if node.msg is not None and _mentions(node.msg, self.programs):
            node.msg = None  # asking again because an answer was wrong would tell it
        pure = all(map(_is_pure, ast.walk(node)))
        if _mentions(node, self.programs) or (self.pure_only and not pure):
            self.cuts_all = False
        used = names_in(node, kind=ast.Load) - names_in(node, kind=ast.Store)
        copied = sorted(used - hoister.asked.keys() - _LIBRARIES) if pure else []
        self.later.append(ast.unparse(node))
        position = ast.Constant(len(self.later) - 1)
        variables = ast.Tuple([ast.Constant(name) for name in copied], ast.Load())
        answers = [ast.keyword(name, call) for name, call in hoister.asked.items()]
        return ast.Expr(ast.Call(_name("__held__"), [position, variables], answers))

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """Other functions may assert, and would do so before the next call."""
        call = node.value
        gathers = isinstance(call, ast.Call) and _called(call) in _GATHER | set(self.programs)
        self.cuts_all &= gathers or isinstance(call, ast.Constant)
        return node


class _Hoister(ast.NodeTransformer):
    """Replaces calls that are always made, and goes nowhere else."""

    def __init__(self, programs: Collection[str], numbers: Iterator[int]) -> None:
        self.programs, self.numbers = programs, numbers
        self.asked: dict[str, ast.expr] = {}

    def _answer(self, asking: ast.expr) -> ast.Name:
        name = f"__answer_{next(self.numbers)}__"
        self.asked[name] = asking
        return _name(name)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in self.programs:
            return self._answer(node)
        return self.generic_visit(node)

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

    def visit_Lambda(self, node: ast.Lambda | ast.NamedExpr) -> ast.AST:
        return node

    visit_NamedExpr = visit_Lambda

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        node.generators[0].iter = self.visit(node.generators[0].iter)
        return node

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> ast.AST:
        """`all(f(x) == y for x, y in cases)` makes all its calls, and keeps x and y with each."""
        if not _mentions(node.elt, self.programs):
            node.generators[0].iter = self.visit(node.generators[0].iter)
            return node
        inner = _Hoister(self.programs, self.numbers)
        node.elt = inner.visit(node.elt)
        read = names_in(node.elt, kind=ast.Load)
        bound = sorted(read & names_in(*node.generators, kind=ast.Store))
        copies: list[ast.expr] = [ast.Call(_name("__copy__"), [_name(name)], []) for name in bound]
        row = ast.Tuple([*inner.asked.values(), *copies], ast.Load())
        rows = self._answer(ast.ListComp(row, node.generators))
        parts: list[ast.expr] = [ast.Name(name, ast.Store()) for name in (*inner.asked, *bound)]
        node.generators = [ast.comprehension(ast.Tuple(parts, ast.Store()), rows, [], 0)]
        return node

    visit_ListComp = visit_SetComp = visit_GeneratorExp = _comprehension


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _mentions(node: ast.AST, names: Collection[str]) -> bool:
    return not names_in(node).isdisjoint(names)


def _called(call: ast.Call) -> str:
    """The name of what is called, a method's too."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_pure(node: ast.AST) -> bool:
    """Whether it gives the same later, from copies of its variables."""
    if isinstance(node, ast.NamedExpr | ast.Lambda | ast.Await | ast.Yield | ast.YieldFrom):
        return False
    if not isinstance(node, ast.Call):
        return True
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(owner, ast.Name) and owner.id in _LIBRARIES:
        return True
    return _called(node) in (_PURE_NAMES if owner is None else _PURE_METHODS)


def unstopped(source: str, is_test: bool) -> str:
    """The statement with asserts that note a failure and go on, so that nobody is told by the
    calls that no longer come. An assert between tests still ends them, and so does one in a
    `while`, which may not end otherwise.

    >>> unstopped("for x in range(3): assert check(f(x)), 'no'", True)
    "for x in range(3):\\n    __holds__(check(f(x)), 'no')"
    """
    tree = parse(source)
    if any(isinstance(node, ast.While) for node in ast.walk(tree)):
        return source
    tree.body = [_Unstopped(is_test).visit(statement) for statement in tree.body]
    return ast.unparse(tree)


class _Unstopped(ast.NodeTransformer):
    def __init__(self, notes: bool) -> None:
        self.notes = notes

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [_Unstopped(True).visit(statement) for statement in node.body]
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if not self.notes:
            return node
        said = node.msg if isinstance(node.msg, ast.Constant) else ast.Constant("")
        return ast.Expr(ast.Call(_name("__holds__"), [node.test, said], []))
