"""Verdicts are the same whether groups are scored aside or all at once."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, current_thread

import pytest

from bestofk.training.scoring_aside import ScoringAside
from bestofk.types import Completion, Group, Prompt, Verdict


def made(name: str) -> Group:
    return Group(Prompt(name, "", "test"), (Completion(name), Completion("x")))


def by_length(groups: Sequence[Group]) -> list[list[Verdict]]:
    return [
        [Verdict(1.0, "correct") if len(c.text) > 1 else Verdict(0.0, "incorrect")
         for c in group.completions]
        for group in groups
    ]  # fmt: skip


def test_verdicts_come_in_the_order_they_are_asked_for() -> None:
    aside = ScoringAside(by_length)
    groups = [made("a" * i) for i in range(1, 6)]
    for group in reversed(groups):
        aside.submit(group)
    assert aside.collect(groups) == by_length(groups)
    assert aside.collect(groups[:2]) == by_length(groups[:2])  # never submitted again


def test_groups_that_wait_are_scored_as_one_batch_in_another_thread() -> None:
    sizes, go, began = [], Event(), Event()

    def slow(groups: Sequence[Group]) -> list[list[Verdict]]:
        began.set()
        go.wait(900)
        sizes.append(len(groups))
        assert current_thread().name.startswith("bestofk-score")
        return by_length(groups)

    aside = ScoringAside(slow)
    groups = [made("ab") for _ in range(5)]
    aside.submit(groups[0])
    assert began.wait(900)
    for group in groups[1:]:
        aside.submit(group)
    go.set()
    assert aside.collect(groups) == by_length(groups)
    assert sizes == [1, 4]


def test_an_error_of_the_scorer_reaches_the_loop() -> None:
    def broken(groups: Sequence[Group]) -> list[list[Verdict]]:
        raise RuntimeError("too much could not be scored")

    aside = ScoringAside(broken)
    aside.submit(made("ab"))
    with pytest.raises(RuntimeError, match="could not be scored"):
        aside.collect([])
