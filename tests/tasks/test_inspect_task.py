"""Tasks of the real `inspect_ai` package as tasks; skipped where it is not installed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bestofk.tasks import task

TASKS = '''
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, choice, exact, includes, mean, scorer
from inspect_ai.solver import (
    generate, multiple_choice, prompt_template, self_critique, system_message, use_tools, solver
)
from inspect_ai.tool import tool


@scorer(metrics=[mean()])
def shortness():
    async def score(state, target):
        text = state.output.completion
        if text == "boom":
            raise RuntimeError("the scorer fell over")
        if text == "nothing":
            return Score(value=float("nan"))
        return Score(value=1.0 / (1 + len(text)))
    return score


def sums(size=30):
    return [
        Sample(input=f"What is {i} + {i}?", target=str(2 * i), metadata={"i": i})
        for i in range(size)
    ]


@task
def addition(size=30):
    return Task(
        dataset=MemoryDataset(sums(size)),
        solver=[
            system_message("Answer with the number."),
            prompt_template("{prompt} Think."),
            generate(),
        ],
        scorer=exact(),
    )


@task
def letters():
    rows = [Sample(input=f"Which is {w}?", choices=["red", "green", "blue"], target=t)
            for w, t in (("first", "A"), ("second", "B"), ("third", "C"))] * 1
    rows += [Sample(input=f"Which is {i}?", choices=["x", "y"], target="B") for i in range(200)]
    return Task(dataset=MemoryDataset(rows), solver=multiple_choice(), scorer=choice())


@task
def two_scorers():
    return Task(dataset=MemoryDataset(sums()), scorer=[includes(), shortness()])


@task
def chat():
    rows = [Sample(input=[ChatMessageSystem(content="Be brief."), ChatMessageUser(content=f"{i}?")],
                   target=str(i)) for i in range(30)]
    return Task(dataset=MemoryDataset(rows), solver=generate(), scorer=includes())


@task
def critique():
    @solver
    def twice():
        async def solve(state, generate):
            state = await generate(state)
            return await generate(state)
        return solve
    return Task(dataset=MemoryDataset(sums()), solver=twice(), scorer=includes())


@task
def with_tools():
    @tool
    def add():
        async def execute(x: int, y: int):
            """Add.

            Args:
                x: one
                y: other
            """
            return x + y
        return execute
    steps = [use_tools(add()), generate()]
    return Task(dataset=MemoryDataset(sums()), solver=steps, scorer=includes())


@task
def sandboxed():
    data = MemoryDataset(sums())
    return Task(dataset=data, solver=generate(), scorer=includes(), sandbox="local")
'''


def test_a_reference_without_a_task_is_an_error_that_shows_the_form() -> None:
    with pytest.raises(ValueError, match=r"inspect:FILE.py@TASK"):
        task("inspect:tasks.py")


inspect_ai = pytest.importorskip("inspect_ai")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the package's own dependencies

from bestofk.inspect_bridge import UnsupportedTask  # noqa: E402
from bestofk.rewards import verifier  # noqa: E402


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "sum_tasks.py"
    path.write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return str(path)


def test_the_solver_makes_the_prompt_and_the_scorer_judges(file: str) -> None:
    made = task(f"inspect:{file}@addition", size=200)
    prompts = {p.spec["metadata"]["i"]: p for p in made.split("train")[:30]}
    number, prompt = next(iter(prompts.items()))
    assert prompt.text == (
        {"role": "system", "content": "Answer with the number."},
        {"role": "user", "content": f"What is {number} + {number}? Think."},
    )
    judge = verifier(made.verifier, **made.verifier_options)
    verdicts = judge([prompt] * 2, [str(2 * number), "no idea"])
    assert [v.reward for v in verdicts] == [1.0, 0.0]
    assert [v.status for v in verdicts] == ["correct", "incorrect"]
    assert len(made.split("train")) + len(made.split("validation")) + len(made.split("test")) == 200


def test_a_module_is_as_good_as_a_file(file: str) -> None:
    one, other = (
        task(f"inspect:{where}@addition").split("train")[0] for where in (file, "sum_tasks")
    )
    assert one.text == other.text
    assert one.id.startswith("inspect:sum_tasks.py@addition/")


def test_multiple_choice_is_shown_and_read_by_its_own_solver(file: str) -> None:
    made = task(f"inspect:{file}@letters")
    every = [*made.split("train"), *made.split("validation"), *made.split("test")]
    prompt = next(p for p in every if "Which is second?" in str(p.text))
    assert "A) red" in str(prompt.text)
    judge = verifier(made.verifier, **made.verifier_options)
    texts = ["ANSWER: B", "ANSWER: A", "green"]
    assert [v.reward for v in judge([prompt] * 3, texts)] == [1.0, 0.0, 0.0]


def test_of_several_scorers_one_is_chosen_by_name(file: str) -> None:
    with pytest.raises(ValueError, match=r"includes, shortness.*choose one"):
        task(f"inspect:{file}@two_scorers")
    made = task(f"inspect:{file}@two_scorers", scorer="shortness")
    judge = verifier(made.verifier, **made.verifier_options)
    prompt = made.split("train")[0]
    assert judge([prompt], ["123"])[0].reward == pytest.approx(0.25)
    broken = judge([prompt] * 3, ["boom", "nothing", ""])
    assert [math.isnan(v.reward) for v in broken] == [True, True, False]
    assert "the scorer fell over" in broken[0].detail


def test_messages_of_a_sample_are_the_prompt(file: str) -> None:
    prompt = task(f"inspect:{file}@chat").split("train")[0]
    assert [m["role"] for m in prompt.text if isinstance(m, dict)] == ["system", "user"]


def test_tools_sandboxes_and_second_turns_are_named_as_not_supported(file: str) -> None:
    with pytest.raises(UnsupportedTask, match="tools"):
        task(f"inspect:{file}@with_tools")
    with pytest.raises(UnsupportedTask, match="sandbox"):
        task(f"inspect:{file}@sandboxed")
    with pytest.raises(UnsupportedTask, match="several turns"):
        task(f"inspect:{file}@critique")


def test_what_is_missing_is_said(file: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no task 'addtion'"):
        task(f"inspect:{file}@addtion")
    with pytest.raises(FileNotFoundError, match="no file"):
        task(f"inspect:{tmp_path / 'none.py'}@addition")
