"""The field's files: recognised by their fields, judged rightly, and no row misread in silence."""

from __future__ import annotations

import base64
import json
import pickle
import re
import shlex
import zlib
from pathlib import Path
from typing import Any

import pytest

from bestofk.cli import main
from bestofk.rewards import verifier
from bestofk.rewards.code.prepared_tests import slowness
from bestofk.sampling.prompts import encode
from bestofk.tasks import task
from bestofk.tasks.data_rows import read
from bestofk.tasks.schemas import packed_tests
from task_files import SHORT, long_model, write

WHOLE: dict[str, Any] = {"validation_share": 0.0, "test_share": 0.0}
ASK = [{"role": "user", "content": "What is 30 + 4?"}]
BOXED = r"We add and find $\boxed{34}$."
ANSWERS: dict[str, dict[str, Any]] = {
    "verl": {
        "data_source": "d", "prompt": ASK, "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "34"}, "extra_info": {"index": 1},
    },
    "SYNTHETIC-1": {"prompt": "What is 30 + 4?", "verification_info": "{'ground_truth': '34'}"},
    "PrimeIntellect": {"prompt": "What is 30 + 4?", "verification_info": '{"ground_truth": "34"}'},
    "Numina": {"problem": "What is 30 + 4?", "solution": BOXED, "answer": "34"},
    "MATH": {"problem": "What is 30 + 4?", "solution": BOXED},
    "GSM8K": {"question": "What is 30 + 4?", "answer": "30 + 4 = 34\n#### 34"},
    "messages": {"messages": [*ASK, {"role": "assistant", "content": BOXED}], "answer": 34},
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "What is 30 + 4?"},
                          {"from": "gpt", "value": BOXED}],
        "answer": "34",
    },
    "OpenRLHF": {"input": ASK, "label": "34"},
    "Alpaca": {"instruction": "What is", "input": "30 + 4?", "answer": "34"},
}  # fmt: skip


def split_of(row: dict[str, Any], name: str = "dataset", count: int = 1, **options: Any) -> Any:
    rows = [row] if count == 1 else [row | {"nr": i} for i in range(count)]
    shares = WHOLE if name == "dataset" else {"validation_share": 0.0}
    return task(name, train=rows, **shares | options).split("train")


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_found_and_never_shown(name: str) -> None:
    [prompt] = split_of(ANSWERS[name])
    assert prompt.spec == {"expected": "34"}
    assert all(message["role"] == "user" for message in prompt.text)
    text = " ".join(message["content"] for message in prompt.text)
    asked, _, form = " ".join(text.split()).partition("? ")
    assert (asked, form) == ("What is 30 + 4", r"Give the final answer in \boxed{}.")
    [bare] = split_of(ANSWERS[name], ask=False)
    assert (bare.id, "boxed" in str(bare.text)) == (prompt.id, False)
    [own] = split_of(ANSWERS[name], system="Box the answer.")
    assert "Give the final" not in str(own.text)
    with verifier("maths") as judge:
        [right, wrong] = judge([prompt] * 2, [r"\boxed{34}", r"\boxed{35}"])
    assert (right.reward, wrong.reward) == (1.0, 0.0)


def test_a_data_frame_of_verl_rows_is_read_like_its_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([ANSWERS["verl"]])
    frame.to_parquet(tmp_path / "verl.parquet")
    again = pandas.read_parquet(tmp_path / "verl.parquet")  # lists come back as arrays
    made = [task("dataset", train=source, **WHOLE).split("train")[0]
            for source in (frame, again, str(tmp_path / "verl.parquet"))]  # fmt: skip
    assert [prompt.text for prompt in made] == [made[0].text] * 3
    assert not isinstance(made[0].text, str)
    assert made[0].text[0]["content"].startswith(ASK[0]["content"])


