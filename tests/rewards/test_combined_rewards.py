"""Rewards made of rewards, declared or built: weights and gates that say what they mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards import combined, from_function, gated, prepare, weighted
from bestofk.rewards.base import BatchVerifier
from bestofk.rewards.combine import scored_by
from bestofk.types import Prompt, Verdict

PROMPT = Prompt("p", "say", "test", {"expected": "7"}, reference="<answer>7</answer>")


def fixed(reward: float) -> BatchVerifier:
    return from_function(lambda completion: reward)


@pytest.mark.parametrize("scale", [1e308, 1.0, 5e-324])
def test_the_mean_does_not_depend_on_the_scale_of_the_weights(scale: float) -> None:
    (verdict,) = weighted((scale, fixed(1.0)), (scale, fixed(0.5)))([PROMPT], ["x"])
    assert (verdict.reward, verdict.status) == (0.75, "partial")


def test_a_mean_of_nothing_has_the_status_of_what_earned_nothing() -> None:
    late = from_function(lambda completion: Verdict(0.0, "timeout"))
    tiny = fixed(1e-300)
    (verdict,) = weighted((1e-300, tiny), (1.0, late))([PROMPT], ["x"])
    assert (verdict.reward, verdict.status) == (0.0, "timeout")


def test_the_parts_of_a_reward_are_known_by_name() -> None:
    def long(completion: str) -> float:
        return float(len(completion) > 1)

    def half(completion: str) -> float:
        return 0.5

    both = weighted((1.0, from_function(half)), (3.0, from_function(half)))
    short, passing = gated(from_function(long), both)([PROMPT] * 2, ["x", "xy"])
    assert (short.reward, short.parts) == (0.0, {"long": 0.0})
    assert (passing.reward, passing.parts) == (0.5, {"long": 1.0, "half 1": 0.5, "half 2": 0.5})


def test_a_whole_says_what_its_parts_say() -> None:
    class Noting(BatchVerifier):
        def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
            return [Verdict(1.0, "correct")] * len(texts)

        def notes(self, prompts: Sequence[Prompt]) -> list[str]:
            return ["note"]

        def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
            return {"p": "doubt"}

    plain, noting = fixed(1.0), Noting()
    for whole in (
        gated(plain, noting),
        weighted((1, noting), (1, plain)),
        scored_by(noting, plain),
    ):
        assert whole.notes([PROMPT]) == ["note"]
        assert whole.doubts([PROMPT]) == {"p": "doubt"}
    assert scored_by(plain, noting).doubts([PROMPT]) == {}  # what chooses need not be what pays


@pytest.mark.parametrize("weight", [-1, 0, math.nan, math.inf, 10**400, True, "1", [1]])
def test_a_weight_is_checked_however_it_is_stated(weight: Any) -> None:
    with pytest.raises(ValueError, match="a weight is a positive and finite number"):
        combined([{"verifier": "maze", "weight": weight}])
    with pytest.raises(ValueError, match="a weight is a positive and finite number"):
        weighted((weight, fixed(1.0)))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one part, got none"),
        ([{"verifier": "maze", "gate": "false"}, {"verifier": "exact"}], "gate is true or false"),
        ([{"verifier": "maze", "gate": 1}, {"verifier": "exact"}], "gate is true or false"),
        (["maze"], 'reads {"verifier": name'),
        ([{"verifier": "maze", "gate": True}], "got only gates"),
        ([{"verifier": "exakt"}], "did you mean 'exact'"),
        ([{"verifier": "exact", "ignore_cas": True}], "did you mean 'ignore_case'"),
        ([{"weight": 1}], "names its verifier"),
        ([{"verifier": "exact", "gate": True, "weight": 1}], "states both"),
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


REWARD = st.one_of(st.just(math.nan), st.floats(0, 1), st.sampled_from([0.0, 1.0]))


@given(st.lists(st.tuples(st.floats(0.01, 100), REWARD), min_size=1, max_size=5))
def test_a_weighted_reward_is_nan_exactly_when_a_part_is(parts: list[tuple[float, float]]) -> None:
    (verdict,) = weighted(*((w, fixed(r)) for w, r in parts))([PROMPT], ["x"])
    rewards = [r for _, r in parts]
    if any(map(math.isnan, rewards)):
        assert verdict.status == "unscored"
        assert math.isnan(verdict.reward)
    else:
        mean = math.fsum(w * r for w, r in parts) / math.fsum(w for w, _ in parts)
        assert verdict.reward == pytest.approx(mean, abs=1e-9)
        assert (verdict.reward == 1.0) == all(r == 1.0 for r in rewards)


@given(REWARD, REWARD)
def test_a_gate_lets_through_or_gives_zero_and_keeps_nan(first: float, second: float) -> None:
    (verdict,) = gated(fixed(first), fixed(second))([PROMPT], ["x"])
    if math.isnan(first):
        assert math.isnan(verdict.reward)
    elif first == 1.0:
        assert verdict.reward == second or math.isnan(verdict.reward) == math.isnan(second)
    else:
        assert verdict.reward == 0.0


def test_only_what_passes_the_gate_is_judged_further() -> None:
    seen: list[str] = []

    def judge(completion: str) -> bool:
        seen.append(completion)
        return True

    gate = from_function(lambda completion: completion.startswith("<"))
    rewards = [v.reward for v in gated(gate, from_function(judge))([PROMPT] * 3, ["<a", "b", "<c"])]
    assert rewards == [1.0, 0.0, 1.0]
    assert seen == ["<a", "<c"]


def test_a_reward_declared_as_in_a_recipe() -> None:
    reward = combined(
        [
            {"verifier": "format", "gate": True, "tags": ["think", "answer"]},
            {"verifier": "exact", "weight": 3},
            {"verifier": "exact", "weight": 1, "ignore_case": True},
        ]
    )
    prompt = Prompt("p", "", "test", {"expected": "Yes"})
    texts = ["<think>a</think><answer>Yes</answer>", "<think></think><answer>yes</answer>", "Yes"]
    assert [v.reward for v in reward([prompt] * 3, texts)] == [1.0, 0.25, 0.0]
