"""Completion → program, and tests → statements that can be counted. Pure functions on text."""

from __future__ import annotations

import ast
import builtins
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

# possessive throughout: a model must not be able to make this backtrack
_FENCE = re.compile(r"^ {0,3}+(`{3,}+|~{3,}+)[ \t]*+([^`\s]*+)[^`]*+$")
_PYTHON = ("", "python", "python3", "py", "py3", "python2", "pycon", "{python}")


def extract_code(completion: str, entry_point: str = "") -> str:
    """The program in a completion.

    After `</think>`, the last fenced block marked as Python or unmarked that defines the entry
    point; failing that the last such block; failing that (no fence at all) the whole text. A block
    that is never closed runs to the end.

    >>> extract_code("Sure:\\n```python\\nx = 1\\n```\\nand to try it\\n```\\nprint(x)\\n```", "x")
    'print(x)\\n'
    >>> extract_code("def f(): return 1")
    'def f(): return 1'
    """
    text = completion.rpartition("</think>")[2]
    blocks = [code for language, code in _blocks(text) if language.lower() in _PYTHON]
    if not blocks:
        return text
    name = entry_point.rpartition(".")[2].partition("(")[0]
    if name:
        definition = re.compile(rf"\b(?:def|class)\s+{re.escape(name)}\b")
        blocks = [block for block in blocks if definition.search(block)] or blocks
    return blocks[-1]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks as (language, content), in order."""
    found: list[tuple[str, str]] = []
    lines: list[str] = []
    fence = language = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        mark = _FENCE.match(line) if "```" in line or "~~~" in line else None
        if not fence:
            if mark:
                fence, language, lines = mark[1], mark[2], []
        elif mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not mark[2]:
            found.append((language, "".join(part + "\n" for part in lines)))
            fence = ""
        else:
            lines.append(line)
    if fence:
        found.append((language, "\n".join(lines)))
    return found


@dataclass(frozen=True)
class Statements:
    """Test code cut into statements: (source, whether it counts as a test), and the names in it
    that only the program can supply, as local name → path in the program."""

    statements: tuple[tuple[str, bool], ...]
    names: dict[str, str]
    pure: bool = False
    """Whether running them can change nothing outside: then one process may run many."""

    @property
    def total(self) -> int:
        return sum(is_test for _, is_test in self.statements)


_PARSING = threading.Lock()


def _parse(source: str) -> ast.Module:
    """`ast.parse`, one thread at a time and again when it trips.

    Up to Python 3.12 the parser counts its depth in one place for all threads and raises
    SystemError when two of them meet there; a thread outside of this project may be the other.
    """
    for attempt in range(5):
        with _PARSING:
            try:
                return ast.parse(source)
            except SystemError:
                if attempt == 4:
                    raise
    raise AssertionError("unreachable")


def split_asserts(tests: Sequence[str] | str, setup: str = "", entry_point: str = "") -> Statements:
    """Assert statements, each its own test.

    `entry_point` is only needed where the function has the name of a builtin.

    >>> split_asserts(["assert f(1) == 2", "assert True"]).total
    1
    """
    source = tests if isinstance(tests, str) else "\n".join(tests)
    return _statements(
        _parse(source).body, setup, {entry_point: entry_point} if entry_point else {}
    )


def split_check(source: str, entry_point: str, setup: str = "") -> Statements:
    """The body of `def check(candidate)`, each assert its own test."""
    body = _parse(source).body
    checks = [s for s in body if isinstance(s, ast.FunctionDef) and s.name == "check"]
    if len(checks) != 1 or len(checks[0].args.args) != 1:
        raise ValueError("a check test defines `check(candidate)` once, got " + source[:80])
    before = [s for s in body if s is not checks[0] and not _is_call_of_check(s)]
    candidate = checks[0].args.args[0].arg
    names = {candidate: entry_point}
    inner = [_Rename(entry_point, candidate).visit(statement) for statement in checks[0].body]
    if any(isinstance(node, ast.Return) for s in inner for node in _own_nodes(s)):
        call = _parse(f"check({candidate})").body  # cannot be cut: one test
        return _statements([*before, checks[0]], setup, names, tests=call)
    return _statements([*before, *inner], setup, names)


def _statements(
    body: Sequence[ast.stmt],
    setup: str,
    names: dict[str, str],
    tests: Sequence[ast.stmt] = (),
) -> Statements:
    cut = [(setup, False)] if setup.strip() else []
    cut += [
        (ast.unparse(statement), not tests and _is_test(statement))
        for statement in body
        if not _is_vacuous(statement)
    ]
    cut += [(ast.unparse(statement), True) for statement in tests]
    free = _free_names([*_parse(setup).body, *body]) - names.keys()
    _refuse_execution([*_parse(setup).body, *body])
    pure = not setup.strip() and not tests and all(map(_is_pure, body))
    return Statements(tuple(cut), names | {name: name for name in sorted(free)}, pure)


_EXECUTES = {
    "eval", "exec", "compile", "__import__", "pickle", "marshal", "shelve", "ctypes", "subprocess",
    "importlib", "runpy", "code",
}  # fmt: skip


def _refuse_execution(body: Sequence[ast.stmt]) -> None:
    """Tests that can execute what the program returns would let it write its own verdict."""
    for statement in body:
        for node in ast.walk(statement):
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


_PURE = (
    ast.Assert, ast.Compare, ast.Call, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
    ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Subscript, ast.Slice, ast.keyword,
    ast.cmpop, ast.operator, ast.unaryop, ast.boolop, ast.Starred, ast.Expr,
)  # fmt: skip
_PURE_BUILTINS = {
    "abs", "all", "any", "bool", "dict", "float", "frozenset", "int", "len", "list", "max", "min",
    "range", "round", "set", "sorted", "str", "sum", "tuple", "zip",
}  # fmt: skip


def _is_pure(statement: ast.stmt) -> bool:
    """An assert over calls, operators and literals: no import, no assignment, no attribute."""
    names = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return (
        isinstance(statement, ast.Assert | ast.Expr)
        and all(isinstance(node, _PURE) for node in ast.walk(statement))
        and all(name in _PURE_BUILTINS or not hasattr(builtins, name) for name in names)
    )


def _is_call_of_check(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
        and statement.value.func.id == "check"
    )


class _Rename(ast.NodeTransformer):
    """A check that names the function itself means the candidate."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node


def _is_vacuous(statement: ast.AST) -> bool:
    """`assert True`, `assert f(x) == f(x)` and docstrings: they would pay every program."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Compare) and [type(op) for op in test.ops] == [ast.Eq]:
            return ast.dump(test.left) == ast.dump(test.comparators[0])
        return isinstance(test, ast.Constant) and bool(test.value)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_test(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return True
    return any(
        (isinstance(node, ast.Assert) and not _is_vacuous(node)) or isinstance(node, ast.Raise)
        for node in _own_nodes(statement)
    )


def _own_nodes(statement: ast.AST) -> list[ast.AST]:
    """The nodes of a statement, but not those inside functions or classes it defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return []
    found: list[ast.AST] = [statement]
    for child in ast.iter_child_nodes(statement):
        found += _own_nodes(child)
    return found


def _free_names(body: Sequence[ast.stmt]) -> set[str]:
    """Names that are read and never bound in the tests: the program's own."""
    read: set[str] = set()
    bound: set[str] = set(dir(builtins))
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound.add(node.name)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.alias):
                bound.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.ExceptHandler) and node.name:
                bound.add(node.name)
    return read - bound
