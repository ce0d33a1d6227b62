"""Rewards made of rewards. NaN stays NaN: a sum or a gate over an unscored part is unscored."""

from __future__ import annotations

import math
import sys
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bestofk.rewards.base import BatchVerifier, wrong
from bestofk.rewards.maths.extract_answer import answer_in
from bestofk.types import ALMOST_ONE, Prompt, Status, Verdict, reaches, status_of


def checked_weight(weight: Any, name: str) -> float:
    """A weight as a float, if it can weigh something."""
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not 0.0 < weight <= sys.float_info.max:
        raise ValueError(
            f"a weight is a positive and finite number, got {weight!r} for {name}; leave out what "
            "should not count"
        )
    return float(weight)


class Combined(BatchVerifier):
    """A verifier made of others: what it asks of them besides verdicts, it asks of each."""

    def __init__(self, *verifiers: Any) -> None:
        for verifier in verifiers:
            if not isinstance(verifier, BatchVerifier):
                raise ValueError(
                    f"rewards are made of verifiers, got {verifier!r}; "
                    "bestofk.rewards.from_function makes one of a function"
                )
        self.verifiers: tuple[BatchVerifier, ...] = verifiers
        self.is_learned = any(verifier.is_learned for verifier in verifiers)
        self.compares = any(verifier.compares for verifier in verifiers)
        self.reads_messages = any(verifier.reads_messages for verifier in verifiers)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        for verifier in self.verifiers:
            verifier.check_prompts(prompts)

    def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
        reasons = [verifier.doubts(prompts) for verifier in self.verifiers]
        return dict(ChainMap(*reversed(reasons)))

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        return [line for verifier in self.verifiers for line in verifier.notes(prompts)]

    def close(self) -> None:
        for verifier in self.verifiers:
            verifier.close()


class Weighted(Combined):
    """The weighted mean of several rewards: sum of w * r over sum of w.

    Unscored where any part is; `passed` counts the parts that are fully right.
    """

    def __init__(self, *parts: tuple[float, BatchVerifier]) -> None:
        if not parts:
            raise ValueError("a weighted reward needs at least one (weight, verifier), got none")
        super().__init__(*(part for _, part in parts))
        weights = [checked_weight(weight, part.name) for weight, part in parts]
        self._shares = [weight / max(weights) for weight in weights]  # sums of these are finite
        self.name = " + ".join(f"{weight:g} {part.name}" for weight, part in parts)
        names = [part.name for _, part in parts]
        self._names = [
            name if names.count(name) == 1 else f"{name} {at}" for at, name in enumerate(names, 1)
        ]

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        columns = [verifier(prompts, texts) for verifier in self.verifiers]
        return [_mean(self._shares, row, self._names) for row in zip(*columns, strict=True)]


def _mean(weights: Sequence[float], row: Sequence[Verdict], names: Sequence[str]) -> Verdict:
    lost = [verdict.detail for verdict in row if verdict.status == "unscored"]
    if lost:
        return Verdict.unscored("; ".join(lost)[:500])
    passed = sum(verdict.reward >= 1.0 for verdict in row)
    mean = sum(w * v.reward for w, v in zip(weights, row, strict=True)) / sum(weights)
    if all(verdict.reward == 1.0 for verdict in row):
        mean = 1.0  # whatever rounding does
    elif all(verdict.reward <= 1.0 for verdict in row):
        mean = min(mean, ALMOST_ONE)
    reward, status = mean, status_of(mean)
    if reward <= 0.0:
        status = next((v.status for v in row if v.reward <= 0.0), "incorrect")
    return Verdict(
        reward,
        status,
        passed=passed,
        total=len(row),
        cpu_seconds=sum(verdict.cpu_seconds for verdict in row),
        tier=min((v.tier for v in row if v.tier is not None), default=None),
        detail="; ".join(verdict.detail for verdict in row if verdict.detail)[:500],
        parts={
            name: value
            for own, verdict in zip(names, row, strict=True)
            for name, value in (verdict.parts or {own: verdict.reward}).items()
        },
        answer=next((v.answer for v in row if v.answer is not None), None),
        score=next((v.score for v in row if v.score is not None), None),
    )