@pytest.mark.parametrize(
    ("options", "row", "expected"),
    [
        ({"answer": "solution"}, {"prompt": "q", "solution": BOXED}, "34"),
        ({"answer": "s", "answer_after": r"\boxed{"},
         {"prompt": "q", "s": r"So $\boxed{\frac{1}{2}}$."}, r"\frac{1}{2}"),
        ({"answer": "a.b"}, {"prompt": "q", "a": {"b": 7}}, "7"),
    ],
)  # fmt: skip
def test_the_answer_of_a_worked_solution_is_its_box(
    options: dict[str, Any], row: dict[str, Any], expected: str
) -> None:
    assert split_of(row, **options)[0].spec == {"expected": expected}


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"prompt": "q", "answer": {"ground_truth": "4"}}, {}, r"name one of answer\.ground_truth"),
        ({"prompt": "q", "answer": "and so on " * 40}, {}, "reads like a worked solution"),
        ({"prompt": "q"}, {}, "compares with an answer, and none of the fields"),
        ({"text": "q", "answer": "1"}, {}, r"is known to hold a question .*\{text\}"),
        ({"prompt": "q", "answer": "proof"}, {}, "1 of 1 rows cannot be used.*no answer"),
        ({"prompt": ASK, "answer": "1"}, {"prompt": "Q: {prompt}"}, "which is no text"),
    ],
)
def test_what_is_no_answer_or_question_is_said(
    row: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        split_of(row, **options)


def test_a_few_rows_without_an_answer_are_left_out_and_counted() -> None:
    rows = [{"prompt": f"q{i}", "answer": i} for i in range(29)]
    for nothing in ("proof", "notfound", ""):
        made = task("dataset", train=[*rows, {"prompt": "p", "answer": nothing}], **WHOLE)
        assert len(made.split("train")) == 29
        assert list(made.left_out) == ["train, row 30"]


def test_the_whole_prompt_identifies_a_problem() -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"{i} + 1?"},
                    {"role": "assistant", "content": "<think>"}], "answer": i + 1}
        for i in range(200)
    ]  # fmt: skip
    made = task("dataset", train=rows)
    assert sum(len(made.split(split)) for split in made.splits) == 200
    assert made.split("train")[0].text[-1] == {"role": "assistant", "content": "<think>"}
    twice = task("dataset", train=[{"prompt": "q", "answer": "4"}, {"prompt": "q", "answer": 4.0}],
                 **WHOLE)  # fmt: skip
    assert [prompt.spec["expected"] for prompt in twice.split("train")] == ["4"]
    assert list(twice.left_out.values()) == ["a prompt that came before, with another answer"]


def test_a_prefill_is_continued() -> None:
    class Tokenizer:
        chat_template, eos_token_id = "", 0

        def apply_chat_template(self, messages: Any, **options: Any) -> Any:
            assert options["add_generation_prompt"] is (messages[-1]["role"] == "user")
            assert options["continue_final_message"] is (messages[-1]["role"] == "assistant")
            return {"input_ids": [1]}

    begun = {"prompt": [*ASK, {"role": "assistant", "content": "<think>"}], "answer": "34"}
    for row in (begun, ANSWERS["verl"]):
        assert encode(Tokenizer(), split_of(row)[0]) == (1,)


# ---------------------------------------------------------------------------------------- programs
ADD = "def add(a, b):\n    return a + b\n"
METHOD = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
MAIN = "print(sum(map(int, input().split())))\n"
CASE = {"input": "1 2\r\n", "output": "3\r\n"}
CALL = {"input": "1\n2", "output": "3", "testtype": "functional"}


