"""Construction answers: what a model may write, and that none of it is slow or falsely accepted."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards import verifier
from bestofk.types import Prompt, Verdict

SPEC = {"kind": "independent", "items": ["Bo", "Ka", "Lu", "Mi"], "edges": [[0, 1], [2, 3]]}


def judge(text: str, answer: str = "line", **spec: Any) -> Verdict:
    prompt = Prompt("p", "", "construct", {**SPEC, "best": 2, "answer": answer, **spec})
    (verdict,) = verifier("construct")([prompt], [text])
    return verdict


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("ANSWER: Bo Lu", "correct"),
        ("ANSWER: Lu Bo", "correct"),
        ("ANSWER: Bo, Lu", "correct"),
        ("ANSWER: Bo,Lu", "correct"),
        ("ANSWER: [Bo, Lu]", "correct"),
        ("ANSWER: Bo, Lu.", "correct"),
        ("ANSWER:Bo Lu  \n\n", "correct"),
        ("Bo and Lu do get along.\n  ANSWER: Bo Lu", "correct"),
        ("<think>ANSWER: Ka</think>ANSWER: Bo Lu", "correct"),
        ("ANSWER: Bo", "partial"),
        ("ANSWER: Bo Ka", "incorrect"),
        ("ANSWER: Bo Lu Bo", "incorrect"),
        ("ANSWER: Bo Lu Xy", "incorrect"),
        ("ANSWER: bo lu", "incorrect"),
        ("ANSWER: 1 3", "incorrect"),
        ("ANSWER: BoLu", "incorrect"),
        ("", "unparsed"),
        ("Bo Lu", "unparsed"),
        ("ANSWER:", "unparsed"),
        ("ANSWER: []", "unparsed"),
        ("ANSWER: Bo Lu..", "unparsed"),
        ("ANSWER: Bo. Lu", "unparsed"),
        ("ANSWER: Bo and Lu!", "unparsed"),
        ("ANSWER: -Bo +Lu", "unparsed"),
        ("ANSWER: Bo; Lu", "unparsed"),
        ("ANSWER: [Bo, Lu", "unparsed"),
        ("ANSWER: [[Bo, Lu]]", "unparsed"),
        ("ANSWER: [Bo] [Lu]", "unparsed"),
        ("ANSWER: (Bo Lu)", "unparsed"),
        ("ANSWER: Bo,, Lu", "unparsed"),
        ("ANSWER: Bo Lu,", "unparsed"),
        ("ANSWER: Bo\nLu", "unparsed"),
        ("ANSWER: Bo Lu\nNo, Ka Mi", "unparsed"),
        ("ANSWER: Bo Lu\nANSWER: Ka Mi", "unparsed"),
        ("ANSWER: ANSWER: Bo Lu", "unparsed"),
        ("I say ANSWER: Bo Lu", "unparsed"),
        ("answer: Bo Lu", "unparsed"),
        ("<think>ANSWER: Bo Lu", "unparsed"),
        ("ANSWER: Во Lu", "unparsed"),
        ("ANSWER: Bo\u2028Lu", "unparsed"),
        ("ANSWER: Bo\x00Lu", "unparsed"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_a_model_may_write(text: str, status: str) -> None:
    assert judge(text).status == status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("1 3", "correct"),
        (" 1 3\n", "correct"),
        ("3", "partial"),
        ("1 2", "incorrect"),
        ("1 1", "incorrect"),
        ("0 1", "incorrect"),
        ("1 5", "incorrect"),
        ("01 3", "incorrect"),
        ("13", "incorrect"),
        ("1  3", "unparsed"),
        ("1, 3", "unparsed"),
        ("[1 3]", "unparsed"),
        ("-1 3", "unparsed"),
        ("+1 3", "unparsed"),
        ("1.0 3", "unparsed"),
        ("1e0 3", "unparsed"),
        ("1 ٣", "unparsed"),
        ("1 ３", "unparsed"),
        ("1 ³", "unparsed"),
        ("1 3\n2 4", "unparsed"),
        ("ANSWER: 1 3", "unparsed"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_compact_answer_is_the_list_alone(text: str, status: str) -> None:
    assert judge(text, "whole", items=["1", "2", "3", "4"]).status == status


LONG = {
    "a million items": "ANSWER: " + "Bo " * 10**6,
    "a million commas": "ANSWER: Bo" + ", Bo" * 10**6,
    "a million marks": "ANSWER: Bo Lu\n" * 10**6,
    "a million brackets": "ANSWER: " + "[" * 10**6 + "Bo" + "]" * 10**6,
    "one long name": "ANSWER: " + "B" * 10**7,
    "blanks before": " " * 10**7 + "ANSWER: Bo Lu",
    "blanks within": "ANSWER: Bo" + " " * 10**7 + "Lu",
    "lines after": "ANSWER: Bo Lu" + "\n" * 10**7,
    "thoughts": "<think>" * 10**6 + "</think>" * 10**6 + "ANSWER: Bo Lu",
    "a long number": "1" * 10**7,
}


@pytest.mark.parametrize("name", LONG)
def test_nothing_long_is_slow(name: str) -> None:
    for answer in ("line", "whole"):
        began = time.process_time()
        verdict = judge(LONG[name], answer)
        assert time.process_time() - began < 2.0
        valid = answer == "line" and name in ("blanks before", "lines after", "thoughts")
        assert verdict.reward == float(valid)


@given(st.text(alphabet="BoKaLuMi ,[]-1\n:ANSWER", max_size=40))
def test_whatever_is_paid_names_different_items_without_a_pair(text: str) -> None:
    for prefix in ("", "ANSWER: "):
        verdict = judge(prefix + text)
        if verdict.reward > 0:
            names = (prefix + text).split("ANSWER:")[1].replace("[", " ").replace("]", " ")
            chosen = names.replace(",", " ").split()
            assert len(set(chosen)) == len(chosen) <= 2
            assert set(chosen) <= set(SPEC["items"])
            assert set(chosen) not in ({"Bo", "Ka"}, {"Lu", "Mi"})


def test_a_best_value_that_is_none_is_unscored_and_says_so() -> None:
    verdict = judge("ANSWER: Bo Lu", best=1)
    assert verdict.status == "unscored"
    assert "states 1 as the best, and 2 is possible" in verdict.detail


def test_a_mistyped_reward_says_what_to_type() -> None:
    with pytest.raises(ValueError, match="did you mean 'ratio'"):
        verifier("construct", reward="ration")
