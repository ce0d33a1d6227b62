"""Environments of the real `verifiers` package as tasks; skipped where it is not installed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

vf = pytest.importorskip("verifiers")
if not hasattr(vf, "SingleTurnEnv"):
    pytest.skip("this version has no SingleTurnEnv", allow_module_level=True)

from bestofk.rewards import verifier  # noqa: E402
from bestofk.tasks import task  # noqa: E402

REVERSE = """
import verifiers as vf
from datasets import Dataset

def load_environment(size=12, **kwargs):
    rows = [{"question": f"Reverse: word{i}", "answer": f"word{i}"[::-1]} for i in range(size)]
    def exact(completion, answer, **kwargs):
        return 1.0 if completion[-1]["content"] == answer else 0.0
    def short(completion, **kwargs):
        return 1.0 if len(completion[-1]["content"]) < 10 else -1.0
    rubric = vf.Rubric(funcs=[exact, short], weights=[1.0, 0.5])
    held_out = Dataset.from_list([{"question": "Reverse: abc", "answer": "cba"}])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), eval_dataset=held_out, rubric=rubric,
                            system_prompt="Answer with the word only.")
"""
FRAGILE = """
import verifiers as vf
from datasets import Dataset

def load_environment(**kwargs):
    rows = [{"prompt": [{"role": "user", "content": f"How many? {i}"}], "answer": str(i),
             "info": {"limit": i}} for i in range(40)]
    async def number(completion, answer, info):
        return float(int(completion[-1]["content"]) == int(answer) <= info["limit"])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[number]))
"""
TURNS = """
import verifiers as vf
from datasets import Dataset

class Chat(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return []

def load_environment(**kwargs):
    rows = Dataset.from_list([{"question": "?", "answer": "!"}])
    return Chat(dataset=rows, rubric=vf.Rubric(funcs=[lambda completion, **kwargs: 1.0]))
"""


pytestmark = pytest.mark.filterwarnings("ignore")  # of the package's own dependencies


@pytest.fixture(autouse=True)
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("reverse", REVERSE), ("fragile", FRAGILE), ("turns", TURNS)):
        (tmp_path / f"vf_{name}_words.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_dataset_and_weighted_rubric_come_through() -> None:
    made = task("verifiers:vf-reverse-words", size=20)
    prompt = made.split("test")[0]
    assert prompt.text == (
        {"role": "system", "content": "Answer with the word only."},
        {"role": "user", "content": "Reverse: abc"},
    )
    judge = verifier(made.verifier, **made.verifier_options)
    verdicts = judge([prompt] * 3, ["cba", "abc", "a long answer that is wrong"])
    assert [v.reward for v in verdicts] == [1.5, 0.5, -0.5]
    assert 10 < len(made.split("train")) <= 20


def test_an_error_in_a_reward_function_is_unscored_not_zero() -> None:
    made = task("verifiers:vf-fragile-words")
    judge = verifier(made.verifier, **made.verifier_options)
    prompt = made.split("train")[0]
    right, wrong, broken = judge([prompt] * 3, [prompt.spec["answer"], "-1", "many"])
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert math.isnan(broken.reward)
    assert "invalid literal" in broken.detail


def test_several_turns_are_named_as_not_supported() -> None:
    with pytest.raises(ValueError, match="several turns and tools are not supported yet"):
        task("verifiers:vf-turns-words")


def test_an_unknown_environment_says_how_to_get_it() -> None:
    with pytest.raises(ValueError, match=r"'nowhere' could not be loaded.*install it"):
        task("verifiers:nowhere")
