"""Tasks: where prompts come from. `task("countdown", numbers=4)` gives splits of prompts.

>>> countdown = task("countdown", style="compact", numbers=3)
>>> prompt = countdown.split("test")[0]
>>> prompt.text, prompt.reference
('18 9 6 = 33:', '9+6+18')
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from bestofk.messages import unknown
from bestofk.sections import check_options
from bestofk.tasks.definition import Split, Task

__all__ = ["TASKS", "Split", "Task", "factory", "task"]

# name: (module here and function that makes the task, one line, tokens that an answer may need);
# imported when asked for
TASKS = {
    "codecontests": ("code_sets:codecontests", "competitive programming, stdin", 1024),
    "construct": (
        "construct:construct", "large sets, short covers, long walks, graded by the optimum", 256,
    ),
    "countdown": ("countdown:countdown", "reach a target with given numbers", 256),
    "dataset": ("dataset:dataset", "any rows of data, by a small declaration", 512),
    "gsm8k": ("maths_sets:gsm8k", "word problems whose answer is a number", 512),
    "gym": ("gym:gym", "puzzles of reasoning-gym, those that can be trusted", 512),
    "humaneval": ("code_sets:humaneval", "164 functions to complete, a test set", 768),
    "leetcode": ("leetcode:leetcode", "LeetCode problems, a few cases each", 768),
    "math": ("maths_sets:math", "competition mathematics", 1024),
    "maze": ("maze:maze", "walk from S to E (Pass@k Training)", 256),
    "mbpp": ("code_sets:mbpp", "970 small functions, asserts", 512),
    "mbppplus": ("code_sets:mbppplus", "368 functions, about 100 inputs each", 512),
    "stdio": ("code_sets:stdio", "programs over stdin and stdout, your rows", 1024),
}  # fmt: skip


def factory(name: str) -> Callable[..., Task]:
    """The function that makes the task of that name; its docstring says its options."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, _, function = TASKS[name][0].partition(":")
    return getattr(importlib.import_module(f"bestofk.tasks.{module}"), function)


def task(name: str, /, **options: Any) -> Task:
    """The task of that name with these options, all of which have defaults."""
    make = factory(name)
    check_options(f"task {name}", make, options)
    return make(**options)
