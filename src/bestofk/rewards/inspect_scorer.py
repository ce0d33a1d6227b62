"""The scorer of a single-turn task of inspect_ai as a verifier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bestofk.inspect_bridge import load_task, sample_of, score_of
from bestofk.rewards.base import BatchVerifier, as_verdict
from bestofk.types import Prompt, Verdict


def verifier(
    task: str, arguments: Mapping[str, Any] | None = None, scorer: str | None = None
) -> ScorerVerifier:
    """The scorer of "FILE.py@TASK" or "package.module@TASK"; by name where there are several."""
    return ScorerVerifier(load_task(task, arguments or {}), task, scorer)


class ScorerVerifier(BatchVerifier):
    """Runs the task's solver on each completion, then its scorer.

    A solver or scorer that raises, and a score that is NaN, leave the completion unscored.
    """

    def __init__(self, task: Any, name: str, scorer: str | None = None) -> None:
        self.task, self.name, self.scorer = task, f"inspect:{name}", scorer

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        return [self._scored(p, text) for p, text in zip(prompts, texts, strict=True)]

    def _scored(self, prompt: Prompt, text: str) -> Verdict:
        try:
            value = score_of(self.task, sample_of(prompt.spec), text, self.scorer)
        except Exception as error:
            message = f"{self.name} on sample {prompt.id}: {type(error).__name__}: {error}"
            return Verdict.unscored(message[:500])
        if math.isnan(value):
            return Verdict.unscored(f"{self.name} on sample {prompt.id}: the score is NaN")
        return as_verdict(value)
