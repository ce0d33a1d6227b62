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
from bestofk.rewards.text import answer_of, readings
from bestofk.sandbox import CallOutcome
from bestofk.types import Prompt, Verdict

MAX_ANSWER = 20_000


class GymVerifier(BatchVerifier):
    """Judges answers to one reasoning-gym task; `spec["entry"]` is the entry it came from."""

    needed = ("entry",)

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
        readable = [at for at, answer in enumerate(answers) if 0 < len(answer) <= MAX_ANSWER]
        batch = [
            [self._dataset, self._config, prompts[at].spec["entry"], readings(answers[at])]
            for at in readable
        ]
        scorer = "bestofk.rewards.puzzles.gym_scorer:is_right"
        outcomes = self._sandbox.get().call_many(scorer, batch) if batch else []
        judged = dict(zip(readable, map(_verdict, outcomes), strict=True))
        return [judged.get(at) or _unread(answer) for at, answer in enumerate(answers)]

    def close(self) -> None:
        self._sandbox.close()


def _unread(answer: str) -> Verdict:
    why = f"longer than {MAX_ANSWER} characters" if answer else "no answer"
    return wrong(why, "unparsed")


def _verdict(outcome: CallOutcome) -> Verdict:
    if outcome.status == "unscored":
        return Verdict.unscored(outcome.detail or "the sandbox failed")
    if outcome.status != "ok":  # audited scorers raise on nothing but what the text did to them
        return caused_by_text(outcome)
    verdict = right() if outcome.value is True else wrong("another answer")
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
