"""The Python environments of the hosts are lists of pins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIN = r"[\w.-]+==[\w.+]+(; platform_machine == \"x86_64\")?"


@pytest.mark.parametrize("path", sorted((ROOT / "hosts").glob("*.txt")), ids=lambda p: p.stem)
def test_an_environment_is_a_list_of_pins(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(PIN, line)] == []
    assert {line for line in lines if line.startswith("torch==")} <= {"torch==2.13.0"}
    assert [line for line in lines if line.startswith(("bestofk", "nvidia", "triton"))] == []
