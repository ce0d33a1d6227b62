"""The process in which algebra is done on what a model wrote.

Gets requests and gives answers in JSON. It may be killed at any moment: each
request runs on a budget of CPU time after which the kernel ends the process, whatever C code it is
stuck in, and within an address-space limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from multiprocessing.connection import Connection
from typing import Any

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

from bestofk.rewards.maths.algebra import Undecided, exact, is_matrix, same_object
from bestofk.rewards.maths.equality import same, same_scalar
from bestofk.rewards.maths.plain_form import is_readable, is_wrapped
from bestofk.rewards.maths.quantities import quantity

MAX_NUMBERS = 20
_CONVERSION = ConversionConfig(lowercase_symbols=False)  # R and r are two variables
_CAPITAL_I = re.compile(r"(\\[A-Za-z]+)|I(?: ?_ ?(?:\{(\w{1,20})\}|(\w)))?")
_ARGUMENT = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc|ln|log)(?: ?[_^] ?(?:\w|\{[^{}]*\}))?) ?"
    r"((?:\d{1,100} ?)?(?:[A-Za-z]|\\[a-z]+(?![A-Za-z{])|\\frac\{[^{}]*\}\{[^{}]*\})|\d{1,100})"
    r"(?= ?(?:\\cdot|\\times|\*))"
)
_FACTORIAL_POWER = re.compile(r"(?<![\w!])(\d{1,100}|[A-Za-z]) ?! ?\^")
_MIXED = re.compile(r"(?<![\d.}^_])(\d{1,100}) ?(\\frac\{\d+\}\{\d+\})")


_NUMBER = re.compile(r"([\^_] ?(?=\d))?\d+(?:\.\d+)?")


class Unparsed(ValueError):
    """The answer is not mathematics that can be read to its end."""


class _Reader(_Latex2Sympy):
    """The parser, but factors side by side are a product: it would add (2)(3) up to 5.

    It looks ahead without context first, which takes half the time. Where that way finds a tree at
    all, it is the same tree (ANTLR's promise for SLL); else the whole way is gone.
    """

    mode = PredictionMode.SLL

    def parse(self, latex_str: str) -> Any:
        try:
            return super().parse(latex_str)
        except MemoryError:
            raise
        except Exception:
            self.mode = PredictionMode.LL
            return super().parse(latex_str)

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self.mode
        return parser

    def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
        first = self.convert_postfix(arr[i])
        rest = self.convert_postfix_list(arr, i + 1) if i + 1 < len(arr) else None
        if isinstance(first, list):  # d/dx
            return sympy.Derivative(rest, first[0])
        if rest is None:
            return first
        if is_matrix(first) or is_matrix(rest):
            return self.mat_mul_flat(first, rest)
        return self.mul_flat(first, rest)


def equal(gold: str, answer: str) -> bool:
    """Whether two plain answers are equal, part by part. Raises `Unparsed` for a bad answer.

    A gold answer that is no formula is compared as text, which the caller has done already.
    """
    return bool(same(gold, answer, _scalar))


def _scalar(gold: str, answer: str) -> bool:
    quick = same_scalar(gold, answer)
    if quick is not None:
        return quick
    gold, answer = quantity(gold).core, quantity(answer).core
    if not is_readable(answer):
        raise Unparsed("brackets that do not close, numbers side by side, or quotes")
    if not is_readable(gold):
        return False
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
    return same_object(expected, value) and _is_read_whole(answer, value)


def _parse(text: str) -> Any:
    """What a formula says, decimals as exact fractions.

    The parser would take the variable I for the imaginary unit, so it is renamed; a mixed number
    is written as a sum, and what a point or a cross parts from a function is not its argument.
    """
    while text.startswith("(") and "," not in text and is_wrapped(text):
        text = text[1:-1].strip()  # each pair of brackets costs the parser a tenth of a second
    text = _ARGUMENT.sub(r"\1(\2)", text)
    text = _MIXED.sub(r"(\1+\2)", text)
    text = _FACTORIAL_POWER.sub(r"(\1!)^", text)
    text = _CAPITAL_I.sub(lambda m: m[1] or f"J_{{I{m[2] or m[3] or ''}}}", text)
    return exact(_Reader(config=_CONVERSION).parse(text))


def _is_read_whole(answer: str, value: Any) -> bool:
    """Whether every number in the answer matters: the parser drops some things in silence.

    It reads "5_8" and "5 \\approx 6" as 5. Where a name stands for each number and every name is
    read, all numbers are. Else each number is changed in turn, and the result must change with it.
    """
    if _names_for_numbers_are_read(answer):
        return True
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


def _names_for_numbers_are_read(answer: str) -> bool:
    """One reading instead of one per number, which takes seconds for a long polynomial."""
    names: list[str] = []

    def name(match: re.Match[str]) -> str:
        names.append(f"J_{{q{len(names)}}}")
        return f"{match[1]}{{{names[-1]}}}" if match[1] else names[-1]

    try:
        read = _parse(_NUMBER.sub(name, answer))
        symbols = {str(symbol) for symbol in read.free_symbols}
    except MemoryError:
        raise
    except Exception:
        return False
    return symbols >= set(names)


def respond(request: dict[str, Any]) -> dict[str, str]:
    try:
        same = equal(request["gold"], request["answer"])
        return {"result": "equal" if same else "different"}
    except (Unparsed, Undecided) as error:
        return {"result": "unparsed", "detail": str(error)[:200]}
    except MemoryError:
        return {"result": "memory", "detail": "out of memory"}
    except Exception as error:  # sympy raises all kinds of things on odd input
        return {"result": "crashed", "detail": f"{type(error).__name__}: {error}"[:200]}


def serve(memory_bytes: int, descriptor: int) -> None:
    """Answer requests until the channel closes or the parent is gone."""
    if memory_bytes:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory is short, this goes and not the training run
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    channel = Connection(descriptor)
    _parse("1+1")  # warm the parser before the first budget starts
    channel.send_bytes(json.dumps({"result": "ready"}).encode())
    with contextlib.suppress(EOFError):
        while os.getppid() == parent:
            if channel.poll(10.0):
                request = json.loads(channel.recv_bytes())
                signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])  # SIGPROF ends us
                answer = respond(request)
                signal.setitimer(signal.ITIMER_PROF, 0)
                channel.send_bytes(json.dumps(answer).encode())
