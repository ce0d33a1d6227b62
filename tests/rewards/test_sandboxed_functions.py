"""A judging function of the user's, run in the sandbox."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards import from_function
from bestofk.rewards.base import BatchVerifier
from bestofk.types import Prompt


@pytest.fixture(scope="module")
def judge() -> Iterator[BatchVerifier]:
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    try:
        module: Any = importlib.import_module("judges_in_a_file")
        with from_function(module.judge, sandbox=True) as built:
            yield built
    finally:
        sys.path.remove(folder)
        sys.modules.pop("judges_in_a_file", None)


def test_what_the_text_causes_is_zero_and_what_we_cause_is_nan(
    judge: BatchVerifier, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    prompt = Prompt("p", "", "t", {"scale": 4, "secret": str(secret)})
    wanted = {
        "2": (0.5, "partial"),
        "4": (1.0, "correct"),
        "loop": (0.0, "timeout"),
        "die": (0.0, "crashed"),
        "secret": (0.0, "incorrect"),
        "verdict": (0.0, "unparsed"),
        "raise": (math.nan, "unscored"),
        "none": (math.nan, "unscored"),
        "nan": (math.nan, "unscored"),
        "3": (0.75, "partial"),
    }
    verdicts = judge([prompt] * len(wanted), list(wanted))
    assert [v.status for v in verdicts] == [status for _, status in wanted.values()]
    for verdict, (reward, _) in zip(verdicts, wanted.values(), strict=True):
        assert verdict.reward == reward or (math.isnan(reward) and math.isnan(verdict.reward))
    assert verdicts[0].tier is not None
    assert (verdicts[5].passed, verdicts[5].total, verdicts[5].detail) == (1, 3, "seen")
    assert verdicts[5].parts == {"a": 0.5}
    assert "a bug of ours" in verdicts[6].detail


def test_functions_that_cannot_be_found_again_are_refused() -> None:
    def inner(prompt: Prompt, completion: str) -> float:
        return 1.0

    for bad in (inner, lambda prompt, completion: 1.0):
        with pytest.raises(ValueError, match="top level of an importable module"):
            from_function(bad, sandbox=True)
