"""verl's `custom_reward_function`: bestofk's verifier of a row, one completion at a time."""

from __future__ import annotations

import functools
import json
from typing import Any

from bestofk.rewards import verifier
from bestofk.types import Prompt

judge = functools.cache(verifier)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> float:
    """The reward; NaN where judging failed: such a sample does not count."""
    known = json.loads(ground_truth)
    prompt = Prompt(known["id"], "", data_source, known["spec"])
    return judge(known["verifier"])([prompt], [solution_str])[0].reward
