"""`bestofk tasks` as a user types it."""

from __future__ import annotations

import io
from typing import Any

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


GUESS = '''
class Guess:
    def reset(self, secret: int, **row) -> str:
        self.secret, self.guesses = secret, []
        return " Below 100."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.
        """
        self.guesses.append(number)
        return "right" if number == self.secret else "wrong"

    def get_reward(self) -> float:
        return float(self.secret in self.guesses)


class Lines:
    def reset(self, **row):
        self.heard = []

    def __call__(self, text):
        self.heard.append(text)
        return None if text == "bye" else f"{len(text.splitlines())} lines"

    def get_reward(self):
        return 0.5
'''


@pytest.fixture
def played(tmp_path, monkeypatch, capsys):
    """Plays what is typed, and returns what was printed."""
    (tmp_path / "game.py").write_text(GUESS)
    (tmp_path / "rows.jsonl").write_text('{"question": "A number?", "secret": 7}\n')
    monkeypatch.chdir(tmp_path)

    def play(typed, *words):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert main(["tasks", "show", *words, "--play"]) == 0
        return capsys.readouterr().out

    return play


ROWS = ("dataset", "--option", "train=rows.jsonl", "--environment")


def test_a_person_plays_the_model_with_tools_and_with_text(played: Any) -> None:
    shown = played("guess(50)\ngess(1)\nguess(number=*)\nguess(number=7)\nSeven.\n", *ROWS,
                   "game.py:Guess")  # fmt: skip
    said = shown.splitlines()
    assert "[user] A number? Below 100." in said
    assert "guess(number: int) -> str" in shown
    assert [line for line in said if line.startswith("[g")] == [
        "[guess] wrong",
        """[gess] {"error": "no tool 'gess'; have guess"}""",
        '[guess] {"error": "the call cannot be read: invalid syntax (<unknown>, line 1)"}',
        "[guess] right",
    ]
    assert said[-3:] == ["ended by: answer, after 5 turns", "=== 1 correct", ""]
    block = "Look:\n```\na\nb\n```\n"
    shown = played(f"one\n{block}bye\n", *ROWS, "game.py:Lines")
    lines = [line for line in shown.splitlines() if line.startswith("[environment]")]
    assert lines == ["[environment] 1 lines", "[environment] 1 lines", "[environment] 4 lines"]
    assert "=== 0.5 partial" in shown
    shown = played("one\ntwo\n", *ROWS, "game.py:Lines", "--limit", "turns=2")
    assert "ended by: turns, after 2 turns" in shown


def test_a_task_without_an_environment_is_answered_once(played: Any) -> None:
    shown = played("1+1\n(10+23)/(15-12)\n", "countdown", "--option", "style=compact", "--n", "1")
    assert "=== 0 incorrect" in shown
    assert shown.count("[you]") == 1


def test_leaving_ends_kindly(played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert played("guess(1)\n", *ROWS, "game.py:Guess").endswith("\n\nended before a reward\n")

    def interrupted(prompt: str = "") -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    assert played("", *ROWS, "game.py:Guess").endswith("\n\nended before a reward\n")
