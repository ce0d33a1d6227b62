"""Inside the sandbox: runs the cells of a trajectory in order and returns what the last one shows.

Imports nothing of ours: the program beside it could read it.
"""

import ast
import contextlib
import io
import traceback

LONGEST = 2_000
"""Characters that are shown; the middle of a longer output is left out."""


def run_cells(cells: list[str]) -> str:
    """What the last cell prints, the value of its last line, or its error."""
    names: dict[str, object] = {"__name__": "__main__"}
    shown = ""
    for cell in cells:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                _run(cell, names)
            except BaseException as error:
                print("".join(traceback.format_exception_only(error)).strip())
        shown = out.getvalue()
    half = LONGEST // 2
    return shown if len(shown) <= LONGEST else f"{shown[:half]}\n[...]\n{shown[-half:]}"


def _run(cell: str, names: dict[str, object]) -> None:
    parsed = ast.parse(cell, "<cell>")
    last = parsed.body[-1] if parsed.body else None
    if isinstance(last, ast.Expr):
        parsed.body.pop()
    exec(compile(parsed, "<cell>", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
        if value is not None:
            print(repr(value))
