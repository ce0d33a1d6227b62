"""Programming data sets: MBPP, MBPP+, HumanEval, and programs over stdin and stdout.

What is shown can be copied: a test in the prompt is not graded unless asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeAlias

from bestofk.messages import one_of
from bestofk.tasks.data_rows import Row, each, locate, read
from bestofk.tasks.dataset import (
    STYLES,
    Source,
    as_messages,
    from_prompts,
    named_sources,
    prompts_of,
)
from bestofk.tasks.definition import Task
from bestofk.tasks.schemas import (
    chat,
    field,
    first_program,
    program_schema,
    program_spec,
    time_limit,
)
from bestofk.tasks.shown_tests import shadowed_builtin, shown_and_graded
from bestofk.types import Prompt, plain_text

_FENCE = "Give the complete code in one block that starts with ```python and ends with ```."
MBPP_SPLITS = {"train": (601, 974), "validation": (511, 600), "test": (11, 510), "prompt": (1, 10)}
"""By task id, as its authors split MBPP; MBPP+ is cut at the same ids, so that nothing leaks."""
LEFT_OUT = {
    "mbpp": (367, 533, 601, 927),
    "mbppplus": (106, 124, 252, 255, 580, 630, 720, 737, 787, 794),
}
"""Nobody can solve these: tests with instances of own classes, references that fail their tests."""
_MORE_TESTS = {"HumanEval/34": "\n    assert candidate([2, 1, 2]) == [1, 2]\n"}
"""The one test of this problem is the example in its prompt, whose answer can be copied."""

Prompts: TypeAlias = Mapping[str, list[Prompt]]
"""The prompts of each file or split."""
Problem: TypeAlias = tuple[object, str, dict[str, Any], str | None]
"""Its id in the set, its text, what the verifier needs, and a program that passes all tests."""


def mbpp_splits(files: Prompts) -> Prompts:
    """Problems that have MBPP's numbers as ids, in MBPP's splits."""
    splits: dict[str, list[Prompt]] = {split: [] for split in MBPP_SPLITS}
    for prompt in files[""]:
        number = int(prompt.id.rpartition("/")[2])
        split = next((s for s, (low, high) in MBPP_SPLITS.items() if low <= number <= high), None)
        if split is None:
            raise ValueError(f"MBPP has the ids 1 to 974, got {number}")
        if number not in LEFT_OUT[prompt.task]:
            splits[split].append(prompt)
    return splits


def published(
    name: str,
    build: Callable[[Row], Problem | str],
    paths: Mapping[str, str | None],
    *,
    splits: Sequence[str],
    style: str,
    reward: str,
    arrange: Callable[[Prompts], Prompts] = dict,
    packages: Sequence[str] = (),
    **options: Any,
) -> Task:
    """A published set that is judged by running programs.

    Args:
        build: the problem in a row, or why it is left out.
        paths: by file, the path that the user states. The one file "" holds all splits.
        arrange: makes splits of the prompts by file.
        options: of `from_prompts`.
    """
    one_of("style", style, STYLES)
    sources = {
        file: locate(path, f"{name}-{file}".rstrip("-") + ".jsonl.gz")
        for file, path in paths.items()
    }

    def load(task: Task) -> Prompts:
        def prompt_of(row: Row) -> list[Prompt]:
            problem = build(row)
            if isinstance(problem, str):
                task.left_out[f"{name}/{row['task_id']}"] = problem
                return []
            return [fenced_prompt(name, *problem, style)]

        return arrange(
            {
                file: list(chain(*each(read(source), source, prompt_of)))
                for file, source in sources.items()
            }
        )

    settings = {"reward": reward} | ({"packages": list(packages)} if packages else {})
    return from_prompts(
        name, load, splits, verifier="code", verifier_options=settings, keep_repeats=True, **options
    )


def fenced_prompt(
    task: str, key: object, text: str, spec: dict[str, Any], code: str | None, style: str
) -> Prompt:
    return Prompt(
        id=f"{task}/{key}",
        text=as_messages(style, "", f"{_unix(text)}\n\n{_FENCE}"),
        task=task,
        spec=spec,
        reference=None if code is None else f"```python\n{_unix(code).strip()}\n```",
    )


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def mbpp(
    *,
    path: str | None = None,
    shown: int = 1,
    grade_shown: bool = False,
    style: str = "chat",
    reward: str = "fraction",
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """MBPP: 970 of its 974 small functions, three asserts each (Austin et al. 2021, CC-BY-4.0).

    Args:
        path: file with task_id, text, code, test_list; else $BESTOFK_DATA, else the Hub.
        shown: how many asserts the prompt shows: the first, unless all of the rest have one answer.
        grade_shown: grade those too (the usual benchmark does).
        reward: "fraction" of tests passed, or 1 only when "all" pass.
    """

    def build(row: Row) -> Problem:
        tests = [*row["test_list"], *row.get("challenge_test_list", [])]
        setup = {"setup": row.get("test_setup_code", ""), **shadowed_builtin(tests, row["code"])}
        examples, graded = shown_and_graded(tests, shown)
        if grade_shown:
            examples, graded = tests[:shown], tests
        text = "\n".join([row["text"].strip(), *["", "For example:"] * bool(shown), *examples])
        return row["task_id"], text, {"asserts": graded, "shown": examples, **setup}, row["code"]

    return published(
        "mbpp", build, {"": path}, splits=tuple(MBPP_SPLITS), arrange=mbpp_splits, style=style,
        reward=reward, limit=limit, seed=seed, licence="CC-BY-4.0 (google-research/mbpp)",
        summary="970 small Python functions",
    )  # fmt: skip


def mbppplus(
    *,
    path: str | None = None,
    style: str = "chat",
    reward: str = "fraction",
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """MBPP+: 368 problems of MBPP with about a hundred inputs each (evalplus, Apache-2.0).

    Split at the ids of MBPP, so that training on one and testing on the other leaks nothing.

    Args:
        path: file with task_id, prompt, base_input, plus_input; else $BESTOFK_DATA, else the Hub.
        reward: "fraction" of tests passed, or 1 only when "all" pass.
    """
    return published(
        "mbppplus", _many_inputs, {"": path}, splits=tuple(MBPP_SPLITS), arrange=mbpp_splits,
        style=style, reward=reward, limit=limit, seed=seed,
        licence="Apache-2.0 (evalplus/mbppplus_release)", summary="368 functions, many inputs",
    )  # fmt: skip


def _many_inputs(row: Row) -> Problem:
    number = int(str(row["task_id"]).rpartition("/")[2])
    if "base_input" not in row:  # the Hub's table has the tests as one program
        spec = {"asserts": row["test_list"], "setup": "\n".join(row.get("test_imports", []))}
        return number, row["prompt"], spec, row["code"]
    spec = {
        "entry_point": row["entry_point"],
        "calls": [{"args": args} for args in [*row["base_input"], *row["plus_input"]]],
        "solution": row["canonical_solution"],
    }
    if row.get("atol"):
        spec["tolerance"] = {"abs": row["atol"], "rel": 0.0}
    return number, row["prompt"].strip().strip('"').strip(), spec, row["canonical_solution"]


def humaneval(
    *,
    path: str | None = None,
    style: str = "chat",
    reward: str = "fraction",
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """HumanEval: 164 functions to complete, a test set (Chen et al. 2021, MIT).

    Args:
        path: file with task_id, prompt, test, entry_point; else $BESTOFK_DATA, else the Hub.
        reward: "fraction" of tests passed, or 1 only when "all" pass.
    """
    return published(
        "humaneval", _to_complete, {"": path}, splits=("test",), style=style, reward=reward,
        arrange=lambda files: {"test": files[""]}, limit=limit, seed=seed,
        licence="MIT (openai/human-eval)", summary="164 functions to complete; for tests only",
    )  # fmt: skip


def _to_complete(row: Row) -> Problem:
    spec = {
        "check": row["test"] + _MORE_TESTS.get(row["task_id"], ""),
        "entry_point": row["entry_point"],
        "setup": row["prompt"],
        "prefix": row["prompt"],
    }
    text = f"Complete this function.\n\n```python\n{row['prompt'].strip()}\n```"
    key = str(row["task_id"]).rpartition("/")[2]
    return key, text, spec, row["prompt"] + row["canonical_solution"]


def codecontests(
    *,
    train: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    style: str = "chat",
    reward: str = "fraction",
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """CodeContests: competitive programming over stdin and stdout (Li et al. 2022, CC-BY-4.0).

    The task of the max@k paper (arXiv:2510.23393): reward = fraction of tests passed.

    Args:
        train, validation, test: files; else $BESTOFK_DATA, else the Hub.
        reward: "fraction" of tests passed, or 1 only when "all" pass.
    """
    return stdio(
        train=locate(train, "codecontests-train.jsonl.gz"),
        validation=locate(validation, "codecontests-validation.jsonl.gz"),
        test=locate(test, "codecontests-test.jsonl.gz"),
        style=style,
        reward=reward,
        name="codecontests",
        licence="CC-BY-4.0 (deepmind/code_contests)",
        limit=limit,
        seed=seed,
    )


def stdio(
    *,
    train: Source | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    question: str = "",
    tests: Sequence[str] = (),
    solution: str | None = None,
    id: str | None = None,
    checker: str | None = None,
    style: str = "chat",
    reward: str = "fraction",
    name: str = "stdio",
    licence: str = "not stated",
    validation_share: float = 0.05,
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """Programs judged by inputs and outputs, calls or asserts, from rows of data.

    The rows of LiveCodeBench, CodeContests, APPS, TACO, DeepCoder, KodCode, AceCode, SYNTHETIC-1
    and verl are recognised by their fields.

    Args:
        train, validation, test: files or "hub:owner/name@split".
        question: field with the problem's text, or with chat messages.
        tests: fields with the tests, all of which every row has: a list of {"input", "output"}, or
            {"inputs": [...], "outputs": [...]}, or asserts; as such or as text. Where they name a
            function (fn_name), it is called with the inputs.
        solution: field with a program (or a list, of which the first) that passes all tests.
        id: field that names a problem; its number in the file otherwise.
        checker: a Python file with `def check(input, output, expected)`, which says whether an
            output over stdin is right, where several are; it runs in the sandbox.
        reward: "fraction" of tests passed, or 1 only when "all" pass.
    """
    one_of("style", style, STYLES)
    if bool(question) != bool(tests):
        raise ValueError("question and tests are both named, or both recognised by the fields")
    sources = named_sources(train=train, validation=validation, test=test)
    own_check = Path(checker).read_text(encoding="utf-8") if checker else ""
    named = (question, tuple(tests), solution, id)

    def prompt_of(task: Task, split: str, numbers: Iterator[int], row: Row) -> Prompt:
        number = next(numbers)
        schema, fields = ("", named) if question else program_schema(row)
        asking, testing, solving, naming = fields
        task.read_as[f"{schema}: ".lstrip(": ") + ", ".join((asking, *testing))] += 1
        code = first_program(field(row, solving)) if solving else None
        starter = str(row.get("starter_code") or "").rstrip()
        spec = program_spec(row, testing, f"{starter}\n{code}") | time_limit(row)
        if checker and "stdio" in spec:
            spec["checker"] = own_check
        value = field(row, asking)
        messages = chat(value)
        text = messages[-1]["content"] if messages else plain_text(value)
        text = f"{text.strip()}\n\n{_form(spec, starter, str(field(row, testing[0])))}"
        key = plain_text(field(row, naming)) if naming else f"{split}-{number}"
        prompt = fenced_prompt(name, key, text, spec, code, style)
        before = tuple(messages[:-1]) if messages and style == "chat" else ()
        return replace(prompt, text=(*before, *prompt.text)) if before else prompt

    def load(task: Task) -> Prompts:
        return {
            split: prompts_of(
                split, source, partial(prompt_of, task, split, count()), task.left_out
            )
            for split, source in sources.items()
        }

    return from_prompts(
        name, load, tuple(sources), verifier="code", verifier_options={"reward": reward},
        licence=licence, summary="programs judged by tests", limit=limit, seed=seed,
        shares={"validation": validation_share},
    )  # fmt: skip


def _form(spec: Mapping[str, Any], starter: str, tests: str) -> str:
    """What kind of program is asked for, in a sentence."""
    if "stdio" in spec:
        return "Write a Python program that reads stdin and writes stdout."
    if starter:
        return f"Complete this code:\n\n```python\n{starter}\n```"
    if "entry_point" in spec:
        return f"Write a Python function that is called as `{spec['entry_point']}`."
    names = sorted(set(re.findall(r"from solution import (\w+)|assert (\w+)\(", tests)))
    named = ", ".join(f"`{imported or called}`" for imported, called in names)
    return f"Write Python code that defines {named}." if named else "Write Python code."
