"""`bestofk tasks` as a user types it."""

from __future__ import annotations

import pytest

from bestofk.cli import main
from bestofk.tasks import TASKS


def test_the_list_names_every_task_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    printed = capsys.readouterr().out
    for name in TASKS:
        assert f"\n{name} " in "\n" + printed
    assert "numbers=4" in printed


def test_show_prints_prompts_with_verified_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "show", "countdown", "--n", "3", "--option", "style=compact"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("=== 1 correct") == 3
    assert printed.count(" = ") >= 3
    assert "[user]" not in printed


def test_show_takes_split_start_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "tasks",
        "show",
        "maze",
        "--n",
        "1",
        "--split",
        "ood",
        "--option",
        "ood_sizes=[17]",
    ]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert first.count("*****************") >= 2
    assert main([*arguments, "--start", "1"]) == 0
    assert capsys.readouterr().out != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "countdwn"], "did you mean 'countdown'"),
        (["show", "maze", "--option", "syle=chat"], "did you mean 'style'"),
        (["show", "maze", "--option", "style"], "key=value"),
        (["show", "maze", "--split", "tset"], "did you mean 'test'"),
        (["show", "maze", "--start", "999999"], "10000 prompts"),
        (["shw"], "bestofk tasks show NAME"),
        (["show", "countdown", "--option", "numbers=abc"], "is of type int, got 'abc'"),
        (["show", "maze", "--option", 'sizes=["9"]'], "is of type Sequence[int], got ['9']"),
        (["show", "countdown", "--option", "reward=best"], "have exact, closeness"),
    ],
)
def test_mistakes_are_explained_and_nothing_else_is_printed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_a_puzzle_that_cannot_be_trusted_is_refused_before_it_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("reasoning_gym")
    assert main(["tasks", "show", "gym", "--option", "dataset=game_of_life_halting"]) == 2
    printed = capsys.readouterr()
    assert "untrustworthy reasoning-gym task 'game_of_life_halting'" in printed.err
    assert printed.out == ""
