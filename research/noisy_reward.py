"""Countdown with a verifier that is wrong: a share of its verdicts in training is turned round.

A wrong verifier is wrong about the same answer each time, so the draw depends on the problem and
the answer alone. Problems of the test split are judged as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

from bestofk.rewards import verifier
from bestofk.rewards.base import BatchVerifier
from bestofk.tasks import task
from bestofk.types import Prompt, Verdict


@cache
def _tested() -> frozenset[str]:
    return frozenset(prompt.id for prompt in task("countdown", style="compact").split("test"))


class Noisy(BatchVerifier):
    """Countdown's own verdicts; in training, `share` of them turned round."""

    def __init__(self, share: float) -> None:
        self.name, self.share = f"countdown, {share:.0%} turned round", share
        self.true = verifier("countdown")

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        verdicts = self.true(prompts, texts)
        pairs = zip(prompts, texts, verdicts, strict=True)
        return [self._turned(v) if self._is_wrong(p, t) else v for p, t, v in pairs]

    def _is_wrong(self, prompt: Prompt, text: str) -> bool:
        drawn = hashlib.sha256(f"{prompt.id}\n{text.strip()}".encode()).digest()
        return prompt.id not in _tested() and int.from_bytes(drawn[:8]) < self.share * 2**64

    @staticmethod
    def _turned(verdict: Verdict) -> Verdict:
        return Verdict(0.0, "incorrect") if verdict.reward >= 1 else Verdict(1.0, "correct")


flip_10, flip_30, flip_50 = Noisy(0.1), Noisy(0.3), Noisy(0.5)
