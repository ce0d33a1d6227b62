"""LeetCode's problems: what the prompt says beside the statement, and which answers are right."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Sequence
from functools import lru_cache

from bestofk.tasks.code_sets import Problem, Prompts, published
from bestofk.tasks.data_rows import Row
from bestofk.tasks.definition import Task
from bestofk.tasks.shown_tests import shown_and_graded

PACKAGES = ("numpy", "sortedcontainers")
"""What LeetCode's own judge offers and some reference solutions use."""
INTERVIEW_PROBLEMS = 100_000
"""Numbers from here on are those of books of interview problems; below, they follow the date."""
_ANY_ORDER = re.compile(r"\breturn(?:ed)?\b[^.\n]*\bin any (?:\w+ )?order\b", re.I)
_ANY_ANSWER = re.compile(r"\breturn any\b|\bfind any\b[^.\n]*\breturn\b|\bany answer which\b", re.I)
_HELPERS = """
def _in_any_order(given, expected):
    return isinstance(given, (list, tuple)) and sorted(given) == sorted(expected)

def _close(given, expected):
    if isinstance(expected, list):
        if not isinstance(given, (list, tuple)) or len(given) != len(expected):
            return False
        return all([_close(one, other) for one, other in zip(given, expected)])
    if isinstance(expected, str) or not isinstance(given, (int, float)):
        return given == expected
    return abs(given - expected) <= 1e-5 * max(1.0, abs(expected))
"""
"""Comparisons as LeetCode makes them; they run in the checker, never in the program's process."""


def leetcode(
    *,
    train: str | None = None,
    test: str | None = None,
    style: str = "chat",
    reward: str = "fraction",
    validation: int = 100,
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """LeetCode problems with a few cases each (newfacade/LeetCodeDataset, MIT), test set by date.

    Numbers may differ by 1e-5, and lists are compared in any order where the problem allows that.
    Problems with several right answers of which the data lists one are left out. Where there are
    three cases or more, the prompt shows one, which is not graded; the other problems show none.

    Args:
        train, test: files with task_id, query, prompt, test; else $BESTOFK_DATA, else the Hub.
        reward: "fraction" of tests passed, or 1 only when "all" pass.
        validation: how many of the newest training problems are held out: the test set is newer
            still, and older problems are easier for a model that has read about them.
    """
    numbers: dict[str, int] = {}

    def build(row: Row) -> Problem | str:
        tests = cases_of(row["test"], row["query"])
        if tests is None:
            return "the data lists one of several right answers"
        numbers[f"leetcode/{row['task_id']}"] = int(row.get("meta", row).get("question_id", 0))
        text, graded, shown = row["query"], list(tests), None
        if len(tests) > 2:
            [example], rest = shown_and_graded(graded, 1)
            if example not in rest:
                graded, shown = rest, check_of([tests[example]])
                text += f"\n\nFor example:\n{example}".replace(
                    "candidate(", row["entry_point"] + "("
                )
        spec = {
            "check": check_of([tests[test] for test in graded]),
            "shown": shown,
            "entry_point": row["entry_point"],
            "setup": row["prompt"] + _HELPERS,
            "prefix": row["prompt"],
        }
        return row["task_id"], f"{text}\n\n{_provided(row['prompt'])}", spec, row["completion"]

    def newest_apart(files: Prompts) -> Prompts:
        dated = sorted(
            (numbers[p.id], p.id) for p in files["train"] if numbers[p.id] < INTERVIEW_PROBLEMS
        )
        newest = {id for _, id in dated[len(dated) - validation :]} if validation else set()
        return {
            "train": [p for p in files["train"] if p.id not in newest],
            "validation": [p for p in files["train"] if p.id in newest],
            "test": files["test"],
        }

    return published(
        "leetcode", build, {"train": train, "test": test}, arrange=newest_apart,
        splits=("train", "validation", "test"), style=style, reward=reward, limit=limit, seed=seed,
        packages=[name for name in PACKAGES if importlib.util.find_spec(name)],
        licence="MIT (newfacade/LeetCodeDataset)", summary="LeetCode problems with a few cases",
    )  # fmt: skip


def check_of(asserts: Sequence[str]) -> str:
    return "def check(candidate):\n" + "".join(f"    {each}\n" for each in asserts)


def cases_of(check: str, statement: str) -> dict[str, str] | None:
    """The asserts of a check function, each with the assert that judges it; None where the
    statement allows several answers that comparing cannot tell from wrong ones.

    >>> cases_of("def check(candidate):\\n    assert candidate(1) == [1, 2]",
    ...     "Return the answer in any order.")
    {'assert candidate(1) == [1, 2]': 'assert _in_any_order(candidate(1), [1, 2])'}
    """
    if _ANY_ANSWER.search(statement):
        return None
    any_order = bool(_ANY_ORDER.search(statement))
    cases: dict[str, str] = {}
    for test in ast.parse(check).body[0].body:  # type: ignore[attr-defined]
        as_written = judged = ast.unparse(test)
        if isinstance(test, ast.Assert) and isinstance(test.test, ast.Compare):
            call, expected = test.test.left, test.test.comparators[0]
            values = [node.value for node in ast.walk(expected) if isinstance(node, ast.Constant)]
            helper = "_close" if any(isinstance(value, float) for value in values) else ""
            if any_order and isinstance(expected, ast.List):
                if any(isinstance(item, ast.List) for item in expected.elts):
                    return None  # may the inner lists be in any order too? It is not said
                helper = "_in_any_order"
            if helper:
                judged = f"assert {helper}({ast.unparse(call)}, {ast.unparse(expected)})"
        cases[as_written] = judged
    return cases


@lru_cache(64)
def _provided(prefix: str) -> str:
    """What a program need not import or define, in a sentence."""
    body = ast.parse(prefix).body
    starred = [n.module for n in body if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    names = [alias.name for n in body if isinstance(n, ast.Import) for alias in n.names]
    names += [n.name for n in body if isinstance(n, ast.ClassDef)]
    return (
        f"Already imported: everything from {', '.join(map(str, starred))}; and {', '.join(names)}."
    )
