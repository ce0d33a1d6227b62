"""The pages on tasks and rewards say what the program does: their examples are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bestofk.cli import main
from bestofk.rewards import verifier
from bestofk.types import Prompt

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = re.findall(
    r"^(````?)console\n\$ (bestofk .*?)\n(.*?)\n\1$",
    (DOCS / "tasks.md").read_text(),
    flags=re.DOTALL | re.MULTILINE,
)


def test_every_generated_task_has_an_example() -> None:
    shown = " ".join(command for _, command, _ in COMMANDS)
    for name in ("countdown", "maze", "construct"):
        assert f"show {name} " in shown


@pytest.mark.parametrize(("command", "printed"), [pytest.param(c, p, id=c) for _, c, p in COMMANDS])
def test_the_page_shows_what_the_command_prints(
    command: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out.rstrip() == printed.rstrip()


def rows(page: str, head: str) -> list[list[str]]:
    """Cells of the table that begins with this head."""
    table = (DOCS / page).read_text().split(head, 1)[1].split("\n\n", 1)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_maths_table_is_true() -> None:
    table = rows("rewards.md", "| expected | completion | verdict |")
    assert len(table) >= 8
    for seconds, late in ((10.0, False), (1.0, True)):  # what never ends need not take long
        asked = [row for row in table if ("timeout" in row[2]) == late]
        prompts = [Prompt(str(i), "", "t", {"expected": row[0]}) for i, row in enumerate(asked)]
        with verifier("maths", workers=1, cpu_seconds=seconds) as judge:
            verdicts = judge(prompts, [row[1] for row in asked])
        shown = [row[2].rstrip(" |") for row in asked]
        assert [f"{v.reward:g} {v.status}" for v in verdicts] == shown


def test_the_countdown_table_is_true() -> None:
    from bestofk.tasks import task

    table = rows("tasks.md", "| completion | closeness | status | why |")
    prompt = task("countdown", style="compact").split("ood")[0]
    judge = verifier("countdown", reward="closeness")
    verdicts = judge([prompt] * len(table), [row[0] for row in table])
    assert [[f"{v.reward:.3g}", v.status] for v in verdicts] == [row[1:3] for row in table]
    assert len({v.status for v in verdicts}) == 4
