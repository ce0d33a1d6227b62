"""From a question to its samples and their verdicts, within a time: what `serve` does with one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bestofk.deploy.racing import DrawFailed, Race, race
from bestofk.deploy.requests import BadRequest, Question, Rules
from bestofk.deploy.upstream import Upstream
from bestofk.messages import printable
from bestofk.rewards import BatchVerifier
from bestofk.rewards.combine import NO_VERIFIER
from bestofk.rewards.maths.extract_answer import given_answer

MOST_NOTES = 20
"""Kinds of failing verdicts that are told."""
NOT_JUDGED = {"reward": None, "score": None, "status": "unscored", "answer": None}


class Judging:
    """One verifier in threads, and what it could not judge."""

    def __init__(
        self, verifier: BatchVerifier, *, threads: int, say: Callable[[str], None]
    ) -> None:
        """`threads` samples are judged at once; `say` is told of each kind of failing verdict."""
        self.verifier, self.say, self.notes = verifier, say, set[str]()
        self.pool = ThreadPoolExecutor(threads, "bestofk judge")

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def check(self, question: Question) -> None:
        """BadRequest where the verifier cannot use what the request brings."""
        try:
            self.verifier.check_prompts([question.prompt])
        except (ValueError, TypeError, LookupError) as error:
            said = f"{error}".replace(question.prompt.id, "the request")
            raise BadRequest(f"the verifier cannot use the request's metadata: {said}") from error

    async def judge(self, question: Question, lines: Sequence[dict[str, Any]]) -> None:
        """Write their verdicts into lines, and the answers that a vote counts."""
        prompt, texts = question.prompt, [line["text"] for line in lines]
        verdicts = await asyncio.get_running_loop().run_in_executor(
            self.pool, self.verifier, [prompt] * len(texts), texts
        )
        for line, verdict in zip(lines, verdicts):
            if verdict.status == "unscored" and verdict.detail != NO_VERIFIER:
                self.note(verdict.detail.replace(prompt.id, "a request"))
            line |= {
                "reward": None if math.isnan(verdict.reward) else verdict.reward,
                "score": verdict.score,
                "status": verdict.status,
                "answer": verdict.answer or given_answer(prompt, line["text"], verdict),
            }

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < MOST_NOTES:
            self.notes.add(text)
            self.say(printable(text))


async def drawn_and_judged(
    question: Question,
    upstream: Upstream,
    judging: Judging,
    rules: Rules,
    *,
    authorization: str,
    seconds: float,
) -> Race:
    """Samples of a question with their verdicts, in at most so many seconds.

    A judge that compares sees them once they are drawn, so drawing may take half of the time then.
    """
    end = asyncio.get_running_loop().time() + seconds
    path = "chat/completions" if question.is_chat else "completions"
    compares, repeated = judging.verifier.compares, list[DrawFailed]()

    async def draw(sample: int) -> dict[str, Any]:
        body = question.body_of(sample)
        came = await upstream.draw(path, body, authorization, repeated.append)
        line = {"sample_id": sample, **came, **NOT_JUDGED}
        if not compares:
            await judging.judge(question, [line])
        return line

    drawn = await race(
        draw,
        question.k,
        rules.by,
        threshold=rules.threshold,
        at_once=question.at_once,
        seconds=seconds / 2 if compares and question.k > 1 else seconds,
    )
    drawn.repeated = repeated
    if compares and len(drawn.lines) > 1:
        try:
            async with asyncio.timeout_at(end):
                await judging.judge(question, drawn.lines)
        except TimeoutError:  # then nothing is known of them
            drawn.is_late = True
    return drawn
