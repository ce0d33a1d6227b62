"""Tests → statements that can be counted one by one. Pure functions on the text of a task's tests.

A test that every program might pass is an error here, with the way out.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bestofk.rewards.code.reach import Reach, names_in, refuse_programs_as_judges

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


@dataclass(frozen=True)
class Statements:
    """Test code cut into statements: (source, whether it counts as a test), and the names in it
    that only the program can supply, as local name → path in the program."""

    statements: tuple[tuple[str, bool], ...]
    names: dict[str, str]
    modules: tuple[str, ...] = ()
    """Modules of the standard library that the tests use as if the program had imported them."""
    pure: bool = False
    """Whether running them can change nothing outside: then one process may run many."""

    @property
    def total(self) -> int:
        return sum(is_test for _, is_test in self.statements)


_PARSING = threading.Lock()


def parse(source: str, tries: int = 5) -> ast.Module:
    """`ast.parse`, one thread at a time and again when it trips.

    Up to Python 3.12 the parser counts its depth in one place for all threads and raises
    SystemError when two of them meet there; a thread outside of this project may be the other.
    """
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the task's own text: 1if x, "\\d"
        try:
            return ast.parse(source)
        except SystemError:
            if tries == 1:
                raise
    return parse(source, tries - 1)


def split_asserts(tests: Sequence[str] | str, setup: str = "", entry_point: str = "") -> Statements:
    """Assert statements, each its own test.

    `entry_point` is only needed where the function has the name of a builtin.

    >>> split_asserts(["assert f(1) == 2", "assert True"]).total
    1
    """
    source = tests if isinstance(tests, str) else "\n".join(tests)
    return _statements(parse(source).body, setup, {entry_point: entry_point} if entry_point else {})


def split_check(source: str, entry_point: str, setup: str = "") -> Statements:
    """The body of `def check(candidate)`, each assert its own test."""
    body = parse(source).body
    checks = [s for s in body if isinstance(s, ast.FunctionDef) and s.name == "check"]
    if len(checks) != 1 or len(checks[0].args.args) != 1:
        raise ValueError("a check test defines `check(candidate)` once, got " + source[:80])
    before = [s for s in body if s is not checks[0] and not _is_call_of_check(s)]
    candidate = checks[0].args.args[0].arg
    names = {candidate: entry_point}
    inner = [_Rename(entry_point, candidate).visit(statement) for statement in checks[0].body]
    if any(isinstance(node, ast.Return) for s in inner for node in _own_nodes(s)):
        call = parse(f"check({candidate})").body  # cannot be cut: one test
        return _statements([*before, checks[0], *call], setup, names)
    return _statements([*before, *inner], setup, names)


def _statements(body: Sequence[ast.stmt], setup: str, names: dict[str, str]) -> Statements:
    prepared = parse(setup).body
    inner = [node for statement in body for node in ast.walk(statement)]
    nodes = [*(node for statement in prepared for node in ast.walk(statement)), *inner]
    refuse_execution(nodes)
    _refuse_always_true(inner)
    _refuse_swallowed(inner)
    free = _free_names(nodes) - names.keys()
    modules = (free & sys.stdlib_module_names) - _called(nodes)
    names = names | {name: name for name in sorted(free - modules)}
    dependence = Reach(nodes, names)
    refuse_programs_as_judges(nodes, dependence)
    helpers = _asserting_helpers(nodes)
    cut = [(setup, False)] if setup.strip() else []
    unseen: ast.stmt | None = None
    for statement in body:
        touches = bool(dependence.of(statement))
        if touches and not _is_vacuous(statement) and _is_test(statement, helpers):
            cut.append((ast.unparse(statement), True))
            unseen = None
        elif not isinstance(statement, ast.Assert) and not _is_docstring(statement):
            cut.append((ast.unparse(statement), False))
            if touches and not isinstance(statement, _DEFINITIONS):
                unseen = statement
    if unseen is not None:
        raise ValueError(
            f"no test comes after `{_shown(unseen)}`, and its failure would go unnoticed: assert "
            "what it should give, or remove it"
        )
    _refuse_unused(body, helpers)
    last = max((at for at, (_, is_test) in enumerate(cut) if is_test), default=-1)
    pure = not setup.strip() and all(map(_is_pure, body))
    return Statements(tuple(cut[: last + 1]), names, tuple(sorted(modules)), pure)


def _called(nodes: Sequence[ast.AST]) -> set[str]:
    """What is called by its name, so that it is no module, whatever the name."""
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."


# --------------------------------------------------------------------------- what is not accepted
_EXECUTES = {
    "eval", "exec", "compile", "__import__", "pickle", "marshal", "shelve", "ctypes", "subprocess",
    "importlib", "runpy", "code",
}  # fmt: skip


def refuse_execution(nodes: Sequence[ast.AST]) -> None:
    """Tests that can execute what the program returns would let it write its own verdict."""
    for node in nodes:
        names = [node.id] if isinstance(node, ast.Name) else []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0]]
        for name in names:
            if name in _EXECUTES:
                raise ValueError(
                    f"tests must not execute what a program returns, these use {name}: "
                    "compare values instead (ast.literal_eval reads literals)"
                )


def _refuse_always_true(nodes: Sequence[ast.AST]) -> None:
    """Asserts that look like tests and hold whatever the program does."""
    for node in nodes:
        if not isinstance(node, ast.Assert):
            continue
        condition = node.test
        if isinstance(condition, ast.Tuple) and condition.elts:
            way = "take away the parentheses"
        elif isinstance(condition, ast.BoolOp) and _always_true(condition):
            way = "write `assert condition, message`"
        else:
            continue
        raise ValueError(f"`{_shown(node)}` is true whatever the program does: {way}")


SWALLOW = {"AssertionError", "Exception", "BaseException"}


def _refuse_swallowed(nodes: Sequence[ast.AST]) -> None:
    """An assert whose failure is caught at once, and forgotten, passes for everybody."""
    for node in nodes:
        if not isinstance(node, ast.Try):
            continue
        tried = [part for statement in node.body for part in _own_nodes(statement)]
        if not any(isinstance(part, ast.Assert) for part in tried):
            continue
        for handler in node.handlers:
            fails = any(isinstance(n, ast.Raise | ast.Assert) for n in ast.walk(handler))
            if not fails and (handler.type is None or names_in(handler) & SWALLOW):
                raise ValueError(
                    f"`{_shown(node)}` catches its own assert: catch the error that is expected, "
                    "and assert in `else`"
                )


def _refuse_unused(body: Sequence[ast.stmt], helpers: set[str]) -> None:
    """Asserts inside of what is defined and never used would never run."""
    used = names_in(*body, kind=ast.Load)
    for statement in body:
        if isinstance(statement, _FUNCTIONS | ast.ClassDef):
            name = statement.name
            if name in helpers and name not in used:
                raise ValueError(f"the asserts of {name} never run: call it in the tests")


# --------------------------------------------------------------------------- what counts as a test
def _is_docstring(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_vacuous(statement: ast.AST) -> bool:
    """`assert True`, `assert f(x) == f(x)`: they would pay every program."""
    return isinstance(statement, ast.Assert) and _always_true(statement.test)


def _always_true(node: ast.expr) -> bool:
    """Whether the condition holds by the way it is written."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(not isinstance(part, ast.Starred) for part in node.elts)
    if isinstance(node, ast.Dict):
        return any(key is not None for key in node.keys)
    if isinstance(node, ast.Lambda):
        return True
    if isinstance(node, ast.JoinedStr):
        return any(map(_always_true, node.values))
    if isinstance(node, ast.BoolOp):
        holds = map(_always_true, node.values)
        return any(holds) if isinstance(node.op, ast.Or) else all(holds)
    if isinstance(node, ast.IfExp):
        return _always_true(node.body) and _always_true(node.orelse)
    if isinstance(node, ast.NamedExpr):
        return _always_true(node.value)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        reflexive = isinstance(node.ops[0], ast.Eq | ast.GtE | ast.LtE | ast.Is)
        return reflexive and ast.dump(node.left) == ast.dump(node.comparators[0])
    return False


