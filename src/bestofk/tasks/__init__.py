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

from bestofk.common import unknown
from bestofk.tasks.definition import Split, Task, check_options

__all__ = ["TASKS", "Split", "Task", "factory", "task"]

# name: (module and function that makes the task, one line); imported when asked for
TASKS = {
    "codecontests": ("bestofk.tasks.code_sets:codecontests", "competitive programming, stdin"),
    "countdown": ("bestofk.tasks.countdown:countdown", "reach a target with given numbers"),
    "dataset": ("bestofk.tasks.dataset:dataset", "any rows of data, by a small declaration"),
    "gsm8k": ("bestofk.tasks.maths_sets:gsm8k", "word problems whose answer is a number"),
    "gym": ("bestofk.tasks.gym:gym", "puzzles of reasoning-gym, those that can be trusted"),
    "humaneval": ("bestofk.tasks.code_sets:humaneval", "164 functions to complete, a test set"),
    "knights": ("bestofk.tasks.knights:knights", "who tells the truth, who lies"),
    "leetcode": ("bestofk.tasks.code_sets:leetcode", "LeetCode problems with many cases"),
    "math": ("bestofk.tasks.maths_sets:math", "competition mathematics"),
    "maze": ("bestofk.tasks.maze:maze", "walk from S to E (Pass@k Training)"),
    "mbpp": ("bestofk.tasks.code_sets:mbpp", "970 small functions, asserts"),
    "mbppplus": ("bestofk.tasks.code_sets:mbppplus", "368 functions, about 100 inputs each"),
    "stdio": ("bestofk.tasks.code_sets:stdio", "programs over stdin and stdout, your rows"),
    "sudoku": ("bestofk.tasks.sudoku:sudoku", "fill the blanks, credit for each"),
}


def factory(name: str) -> Callable[..., Task]:
    """The function that makes the task of that name; its docstring says its options."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, _, function = TASKS[name][0].partition(":")
    return getattr(importlib.import_module(module), function)


def task(name: str, /, **options: Any) -> Task:
    """The task of that name with these options, all of which have defaults.

    "verifiers:ENVIRONMENT" is a single-turn environment of the verifiers package,
    "inspect:FILE_OR_MODULE@TASK" a task of inspect_ai.
    """
    prefix, _, environment_name = name.partition(":")
    if prefix == "inspect" and environment_name:
        from bestofk.tasks.inspect_task import inspect_task

        return inspect_task(environment_name, **options)
    if prefix == "verifiers" and environment_name:
        from bestofk.tasks.verifiers_env import environment

        return environment(environment_name, **options)
    make = factory(name)
    check_options(name, make, options)
    return make(**options)
