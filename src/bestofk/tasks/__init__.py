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

from bestofk.tasks.base import Split, Task, check_options, unknown

__all__ = ["TASKS", "Split", "Task", "factory", "task"]

# name: (module and function that makes the task, one line); imported when asked for
TASKS = {
    "countdown": ("bestofk.tasks.countdown:countdown", "reach a target with given numbers"),
    "knights": ("bestofk.tasks.knights:knights", "who tells the truth, who lies"),
    "maze": ("bestofk.tasks.maze:maze", "walk from S to E (Pass@k Training)"),
    "sudoku": ("bestofk.tasks.sudoku:sudoku", "fill the blanks, credit for each"),
}


def factory(name: str) -> Callable[..., Task]:
    """The function that makes the task of that name; its docstring says its options."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    module, _, function = TASKS[name][0].partition(":")
    return getattr(importlib.import_module(module), function)


def task(name: str, **options: Any) -> Task:
    """The task of that name with these options, all of which have defaults."""
    make = factory(name)
    check_options(name, make, options)
    return make(**options)
