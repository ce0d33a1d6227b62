"""Mathematics: is the answer equal to the expected one?

The answer is found in the text and most often decided by its text or as an exact rational number,
in microseconds. The rest is algebra (latex2sympy2 and sympy) in processes that can be killed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec

from bestofk.rewards.base import RETRIES, BatchVerifier, broken, right, wrong
from bestofk.rewards.maths.equality import same
from bestofk.rewards.maths.extract_answer import MAX_ANSWER, extract
from bestofk.rewards.maths.plain_form import is_balanced, plain
from bestofk.rewards.maths.quantities import other_measure
from bestofk.rewards.maths.worker_pool import AlgebraPool, AlgebraWorkerLost, Reply
from bestofk.types import Prompt, Status, Verdict, plain_text

_REMEMBERED = 20_000
_STATUS: dict[str, Status] = {
    "different": "incorrect",
    "unparsed": "unparsed",
    "memory": "memory",
    "timeout": "timeout",
    "crashed": "crashed",
}

plain_gold = lru_cache(maxsize=4096)(plain)


def judge_text(gold: str, text: str) -> Verdict | tuple[str, str]:
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
        self._known: OrderedDict[tuple[str, str], Reply] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[MathsVerifier], tuple[int, float, int]]:
        return MathsVerifier, self._settings  # a copy in another process has workers of its own

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        judged = [_judge_safely(p, text) for p, text in zip(prompts, texts, strict=True)]
        open_questions = {entry for entry in judged if isinstance(entry, tuple)}
        answers = self._ask(sorted(open_questions))
        return [
            answers[entry](prompt) if isinstance(entry, tuple) else entry
            for prompt, entry in zip(prompts, judged, strict=True)
        ]

    def _ask(self, questions: Sequence[tuple[str, str]]) -> dict[tuple[str, str], _Answer]:
        if not questions:
            return {}
        with ThreadPoolExecutor(min(len(questions), self._settings[0])) as waiting:
            return dict(zip(questions, waiting.map(self._answer, questions), strict=True))

    def _answer(self, question: tuple[str, str]) -> _Answer:
        with self._lock:
            reply = self._known.get(question)
        if reply is None:
            try:
                reply = self._pool.compare(*question, retries=RETRIES)
            except AlgebraWorkerLost as error:
                return _Answer(None, error)
            with self._lock:
                self._known[question] = reply
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return _Answer(reply, None)

    def close(self) -> None:
        self._pool.close()


class _Answer:
    """What came of a question: a reply, or the failure that left it unscored."""

    def __init__(self, reply: Reply | None, error: AlgebraWorkerLost | None) -> None:
        self.reply, self.error = reply, error

    def __call__(self, prompt: Prompt) -> Verdict:
        if self.reply is None:
            return broken("maths", prompt, self.error or AlgebraWorkerLost("no reply"))
        if self.reply.result == "equal":
            return right()
        return Verdict(
            0.0,
            _STATUS[self.reply.result],
            cpu_seconds=self.reply.cpu_seconds,
            detail=self.reply.detail or "another value",
        )


def _judge_safely(prompt: Prompt, text: str) -> Verdict | tuple[str, str]:
    try:
        return judge_text(plain_text(prompt.spec["expected"]), text)
    except Exception as error:  # the boundary: a prompt without an expected answer, a bug of ours
        return broken("maths", prompt, error)


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
