"""Reward functions as people write them: from a file, by columns, by batch, slow, and broken."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bestofk.config import Config, merged
from bestofk.rewards import from_function, gated, verifier, weighted
from bestofk.rewards.base import RETRIES
from bestofk.training.processes import Processes
from bestofk.training.resolve import resolve
from bestofk.training.task_setup import make_sets
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
        given = set(columns) == {"prompt", "answer", "unit"} and columns["prompt"] is PROMPT
        return given and completion == str(columns["answer"])

    for function in (with_prompt, with_default, with_all):
        assert [v.reward for v in from_function(function)([PROMPT] * 2, ["4", "5"])] == [1.0, 0.0]


def test_what_a_partial_fixes_is_not_a_field_of_the_row() -> None:
    def reward(completion: str, answer: str) -> bool:
        return completion == answer

    judge = from_function(functools.partial(reward, answer="mine"))
    assert [v.reward for v in judge([PROMPT] * 2, ["mine", "4"])] == [1.0, 0.0]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("combine", [False, True])
def test_a_column_that_any_row_lacks_is_an_error(batch: bool, combine: bool) -> None:
    def one(completion: str, solution: str) -> float:
        return 1.0

    def many(completions: list, solution: list) -> list[float]:
        return [1.0] * len(completions)

    judge = from_function(many if batch else one)
    if combine:
        judge = weighted((1.0, gated(from_function(lambda completion: 1.0), judge)))
    full = Prompt("full", "", "dataset", {"solution": "4"})
    message = r"takes solution, and the row of sum has answer, unit.*def \w+\(completions?, answer"
    with pytest.raises(ValueError, match=message):
        judge.check_prompts([full, PROMPT])
    with pytest.raises(ValueError, match=message):
        judge([full, PROMPT], ["4", "4"])
    assert judge([full], ["4"])[0].reward == 1.0


def test_a_run_checks_every_row_before_its_first_sample(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 1}, {"prompt": "c"}]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    file = tmp_path / "reward_by_answer.py"
    file.write_text("def reward(completion, answer): return 1.0\n")
    options = {"train": str(data), "validation_share": 0.0, "test_share": 0.0}
    task = {"name": "dataset", "options": options, "verifier": f"{file}:reward"}
    with pytest.raises(ValueError, match=r"reward\(completion, answer\) takes answer, and the row"):
        make_sets(resolve(merged(Config(), {"task": task}), dry=True), Processes())


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


@pytest.mark.parametrize("said", [[1.0], 1.0, [1.0] * 4, None])
def test_a_trl_function_that_miscounts_is_an_error_at_once(said: Any) -> None:
    calls = []

    def reward(completions: list) -> Any:
        calls.append(completions)
        return said

    judge = weighted((1.0, from_function(reward)))
    with pytest.raises(ValueError, match=r"reward returned .* for 3 completions.*one reward for"):
        judge([PROMPT] * 3, ["a", "b", "c"])
    assert calls == [["a", "b", "c"]]  # smaller batches are not tried: one reward would fit a pair


def test_a_batch_that_hangs_is_unscored_and_the_run_goes_on() -> None:
    def whole(completions: list) -> list[float]:
        time.sleep(30 * completions.count("slow"))
        return [1.0] * len(completions)

    judge = from_function(whole, time_limit=0.3)
    verdicts = judge([PROMPT], ["slow"]) + judge([PROMPT], ["fine"])
    assert [v.status for v in verdicts] == ["unscored", "correct"]
    assert "no answer within 0.3 s" in verdicts[0].detail


def test_a_weighted_sum_of_rewards_outside_the_unit_interval() -> None:
    signed = from_function(lambda prompt, completion: 1.0 if completion == "4" else -1.0)
    scored = from_function(lambda prompt, completion: 5.0)
    verdicts = weighted((1.0, signed), (1.0, scored))([PROMPT] * 2, ["4", "5"])
    assert [v.reward for v in verdicts] == [3.0, 2.0]
    assert weighted((3.0, signed), (1.0, signed))([PROMPT], ["5"])[0].reward == -1.0


@pytest.mark.parametrize("reward", ["yes", None, {"reward": 1.0}, [1.0, 0.0]])
def test_a_reward_of_the_wrong_kind_ends_the_run_at_the_first_completion(reward: Any) -> None:
    calls = []

    def judge(completion: str) -> Any:
        calls.append(completion)
        return reward

    with pytest.raises(ValueError, match=r"judge: .*number, a bool or a Verdict .*got"):
        from_function(judge)([PROMPT] * 256, ["x"] * 256)
    assert len(calls) == RETRIES + 1
    if reward is not None:
        with pytest.raises(ValueError, match="number, a bool or a Verdict"):
            from_function(lambda completions: [reward] * 9)([PROMPT] * 9, ["x"] * 9)


def test_a_reward_of_the_wrong_kind_later_is_unscored_alone() -> None:
    one = from_function(lambda completion: "?" if completion == "odd" else 1.0)
    verdicts = one([PROMPT] * 3, ["a", "odd", "b"])
    assert [v.status for v in verdicts] == ["correct", "unscored", "correct"]
