"""Mathematics: is the answer equal to the expected one?

The answer is found in the text and most often decided by its text or as an exact rational number,
in microseconds. The rest is algebra (latex2sympy2 and sympy) in processes that can be killed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from typing import TypeAlias, cast

from bestofk.rewards.base import RETRIES, BatchVerifier, broken, right, wrong
from bestofk.rewards.maths.equality import same
from bestofk.rewards.maths.extract_answer import MAX_ANSWER, extract
from bestofk.rewards.maths.plain_form import is_balanced, plain
from bestofk.rewards.maths.quantities import other_measure
from bestofk.rewards.maths.worker_pool import AlgebraPool, AlgebraWorkerLost, Reply
from bestofk.types import Prompt, Status, Verdict, plain_text

Question: TypeAlias = tuple[str, str]
"""Two plain answers, the expected one first."""
_REMEMBERED = 20_000

plain_gold = lru_cache(maxsize=4096)(plain)


def judge_text(gold: str, text: str) -> Verdict | Question:
    """The verdict where text and numbers decide; else the two plain answers to be compared."""
    answer = extract(text)
    if answer is None:
        return wrong("no answer: neither a box, nor ####, nor 'Answer:'", "unparsed")
    if len(answer) > MAX_ANSWER:
        return wrong(f"an answer of more than {MAX_ANSWER} characters", "unparsed")
    expected, response = plain_gold(gold), plain(answer)
    if not response:
        return wrong("an empty answer", "unparsed")
    if other_measure(gold, answer):
        return wrong("another currency or unit of angle")
    if expected == response:
        return right()
    if not is_balanced(response):
        return wrong("brackets that do not close, or too deep", "unparsed")
    decided = same(expected, response)
    if decided is not None:
        return right() if decided else wrong("another answer")
    if len(response) > 200 + 4 * len(expected):
        return wrong("too long for what was asked", "unparsed")
    return expected, response


class MathsVerifier(BatchVerifier):
    """Judges answers against `spec["expected"]` (a number or LaTeX)."""

    name = "maths"
    needed = ("expected",)

    def __init__(self, workers: int, cpu_seconds: float, memory_mb: int) -> None:
        if workers < 1 or not cpu_seconds > 0 or memory_mb < 256:
            raise ValueError(
                "maths needs workers >= 1, cpu_seconds > 0 and memory_mb >= 256, got "
                f"{workers}, {cpu_seconds} and {memory_mb}"
            )
        if find_spec("latex2sympy2_extended") is None:
            raise ValueError("judging maths needs latex2sympy2: pip install 'bestofk[math]'")
        self._settings = (workers, cpu_seconds, memory_mb)
        self._pool = AlgebraPool(workers, cpu_seconds, memory_mb << 20)
        self._compare = lru_cache(_REMEMBERED)(self._pool.compare)

    def __reduce__(self) -> tuple[type[MathsVerifier], tuple[int, float, int]]:
        return MathsVerifier, self._settings  # a copy in another process has workers of its own

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        judged = [
            judge_text(plain_text(prompt.spec["expected"]), text)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        open_questions = {entry for entry in judged if isinstance(entry, tuple)}
        answers = self._ask(sorted(open_questions))
        return [
            _verdict(prompt, answers[entry]) if isinstance(entry, tuple) else entry
            for prompt, entry in zip(prompts, judged, strict=True)
        ]

    def _ask(self, questions: Sequence[Question]) -> dict[Question, Reply | AlgebraWorkerLost]:
        if not questions:
            return {}
        with ThreadPoolExecutor(min(len(questions), self._settings[0])) as waiting:
            return dict(zip(questions, waiting.map(self._answer, questions), strict=True))

    def _answer(self, question: Question) -> Reply | AlgebraWorkerLost:
        try:
            return self._compare(*question, RETRIES)
        except AlgebraWorkerLost as lost:
            return lost

    def close(self) -> None:
        self._pool.close()


def _verdict(prompt: Prompt, reply: Reply | AlgebraWorkerLost) -> Verdict:
    if isinstance(reply, AlgebraWorkerLost):
        return broken("maths", prompt, reply)
    if reply.result == "equal":
        return right()
    status = "incorrect" if reply.result == "different" else cast(Status, reply.result)
    detail = reply.detail or "another value"
    return Verdict(0.0, status, cpu_seconds=reply.cpu_seconds, detail=detail)


def verifier(
    *, workers: int | None = None, cpu_seconds: float = 3.0, memory_mb: int = 2048
) -> MathsVerifier:
    """Judge mathematical answers.

    Args:
        workers: processes for algebra; one per core unless stated.
        cpu_seconds: CPU time that one answer may cost; more is a timeout, reward 0.
        memory_mb: address space of a worker.
    """
    return MathsVerifier(workers or os.cpu_count() or 1, cpu_seconds, memory_mb)