def _is_test(statement: ast.stmt, helpers: set[str]) -> bool:
    """Whether it can fail by itself: by its own assert or raise, or by that of a helper."""
    return any(_can_fail(node, helpers) for node in _own_nodes(statement))


def _can_fail(node: ast.AST, helpers: set[str]) -> bool:
    if isinstance(node, ast.Assert):
        return not _is_vacuous(node)
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute):  # unittest's and numpy's
            return function.attr.startswith("assert") or _names_helper(function, helpers)
        return isinstance(function, ast.Name) and function.id in helpers
    return isinstance(node, ast.Raise)


def _names_helper(function: ast.Attribute, helpers: set[str]) -> bool:
    """Whether what is called mentions a helper. Methods of what another method returned are asked
    for themselves: a chain of n calls is walked once, not n times."""
    waiting: list[ast.AST] = [function.value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and node.id in helpers:
            return True
        is_asked = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        parts = [*node.args, *node.keywords] if is_asked else ast.iter_child_nodes(node)  # type: ignore[attr-defined]
        waiting.extend(parts)
    return False


def _asserting_helpers(nodes: Sequence[ast.AST]) -> set[str]:
    """Functions and classes the tests define that assert or raise, or call one that does."""
    defined = [node for node in nodes if isinstance(node, _FUNCTIONS | ast.ClassDef)]
    helpers: set[str] = set()
    while True:
        more = {
            node.name
            for node in defined
            if node.name not in helpers and any(_can_fail(part, helpers) for part in ast.walk(node))
        }
        if not more:
            return helpers
        helpers |= more


def _own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, but not those inside functions or classes it defines."""
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _DEFINITIONS):
            yield node
            waiting.extend(ast.iter_child_nodes(node))


def _is_call_of_check(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Name("check"))):
            return True
    return False


class _Rename(ast.NodeTransformer):
    """A check that names the function itself means the candidate."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node


# -------------------------------------------------------------------------------- names and purity
_PURE = (
    ast.Assert, ast.Compare, ast.Call, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
    ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Subscript, ast.Slice, ast.keyword,
    ast.cmpop, ast.operator, ast.unaryop, ast.boolop, ast.Starred, ast.Expr,
)  # fmt: skip
PURE_BUILTINS = {
    "abs", "all", "any", "bool", "dict", "float", "frozenset", "int", "len", "list", "max", "min",
    "range", "round", "set", "sorted", "str", "sum", "tuple", "zip",
}  # fmt: skip


def _is_pure(statement: ast.stmt) -> bool:
    """An assert over calls, operators and literals: no import, no assignment, no attribute."""
    return (
        isinstance(statement, ast.Assert | ast.Expr)
        and all(isinstance(node, _PURE) for node in ast.walk(statement))
        and all(n in PURE_BUILTINS or not hasattr(builtins, n) for n in names_in(statement))
    )


_STARRED = {
    "bisect", "collections", "functools", "heapq", "itertools", "math", "operator", "random", "re",
    "statistics", "string", "typing",
}  # fmt: skip


def _starred(module: str) -> set[str]:
    """What `from module import *` binds, for modules that are safe to look into."""
    if module not in _STARRED:
        return set()
    imported = importlib.import_module(module)
    public = [name for name in dir(imported) if not name.startswith("_")]
    return set(getattr(imported, "__all__", public))


def _free_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that are read and never bound in the tests: the program's own."""
    read: set[str] = set()
    bound: set[str] = set(dir(builtins))
    for node in nodes:
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, _FUNCTIONS | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            bound |= _starred(node.module or "")
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return read - bound
