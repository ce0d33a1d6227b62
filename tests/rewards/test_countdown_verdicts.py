"""Countdown: exact arithmetic against fractions, and everything a model may write instead."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards import verifier
from bestofk.rewards.puzzles.judge_countdown import Malformed, tokens_of, value_of
from bestofk.types import Prompt, Verdict

Tree = Any


def prompt(numbers: list[int], target: int, **spec: Any) -> Prompt:
    known = {"numbers": numbers, "target": target, "operators": "+-*/", "answer": "whole"}
    return Prompt("p", "", "countdown", known | spec)


def judge(
    text: str, numbers: list[int], target: int, reward: str = "exact", **spec: Any
) -> Verdict:
    (verdict,) = verifier("countdown", reward=reward)([prompt(numbers, target, **spec)], [text])
    return verdict


trees: st.SearchStrategy[Tree] = st.recursive(
    st.integers(0, 12),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner, st.booleans()),
    max_leaves=8,
)


def written(tree: Tree) -> str:
    """Fully bracketed, so that precedence plays no part in the oracle."""
    if isinstance(tree, int):
        return str(tree)
    left, operator, right, spaced = tree
    gap = " " if spaced else ""
    return f"({written(left)}{gap}{operator}{gap}{written(right)})"


def exact(tree: Tree) -> Fraction | None:
    if isinstance(tree, int):
        return Fraction(tree)
    a, b = exact(tree[0]), exact(tree[2])
    if a is None or b is None or (tree[1] == "/" and b == 0):
        return None
    return {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[tree[1]]


@given(trees)
def test_values_are_those_of_exact_fractions(tree: Tree) -> None:
    assert value_of(tokens_of(written(tree))) == exact(tree)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.data())
def test_precedence_without_brackets_is_pythons(numbers: list[int], data: Any) -> None:
    operators = [data.draw(st.sampled_from("+-*/")) for _ in numbers[1:]]
    flat = "".join(itertools.chain(*zip(["", *operators], map(str, numbers), strict=True)))
    wrapped = "".join(
        itertools.chain(*zip(["", *operators], (f"Fraction({n})" for n in numbers), strict=True))
    )
    try:
        expected = eval(wrapped)  # our own text of digits and operators
    except ZeroDivisionError:
        expected = None
    assert value_of(tokens_of(flat)) == expected


@given(st.text(alphabet="0123456789+-*/() .=eE_x٣²", max_size=30))
def test_any_text_is_a_value_or_malformed(text: str) -> None:
    try:
        value_of(tokens_of(text))
    except Malformed:
        return
    assert set(text) <= set("0123456789+-*/() ")


@given(trees)
def test_a_lawful_expression_scores_one_exactly_when_it_reaches_the_target(tree: Tree) -> None:
    text, value = written(tree), exact(tree)
    numbers = [int(t) for t in tokens_of(text) if t.isdigit()]
    target = 7 if value is None or value.denominator != 1 else int(value)
    verdict = judge(text, numbers, target)
    assert verdict.reward == float(value == target)
    close = judge(text, numbers, target, reward="closeness").reward
    miss = None if value is None else abs(value - target)
    assert close == pytest.approx(0.0 if miss is None else 1 / (1 + float(miss) / 10))
    assert (close == 1.0) == (value == target)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("(3+5)*3", "correct"),
        ("(3 + 5) × 3", "correct"),
        ("((((3))+5))*(3)", "correct"),
        ("(3+5)*3 = 24", "correct"),
        ("(3+5)*3=25", "unparsed"),
        ("(3+5)*3 = 24 or 3*5+3", "unparsed"),
        ("24", "incorrect"),
        ("3*5+3", "incorrect"),
        ("(3+5)*3*1", "incorrect"),
        ("(3+5)*(5-2)", "incorrect"),
        ("3+5", "incorrect"),
        ("(03+5)*3", "incorrect"),
        ("3/(3-3)+5", "incorrect"),
        ("", "unparsed"),
        ("(3+5)*3 is the answer", "unparsed"),
        ("3**3-5", "unparsed"),
        ("53//3", "incorrect"),
        ("--3*-5+3", "unparsed"),
        ("-3+5*3", "unparsed"),
        ("3 5 3", "unparsed"),
        ("(3+5*3", "unparsed"),
        ("3+5)*3", "unparsed"),
        ("()3+5*3", "unparsed"),
        ("(٣+٥)*٣", "unparsed"),
        ("(３+５)*３", "unparsed"),
        ("(3+5)*3\x00", "unparsed"),
        ("(3+5)*3\ud800", "unparsed"),
        ("__import__('os').system('true')", "unparsed"),
        ("3e0+5", "unparsed"),
        ("0x3+5*3", "unparsed"),
        ("nan", "unparsed"),
        ("9" * 5000, "unparsed"),
        ("9" * 1900, "incorrect"),
        ("(" * 900 + "3+5" + ")" * 900, "incorrect"),
        ("(" * 5_000_000 + ")" * 5_000_000, "unparsed"),
        ("= " * 5_000_000, "unparsed"),
        ("3+" * 5_000_000 + "3", "unparsed"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_a_model_may_write(text: str, status: str) -> None:
    verdict = judge(text, [3, 5, 3], 24)
    assert verdict.status == status
    assert verdict.reward == float(status == "correct")
    assert judge(text, [3, 5, 3], 24, reward="closeness").reward < 1.0 or status == "correct"


def test_brackets_nest_as_deep_as_they_like() -> None:
    assert judge("(" * 990 + "3" + ")" * 990, [3], 3).reward == 1.0


def test_the_answer_is_the_last_tag_after_the_thinking() -> None:
    def tag(text: str) -> float:
        return judge(text, [3, 8], 24, answer="tag").reward

    assert tag("<think><answer>3+8</answer></think> <answer>3*8</answer>") == 1.0
    assert tag("<answer>3*8</answer> or <answer>3+8</answer>") == 0.0
    assert tag("<think><answer>3*8</answer>") == 0.0
    assert tag("<answer>3*8") == 0.0
    assert tag("3*8") == 0.0
    assert tag("<answer>\r\n 3*8 \r\n</answer>") == 1.0
    assert tag("<answer>" * 1_000_000 + "3*8</answer>") == 1.0

    assert tag("<answer>3*8</answer> wait <answer>3+") == 0.0  # the last answer never ends
    assert tag("<answer>3*8</answer> or <think>") == 0.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("27 ⋅ 1 - 3", 1.0),
        ("27 ∗ 1 - 3", 1.0),
        ("27\u00a0*\u00a01 - 3", 1.0),
        ("$27*1-3$", 1.0),
        ("$$27*1-3$$", 1.0),
        ("27*1-3.", 1.0),
        ("27*1-3 = 24.", 1.0),
        ("27*1-3 = 24.0", 1.0),
        (r"\boxed{27 \times 1 - 3}", 1.0),
        ("**27*1-3**", 1.0),
        ("The answer is: 27*1-3", 1.0),
        ("(-3)+27*1", 1.0),
        (r"\boxed{27*1-3} or \boxed{3}", 0.0),
        ("`27*1-3`", 1.0),
        ("```\n27*1-3\n```", 1.0),
        ("```python\n27*1-3\n```", 1.0),
        ("-3+27*1", 1.0),
        ("-3*1+27", 1.0),
        ("-27*1+3", 0.0),
        ("3-27*1", 0.0),
        ("27*1-3..", 0.0),
        ("$27*1-3$ or $3$", 0.0),
        ("```python\nprint(24)\n```", 0.0),
        ("27*1--3", 0.0),
        ("27*(-1)-3", 0.0),
        ("-", 0.0),
        ("$$", 0.0),
        ("$.$", 0.0),
        ("``````", 0.0),
        (".", 0.0),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_typography_and_a_leading_sign_are_read(text: str, reward: float) -> None:
    said = judge(f"<answer>{text}</answer>", [27, 1, 3], 24, answer="tag")
    assert said.reward == reward
    assert said.status != "unscored"


@pytest.mark.parametrize("text", ["-3+27", "$27-3$", "27-3."])
def test_a_compact_prompt_is_answered_by_the_bare_expression(text: str) -> None:
    assert judge(text, [27, 3], 24).status == "unparsed"


def test_a_sign_needs_its_operator() -> None:
    assert judge("<answer>-3+27</answer>", [27, 3], 24, operators="+*", answer="tag").reward == 0.0


def test_operators_and_numbers_are_those_given() -> None:
    assert judge("3*8", [3, 8], 24, operators="+-").reward == 0.0
    assert judge("3+8", [3, 8], 11, operators="+-").reward == 1.0
    assert judge("3*8", [3, 8, 2], 24).reward == 0.0
    assert judge("3*8", [3, 8, 2], 24, use="any").reward == 1.0
    assert judge("3*3", [3, 8, 2], 9, use="any").reward == 0.0


def test_closeness_falls_with_the_miss_and_never_reaches_one() -> None:
    big = 10**30
    near = judge(f"1/{big}+24", [1, big, 24], 24, reward="closeness")
    assert near.status == "partial"
    assert near.reward == 1.0 - 1e-6
    rewards = [judge(f"{n}", [n], 24, reward="closeness").reward for n in (24, 25, 34, 1000)]
    assert rewards == [1.0, pytest.approx(10 / 11), 0.5, pytest.approx(10 / 986)]
    huge = 10**300
    far = judge(f"{huge}*{huge}", [huge, huge], 1, reward="closeness")
    assert (far.reward, far.status) == (0.0, "incorrect")
