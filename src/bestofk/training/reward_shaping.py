"""The overlong penalty: a smaller reward near the length limit, in training only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bestofk.types import Group, Verdict, status_of


def overlong_penalty(tokens: int, *, limit: int, buffer: int, penalty: float) -> float:
    """What a completion of so many tokens loses.

    0 up to limit - buffer, then linear, and `penalty` at the limit:
    penalty · max(0, tokens - (limit - buffer)) / buffer.

    >>> [overlong_penalty(t, limit=100, buffer=20, penalty=1.0) for t in (80, 90, 100)]
    [0.0, 0.5, 1.0]

    References:
        DAPO (Yu et al., 2025), soft overlong punishment, eq. 13, with penalty = 1.
    """
    over = max(0, tokens - (limit - buffer))
    return penalty * min(over / buffer, 1.0) if buffer else 0.0


def with_overlong_penalty(
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    *,
    limit: int,
    buffer: int,
    penalty: float,
) -> list[list[Verdict]]:
    """The verdicts with the penalty taken off their rewards; unscored ones stay unscored."""
    return [
        [
            _less(
                verdict,
                overlong_penalty(len(c.tokens), limit=limit, buffer=buffer, penalty=penalty),
            )
            for c, verdict in zip(group.completions, row, strict=True)
        ]
        for group, row in zip(groups, verdicts, strict=True)
    ]


def _less(verdict: Verdict, loss: float) -> Verdict:
    if not loss or verdict.status == "unscored":
        return verdict
    reward = verdict.reward - loss
    keeps = verdict.status not in ("correct", "partial") and reward <= 0.0
    status = verdict.status if keeps else status_of(reward)
    detail = f"{verdict.detail}; overlong: -{loss:.3g}".removeprefix("; ")
    return replace(verdict, reward=reward, status=status, detail=detail)
