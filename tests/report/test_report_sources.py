"""Run folders and files of samples: what is read, under which name, and what is refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bestofk.reports.sources import Source, load
from bestofk.runs import Run
from bestofk.samples import unique_names
from report_files import make_file, make_run, write_lines


def every_row(source: Source) -> dict[int, Any]:
    assert source.samples is not None
    return dict(source.fetch(range(source.samples.rewards.size)))


def test_fetched_rows_are_those_of_their_positions(tmp_path: Path) -> None:
    path = make_file(tmp_path, "base", problems=6, n=5)
    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    shuffled = [written[i] for i in np.random.default_rng(0).permutation(len(written))]
    path.write_text("\n" + "".join(json.dumps(row) + "\n" for row in shuffled), encoding="utf-8")
    [source] = load([str(path)])
    samples, rows = source.samples, every_row(source)
    assert samples is not None
    for problem, name in enumerate(samples.problems):
        expected = [row for row in shuffled if row["problem_id"] == name]
        at = samples.of(problem)
        assert [rows[i]["completion"] for i in range(at.start, at.stop)] == [
            row["completion"] for row in expected
        ]
        assert samples.rewards[at].tolist() == [row["reward"] for row in expected]
    some = [3, 17, 29]
    assert source.fetch(some) == {i: rows[i] for i in some}


def test_compressed_file_reads_alike(tmp_path: Path) -> None:
    path = make_file(tmp_path, "base", problems=4, n=3)
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    [plain], [zipped] = load([str(path)]), load([str(packed)])
    assert every_row(plain) == every_row(zipped)


def test_csv_and_parquet_bring_their_texts(tmp_path: Path) -> None:
    rows = [
        {"problem_id": f"p{p}", "completion": f'{p}, "{s}"\nline two', "reward": float(s == p)}
        for p in range(3)
        for s in range(2)
    ]
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="parquet needs pyarrow")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "b.parquet")
    for source in load([str(tmp_path / "a.csv"), str(tmp_path / "b.parquet")]):
        found = [row["completion"] for _, row in sorted(every_row(source).items())]
        assert found == [row["completion"] for row in rows], source.name
        assert source.fact("seed") is None


def test_many_samples_on_one_line_keep_their_order(tmp_path: Path) -> None:
    """lm-evaluation-harness writes all samples of a problem as one record."""
    path = tmp_path / "samples_task.jsonl"
    records = [
        {
            "doc_id": doc,
            "doc": {"question": f"q{doc}"},
            "target": "1",
            "arguments": {"gen_args_0": {"arg_0": f"q{doc}"}},
            "resps": [[f"text {doc} {i}" for i in range(3)]],
            "filtered_resps": [str(i) for i in range(3)],
            "filter": "none",
            "exact_match": [0.0, 1.0, 0.0],
        }
        for doc in range(3)
    ]
    write_lines(path, records)
    [source] = load([str(path)])
    texts = [row.get("completion") for _, row in sorted(every_row(source).items())]
    assert texts == [f"text {doc} {i}" for doc in range(3) for i in range(3)]


def test_named_columns_and_filters_hold_for_texts_too(tmp_path: Path) -> None:
    rows = [
        {"q": p, "mark": s % 2, "other": 7, "words": f"{step} {p} {s}", "step": step, "reward": 0}
        for step in (1, 2)
        for p in range(3)
        for s in range(4)
    ]
    path = write_lines(tmp_path / "own.jsonl", rows)
    columns = {"problem_id": "q", "reward": "mark", "completion": "words"}
    [source] = load([str(path)], columns=columns, where={"step": "2"})
    texts = [row["completion"] for _, row in sorted(every_row(source).items())]
    assert texts == [f"2 {p} {s}" for p in range(3) for s in range(4)]
    assert source.samples is not None
    assert source.samples.rewards.tolist() == [0, 1, 0, 1] * 3


def test_seeds_models_and_tasks_are_taken_from_the_file(tmp_path: Path) -> None:
    path = make_file(tmp_path, "base", problems=2, n=2, seed=3)
    [source] = load([f"start={path}"])
    assert source.name == "start"
    assert source.fact("seed") == "3"
    assert source.fact("model") == "made-up/base"
    assert source.fact("sampling") == "temperature 1.0"
    text = path.read_text(encoding="utf-8").replace('"seed": 3', '"note": "\\"seed\\": 9"')
    path.write_text(text, encoding="utf-8")
    [without] = load([str(path)])
    assert without.fact("seed") is None  # quoted inside a text: not a field


def test_names_are_as_short_as_they_can_be() -> None:
    assert unique_names([Path("x/a.jsonl"), Path("y/a.jsonl"), Path("b.csv")]) == [
        "x/a",
        "y/a",
        "b",
    ]
    assert unique_names([Path("runs/max@8"), Path("runs/lr=1e-4.v2")]) == ["max@8", "lr=1e-4.v2"]


def test_same_name_twice_is_refused(tmp_path: Path) -> None:
    path = make_file(tmp_path, "base", problems=2, n=2)
    with pytest.raises(ValueError, match=r"two runs are called 'a' .*base=a\.jsonl"):
        load([f"a={path}", f"a={path}"])


def test_missing_file_is_named_with_what_is_near(tmp_path: Path) -> None:
    make_file(tmp_path, "base", problems=2, n=2)
    with pytest.raises(FileNotFoundError, match=r"bsae\.jsonl; did you mean .base\.jsonl.\?"):
        load([str(tmp_path / "bsae.jsonl")])
    with pytest.raises(ValueError, match="at least one"):
        load([])


def test_empty_and_broken_files_name_the_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(ValueError, match=r"empty\.jsonl"):
        load([str(empty)])
    path = make_file(tmp_path, "base", problems=2, n=2)
    path.write_text(path.read_text(encoding="utf-8")[:-30], encoding="utf-8")
    with pytest.raises(ValueError, match=r"base\.jsonl, line 4: .*cut off"):
        load([str(path)])


def test_run_folder_brings_metrics_settings_and_its_newest_samples(tmp_path: Path) -> None:
    [source] = load([str(make_run(tmp_path / "a"))])
    assert source.name == "a"
    assert source.config == {
        "objective": "max@8",
        "run.seed": 7,
        "model.path": "tiny",
        "sampling.samples_per_prompt": 3,
    }
    assert source.fact("seed") == "7"
    assert source.fact("model") == "tiny, step 5"
    assert len(source.metrics) == 10
    assert source.samples is not None
    assert source.samples.problems == ("p0", "p1", "p2")
    assert every_row(source)[4]["completion"] == "step 5 p1 s1"
    assert "training step 5" in source.notes[0]


def test_evaluated_samples_are_preferred_to_rollouts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / "evaluations").mkdir()
    make_file(tmp_path, "base", problems=3, n=4).rename(run / "evaluations" / "000005.jsonl")
    [source] = load([str(run)])
    assert source.notes == ()
    assert source.samples is not None
    assert source.samples.rewards.size == 12
    assert len(source.metrics) == 10


def test_run_without_samples_is_read_and_one_without_anything_refused(tmp_path: Path) -> None:
    [source] = load([str(make_run(tmp_path / "a", samples=False))])
    assert source.samples is None
    assert (source.fact("model"), source.fact("seed")) == ("tiny", "7")
    Run.create(tmp_path / "b", 'objective = "mean"\n', {}).close()
    with pytest.raises(ValueError, match="empty run"):
        load([str(tmp_path / "b")])
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match="without samples"):
        load([str(tmp_path / "c")])
