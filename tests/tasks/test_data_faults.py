"""Data that is not what a declaration says: refused with the file, the row and the way out."""

from __future__ import annotations

import gzip
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from bestofk.cli import main
from bestofk.models import load_tokenizer
from bestofk.rewards import prepare, verifier
from bestofk.tasks import task
from bestofk.tasks.data_rows import WELL_KNOWN, read
from bestofk.training.resolve import ModelFacts
from bestofk.training.task_setup import with_fitting_prompts

WHOLE: dict[str, Any] = {"validation_share": 0, "test_share": 0}


def made(rows: Any, **options: Any) -> Any:
    known = {"prompt": "{q}", "answer": "a", "verifier": "exact", **WHOLE}
    return task("dataset", train=rows, **known | options).split("train")[:]


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, ["5", "6"], b"5"])
@pytest.mark.parametrize("judge", ["maths", "exact"])
def test_what_is_no_answer_is_refused_by_row(bad: Any, judge: str) -> None:
    """Written as Python writes it, "None" or "nan" would be an answer that pays."""
    rows = [{"q": "1", "a": "1"}, {"q": "2", "a": bad}]
    with pytest.raises(ValueError, match=r"train, row 2: field 'a': text, a finite number or a bo"):
        made(rows, verifier=judge)
    with pytest.raises(ValueError, match="train, row 2: field 'a'"):
        made(rows, verifier=judge, answer=None, spec={"expected": "a"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", "7"),
        (7, "7"),
        (True, "True"),
        (0.5, "0.5"),
        (1e30, "1" + "0" * 30),
        (1e-7, "0.0000001"),
        (Decimal("1E+3"), "1000"),
    ],
)
def test_numbers_are_written_out(value: Any, expected: str) -> None:
    (prompt,) = made([{"q": "1", "a": value}])
    assert prompt.spec == {"expected": expected}
    assert prepare(verifier("exact"), [prompt]) == [prompt]


def test_a_short_row_of_a_csv_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("q,a\n1,1\n2\n")
    with pytest.raises(ValueError, match=r"a\.csv, line 3: 1 field, but the header names 2"):
        made(tmp_path / "a.csv")


@pytest.mark.parametrize("bad", [None, math.nan])
def test_a_prompt_or_an_id_is_not_null(bad: Any) -> None:
    with pytest.raises(ValueError, match="train, row 1: the field 'q' is null"):
        made([{"q": bad, "a": "1"}])
    with pytest.raises(ValueError, match="train, row 1: field 'i': "):
        made([{"q": "1", "a": "1", "i": bad}], id="i")


def test_a_row_without_a_reference_has_none() -> None:
    first, second = made(
        [{"q": "1", "a": "1", "s": None}, {"q": "2", "a": "1", "s": "7"}], reference="<answer>{s}"
    )
    assert (first.reference, second.reference) == (None, "<answer>7")


@pytest.mark.parametrize("template", ["{q[x]}", "{q.x}", "{q:.2f}", "{}", "{0}", "{q!z}", "{q"])
@pytest.mark.parametrize("value", [None, "text", ["a"]])
def test_a_template_that_cannot_be_filled_says_so(template: str, value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"train, row 1: (the prompt template is text|the field|unk)"
    ):
        made([{"q": value, "a": "1"}], prompt=template)


def test_a_missing_field_is_named_with_its_row() -> None:
    with pytest.raises(ValueError, match=r"train, row 2: unknown field of the data 'a'; .*have q"):
        made([{"q": "1", "a": "1"}, {"q": "2"}])


def test_the_answer_is_stated_once() -> None:
    with pytest.raises(ValueError, match=r"got both answer and spec\.expected"):
        made([{"q": "1", "a": "1"}], spec={"expected": "q"})


@pytest.mark.parametrize("share", [math.nan, -0.1, 1.0, math.inf])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="leave something for train"):
        made([{"q": "1", "a": "1"}], validation_share=share)


def test_the_same_problem_under_two_ids_stays_once() -> None:
    rows = [
        {"q": "one", "a": "1", "i": 1},
        {"q": "one ", "a": "1", "i": 2},
        {"q": "two", "a": "2", "i": 3},
    ]
    assert [p.id for p in made(rows, id="i")] == ["dataset/1", "dataset/3"]
    assert [p.spec["expected"] for p in made(rows)] == ["1", "2"]
    rows[1]["a"] = "I"  # judged otherwise: as the data says, two problems
    assert [p.id for p in made(rows, id="i")] == ["dataset/1", "dataset/2", "dataset/3"]


def test_a_lone_surrogate_is_text_like_any_other() -> None:
    first, second = made([{"q": "\ud800", "a": "1"}, {"q": "\ud801", "a": "1"}])
    assert first.id != second.id


