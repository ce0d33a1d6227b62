"""Answers of completions, as votes and counts of distinct answers take them."""

import math

import pytest

from bestofk.rewards import judge, verifier
from bestofk.rewards.maths.extract_answer import given_answer
from bestofk.training.validation import evaluation_results, evaluation_samples
from bestofk.types import Group, Prompt, Trajectory, Verdict

MATHS = Prompt("p", "", "t", {"expected": "5"})


@pytest.mark.parametrize(
    ("prompt", "text", "answer"),
    [
        (MATHS, r"so \boxed{5}", "5"),
        (MATHS, "2 + 3 = 5\n#### 5", "5"),
        (MATHS, r"\boxed{\$1{,}000.}", "1000"),
        (MATHS, r"\boxed{\left(\dfrac12\right)}", r"(\frac{1}{2})"),
        (MATHS, "<answer>7</answer>", "7"),
        (MATHS, "I do not know", None),
        (MATHS, r"\boxed{" + "9" * 5000 + "}", None),
        (Prompt("p", "", "t", {"answer": "whole"}), " 1+2 ", "1+2"),
        (Prompt("p", "", "t", {}), r"\boxed{5}", None),
        (Prompt("p", "", "t", {}), "<answer>a</answer>", "a"),
    ],
)
def test_the_answer_is_found_where_the_prompt_has_it_written(
    prompt: Prompt, text: str, answer: str | None
) -> None:
    assert given_answer(prompt, text, Verdict(0.0, "incorrect")) == answer


def test_what_the_verifier_does_not_read_is_no_answer() -> None:
    """An exact answer stands between tags: 5 in a box is not the 5 that was judged right."""
    exact = verifier("exact")
    texts = ["<answer>5</answer>", r"\boxed{5}"]
    verdicts = exact([MATHS] * 2, texts)
    assert [v.reward for v in verdicts] == [1.0, 0.0]
    answers = [given_answer(MATHS, *pair) for pair in zip(texts, verdicts, strict=True)]
    assert answers == ["5", None]


def judged(prompt: Prompt, *texts: str) -> dict:
    group = Group(
        prompt, tuple(Trajectory([1, 2], log_probs=[-0.1, -0.2], text=text) for text in texts), (0,)
    )
    verdicts = judge([group], verifier("maths", workers=1))
    return evaluation_results(evaluation_samples([group], verdicts), (1, 2), None, 0)


def test_distinct_wrong_answers_of_mathematics_are_counted() -> None:
    """Four samples: one right, 3 twice in two spellings, one without an answer."""
    found = judged(MATHS, r"\boxed{5}", r"\boxed{3}", "#### 3", "hm")
    assert found["results"]["pass@1"]["value"] == 0.25
    assert found["distinct"]["value"] == 2.0
    assert found["distinct_wrong"]["value"] == 1.0
    assert found["no_answer"] == 0.25


def test_where_no_completion_has_an_answer_nothing_is_said_of_answers() -> None:
    found = judged(MATHS, "hm", "well")
    assert math.isnan(found["distinct"]["value"])
    assert math.isnan(found["distinct_wrong"]["value"])
    assert math.isnan(found["no_answer"])
