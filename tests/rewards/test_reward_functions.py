"""Reward functions as people write them: from a file, by columns, by batch, slow, and broken."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards import from_function, verifier, weighted
from bestofk.types import Prompt

ROW = {"prompt": "2 + 2 = ?", "answer": 4, "unit": "m"}
PROMPT = Prompt("sum", ({"role": "user", "content": "2 + 2 = ?"},), "dataset", ROW)


def test_a_function_is_found_in_a_file_and_may_import_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_reward.py").write_text("def full(): return 1.0\n")
    file = tmp_path / "my_reward_file.py"
    file.write_text(
        "from neighbour_of_reward import full\n"
        "def reward(completion, answer): return full() if str(answer) in completion else 0.0\n"
    )
    judge: Any = verifier(f"{file}:reward")
    assert [v.reward for v in judge([PROMPT] * 2, ["4", "5"])] == [1.0, 0.0]
    again: Any = verifier(f"{file}:reward")
    assert again.function is judge.function


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder, value in (("a", 0.25), ("b", 0.75)):
        (tmp_path / folder).mkdir()
        text = f"def reward(prompt, completion): return {value}\n"
        (tmp_path / folder / "same_name.py").write_text(text)
    rewards = [
        verifier(f"{tmp_path}/{folder}/same_name.py:reward")([PROMPT], ["x"])[0].reward
        for folder in "ab"
    ]
    assert rewards == [0.25, 0.75]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.py:reward", "no file"),
        ("no_such_module_here:reward", "or name its file"),
        ("os.path:exsts", "did you mean 'exists'"),
    ],
)
def test_what_cannot_be_loaded_says_why(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verifier(path)


def test_the_command_finds_a_module_in_the_working_folder(tmp_path: Path) -> None:
    """As `python -m bestofk` does: the console script has no working folder on its path."""
    (tmp_path / "folder_reward.py").write_text("def reward(prompt, completion): return 1.0\n")
    code = (
        "import sys; sys.path = [p for p in sys.path if p not in ('', sys.argv[1])]\n"
        "from bestofk.cli import main; main(['--version'])\n"
        "from bestofk.rewards import verifier; print(verifier('folder_reward:reward').name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "reward", done.stderr


def test_columns_are_passed_by_name() -> None:
    def with_prompt(prompt: Prompt, completion: str, answer: int) -> bool:
        return prompt.id == "sum" and completion == str(answer)

    def with_default(completion: str, other: str = "4") -> bool:
        return completion == other

    def with_all(completion: str, **columns: Any) -> bool:
        return completion == str(columns["answer"]) and set(columns) == {"answer", "unit"}

    for function in (with_prompt, with_default, with_all):
        assert [v.reward for v in from_function(function)([PROMPT] * 2, ["4", "5"])] == [1.0, 0.0]


def test_a_missing_column_is_named_before_the_run() -> None:
    def reward(completion: str, solution: str) -> float:
        return 1.0

    judge: Any = from_function(reward)
    with pytest.raises(ValueError, match=r"takes solution, and the rows have prompt, answer, unit"):
        judge.check_prompt(PROMPT)


def test_a_trl_function_gets_lists_and_may_answer_none() -> None:
    seen: dict[str, Any] = {}

    def reward(prompts: list, completions: list, answer: list, **rest: Any) -> list:
        seen.update(prompts=prompts, completions=completions, answer=answer, rest=rest)
        return [None if text == "?" else -1.0 for text in completions]

    verdicts = from_function(reward)([PROMPT] * 3, ["4", "?", "5"])
    assert [v.status for v in verdicts] == ["incorrect", "unscored", "incorrect"]
    assert [v.reward for v in verdicts][::2] == [-1.0, -1.0]
    assert seen["prompts"] == ["2 + 2 = ?"] * 3
    assert seen["completions"] == ["4", "?", "5"]
    assert (seen["answer"], seen["rest"]) == ([4, 4, 4], {"unit": ["m"] * 3})


def test_a_trl_function_gets_messages_where_the_data_has_messages() -> None:
    asked = [{"role": "user", "content": "hi"}]
    chat = Prompt("chat", tuple(asked), "dataset", {"prompt": asked})

    def reward(prompts: list, completions: list) -> list[float]:
        assert prompts == [asked]
        return [float(completion[0]["content"] == "hello") for completion in completions]

    assert from_function(reward)([chat], ["hello"])[0].reward == 1.0


def test_a_trl_function_that_miscounts_is_unscored() -> None:
    def reward(completions: list) -> list[float]:
        return [1.0]

    verdicts = from_function(reward)([PROMPT] * 3, ["a", "b", "c"])
    assert [v.reward for v in verdicts] == [1.0] * 3  # narrowed down to single pairs


@pytest.mark.parametrize("batch", [False, True])
def test_a_reward_that_hangs_is_unscored_and_the_run_goes_on(batch: bool) -> None:
    def pair(prompt: Prompt, completion: str) -> float:
        if completion == "slow":
            time.sleep(30)
        return 1.0

    def whole(completions: list) -> list[float]:
        return [pair(PROMPT, text) for text in completions]

    judge = from_function(whole if batch else pair, time_limit=1.0)
    verdicts = judge([PROMPT], ["slow"]) + judge([PROMPT], ["fine"])
    assert [v.status for v in verdicts] == ["unscored", "correct"]
    assert "no answer within 1 s" in verdicts[0].detail


def test_an_exception_is_told_with_file_line_and_sample(tmp_path: Path) -> None:
    file = tmp_path / "raising_reward.py"
    file.write_text("def reward(prompt, completion):\n    return int(completion)\n")
    (verdict,) = verifier(f"{file}:reward")([PROMPT], ["four"])
    assert verdict.status == "unscored"
    assert f"reward raised on sample sum at {file}:2: ValueError: invalid" in verdict.detail


def test_a_weighted_sum_of_rewards_outside_the_unit_interval() -> None:
    signed = from_function(lambda prompt, completion: 1.0 if completion == "4" else -1.0)
    scored = from_function(lambda prompt, completion: 5.0)
    verdicts = weighted((1.0, signed), (1.0, scored))([PROMPT] * 2, ["4", "5"])
    assert [v.reward for v in verdicts] == [3.0, 2.0]
    assert weighted((3.0, signed), (1.0, signed))([PROMPT], ["5"])[0].reward == -1.0
