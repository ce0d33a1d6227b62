"""Which parts of a task's tests depend on the program under test. Pure functions on syntax."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Reach:
    """For each name in the tests, the program's names that its value may come from.

    >>> nodes = list(ast.walk(ast.parse("x = f(1)\\ny = x + 1\\nz = 3")))
    >>> reach = Reach(nodes, {"f"})
    >>> [sorted(reach.of(ast.parse(name))) for name in "xyz"]
    [['f'], ['f'], []]
    >>> nodes = list(ast.walk(ast.parse("try: f(-1); y = 0\\nexcept ValueError: y = 1")))
    >>> sorted(Reach(nodes, {"f"}).of(ast.parse("y")))
    ['f']
    """

    def __init__(self, nodes: Sequence[ast.AST], program: Collection[str]) -> None:
        self.program = frozenset(program)
        self._of: dict[str, frozenset[str]] = {name: frozenset([name]) for name in program}
        flows = list(_flows(nodes, self.program))
        changed = True
        while changed:
            changed = False
            for targets, sources in flows:
                reached = self._union(sources)
                for target in targets - self.program:
                    if not reached <= self._of.get(target, frozenset()):
                        self._of[target] = self._of.get(target, frozenset()) | reached
                        changed = True

    def of(self, node: ast.AST) -> frozenset[str]:
        """The program's names that the value, or the outcome, of this depends on."""
        return self._union(names_in(node))

    def _union(self, names: Collection[str]) -> frozenset[str]:
        return frozenset().union(*(self._of.get(name, frozenset()) for name in names))


def _flows(
    nodes: Sequence[ast.AST], program: frozenset[str]
) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """(names that get a value, names it is made of), for all that is bound."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield names_in(*node.targets), names_in(node.value)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
            yield names_in(node.target), names_in(node.value)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield names_in(node.target), names_in(node.iter)
        elif isinstance(node, ast.withitem):
            yield names_in(node.optional_vars), names_in(node.context_expr)
        elif isinstance(node, ast.Try):  # what is set depends on whether this raises
            yield names_in(node, kind=ast.Store), names_in(*node.body)
        elif isinstance(node, ast.If | ast.While):
            yield names_in(node, kind=ast.Store), names_in(node.test)
        elif isinstance(node, _FUNCTIONS):
            yield frozenset([node.name]), names_in(*node.body)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func  # `results.append(f(1))` changes what it is called on
            if not (isinstance(function, ast.Name) and function.id in program):
                yield names_in(node.value), names_in(node.value)


def names_in(
    *nodes: ast.AST | None, kind: type[ast.expr_context] = ast.expr_context
) -> frozenset[str]:
    """The names in some code; of one kind, those that are read (`ast.Load`) or set (`ast.Store`).

    >>> sorted(names_in(ast.parse("x = f(y)"))), *names_in(ast.parse("x = y"), kind=ast.Store)
    (['f', 'x', 'y'], 'x')
    """
    return frozenset(
        part.id
        for node in nodes
        if node is not None
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, kind)
    )


def refuse_programs_as_judges(nodes: Sequence[ast.AST], dependence: Reach) -> None:
    """In `assert isclose(f(1), 2.0)` the program would supply `isclose` too, and judge itself."""
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        judge = node.func.id
        if judge not in dependence.program:
            continue
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        judged = frozenset().union(*map(dependence.of, arguments)) - {judge}
        if judged:
            raise ValueError(
                f"the tests hand the program's {judge} what its own {min(judged)} gave, so that it "
                f"could judge itself: import or define {judge} in the tests or in `setup` (objects "
                "of a program's own classes cannot be handed over at all)"
            )
