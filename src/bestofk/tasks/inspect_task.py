"""Single-turn tasks of the inspect_ai package: "inspect:FILE_OR_MODULE@TASK".

The task's dataset and solver give the prompts; its scorer judges (`rewards/inspect_scorer.py`).
"""

from __future__ import annotations

import json
from typing import Any

from bestofk.inspect_bridge import check_single_turn, chosen_scorer, load_task, messages_of, row_of
from bestofk.tasks.dataset import from_prompts
from bestofk.tasks.definition import Task, identity
from bestofk.types import Prompt


def inspect_task(reference: str, **arguments: Any) -> Task:
    """The task that a file or a module defines.

    Args:
        reference: "FILE.py@TASK" or "package.module@TASK".
        arguments: of the task's function. `scorer` (its name, where there are several), `limit`
            and `seed` are ours.

    Raises:
        ValueError: inspect_ai or the task is missing; it needs tools, a sandbox or several turns.
    """
    limit, seed = arguments.pop("limit", None), arguments.pop("seed", 0)
    scorer = arguments.pop("scorer", None)
    loaded = load_task(reference, arguments)
    chosen_scorer(loaded, scorer)
    check_single_turn(loaded, loaded.dataset[0])
    name = f"inspect:{reference}"
    return from_prompts(
        name,
        {"train": lambda: [_prompt(name, loaded, sample) for sample in loaded.dataset]},
        verifier="inspect",
        verifier_options={"task": reference, "arguments": arguments, "scorer": scorer},
        licence="see the task",
        shares={"validation": 0.05, "test": 0.05},
        limit=limit,
        seed=seed,
        summary=f"task {reference} of inspect_ai, judged by its scorer",
    )


def _prompt(name: str, loaded: Any, sample: Any) -> Prompt:
    row = row_of(sample)
    short = f"inspect:{name.rpartition('/')[2].removeprefix('inspect:')}"  # whatever the folder
    return Prompt(
        id=identity(short, json.dumps([row["input"], row.get("target"), row.get("choices")])),
        text=tuple(messages_of(loaded, sample)),
        task=name,
        spec=row,
    )
