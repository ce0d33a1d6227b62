"""The rubric of a single-turn environment of the `verifiers` package as a verifier."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from bestofk.rewards.base import BatchVerifier, as_verdict
from bestofk.types import Prompt, Verdict


def verifier(environment: str, arguments: Mapping[str, Any] | None = None) -> RubricVerifier:
    """The rubric of an installed environment, by the environment's name and arguments."""
    import verifiers

    return RubricVerifier(verifiers.load_environment(environment, **(arguments or {})), environment)


class RubricVerifier(BatchVerifier):
    """Scores each completion with `rubric.score_rollout`.

    A rubric turns an exception of a reward function into 0 and logs it. Here such a completion is
    unscored: the verifier listens to that log.
    """

    def __init__(self, environment: Any, name: str) -> None:
        self.environment, self.name = environment, f"verifiers:{name}"
        groups: list[Any] = getattr(environment.rubric, "_get_group_reward_funcs", list)()
        if groups:
            raise ValueError(
                f"environment {name!r} has reward functions of whole groups "
                f"({', '.join(f.__name__ for f in groups)}), which are not supported yet"
            )

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        async def judged() -> list[Verdict]:
            pairs = zip(prompts, texts, strict=True)
            return [await self._judged_one(prompt, text) for prompt, text in pairs]

        return asyncio.run(judged())

    async def _judged_one(self, prompt: Prompt, text: str) -> Verdict:
        from verifiers.types import State

        rubric = self.environment.rubric
        row = copy.deepcopy(dict(prompt.spec))
        is_chat = getattr(self.environment, "message_type", "chat") != "completion"
        state = State(input=row)
        state["task"] = row.get("task", "default")
        state["prompt"] = row["prompt"]
        state["completion"] = [{"role": "assistant", "content": text}] if is_chat else text
        state["trajectory"] = []
        state["timing"] = _timing()
        state["is_completed"] = True
        state["error"] = None
        extra = {}
        if "score_sem" in inspect.signature(rubric.score_rollout).parameters:
            extra["score_sem"] = contextlib.nullcontext()
        with listening() as errors:
            await rubric.score_rollout(state, **extra)
        if errors:
            return Verdict.unscored(f"{self.name} on sample {prompt.id}: {errors[0]}"[:500])
        return as_verdict(state["reward"])


def _timing() -> Any:
    """The timing record that some versions of rubrics write to."""
    from verifiers import types

    with contextlib.suppress(TypeError, AttributeError):
        return types.RolloutTiming()
    return {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0}


@contextlib.contextmanager
def listening() -> Any:
    """What the package logs as an error while inside."""
    errors: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    logger, listener = logging.getLogger("verifiers"), Listener(logging.ERROR)
    logger.addHandler(listener)
    try:
        yield errors
    finally:
        logger.removeHandler(listener)
