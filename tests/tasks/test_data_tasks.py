"""Tasks from data: every file format, declarations, splits that cannot leak, well-known sets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bestofk.rewards import prepare, verifier
from bestofk.tasks import task
from bestofk.tasks.data_rows import read
from bestofk.tasks.dataset import dataset
from bestofk.tasks.schemas import first_program, program_spec
from bestofk.types import Prompt
from task_files import write

ROWS = [{"question": f"What is {i} + {i}?", "answer": f"twice: #### {2 * i}"} for i in range(300)]
TEMPLATE = {"prompt": "{question} Box it.", "answer": "answer", "answer_after": "####"}
needs_data = pytest.mark.skipif(
    "BESTOFK_DATA" not in os.environ, reason="BESTOFK_DATA names no data folder"
)


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.jsonl.gz", "a.json", "a.json.gz", "a.csv", "a.csv.gz", "a.parquet", "A.JSONL"],
)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    rows = [
        {"question": 'a "quoted",\nline\u2028é', "answer": "1"},
        {"question": "b", "answer": "2"},
    ]
    assert read(write(tmp_path, name, rows)) == rows


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": ', "line 2: the line is cut off"),
        ("a.jsonl", "[1]\n", "line 1: a line is one JSON object"),
        ("a.json", '{"a": 1}', "list of objects"),
        ("a.txt", "hello", "data files end in"),
    ],
)
def test_bad_files_say_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no data file"):
        read(tmp_path / "absent.jsonl")


@pytest.mark.filterwarnings("ignore")
def test_the_hub_is_read_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the shape of a Hub repository, loaded by the real library without a network."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    repository = tmp_path / "repository"
    repository.mkdir()
    write(repository, "train.jsonl", ROWS[:5])
    write(repository, "test.jsonl", ROWS[5:8])
    assert read(f"hub:{repository}") == ROWS[:5]
    assert read(f"hub:{repository}@test") == ROWS[5:8]


def test_a_declaration_makes_a_task_whose_references_score_one() -> None:
    made = task(
        "dataset", train=ROWS, **TEMPLATE, name="doubles", system="Be brief.", licence="MIT"
    )
    assert made.licence == "MIT"
    prompt = made.split("train")[0]
    assert isinstance(prompt.text, tuple)
    assert [m["role"] for m in prompt.text] == ["system", "user"]
    assert prompt.text[1]["content"].endswith("? Box it.")
    with verifier(made.verifier, **made.verifier_options) as judge:
        for split in made.splits:
            assert len(prepare(judge, made.split(split)[:])) == len(made.split(split))


def texts(prompts: Any) -> set[str]:
    return {p.text if isinstance(p.text, str) else p.text[-1]["content"] for p in prompts}


def test_splits_cut_from_train_are_disjoint_complete_and_stable() -> None:
    made = task("dataset", train=ROWS, **TEMPLATE, validation_share=0.2, test_share=0.2)
    splits = {name: texts(made.split(name)) for name in made.splits}
    assert set(splits) == {"train", "validation", "test"}
    assert sum(map(len, splits.values())) == len(ROWS) == len(set().union(*splits.values()))
    assert 30 <= len(splits["test"]) <= 90
    fewer = task("dataset", train=ROWS[:200], **TEMPLATE, validation_share=0.2, test_share=0.2)
    for name in splits:  # rows that are added later move nobody
        assert texts(fewer.split(name)) <= splits[name]


def test_a_problem_in_test_is_taken_out_of_train_however_it_is_spaced() -> None:
    noisy = [dict(row, question=row["question"].replace(" ", "  ")) for row in ROWS[:50]]
    made = task("dataset", train=noisy + ROWS, test=ROWS[:50], **TEMPLATE, validation_share=0.0)
    assert made.splits == ("train", "test")
    assert len(made.split("test")) == 50
    assert texts(made.split("train")) == texts(made.split("train")) - texts(made.split("test"))
    assert len(made.split("train")) == 250


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "at least one source: train"),
        ({"train": ROWS, "prompt": "{qestion}"}, "did you mean 'question'"),
        ({"train": ROWS, "prompt": "{question", "answer": "answer"}, "template is text with"),
        ({"train": ROWS, "prompt": "{question}", "answer": "anser"}, "did you mean 'answer'"),
        ({"train": ROWS, "prompt": "x", "answer": "answer", "answer_after": "@@"}, "no '@@' in"),
        ({"train": ROWS, "prompt": "{question}", "id": "answers"}, "did you mean 'answer'"),
        ({"train": ROWS, "verifer": "maths"}, "did you mean 'verifier'"),
        ({"train": ROWS, "test_share": 1.0}, "leave something for train"),
        ({"train": ROWS, "limit": 0}, "limit is at least 1"),
        ({"train": [{**r, "id": 1} for r in ROWS[:9]], "prompt": "{question}", "id": "id"}, "two"),
    ],
)
def test_a_mistyped_declaration_says_what_to_type(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task("dataset", **options).split("train")


def test_math_reads_levels_and_boxes(tmp_path: Path) -> None:
    rows = [
        {
            "problem": f"p{i}",
            "solution": rf"\boxed{{\frac{{{i}}}{{7}}}}",
            "level": [f"Level {i % 5 + 1}", i % 5 + 1.0, f"{i % 5 + 1}.0", str(i % 5 + 1)][i % 4],
        }
        for i in range(100)
    ]
    source = write(tmp_path, "math.jsonl", rows)
    test = write(tmp_path, "test.jsonl", [row | {"problem": f"t{row['problem']}"} for row in rows])
    made = task("math", train=source, test=test, levels=(4, 5))
    assert len(made.split("test")) == 40
    assert prepare(verifier("maths"), made.split("test")[:])
    assert made.licence.startswith("MIT")


def test_cases_of_stdin_programs_in_every_usual_shape() -> None:
    wanted = [{"input": "1\n", "output": "2\n"}]

    def cases(tests: Any) -> Any:
        return program_spec({"tests": tests}, ["tests"])["stdio"]

    assert cases(wanted) == wanted
    assert cases({"input": ["1\n"], "output": ["2\n"]}) == wanted
    assert cases(json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})) == wanted
    assert cases([{"input": ["1", ""], "output": ["2", ""]}]) == wanted
    with pytest.raises(ValueError, match="is text or a list"):
        cases([{"input": 1, "output": "2"}])
    with pytest.raises(ValueError, match="argument"):
        cases({"inputs": ["1"], "outputs": []})
    assert first_program({"language": [2, 3], "solution": ["c++", "python"]}) == "python"
    assert first_program({"language": [2], "solution": ["c++"]}) is None
    assert first_program('["a", "b"]') == "a"
    assert first_program("") is None


def number_of(prompt: Prompt) -> int:
    return int(prompt.id.rpartition("/")[2])


@needs_data
def test_training_on_mbpp_or_mbppplus_leaks_into_no_test_of_either() -> None:
    sets = [task("mbpp"), task("mbppplus")]
    train = {number_of(p) for made in sets for p in made.split("train")[:]}
    for other in ("validation", "test", "prompt"):
        held_out = {number_of(p) for made in sets for p in made.split(other)[:]}
        assert held_out
        assert not train & held_out
    assert len(sets[1].split("train")) == 103
    shown = sets[0].split("test")[0]
    text = shown.text if isinstance(shown.text, str) else shown.text[0]["content"]
    assert not any(test in text for test in shown.spec["asserts"])  # what is shown is not graded


@needs_data
@pytest.mark.parametrize("name", ["gsm8k", "mbpp", "mbppplus", "humaneval", "leetcode"])
def test_well_known_sets_say_their_licence_and_keep_their_splits_apart(name: str) -> None:
    made = task(name)
    assert "(" in made.licence
    ids: set[str] = set()
    problems: set[str] = set()
    for split in made.splits:
        prompts = made.split(split)[:]
        new = {p.id for p in prompts}
        assert len(new) == len(prompts)
        assert not ids & new
        assert not problems & texts(prompts)
        ids |= new
        problems |= texts(prompts)
        assert all(p.reference for p in prompts)
        json.dumps([p.spec for p in prompts])


@pytest.mark.parametrize("name", ["math", "gsm8k", "mbpp", "leetcode", "codecontests"])
def test_a_task_reads_nothing_before_a_split_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("BESTOFK_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    assert task(name).splits
    with pytest.raises((ValueError, OSError)):  # there is nothing to read
        task(name).split("train")


def test_a_function_with_a_builtins_name_is_the_programs(tmp_path: Path) -> None:
    """MBPP 126 asks for `sum`; in 912 `int` is only wrapped around the function under test."""
    common = {"text": "t", "test_setup_code": ""}
    sum_ = {"code": "def sum(a, b):\n    return a", "test_list": ["assert sum(10, 15) == 10"] * 3}
    int_ = {"code": "def f(a):\n    return a", "test_list": ["assert int(f(5)) == 5"] * 3}
    rows = [common | {"task_id": 126} | sum_, common | {"task_id": 127} | int_]
    made = task("mbpp", path=str(write(tmp_path, "mbpp.jsonl", rows)))
    first, second = made.split("test")
    assert first.spec["entry_point"] == "sum"
    assert "entry_point" not in second.spec
    with verifier("code", workers=1) as judge:
        assert judge([first, second], [str(p.reference) for p in (first, second)])[0].reward == 1.0


def test_folders_that_datasets_saved_and_arrow_files_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": f"question {i}", "answer": i} for i in range(6)]
    table = datasets.Dataset.from_list(rows)
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=table, test=table.select([5])).save_to_disk(tmp_path / "several")
    (arrow,) = (tmp_path / "one").glob("*.arrow")
    assert read(tmp_path / "one") == rows
    assert read(arrow) == rows
    assert read(tmp_path / "several") == rows
    assert read(f"{tmp_path}/several@test") == read(tmp_path / "several", "test") == rows[5:]
    assert read(table) == rows
    assert read(datasets.DatasetDict(train=table)) == rows
    with pytest.raises(ValueError, match=r"no split 'dev'.*it has train, test"):
        read(f"{tmp_path}/several@dev")
    with pytest.raises(ValueError, match="save_to_disk"):
        read(tmp_path)


def test_an_arrow_file_of_either_layout_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [1, 2]})
    for layout, writer in (("file", pyarrow.ipc.new_file), ("stream", pyarrow.ipc.new_stream)):
        path = tmp_path / f"{layout}.arrow"
        with writer(str(path), table.schema) as sink:
            sink.write_table(table)
        assert read(path) == [{"a": 1}, {"a": 2}]


def test_a_reward_function_of_the_users_gets_every_field() -> None:
    rows = [{"prompt": "q", "answer": 4, "unit": "m", "when": object()}]
    shares: dict[str, Any] = {"validation_share": 0.0, "test_share": 0.0}
    own = dataset(train=rows, verifier="my.py:reward", **shares).split()[0]
    assert own.spec == {"prompt": "q", "answer": 4, "unit": "m"}
    assert dataset(train=rows, answer="answer", **shares).split()[0].spec == {"expected": "4"}


def test_too_few_rows_to_hold_some_out_say_so() -> None:
    task = dataset(
        train=[{"prompt": f"q{i}", "answer": i} for i in range(3)], validation_share=1e-9
    )
    with pytest.raises(ValueError, match=r"no prompt in split 'validation'.*\(.*train\)"):
        task.split("validation")


def test_a_split_whose_problems_are_all_in_another_says_so() -> None:
    rows = [{"prompt": f"q{i}", "answer": i} for i in range(3)]
    task = dataset(train=rows, test=rows, validation_share=0.0)
    with pytest.raises(
        ValueError, match=r"'train' \(3 rows were a prompt that another split has\)"
    ):
        task.split("train")
