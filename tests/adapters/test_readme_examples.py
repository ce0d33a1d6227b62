"""The README shows the examples that the hosts' own tests execute from their pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[str]:
    return BLOCK.findall(path.read_text(encoding="utf-8"))


HOSTS = {"trl": "bestofk.adapters.trl"}  # the README links the pages of the others


@pytest.mark.parametrize("host", HOSTS)
def test_the_readme_shows_what_the_hosts_tests_execute(host: str) -> None:
    page = blocks(ROOT / "docs" / "adapters" / f"{host}.md")
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## In your trainer")[2]
    (shown,) = [block for block in BLOCK.findall(section) if HOSTS[host] in block]
    assert any(whole.endswith(shown) for whole in page)  # imports may come before
    assert len(shown.splitlines()) == 3


@pytest.mark.parametrize(
    "path", sorted((ROOT / "environments").glob("*.txt")), ids=lambda p: p.stem
)
def test_an_environment_is_a_list_of_pins(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split()
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == []
    assert {line for line in lines if line.startswith("torch==")} <= {"torch==2.13.0"}
    assert [line for line in lines if line.startswith(("bestofk", "nvidia", "triton"))] == []
