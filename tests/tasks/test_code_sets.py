"""The programming sets: what a prompt shows, what is graded, and which tasks are refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards import refusals, verifier
from bestofk.tasks import task
from bestofk.tasks.code_sets import LEFT_OUT
from bestofk.tasks.shown_tests import shown_and_graded
from bestofk.types import Prompt

needs_data = pytest.mark.skipif(
    "BESTOFK_DATA" not in os.environ, reason="BESTOFK_DATA names no data folder"
)
YES, NO, NEVER = "assert f(1) == True", "assert f(2) == False", "assert f(3) == False"


def text_of(prompt: Prompt) -> str:
    return prompt.text if isinstance(prompt.text, str) else prompt.text[-1]["content"]


def mbpp_rows(folder: Path, *tests: str) -> str:
    row: dict[str, Any] = {"task_id": 11, "text": "t", "test_setup_code": "", "test_list": tests}
    path = folder / "mbpp.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(row | {"code": "def f(x): return x == 1"}).encode()))
    return str(path)


@pytest.mark.parametrize(
    ("tests", "shown", "examples", "graded"),
    [
        ([YES, NO, NEVER], 1, [NO], [YES, NEVER]),  # the first would leave False alone
        ([NO, YES, NEVER], 1, [NO], [YES, NEVER]),
        ([NO, NEVER, YES], 1, [NO], [NEVER, YES]),
        ([YES, NO, NEVER], 2, [YES, NO], [YES, NO, NEVER]),  # one is left whatever is shown
        ([YES, NO, YES], 1, [YES], [YES, NO, YES]),
        ([NO, NEVER, NO], 1, [NO], [NEVER, NO]),  # nothing helps: `prepare` refuses it
        ([YES, NO], 0, [], [YES, NO]),
        ([YES], 3, [YES], []),
        (["assert f(1)", NO, NEVER], 1, [NO], ["assert f(1)", NEVER]),
    ],
)
def test_the_first_tests_are_shown_unless_one_answer_would_be_left(
    tests: list[str], shown: int, examples: list[str], graded: list[str]
) -> None:
    assert shown_and_graded(tests, shown) == (examples, graded)


def test_mbpp_shows_a_test_and_grades_the_others(tmp_path: Path) -> None:
    path = mbpp_rows(tmp_path, YES, NO, NEVER)
    [prompt] = task("mbpp", path=path).split("test")
    assert text_of(prompt).startswith(f"t\n\nFor example:\n{NO}\n\nGive")
    assert prompt.spec["asserts"] == [YES, NEVER]
    [usual] = task("mbpp", path=path, grade_shown=True).split("test")
    assert text_of(usual).startswith(f"t\n\nFor example:\n{YES}\n\nGive")
    assert usual.spec["asserts"] == [YES, NO, NEVER]
    [bare] = task("mbpp", path=path, shown=0).split("test")
    assert text_of(bare).startswith("t\n\nGive")
    with verifier("code", workers=1) as judge:
        assert refusals(judge, [prompt, bare]) == {prompt.id: "the id occurs twice"}


def test_what_nobody_can_solve_is_left_out(tmp_path: Path) -> None:
    first, left = LEFT_OUT["mbpp"][0] - 1, LEFT_OUT["mbpp"][0]
    row = {"text": "t", "test_list": [YES, NO, NEVER], "code": "def f(x): return x == 1"}
    path = tmp_path / "mbpp.jsonl"
    path.write_text("".join(json.dumps(row | {"task_id": id}) + "\n" for id in (first, left)))
    made = task("mbpp", path=str(path))
    assert [prompt.id for prompt in made.split("test")] == [f"mbpp/{first}"]


@needs_data
def test_no_problem_of_humaneval_is_refused() -> None:
    made = task("humaneval")
    with verifier(made.verifier, **made.verifier_options) as judge:
        prompts = made.split("test")[:]
        assert len(prompts) == 164
        assert refusals(judge, prompts) == {}
        [unique] = [prompt for prompt in prompts if prompt.id == "humaneval/34"]
        copied = "def unique(l): return [0, 2, 3, 5, 9, 123]"
        assert judge([unique], [copied])[0].reward == 0.5
