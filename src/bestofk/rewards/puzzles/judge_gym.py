"""reasoning-gym's puzzles behind an allow-list, judged by its scorers in the sandbox.

Of its tasks only those are allowed whose own answer scores 1, whose scorer neither executes the
answer nor pays for garbage or hedges, and that come out the same twice (`research/gym_audit.py`; a
test derives the list again). Its partial credit is mostly a ratio of lengths, so only a full score
counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from bestofk.messages import unknown
from bestofk.puzzle_names import TRUSTED_PUZZLES
from bestofk.rewards.base import BatchVerifier, right, wrong
from bestofk.rewards.sandboxed import LazySandbox, caused_by_text
from bestofk.rewards.text import answer_of, unset
from bestofk.types import Prompt, Verdict

MAX_ANSWER = 20_000


class GymVerifier(BatchVerifier):
    """Judges answers to one reasoning-gym task; `spec["entry"]` is the entry it came from."""

    def __init__(self, dataset: str, config: Mapping[str, Any], tier: int) -> None:
        if find_spec("reasoning_gym") is None:
            raise ValueError("this needs reasoning-gym: pip install 'bestofk[gym]'")
        if dataset not in TRUSTED_PUZZLES:
            raise unknown("or untrustworthy reasoning-gym task", dataset, TRUSTED_PUZZLES)
        self.name = f"gym {dataset}"
        self._dataset, self._config = dataset, dict(config)
        self._sandbox = LazySandbox(
            tier=tier, packages="all", preload=("bestofk.rewards.puzzles.gym_scorer",)
        )

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        answers = [
            answer_of(prompt, text) or "" for prompt, text in zip(prompts, texts, strict=True)
        ]
        entries = [prompt.spec["entry"] for prompt in prompts]
        verdicts = self._scored(entries, answers)
        plain = [unset(answer) if len(answer) <= MAX_ANSWER else answer for answer in answers]
        again = [  # an answer that only its layout may have spoilt
            at
            for at, verdict in enumerate(verdicts)
            if verdict.status == "incorrect" and plain[at] != answers[at]
        ]
        judged = self._scored([entries[at] for at in again], [plain[at] for at in again])
        for at, verdict in zip(again, judged, strict=True):
            verdicts[at] = verdict
        return verdicts

    def _scored(self, entries: Sequence[Any], answers: Sequence[str]) -> list[Verdict]:
        verdicts: list[Verdict | None] = []
        batch: list[list[Any]] = []
        for entry, answer in zip(entries, answers, strict=True):
            if not answer:
                verdicts.append(wrong("no answer", "unparsed"))
            elif len(answer) > MAX_ANSWER:
                verdicts.append(wrong(f"longer than {MAX_ANSWER} characters", "unparsed"))
            else:
                verdicts.append(None)
                batch.append([self._dataset, self._config, entry, answer])
        if not batch:
            return [verdict for verdict in verdicts if verdict is not None]
        outcomes = iter(
            self._sandbox.get().call_many("bestofk.rewards.puzzles.gym_scorer:score", batch)
        )
        return [_verdict(next(outcomes)) if verdict is None else verdict for verdict in verdicts]

    def close(self) -> None:
        self._sandbox.close()


def _verdict(outcome: Any) -> Verdict:
    if outcome.status == "unscored":
        return Verdict.unscored(outcome.detail or "the sandbox failed")
    if outcome.status != "ok":  # audited scorers raise on nothing but what the text did to them
        return caused_by_text(outcome)
    full = isinstance(outcome.value, float) and outcome.value == 1.0
    verdict = right() if full else wrong("another answer")
    return replace(verdict, cpu_seconds=outcome.cpu_seconds, tier=outcome.tier)


def verifier(
    *, dataset: str, config: Mapping[str, Any] | None = None, tier: int = 1
) -> GymVerifier:
    """Judge a reasoning-gym task.

    Args:
        dataset: its name in reasoning-gym, one of the allowed.
        config: its settings, as the task was made with.
        tier: the least sandbox tier that will do.
    """
    return GymVerifier(dataset, config or {}, tier)