def packed(tests: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


PROGRAMS: dict[str, tuple[dict[str, Any], str]] = {
    "APPS, stdin": (
        {"question": "Add.", "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}),
         "solutions": json.dumps([MAIN])}, MAIN),
    "APPS, fn_name": (
        {"question": "Add.", "starter_code": "", "solutions": json.dumps([ADD]),
         "input_output": json.dumps(
             {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]})}, ADD),
    "TACO, class": (
        {"question": "Add.", "starter_code": "class Solution:\n    def add(self, a, b):",
         "input_output": {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}}, METHOD),
    "DeepCoder": (
        {"problem": "Add.", "solutions": [METHOD], "starter_code": METHOD.rpartition("\n")[0],
         "tests": json.dumps([CALL | {"metadata": {"func_name": "add"}}])}, METHOD),
    "DeepCoder, function_call": (
        {"problem": "Add.", "solutions": [ADD], "tests": json.dumps(
            [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}])}, ADD),
    "LiveCodeBench, functional": (
        {"question_content": "Add.", "question_id": "1", "metadata": '{"func_name": "add"}',
         "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
         "public_test_cases": json.dumps([CALL]), "private_test_cases": packed([CALL, CALL])},
        METHOD),
    "LiveCodeBench, stdin": (
        {"question_content": "Add.", "question_id": "1", "metadata": "{}", "starter_code": "",
         "public_test_cases": json.dumps([CASE | {"testtype": "stdin"}]),
         "private_test_cases": json.dumps([CASE | {"testtype": "stdin"}])}, MAIN),
    "CodeContests": (
        {"name": "1", "description": "Add.", "solutions": {"language": [3], "solution": [MAIN]},
         **{f"{kind}_tests": {"input": ["1 2\n"], "output": ["3\n"]}
            for kind in ("public", "private", "generated")}}, MAIN),
    "KodCode": (
        {"question": "Write add.", "question_id": "k", "solution": ADD,
         "test": "from solution import add\n\ndef test_small():\n    assert add(1, 2) == 3\n\n"
                 "def test_large():\n    assert add(10, 20) == 30\n"}, ADD),
    "AceCode": (
        {"id": "a", "question": "Write add.",
         "test_cases": ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]}, ADD),
    "SYNTHETIC-1": (
        {"prompt": "Add.", "problem_id": "p", "verification_info": repr(
            {"language": "python", "test_cases": [CASE | {"type": "stdin_stdout"}]})}, MAIN),
    "verl": (
        {"prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Add."}],
         "reward_model": {"ground_truth": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})}},
        MAIN),
    "test_cases": ({"question": "Add.", "test_cases": [CASE]}, MAIN),
}  # fmt: skip


@pytest.fixture(scope="module")
def judge() -> Any:
    with verifier("code", workers=1) as made:
        yield made


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_the_field_are_judged_by_all_their_tests(name: str, judge: Any) -> None:
    row, program = PROGRAMS[name]
    [prompt] = split_of(row, "stdio")
    counts = {"CodeContests": 3, "LiveCodeBench, functional": 3, "LiveCodeBench, stdin": 2,
              "APPS, fn_name": 2, "KodCode": 2, "AceCode": 2}  # fmt: skip
    says_stdin = "reads stdin" in prompt.text[-1]["content"]
    assert says_stdin == ("stdio" in prompt.spec) == (program == MAIN)
    wrong = program.replace("a + b", "a - b").replace("sum", "max")
    right, other = judge([prompt] * 2, [f"```python\n{code}```" for code in (program, wrong)])
    assert (right.reward, right.total) == (1.0, counts.get(name, 1))
    assert other.reward == 0.0
    assert prompt.reference is None or judge([prompt], [prompt.reference])[0].reward == 1.0


