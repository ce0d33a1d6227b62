"""Programming data sets: MBPP, MBPP+, HumanEval, and programs over stdin and stdout.

What is shown can be copied: a test in the prompt is not graded unless asked for.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bestofk.messages import one_of
from bestofk.tasks.data_rows import Row, each, locate, read
from bestofk.tasks.dataset import STYLES, Source, as_messages, from_prompts, loader
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


def mbpp_split(number: int) -> str:
    """The split of an MBPP or MBPP+ problem."""
    for split, (first, last) in MBPP_SPLITS.items():
        if first <= number <= last:
            return split
    raise ValueError(f"MBPP has the ids 1 to 974, got {number}")


def _by_split(source: str, build: Callable[[Row], Prompt]) -> Callable[[], dict[str, list[Prompt]]]:
    """Loads problems that have MBPP's numbers as ids into MBPP's splits."""

    def rows() -> dict[str, list[Prompt]]:
        by_split: dict[str, list[Prompt]] = {split: [] for split in MBPP_SPLITS}
        for prompt in each(read(source), source, build):
            number = int(prompt.id.rpartition("/")[2])
            if number not in LEFT_OUT[prompt.task]:
                by_split[mbpp_split(number)].append(prompt)
        return by_split

    return rows


def code_task(
    name: str,
    rows: Callable[[], Mapping[str, list[Prompt]]],
    splits: Sequence[str],
    *,
    reward: str,
    licence: str,
    summary: str,
    limit: int | None,
    seed: int,
    validation_share: float = 0.0,
    keep_repeats: bool = True,
    packages: Sequence[str] = (),
    left_out: dict[str, str] | None = None,
    read_as: Counter[str] | None = None,
) -> Task:
    """A task judged by running programs; `rows` loads all splits when one is first used."""
    loaded: dict[str, list[Prompt]] = {}

    def loader(split: str) -> Callable[[], list[Prompt]]:
        def load() -> list[Prompt]:
            if not loaded:
                loaded.update(rows())
            return loaded.get(split, [])

        return load

    return from_prompts(
        name,
        {split: loader(split) for split in splits},
        verifier="code",
        verifier_options={"reward": reward, **({"packages": list(packages)} if packages else {})},
        left_out=left_out,
        read_as=read_as,
        licence=licence,
        shares={"validation": validation_share},
        limit=limit,
        seed=seed,
        summary=summary,
        keep_repeats=keep_repeats,
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
    one_of("style", style, STYLES)

    def build(row: Row) -> Prompt:
        tests = [*row["test_list"], *row.get("challenge_test_list", [])]
        given = {"setup": row.get("test_setup_code", ""), **shadowed_builtin(tests, row["code"])}
        examples, graded = shown_and_graded(tests, shown)
        if grade_shown:
            examples, graded = tests[:shown], tests
        text = "\n".join([row["text"].strip(), *["", "For example:"] * bool(shown), *examples])
        spec = {"asserts": graded, **given}
        return fenced_prompt("mbpp", row["task_id"], text, spec, row["code"], style)

    rows = _by_split(locate(path, "mbpp.jsonl.gz"), build)
    return code_task(
        "mbpp", rows, tuple(MBPP_SPLITS), reward=reward, limit=limit, seed=seed,
        licence="CC-BY-4.0 (google-research/mbpp)", summary="970 small Python functions",
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
    one_of("style", style, STYLES)

    def build(row: Row) -> Prompt:
        return _mbppplus_prompt(int(str(row["task_id"]).rpartition("/")[2]), row, style)

    rows = _by_split(locate(path, "mbppplus.jsonl.gz"), build)
    return code_task(
        "mbppplus", rows, tuple(MBPP_SPLITS), reward=reward, limit=limit, seed=seed,
        licence="Apache-2.0 (evalplus/mbppplus_release)", summary="368 functions, many inputs",
    )  # fmt: skip


def _mbppplus_prompt(number: int, row: Row, style: str) -> Prompt:
    if "base_input" not in row:  # the Hub's table has the tests as one program
        spec = {"asserts": row["test_list"], "setup": "\n".join(row.get("test_imports", []))}
        return fenced_prompt("mbppplus", number, row["prompt"], spec, row["code"], style)
    inputs = [*row["base_input"], *row["plus_input"]]
    spec = {
        "entry_point": row["entry_point"],
        "calls": [{"args": args} for args in inputs],
        "solution": row["canonical_solution"],
    }
    if row.get("atol"):
        spec["tolerance"] = {"abs": row["atol"], "rel": 0.0}
    text = row["prompt"].strip().strip('"').strip()
    return fenced_prompt("mbppplus", number, text, spec, row["canonical_solution"], style)


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
    one_of("style", style, STYLES)
    source = locate(path, "humaneval.jsonl.gz")

    def build(row: Row) -> Prompt:
        code = row["prompt"] + row["canonical_solution"]
        text = f"Complete this function.\n\n```python\n{row['prompt'].strip()}\n```"
        key = str(row["task_id"]).rpartition("/")[2]
        return fenced_prompt("humaneval", key, text, _checked_function(row), code, style)

    def rows() -> dict[str, list[Prompt]]:
        return {"test": each(read(source), source, build)}

    return code_task(
        "humaneval", rows, ("test",), reward=reward, limit=limit, seed=seed,
        licence="MIT (openai/human-eval)", summary="164 functions to complete; for tests only",
    )  # fmt: skip


_MORE_TESTS = {"HumanEval/34": "\n    assert candidate([2, 1, 2]) == [1, 2]\n"}
"""The one test of this problem is the example in its prompt, whose answer can be copied."""


def _checked_function(row: Row) -> dict[str, Any]:
    """What the verifier needs where a `check` function tests one that the prompt begins."""
    return {
        "check": row["test"] + _MORE_TESTS.get(row["task_id"], ""),
        "entry_point": row["entry_point"],
        "setup": row["prompt"],
        "prefix": row["prompt"],
    }


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
    sources = {
        key: source
        for key, source in (("train", train), ("validation", validation), ("test", test))
        if source is not None
    }
    left_out: dict[str, str] = {}
    read_as = Counter[str]()
    own_check = Path(checker).read_text(encoding="utf-8") if checker else ""
    if bool(question) != bool(tests):
        raise ValueError("question and tests are both named, or both recognised by the fields")

    def builder(split: str) -> Callable[[Row], Prompt]:
        numbers = itertools.count()

        def build(row: Row) -> Prompt:
            number = next(numbers)
            schema, fields = "", (question, tuple(tests), solution, id)
            if not question:
                schema, fields = program_schema(row)
            asked, tested, solved, named = fields
            read_as[f"{schema}: ".lstrip(": ") + ", ".join((asked, *tested))] += 1
            code = first_program(field(row, solved)) if solved else None
            starter = str(row.get("starter_code") or "").rstrip()
            spec = program_spec(row, tested, f"{starter}\n{code}") | time_limit(row)
            if checker and "stdio" in spec:
                spec["checker"] = own_check
            value = field(row, asked)
            messages = chat(value)
            text = messages[-1]["content"] if messages else plain_text(value)
            text = f"{text.strip()}\n\n{_wanted(spec, starter, str(field(row, tested[0])))}"
            key = plain_text(field(row, named)) if named else f"{split}-{number}"
            made = fenced_prompt(name, key, text, spec, code, style)
            before = tuple(messages[:-1]) if messages and style == "chat" else ()
            return replace(made, text=(*before, *made.text)) if before else made

        return build

    def rows() -> dict[str, list[Prompt]]:
        return {
            key: loader(key, source, builder(key), left_out)() for key, source in sources.items()
        }

    return code_task(
        name, rows, tuple(sources), reward=reward, limit=limit, seed=seed, licence=licence,
        validation_share=validation_share, summary="programs judged by tests",
        keep_repeats=False, left_out=left_out, read_as=read_as,
    )  # fmt: skip


def _wanted(spec: Mapping[str, Any], starter: str, tests: str) -> str:
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
