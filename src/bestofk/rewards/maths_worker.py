"""The process in which algebra is done on what a model wrote.

Reads one JSON request a line, writes one JSON answer a line. It may be killed at any moment: each
request runs on a budget of CPU time after which the kernel ends the process, whatever C code it is
stuck in, and within an address-space limit.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from math_verify import verify

from bestofk.rewards import mathtext

DIGITS = 40
MAX_NUMBERS = 20
EXACT, DECIMAL = sympy.Float("1e-25"), sympy.Float("1e-12")
# One value per variable, of both signs; an identity holds at all of them.
POINTS = (("37/29", "53/31", "71/43"), ("-41/23", "59/37", "-73/47"), ("11/97", "-13/89", "17/83"))


_IMAGINARY = {sympy.Symbol("i"): sympy.I}


class Unparsed(ValueError):
    """The answer is not mathematics that can be read to its end."""


def equal(gold: str, answer: str) -> bool:
    """Whether two plain answers are equal, part by part. Raises `Unparsed` for a bad answer.

    A gold answer that is no formula is compared as text, which the caller has done already.
    """
    return bool(mathtext.same(gold, answer, _scalar))


def _scalar(gold: str, answer: str) -> bool:
    quick = mathtext.same_scalar(gold, answer)
    if quick is not None:
        return quick
    gold, answer = mathtext.unsolved(gold, answer)
    if not mathtext.is_readable(answer):
        raise Unparsed("brackets that do not close, numbers side by side, or quotes")
    try:
        expected = _parse(gold)
    except Exception:
        return False
    try:
        value = _parse(answer)
    except MemoryError:
        raise
    except Exception as error:
        raise Unparsed(str(error).split("\n", 1)[0]) from error
    return _same(expected, value) and _is_read_whole(answer, value)


def _parse(text: str) -> Any:
    return latex2sympy(text, normalization_config=None)


def _same(expected: Any, value: Any) -> bool:
    if _is_term(expected) and _is_term(value):
        same = _same_value(expected, value)
        if same is not None:
            return same
    return verify(expected, value, timeout_seconds=None, raise_on_error=True)


def _is_read_whole(answer: str, value: Any) -> bool:
    """Whether every number in the answer matters: the parser drops some things in silence.

    It reads "5_8" and "5 \\approx 6" as 5. So each number is changed in turn, and what is read must
    change with it.
    """
    read = sympy.srepr(value)
    for match in list(re.finditer("[0-9]+", answer))[:MAX_NUMBERS]:
        other = answer[: match.start()] + "7" + match[0] + answer[match.end() :]
        try:
            if sympy.srepr(_parse(other)) == read:
                return False
        except MemoryError:
            raise
        except Exception:
            continue  # then it did matter
    return True


def _is_term(value: Any) -> bool:
    return isinstance(value, sympy.Expr) and not isinstance(value, sympy.MatrixExpr)


def _same_value(gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
    """Compare to 25 significant digits at several points; None where a value cannot be had."""
    gold, answer = (term.subs(_IMAGINARY) for term in (gold, answer))
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    tolerance = DECIMAL if gold.has(sympy.Float) or answer.has(sympy.Float) else EXACT
    for point in POINTS if symbols else POINTS[:1]:
        at = {symbol: sympy.Rational(point[i % len(point)]) + i for i, symbol in enumerate(symbols)}
        values = [_value(term.subs(at) if at else term) for term in (gold, answer)]
        if None in values:
            return None
        a, b = values
        if abs(a - b) > tolerance * max(abs(a), abs(b)):  # type: ignore[operator, arg-type]
            return False
    return True


def _value(term: sympy.Expr) -> sympy.Expr | None:
    """A number to DIGITS significant digits; what cancels to nothing is zero."""
    number = sympy.N(term, DIGITS, maxn=600)
    if not number.is_number or number.has(sympy.nan, sympy.zoo, sympy.oo):
        return None
    real, imaginary = number.as_real_imag()
    kept = [sympy.S.Zero if getattr(part, "_prec", 2) == 1 else part for part in (real, imaginary)]
    if not all(part.is_Number for part in kept):
        return None
    return kept[0] + sympy.I * kept[1]


def respond(request: dict[str, Any]) -> dict[str, str]:
    try:
        same = equal(request["gold"], request["answer"])
        return {"result": "equal" if same else "different"}
    except Unparsed as error:
        return {"result": "unparsed", "detail": str(error)[:200]}
    except MemoryError:
        return {"result": "memory", "detail": "out of memory"}
    except Exception as error:  # sympy raises all kinds of things on odd input
        return {"result": "crashed", "detail": f"{type(error).__name__}: {error}"[:200]}


def serve(memory_bytes: int) -> None:
    """Answer requests until the input closes or the parent is gone."""
    if memory_bytes:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints must not disturb the answers
    _parse("1+1")  # warm the parser before the first budget starts
    print(json.dumps({"result": "ready"}), file=output, flush=True)
    pending = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], 10.0)[0]:
            continue
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return
        pending += chunk
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            request = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])  # SIGPROF ends us
            answer = respond(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(answer), file=output, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