PAGE = Path(__file__).parents[2] / "docs" / "your-data.md"
OWN: dict[str, dict[str, Any]] = {
    "your own columns": {"q": "What is 30 + 4?", "a": "34"},
    "your own programs": {"q": "Add.", "t": [CASE]},
}
IDS = ("question_id", "problem_id", "name", "id")
ROWS_OF: dict[str, list[dict[str, Any]]] = {
    **{name: [row] for name, row in (ANSWERS | OWN).items()},
    "verl, DAPO": [ANSWERS["verl"]], "Numina, DeepScaleR, BigMath": [ANSWERS["Numina"]],
    "chat messages": [ANSWERS["messages"]],
    "SYNTHETIC-1, PrimeIntellect": [ANSWERS["SYNTHETIC-1"], ANSWERS["PrimeIntellect"]],
    "APPS, TACO": [PROGRAMS[name][0] for name in ("APPS, stdin", "APPS, fn_name")],
    "SYNTHETIC-1, programs": [PROGRAMS["SYNTHETIC-1"][0]],
    "verl, programs": [PROGRAMS["verl"][0]],
    "LiveCodeBench": [PROGRAMS[f"LiveCodeBench, {kind}"][0] for kind in ("stdin", "functional")],
    **{name: [PROGRAMS[name][0]] for name in ("CodeContests", "DeepCoder", "KodCode", "AceCode")},
}  # fmt: skip
PACKED = {
    ".parquet": ("verl, DAPO", "SYNTHETIC-1, PrimeIntellect", "CodeContests", "DeepCoder",
                 "verl, programs"),
    ".jsonl.gz": ("MATH",), ".json": ("Numina, DeepScaleR, BigMath",),
    ".csv": ("your own columns",),
}  # fmt: skip
ENDING = {format: ending for ending, formats in PACKED.items() for format in formats}
"""Endings of files with which a format is tried; the others are .jsonl."""


def rows_of_the_page() -> list[tuple[str, str, str]]:
    """Format, fields and the command that the page states for it."""
    table = PAGE.read_text(encoding="utf-8").partition("| TASK |\n|---|---|---|\n")[2]
    rows = []
    for line in table.partition("\n\n")[0].splitlines():
        format, fields, said = (cell.strip() for cell in line.strip("|").split(" | "))
        task, _, options = said.replace("`", "").partition(" with ")
        file = f"FILE{ENDING.get(format, '.jsonl')}"
        rows.append((format, fields, f"--task.name {task} --task.options.train {file} {options}"))
    return rows


TABLE = rows_of_the_page()


def words_of(format: str, command: str, folder: Path) -> list[str]:
    """The command with a file of forty rows of that format instead of FILE."""
    rows = []
    for number, row in enumerate(ROWS_OF[format] * 40):
        text = re.sub("(What is|Add[.]|Write add[.])", rf"\1 ({number})", json.dumps(row), count=1)
        rows.append({key: str(number) if key in IDS else value
                     for key, value in json.loads(text).items()})  # fmt: skip
    words = shlex.split(command)
    at = next(i for i, word in enumerate(words) if word.startswith("FILE"))
    words[at] = write(folder, words[at], rows)
    return words