class Gated(Combined):
    """The second reward where the first is 1, else 0 with the gate's status.

    Only what passes the gate is judged further; an unscored gate makes an unscored verdict.
    """

    def __init__(self, gate: BatchVerifier, then: BatchVerifier) -> None:
        super().__init__(gate, then)
        self.gate, self.then = gate, then
        self.name = f"{gate.name} or 0, {then.name}"

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        verdicts = self.gate(prompts, texts)
        opened = [i for i, verdict in enumerate(verdicts) if reaches(verdict.reward, 1.0)]
        judged = self.then([prompts[i] for i in opened], [texts[i] for i in opened])
        behind = dict(zip(opened, judged, strict=True))
        return [self._verdict(verdict, behind.get(i)) for i, verdict in enumerate(verdicts)]

    def _verdict(self, gate: Verdict, behind: Verdict | None) -> Verdict:
        """Of what the gate said, and of what was said behind it where it opened."""
        parts = {self.gate.name: gate.reward}
        if behind is not None:
            parts |= behind.parts or {self.then.name: behind.reward}
        elif gate.status != "unscored":
            status: Status = "incorrect" if gate.status in ("correct", "partial") else gate.status
            behind = wrong(f"gate: {gate.detail}".rstrip(": "), status)
        verdict = behind or gate
        return verdict if verdict.status == "unscored" else replace(verdict, parts=parts)


class Scored(Combined):
    """A verifier's rewards beside a scorer's, which are the scores that choose.

    Without a verifier no sample is paid: its reward is NaN, and its answer is looked for, for a
    vote.
    """

    def __init__(self, verifier: BatchVerifier | None, scorer: BatchVerifier | None) -> None:
        super().__init__(*(each for each in (verifier, scorer) if each is not None))
        self.verifier, self.scorer = verifier, scorer
        self.is_learned = verifier is not None and verifier.is_learned
        self.name = " chosen by ".join(each.name for each in self.verifiers) or "vote"

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        verdicts = [
            replace(Verdict.unscored(NO_VERIFIER), answer=answer_in(text)) for text in texts
        ]
        if self.verifier is not None:
            verdicts = self.verifier(prompts, texts)
        return with_scores(verdicts, self.scorer(prompts, texts)) if self.scorer else verdicts

    def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
        """Of what pays: few shown tests choose well, although a constant may pass them."""
        return {} if self.verifier is None else self.verifier.doubts(prompts)


class Watched(Combined):
    """`Watched(reward_model, judge)`: the first pays, and the second's rewards are logged among the
    parts of its verdicts."""

    def __init__(self, verifier: BatchVerifier, held_out: BatchVerifier) -> None:
        super().__init__(verifier, held_out)
        self.verifier, self.held_out = verifier, held_out
        self.name, self.is_learned = verifier.name, verifier.is_learned

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        return [
            verdict
            if math.isnan(verdict.reward) or math.isnan(other.reward)
            else replace(
                verdict,
                parts={**(verdict.parts or {self.name: verdict.reward}), HELD_OUT: other.reward},
            )
            for verdict, other in zip(
                self.verifier(prompts, texts), self.held_out(prompts, texts), strict=True
            )
        ]

    def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
        return self.verifier.doubts(prompts)


NO_VERIFIER = "no verifier"
"""Why nobody says what a sample is worth, where a score or a vote chooses alone."""
HELD_OUT = "held out"
"""Name of the part of a reward that does not pay."""


def with_scores(verdicts: Sequence[Verdict], scored: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with a scorer's scores, or its rewards; None where it has none, and why."""
    return [
        replace(verdict, score=None, detail=other.detail or verdict.detail)
        if math.isnan(score)
        else replace(verdict, score=score)
        for verdict, other in zip(verdicts, scored, strict=True)
        for score in [other.reward if other.score is None else other.score]
    ]


def scored_by(verifier: BatchVerifier | None, scorer: BatchVerifier | None) -> BatchVerifier:
    """`scored_by(tests, reward_model)`: the first pays, the second chooses."""
    if verifier is not None and scorer is None:
        return verifier
    return Scored(verifier, scorer)


weighted, gated = Weighted, Gated
"""`weighted((0.9, maths), (0.1, format))` is the weighted mean of rewards, `gated(format, maths)`
is "format or 0"."""
