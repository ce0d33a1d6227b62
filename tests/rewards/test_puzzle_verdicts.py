"""Knights and knaves, sudoku, and exact text: parts, guesses, constants, copies."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards import refusals, verifier
from bestofk.rewards.extract import final_text, tagged
from bestofk.types import Prompt, Verdict

SOLUTION = {"Ada": "knight", "Ben": "knave", "Cleo": "knave", "Dan": "knight"}
PUZZLE = ["1.3.", "3.1.", ".1.3", ".3.1"]
SOLVED = ["1234", "3412", "2143", "4321"]


def knights(text: str, reward: str = "exact", solution: dict[str, str] = SOLUTION) -> Verdict:
    prompt = Prompt("p", "", "knights", {"solution": solution})
    return verifier("knights", reward=reward)([prompt], [f"<answer>{text}</answer>"])[0]


def sudoku(text: str, reward: str = "parts") -> Verdict:
    prompt = Prompt("p", "", "sudoku", {"size": 4, "puzzle": PUZZLE, "solution": SOLVED})
    return verifier("sudoku", reward=reward)([prompt], [f"<answer>{text}</answer>"])[0]


def say(kinds: Any) -> str:
    return ", ".join(f"{name} is a {kind}" for name, kind in zip(SOLUTION, kinds, strict=False))


def test_guessing_kinds_earns_nothing_on_average_before_the_floor() -> None:
    """Over all 16 answers (right - wrong) / people has mean 0; the floor only hides losses."""
    rewards = []
    for kinds in itertools.product(("knight", "knave"), repeat=4):
        right = sum(a == b for a, b in zip(kinds, SOLUTION.values(), strict=True))
        reward = knights(say(kinds), "parts").reward
        assert reward == max(0.0, (2 * right - 4) / 4)
        rewards.append((2 * right - 4) / 4)
    assert sum(rewards) == 0.0


@pytest.mark.parametrize(
    ("text", "exact", "parts"),
    [
        (say(SOLUTION.values()), 1.0, 1.0),
        ("ada: Knight; ben = knave\nCleo is a knave.\n- Dan is a knight", 1.0, 1.0),
        ("Ada is a knight and Ben is a knave and Cleo is a knave and Dan is a knight", 1.0, 1.0),
        ("Ada is a knight. Ben is a knave. Cleo is a knave. Dan is a knight.", 1.0, 1.0),
        ("**Ada** is a knight, **Ben**: knave, Cleo: **knave**, **Dan: knight**", 1.0, 1.0),
        ("1. Ada: knight\n2. Ben: knave\n3) Cleo: knave\n4. Dan: knight", 1.0, 1.0),
        ("1. Ada is a knight. 2. Ben is a knave. 3. Cleo is a knave. 4. Dan is a knight", 1.0, 1.0),
        ("Ada is a knight, Ben is a knave,\nCleo is a knave,\nand Dan is a knight.", 1.0, 1.0),
        ("Ada is a knight, Ben is a knave, Cleo is a knave\nand\nDan is a knight", 1.0, 1.0),
        ("Ada is a knight. Ada is a knave. Ben is a knave.", 0.0, 0.0),
        ("Ada is a knight. Or not. Ben is a knave.", 0.0, 0.0),
        ("Ada is a knight, Ben is a knave", 0.0, 0.5),
        (say(["knight"] * 4), 0.0, 0.0),
        (say(["knave"] * 4), 0.0, 0.0),
        ("Ada is a knight or a knave, Ben is a knave", 0.0, 0.0),
        ("Ada is a knight, Ada is a knave, Ben is a knave", 0.0, 0.0),
        ("Ada is a knight, Ada is a knight", 0.0, 0.0),
        ("Ada is not a knight", 0.0, 0.0),
        ("Zoe is a knight", 0.0, 0.0),
        ("everyone is what they are", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("knight " * 1_000_000, 0.0, 0.0),
        ("{'Ada': 'knight'}", 0.0, 0.0),
        ("__import__('os')", 0.0, 0.0),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_knights_and_what_a_model_may_write(text: str, exact: float, parts: float) -> None:
    assert knights(text).reward == exact
    assert knights(text, "parts").reward == parts


def test_sudoku_pays_per_blank_and_nothing_for_what_was_given() -> None:
    assert sudoku("\n".join(SOLVED)).reward == 1.0
    assert sudoku("".join(SOLVED)).reward == 1.0
    assert sudoku("\n".join(" ".join(row) for row in SOLVED)).reward == 1.0
    assert sudoku("\n".join(PUZZLE)).reward == 0.0  # a copy of the puzzle
    half = ["1234", "3412", ".1.3", ".3.1"]
    assert sudoku("\n".join(half)).reward == 0.5
    assert sudoku("\n".join(half), "exact").reward == 0.0
    one_wrong = ["1234", "3412", "2143", "4331"]
    verdict = sudoku("\n".join(one_wrong))
    assert verdict.reward == pytest.approx((7 - 1 / 3) / 8)
    assert (verdict.passed, verdict.total, verdict.status) == (7, 8, "partial")


def test_a_constant_digit_in_the_blanks_earns_nothing_on_average() -> None:
    total = 0.0
    for digit in "1234":
        filled = "".join(PUZZLE).replace(".", digit)
        right = sum(a == b == digit and p == "." for a, b, p in zip(
            filled, "".join(SOLVED), "".join(PUZZLE), strict=True))  # fmt: skip
        unfloored = (right - (8 - right) / 3) / 8
        assert sudoku(filled).reward == pytest.approx(max(0.0, unfloored))
        total += unfloored
    assert total == pytest.approx(0.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1234",
        "2" + "".join(SOLVED)[1:],
        "".join(SOLVED) + "1",
        "".join(SOLVED).replace("4", "5"),
        "".join(SOLVED).replace("4", "٤"),
        "0" * 16,
        "1" * 10_000_000,
        "the grid is " + "".join(SOLVED),
        "None",
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_solution_earns_nothing(text: str) -> None:
    assert sudoku(text).reward == 0.0
    assert sudoku(text, "exact").reward == 0.0


@given(st.text(alphabet="1234.", min_size=16, max_size=16))
def test_full_marks_are_for_the_solution_alone(cells: str) -> None:
    verdict = sudoku(cells)
    assert (verdict.reward == 1.0) == (cells == "".join(SOLVED))
    assert 0.0 <= verdict.reward <= 1.0
    assert (verdict.status == "correct") == (verdict.reward == 1.0)


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
        with pytest.raises(ValueError, match="tags are a list of different names"):
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