def test_a_prompt_in_csv_may_be_long(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text("q,a\n" + "x" * 300_000 + ",1\n")
    [prompt] = made(str(file))
    assert len(str(prompt.text)) >= 300_000


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.jsonl", '{"q": 1}'.encode("utf-16"), "line 1: not utf-8 text"),
        ("a.csv", "q,a\né,1".encode("latin-1"), "not utf-8 text"),
        ("a.json", b'[{"q": 1},', "not JSON"),
        ("a.jsonl.gz", b"no gzip", "line 1: "),
        ("a.jsonl.gz", gzip.compress(b'{"q": 1}' * 99)[:-9], "cut off or damaged"),
        ("a.jsonl.gz", gzip.compress(b"{}")[:10] + b"\xff" * 20, "cut off or damaged"),
        ("a.csv", b"q,a\n1,2,3\n", "line 2: 3 fields, but the header names 2"),
        ("a.csv", b'q,a\n"1"2,3\n', "line 2: "),
        ("a.parquet", b"no parquet", "not a parquet file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "raw",
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_a_small_file_does_not_unpack_to_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOFK_MAX_UNPACKED", "1000000")
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"q": "1", "a": "1"}\n' * 100_000))
    with pytest.raises(ValueError, match="unpack to more than 1,000,000"):
        read(file)


def test_rows_of_programs_are_refused_by_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": null, "input_output": "[]", "i": 1}')
    named = {"question": "question", "tests": ["i"]}
    for options, message in (
        (named, "tests are all asserts"),
        (named | {"tests": ["tests"]}, "unknown field of the data 'tests'"),
        ({}, "no schema of programming problems has these fields: question, input_output, i"),
    ):
        with pytest.raises(ValueError, match=rf"a\.jsonl, row 1: .*{message}"):
            task("stdio", train=str(tmp_path / "a.jsonl"), **options).split("train")
    (tmp_path / "m.jsonl").write_text('{"problem": "p", "solution": "no box"}')
    with pytest.raises(ValueError, match=r"m\.jsonl, row 1: a MATH solution boxes its answer"):
        task("math", train=str(tmp_path / "m.jsonl"), test=str(tmp_path / "m.jsonl")).split("test")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["math", "codecontests", "mbpp", "gsm8k"])
def test_without_the_hub_a_well_known_set_says_where_to_put_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("datasets")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("BESTOFK_DATA", str(tmp_path))
    assert main(["tasks", "show", name, "--no-judge"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert any(f"put {file} into the folder $BESTOFK_DATA ({tmp_path})" in told.err
               for file in WELL_KNOWN if file.startswith(name))  # fmt: skip


def test_prompts_that_are_too_long_for_the_model_are_left_out_and_counted() -> None:
    model = ModelFacts(shape={"context": 64}, tokenizer=load_tokenizer("tiny-countdown"))
    rows = [{"prompt": f"{i} + 1 =", "answer": i + 1} for i in range(30)]
    rows.append({"prompt": "1 + " * 99, "answer": 5})
    apart = {"validation_share": 0.0, "test_share": 0.0, "style": "text", "ask": False}
    made = task("dataset", train=rows, **apart)
    fitting = with_fitting_prompts(made, model, 8)
    assert len(fitting.split("train")) == 30
    size, first, second, *_ = fitting.look("train")
    assert size == "dataset: 30 prompts in split 'train'"
    assert first == "dataset: 31 rows read as prompt=prompt, answer=answer"
    assert second == "dataset: 1 left out: 1 × the prompt is too long for the model"
    too_many = with_fitting_prompts(task("dataset", train=rows, **apart), model, 60)
    with pytest.raises(
        ValueError, match=r"max_new_tokens = 60, and the model has positions for 64"
    ):
        too_many.split("train")
    made = task("countdown", style="compact")
    generated = with_fitting_prompts(made, model, 44)
    assert [p.id for p in generated.split("train")[:50]] == [p.id for p in made.split("train")[:50]]
    with pytest.raises(ValueError, match="lower it to at most 5"):
        with_fitting_prompts(made, model, 60).split("train")[0]


def test_a_file_whose_folder_holds_an_at_sign_is_read(tmp_path: Path) -> None:
    """Beside a folder of the name before the sign, which names no split of it then."""
    (tmp_path / "run-max").mkdir()
    (tmp_path / "run-max@8").mkdir()
    file = tmp_path / "run-max@8" / "rows.jsonl"
    file.write_text('{"a": 1}\n')
    assert read(file) == [{"a": 1}]
    assert read(str(file.parent / "*.jsonl")) == read(file.parent) == [{"a": 1}]


def test_columns_in_the_place_of_rows_are_named() -> None:
    with pytest.raises(ValueError, match=r"dict of columns \(prompt, answer\), and rows"):
        read({"prompt": ["a", "b"], "answer": [1, 2]})
    assert read({"train": [{"a": 1}], "test": []}, "test") == []
