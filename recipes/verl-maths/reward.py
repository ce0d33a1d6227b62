"""verl's `custom_reward_function`: bestofk's maths verifier, one completion at a time."""

from __future__ import annotations

import json
from typing import Any

from bestofk.rewards import verifier
from bestofk.types import Prompt

MATHS = verifier("maths")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> float:
    """1 for the right answer, else 0; NaN where judging failed: such a sample does not count."""
    known = json.loads(ground_truth)
    prompt = Prompt(known["id"], "", data_source, known["spec"])
    return MATHS([prompt], [solution_str])[0].reward
