"""Environments of the hosts are lists of pins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "environments").glob("*.txt")), ids=lambda p: p.stem
)
def test_an_environment_is_a_list_of_pins(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split()
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == []
    assert {line for line in lines if line.startswith("torch==")} <= {"torch==2.13.0"}
    assert [line for line in lines if line.startswith(("bestofk", "nvidia", "triton"))] == []
