"""Exact text and its extraction."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards import refusals, verifier
from bestofk.rewards.text import _PAIRS, final_text, tagged, unset
from bestofk.types import Prompt


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "<think>", "</think>", "7", " "])))
def test_extraction_never_reads_what_is_thought_or_unclosed(pieces: list[str]) -> None:
    text = "".join(pieces)
    answer = tagged(final_text(text))
    if answer is not None:
        assert "<answer>" not in answer
        assert "</answer>" not in answer
        assert "</think>" not in text[text.rfind(f"<answer>{answer}</answer>") :]
    if text.rfind("<think>") > text.rfind("</think>"):
        assert answer is None


def test_exact_answers_are_compared_up_to_white_space() -> None:
    judge = verifier("exact")
    prompt = Prompt("p", "", "t", {"expected": "New  York"})
    said = ["New York", " New\nYork ", "new york", "New York or Boston", "", "New York " * 10**6]
    rewards = [v.reward for v in judge([prompt] * 6, [f"<answer>{s}</answer>" for s in said])]
    assert rewards == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert verifier("exact", ignore_case=True)([prompt], ["<answer>new york</answer>"])[0].reward


@pytest.mark.parametrize(("opened", "closed"), [*_PAIRS, ("So the answer is ", ""), ("", ".")])
def test_what_only_sets_an_answer_in_type_is_taken_away(opened: str, closed: str) -> None:
    for answer in ("(3+5)*8", "UDLR", "-12"):
        assert unset(answer) == answer
        assert unset(f" {opened}{answer}{closed}\n") == answer


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, ["5", "6"], {"a": 1}])
def test_what_is_no_text_is_no_expected_answer(bad: Any) -> None:
    """Its Python name, "None" say, would be an answer that pays."""
    prompt = Prompt("p", "", "t", {"expected": bad}, f"<answer>{bad}</answer>")
    (verdict,) = verifier("exact")([prompt], [f"<answer>{bad}</answer>"])
    assert verdict.status == "unscored"
    assert set(refusals(verifier("exact"), [prompt])) == {"p"}


def test_numbers_are_expected_as_they_are_written() -> None:
    for value, text in ((12, "12"), (1e-7, "0.0000001"), (1e21, "1" + "0" * 21)):
        prompt = Prompt("p", "", "t", {"expected": value})
        assert verifier("exact")([prompt], [f"<answer>{text}</answer>"])[0].reward == 1.0


def test_the_form_is_each_tag_once_and_nothing_else() -> None:
    for bad in ("answer", [], ["a", "a"], [""], ["a b"], ["<a>"]):
        with pytest.raises(ValueError, match=r"tags are a list of different names|option tags of"):
            verifier("format", tags=bad)
    judge = verifier("format")
    prompt = Prompt("p", "", "t")
    said = {
        "<think>a</think><answer>b</answer>": 1.0,
        " <think>a</think>\n\n<answer>b</answer>\n": 1.0,
        "<think>a</think><answer>b</answer> and": 0.0,
        "<think>a</think> so <answer>b</answer>": 0.0,
        "<answer>b</answer><think>a</think>": 0.0,
        "<think>a<answer>b</answer></think>": 0.0,
        "<think>a</think><answer>b</answer><answer>c</answer>": 0.0,
        "<think>a</think>": 0.0,
        "": 0.0,
        "<think>" * 1_000_000: 0.0,
    }
    rewards = [v.reward for v in judge([prompt] * len(said), list(said))]
    assert rewards == list(said.values())
    assert not any(math.isnan(r) for r in rewards)