@pytest.mark.parametrize(("format", "fields", "command"), TABLE, ids=[row[0] for row in TABLE])
def test_every_format_of_the_page_is_read_by_its_command(
    format: str, fields: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("BESTOFK_CACHE", str(tmp_path / "cache"))
    words = words_of(format, command, tmp_path)
    options = [
        f"{key.rpartition('.')[2]}={value}"
        for key, value in zip(words[2::2], words[3::2], strict=True)
    ]
    given = [word for option in options for word in ("--option", option)]
    assert main(["tasks", "show", words[1], *given, "--n", "1"]) in (0, 1)  # some have no reference
    said = capsys.readouterr().out
    assert "own" in format or " rows read as " in said
    assert "left out" not in said
    for named in re.findall(r"`([a-z_.]+)`", f"`{fields}`") if "own" not in format else ():
        assert named.partition(".")[0] in json.dumps(ROWS_OF[format])


@pytest.mark.slow
@pytest.mark.parametrize(("format", "fields", "command"), TABLE, ids=[row[0] for row in TABLE])
def test_every_format_of_the_page_trains_two_steps(
    format: str, fields: str, command: str, tmp_path: Path
) -> None:
    words = words_of(format, command, tmp_path)
    model = ["--model.path", str(long_model(tmp_path)), "--run.dir", str(tmp_path / "run")]
    assert main(["train", *words, *SHORT, *model, "--evaluation.every", "0"]) == 0


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"question": "q", "test_cases": []}, {}, "1 of 1 rows cannot be used.*no tests"),
        ({"question": "q", "cases": [CASE]}, {}, "no schema of programming problems has these"),
        ({"question": "q", "a": [CASE], "b": [CASE]}, {"question": "question", "tests": ["a", "c"]},
         "unknown field of the data 'c'"),
        ({"question": "q", "tests": [{"in": "1", "out": "2"}]}, {}, "has input and output"),
        ({"question": "q", "tests": [CALL]}, {}, "no field names it"),
    ],
)  # fmt: skip
def test_tests_that_are_not_there_are_said(
    row: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        split_of(row, "stdio", **options)


def test_one_input_is_not_cut_into_characters() -> None:
    row = {"question": "q", "tests": {"inputs": "1 2\n", "outputs": "3\n"}}
    assert split_of(row, "stdio")[0].spec == {"stdio": [{"input": "1 2\n", "output": "3\n"}]}


def test_a_pickle_is_never_loaded() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            raise AssertionError("loaded")

    harmful = b"cos\nsystem\n(S'true'\ntR."
    text = base64.b64encode(zlib.compress(harmful)).decode()
    with pytest.raises(ValueError, match="this pickle holds something else"):
        packed_tests(text)
    with pytest.raises(ValueError, match="packed as LiveCodeBench"):
        packed_tests("no tests")
    assert packed_tests(packed([CASE])) == [CASE]


def test_folders_patterns_and_tab_separated_files(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "answer": str(i)} for i in range(4)]
    for part in range(2):
        lines = "".join(json.dumps(row) + "\n" for row in rows[2 * part : 2 * part + 2])
        (tmp_path / f"part-{part}.jsonl").write_text(lines)
    assert read(tmp_path) == read(f"{tmp_path}/part-*.jsonl") == rows
    (tmp_path / "rows.tsv").write_text("prompt\tanswer\nq0\t0\n")
    assert read(tmp_path / "rows.tsv") == rows[:1]
    with pytest.raises(ValueError, match=r"several formats \(jsonl, tsv\)"):
        read(tmp_path)


def test_a_block_that_is_cut_off_is_unparsed_whatever_the_tests(judge: Any) -> None:
    for name in ("APPS, stdin", "APPS, fn_name", "AceCode"):
        row, program = PROGRAMS[name]
        [prompt] = split_of(row, "stdio")
        whole, cut = f"```python\n{program}", f"```python\n{program.rstrip()[:-1]} ("
        verdicts = judge([prompt] * 2, [whole, cut])
        assert [verdict.status for verdict in verdicts] == ["correct", "unparsed"]


def test_programs_over_stdin_are_judged_as_most_judges_do(judge: Any) -> None:
    tests = [{"input": "1\n", "output": "0.333333333333\n1 2\n"}]
    rows = {"question": "q", "tests": tests, "time_limit": {"seconds": 7, "nanos": 0}}
    [prompt] = split_of(rows, "stdio")
    assert prompt.spec["time_limit"] == 7.0
    main = "```python\ndef main():\n    input()\n    print(1/3, 1, 2)\n```"
    texts = [f"{main}\nThen:\n```python\nmain()\n```", "```python\nprint('0.33', 1, 2)\n```",
             "```python\nprint(1/3, 12)\n```"]  # fmt: skip
    assert [v.reward for v in judge([prompt] * 3, texts)] == [1.0, 0.0, 0.0]


def test_cpu_time_follows_the_problem_and_its_tests(judge: Any) -> None:
    tests = [{"input": "1\n", "output": "1\n"}] * 100
    for row, each, program in (({}, 4.0, 50.0), ({"time_limit": "9 seconds"}, 9.0, 120.0)):
        [prompt] = split_of({"question": "q", "tests": tests} | row, "stdio")
        limits = judge._limits(judge._prepared(prompt))
        assert limits.cpu_per_test == each * slowness()
        assert limits.cpu_per_program == program * slowness()
    assert slowness() >= 1.0
    strict: Any
    with verifier("code", workers=1, limits={"cpu_per_program": 2.0}) as strict:
        assert strict._limits(strict._prepared(prompt)).cpu_per_program == 2.0
