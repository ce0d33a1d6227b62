"""The README shows the examples that the hosts' own tests execute from their pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[str]:
    return BLOCK.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("host", ["trl", "verl", "skyrl", "openrlhf"])
def test_the_readme_shows_what_the_hosts_tests_execute(host: str) -> None:
    page = blocks(ROOT / "docs" / "adapters" / f"{host}.md")
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## In your trainer")[2]
    shown = [block for block in BLOCK.findall(section) if block in page]
    assert len(shown) == 1, host
    assert f"bestofk.adapters.{host}" in shown[0]
    assert len(shown[0].splitlines()) <= 3
