"""verl's `custom_reward_function`: bestofk's maze verifier, one completion at a time."""

from __future__ import annotations

import json
from typing import Any

from bestofk.rewards import verifier
from bestofk.types import Prompt

MAZE = verifier("maze")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> float:
    """1 for a walk from S to E, else 0; NaN where judging failed: such a sample does not count."""
    known = json.loads(ground_truth)
    prompt = Prompt(known["id"], "", data_source, known["spec"])
    return MAZE([prompt], [solution_str])[0].reward
