"""LeetCode: nodes cross the sandbox by value; an answer is right where the problem allows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bestofk.environments.repair import Repair
from bestofk.rewards import verifier
from bestofk.sandbox import CodecError, decode, encode
from bestofk.tasks import task
from bestofk.tasks.leetcode import cases_of
from bestofk.training import task_setup
from bestofk.training.task_setup import with_accepted_references
from bestofk.types import Prompt

LIST = """from typing import *
import math
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next
def list_node(values):
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head
def is_same_list(a, b):
    while a and b and a.val == b.val:
        a, b = a.next, b.next
    return a is None and b is None
"""
DOUBLE = """class Solution:
    def double(self, head):
        node = head
        while node:
            assert isinstance(node, ListNode)
            node.val, node = 2 * node.val, node.next
        return head
"""
PAIR = "class Solution:\n    def pair(self, nums): return sorted(nums)[:2]\n"


def row(
    id: str, query: str, prompt: str, code: str, entry_point: str, *tests: str
) -> dict[str, Any]:
    check = "def check(candidate):\n" + "".join(f"    assert {test}\n" for test in tests)
    return {
        "task_id": id, "query": query, "prompt": prompt, "completion": code,
        "entry_point": f"Solution().{entry_point}", "test": check,
    }  # fmt: skip


LONG = f"list_node({list(range(500))})", f"list_node({[2 * i for i in range(500)]})"
ROWS = [
    row(
        "double", "Double it.", LIST, DOUBLE, "double",
        "is_same_list(candidate(head = list_node([1, 2])), list_node([2, 4]))",
        "is_same_list(candidate(head = list_node([])), list_node([]))",
        f"is_same_list(candidate(head = {LONG[0]}), {LONG[1]})",
    ),
    row(
        "pair", "You can return the answer in any order.", LIST, PAIR, "pair",
        "candidate(nums = [3, 1, 2]) == [2, 1]", "candidate(nums = [5, 7]) == [7, 5]",
    ),
    row("any", "Return any of them.", LIST, PAIR, "pair", "candidate(nums = [3, 1]) == [3, 1]"),
    row("wrong", "Not so.", LIST, PAIR, "pair", "candidate(nums = [3, 1]) == [3, 1]"),
]  # fmt: skip


@pytest.fixture
def leetcode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BESTOFK_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "rows.jsonl"
    rows = [*ROWS, *(ROWS[1] | {"task_id": f"pair-{i}", "query": f"{i}: in any order, "
                                "return it in any order"} for i in range(12))]  # fmt: skip
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    none = tmp_path / "none.jsonl"
    none.write_text(json.dumps(ROWS[0] | {"task_id": "twice", "query": "Twice each."}) + "\n")
    return task("leetcode", train=str(file), test=str(none), validation=0)


def test_right_answers_score_1_and_wrong_ones_0(leetcode: Any) -> None:
    by_id = {prompt.id: prompt for prompt in leetcode.split("train")}
    assert set(leetcode.left_out) == {"leetcode/any"}
    double, pair = by_id["leetcode/double"], by_id["leetcode/pair"]
    assert "assert is_same_list(Solution().double(" in double.text[-1]["content"]
    assert (
        "Already imported: everything from typing; and math, ListNode."
        in (double.text[-1]["content"])
    )
    answers: list[tuple[Prompt, str, float]] = [
        (double, DOUBLE, 1.0),
        (double, DOUBLE.replace("2 *", "3 *"), 0.5),  # right for the empty list alone
        (double, "class ListNode:\n    __slots__ = ('val', 'next')\n" + DOUBLE, 1.0),
        (double, "class Solution:\n    def double(self, head): return [2]", 0.0),
        (pair, PAIR, 1.0),
        (pair, "class Solution:\n    def pair(self, nums): return sorted(nums)[:2][::-1]", 1.0),
        (pair, "class Solution:\n    def pair(self, nums): return [1, 1, 2]", 0.0),
    ]
    with verifier(leetcode.verifier, **leetcode.verifier_options) as judge:
        verdicts = judge(
            [p for p, _, _ in answers], [f"```python\n{a}\n```" for _, a, _ in answers]
        )
    assert [verdict.reward for verdict in verdicts] == [reward for _, _, reward in answers]


def test_a_program_is_repaired_by_the_case_that_its_prompt_shows(leetcode: Any) -> None:
    """Where it shows none, the first program is the last."""
    by_id = {prompt.id: prompt for prompt in leetcode.split("train")}
    wrong = DOUBLE.replace("2 *", "3 *")
    for problem, program, told in (
        ("double", wrong, "1 of 1 shown tests fail:\ndef check(candidate):\n    assert is_same_"),
        ("double", DOUBLE, None),
        ("pair", wrong, None),
    ):
        played = Repair()
        played.reset(**by_id[f"leetcode/{problem}"].spec)
        reply = played(f"```python\n{program}\n```")
        assert reply is None if told is None else str(reply).startswith(told)


def test_what_the_reference_fails_is_left_out_and_said_once(
    leetcode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with verifier(leetcode.verifier, **leetcode.verifier_options) as judge:
        train = with_accepted_references(leetcode, judge, say=said.append).split("train")
        assert "leetcode/wrong" not in {prompt.id for prompt in train}
        assert len(train) == 14
        [line] = said
        assert line.startswith("leetcode, train: 1 of 15 problems left out")
        monkeypatch.setattr(type(judge), "judge_batch", None)  # the second time nothing is judged
        again = with_accepted_references(leetcode, judge).split("train")
        monkeypatch.setattr(task_setup, "source_of_judges", lambda: "edited")
        with pytest.raises(ValueError, match="15 of 15 problems"):
            with_accepted_references(leetcode, judge).split("train")
    assert list(again) == list(train)


def test_more_than_a_tenth_left_out_is_an_error(leetcode: Any) -> None:
    class Never:
        name, settings = "code", ()

        def __call__(self, prompts: Any, texts: Any) -> Any:
            with verifier("code") as judge:
                return judge(prompts, ["pass"] * len(texts))

    with pytest.raises(ValueError, match="15 of 15 problems in split 'train' are not accepted"):
        with_accepted_references(leetcode, Never()).split("train")


@pytest.mark.parametrize(
    ("statement", "expected", "judged"),
    [
        ("Return the answer in any order.", "[1, 2]", "_in_any_order(candidate(1), [1, 2])"),
        ("The digits can be taken in any order.", "[1, 2]", "candidate(1) == [1, 2]"),
        ("Answers within 10-5 are accepted.", "[1.5, 2]", "_close(candidate(1), [1.5, 2])"),
        ("Return the lists in any order.", "[[1], [2]]", None),
        ("If there are several, return any of them.", "[1, 2]", None),
    ],
)
def test_the_comparison_follows_the_statement(
    statement: str, expected: str, judged: str | None
) -> None:
    cases = cases_of(f"def check(candidate):\n    assert candidate(1) == {expected}", statement)
    assert (cases and [*cases.values()]) == (judged and [f"assert {judged}"])


def test_nodes_keep_their_shape_and_nothing_else_is_built() -> None:
    class TreeNode:
        def __init__(self, val: object, left: object = None, right: object = None) -> None:
            self.val, self.left, self.right = val, left, right

    shared = TreeNode("leaf")
    copy = decode(encode([TreeNode(1, shared, TreeNode((2, 3), shared))]))[0]
    assert copy.left is copy.right.left
    assert copy.left.val == "leaf"
    assert copy.right.val == (2, 3)
    mine = decode(encode(shared), classes={"TreeNode": TreeNode})
    assert type(mine) is TreeNode
    assert type(copy) is not TreeNode
    with pytest.raises(CodecError, match="is a list, not a TreeNode"):
        encode(TreeNode(1, [shared]))
    for forged in (["Popen", 1, None], ["ListNode", 1, 7], ["ListNode", 1], ["ListNode"]):
        with pytest.raises(CodecError):
            decode(b"O" + encode(forged)[1:])


def test_the_newest_problems_are_held_out_and_books_of_interviews_have_no_date(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.jsonl"
    numbers = [7, 100_001, 3, 9, 5]
    rows = [
        ROWS[1] | {"task_id": f"p{number}", "query": str(number), "meta": {"question_id": number}}
        for number in numbers
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    test = tmp_path / "test.jsonl"
    test.write_text(json.dumps(ROWS[1] | {"task_id": "newer", "query": "newer"}) + "\n")
    made = task("leetcode", train=str(file), test=str(test), validation=2)
    assert {p.id for p in made.split("validation")} == {"leetcode/p7", "leetcode/p9"}
    train = {p.id for p in made.split("train")}
    assert train == {"leetcode/p3", "leetcode/p5", "leetcode/p100001"}
