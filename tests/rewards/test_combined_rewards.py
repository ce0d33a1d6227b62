"""Rewards made of rewards, declared or built: weights and gates that say what they mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from bestofk.rewards import combined, from_function, gated, prepare, weighted
from bestofk.rewards.base import BatchVerifier
from bestofk.types import Prompt, Verdict

PROMPT = Prompt("p", "say", "test", {"expected": "7"}, reference="<answer>7</answer>")


def fixed(reward: float) -> BatchVerifier:
    return from_function(lambda prompt, text: reward)


@pytest.mark.parametrize("scale", [1e308, 1.0, 5e-324])
def test_the_mean_does_not_depend_on_the_scale_of_the_weights(scale: float) -> None:
    (verdict,) = weighted((scale, fixed(1.0)), (scale, fixed(0.5)))([PROMPT], ["x"])
    assert (verdict.reward, verdict.status) == (0.75, "partial")


def test_a_mean_of_nothing_has_the_status_of_what_earned_nothing() -> None:
    late = from_function(lambda prompt, text: Verdict(0.0, "timeout"))
    tiny = fixed(1e-300)
    (verdict,) = weighted((1e-300, tiny), (1.0, late))([PROMPT], ["x"])
    assert (verdict.reward, verdict.status) == (0.0, "timeout")


@pytest.mark.parametrize("weight", [-1, 0, math.nan, math.inf, 10**400, True, "1", [1]])
def test_a_weight_is_checked_however_it_is_stated(weight: Any) -> None:
    with pytest.raises(ValueError, match="a weight is a positive and finite number"):
        combined([{"verifier": "maze", "weight": weight}])
    with pytest.raises(ValueError, match="a weight is a positive and finite number"):
        weighted((weight, fixed(1.0)))


def test_weights_that_cannot_be_added_are_refused() -> None:
    with pytest.raises(ValueError, match="within the reach of a float"):
        weighted((1e308, fixed(1.0)), (1e-308, fixed(0.5)))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one part, got none"),
        ([{"verifier": "maze", "gate": "false"}, {"verifier": "exact"}], "gate is true or false"),
        ([{"verifier": "maze", "gate": 1}, {"verifier": "exact"}], "gate is true or false"),
        (["maze"], 'reads {"verifier": name'),
        ([{"verifier": "maze", "gate": True}], "got only gates"),
    ],
)
def test_a_mistaken_declaration_says_what_to_write(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        combined(parts)


def test_functions_are_wrapped_before_they_are_combined() -> None:
    plain: Any = len
    for build in (lambda: weighted((1.0, plain)), lambda: gated(plain, fixed(1.0))):
        with pytest.raises(ValueError, match="from_function makes one"):
            build()


def test_what_a_part_doubts_is_refused_by_the_whole() -> None:
    class Doubting(BatchVerifier):
        def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
            return [Verdict(1.0, "correct")] * len(texts)

        def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
            return {prompt.id: "any answer will do" for prompt in prompts}

    for reward in (
        weighted((1.0, fixed(1.0)), (1.0, Doubting())),
        gated(fixed(1.0), Doubting()),
        gated(Doubting(), fixed(1.0)),
    ):
        with pytest.raises(ValueError, match="any answer will do"):
            prepare(reward, [PROMPT])
