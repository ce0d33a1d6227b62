"""Files that the tools themselves wrote (tool_files/, with the scripts that wrote them)."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shutil
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bestofk.cli import main
from bestofk.evaluation import compare, curve, read, samples
from bestofk.samples import BadFile, locate, rows
from bestofk.samples.packing import Archive

FILES = Path(__file__).parent / "tool_files"
zstandard = pytest.importorskip("zstandard")


def rewards(run: Any) -> dict[str, list[float | None]]:
    return {
        problem: [None if np.isnan(r) else float(r) for r in run.rewards[run.of(i)]]
        for i, problem in enumerate(run.problems)
    }


def marks_of_inspect() -> dict[str, list[float]]:
    """C and I by problem, epoch after epoch, from the log as inspect_ai wrote it."""
    log = json.loads((FILES / "inspect_match.json").read_text(encoding="utf-8"))
    found: dict[str, list[float]] = {}
    for sample in log["samples"]:
        mark = {"C": 1.0, "I": 0.0}[sample["scores"]["match"]["value"]]
        found.setdefault(str(sample["id"]), []).append(mark)
    return found


MATCH = marks_of_inspect()


@pytest.mark.parametrize(
    "name",
    [
        "inspect_match.eval",
        "inspect_match.json",
        "inspect_samples_df.csv",
        "inspect_samples_df.parquet",
    ],
)
def test_inspect_logs_in_every_form_give_the_same_rewards(name: str) -> None:
    run = read(FILES / name)
    assert rewards(run) == MATCH
    assert run.live.tolist() == [4] * 5
    assert {int(row.fields["sample_id"]) for row in rows(FILES / name)} == {1, 2, 3, 4}


def test_eval_archives_are_compressed_with_zstd_and_keep_texts() -> None:
    log = FILES / "inspect_match.eval"
    with zipfile.ZipFile(log) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {93}
    row = next(iter(rows(log)))
    assert row.fields["completion"].startswith("The answer is")
    assert row.fields["prompt"] == "What is 0 + 0?"
    assert read(log).metadata["model"] == "mockllm/model"


def test_several_scorers_are_a_choice_and_nan_is_unscored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = FILES / "inspect_two_scorers.eval"
    with pytest.raises(BadFile, match=r"score_match, score_length.*--map reward=score_match"):
        read(log)
    assert rewards(read(log, columns={"reward": "score_match"})) == MATCH
    numeric = read(log, columns={"reward": "score_length"})
    assert numeric.unscored == sum("9" in row.fields["completion"] for row in every(log))
    assert set(numeric.rewards[~np.isnan(numeric.rewards)]) == {0.75}
    assert main(["eval", str(log), "--map", "reward=score_match", "--k", "1,4"]) == 0
    assert "pass@4" in capsys.readouterr().out


def every(log: Path) -> list[Any]:
    return list(rows(log, columns={"reward": "score_match"}))


def test_letters_count_as_inspect_counts_them() -> None:
    run = read(FILES / "inspect_graded.eval")
    assert set(run.rewards) <= {0.0, 0.5, 1.0}
    assert (run.rewards == 0.5).any()
    for row in rows(FILES / "inspect_graded.eval"):
        near = abs(int(row.fields["answer"]) - (int(row.problem_id) - 1))
        assert row.reward == {0: 1.0, 1: 0.5}.get(near, 0.0)


def test_a_folder_of_logs_is_the_newest_of_one_evaluation(tmp_path: Path) -> None:
    for name in ("2026-01-01_match.eval", "2026-01-02_match.eval"):
        shutil.copy(FILES / "inspect_match.eval", tmp_path / name)
    assert read(tmp_path).metadata["path"].endswith("2026-01-02_match.eval")
    shutil.copy(FILES / "inspect_graded.eval", tmp_path / "2026-01-03_graded.eval")
    with pytest.raises(BadFile, match=r"several evaluations.*graded on mockllm"):
        read(tmp_path)
    as_json = tmp_path / "json"
    as_json.mkdir()
    shutil.copy(FILES / "inspect_match.json", as_json / "2026-01-01_match.json")
    (as_json / "logs.json").write_text("{}")
    assert rewards(read(as_json)) == MATCH


def test_damaged_logs_say_so(tmp_path: Path) -> None:
    data = (FILES / "inspect_match.eval").read_bytes()
    cut = tmp_path / "cut.eval"
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(BadFile, match="cut off"):
        read(cut)
    bad = tmp_path / "bad.eval"
    with Archive(FILES / "inspect_match.eval") as archive:
        names = archive.zip.namelist()
        entry = archive.zip.getinfo(next(n for n in names if n.startswith("samples/")))
    at = entry.header_offset + 60
    bad.write_bytes(data[:at] + struct.pack("<Q", 0) + data[at + 8 :])
    with pytest.raises(BadFile, match=r"damaged|not JSON"):
        read(bad)
    empty = tmp_path / "empty.eval"
    with zipfile.ZipFile(empty, "w") as made:
        made.writestr("a.txt", "x")
    with pytest.raises(BadFile, match="without an inspect log"):
        read(empty)


def test_without_zstandard_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(BadFile, match=r"pip install 'bestofk\[data\]'"):
        read(FILES / "inspect_match.eval")


def test_lm_eval_with_one_response_uses_its_metric() -> None:
    lines = (FILES / "lm_eval_one_response.jsonl").read_text().splitlines()
    truth = {str(r["doc_id"]): [r["exact_match"]] for r in map(json.loads, lines)}
    assert rewards(read(FILES / "lm_eval_one_response.jsonl")) == truth


def test_lm_eval_responses_that_a_filter_dropped_are_judged_on_request() -> None:
    file = FILES / "lm_eval_take_first.jsonl"
    with pytest.raises(BadFile, match=r"4 responses.*kept 1.*--judge 'regex:"):
        read(file)
    run = read(file, judge=r"regex:answer is (\d+)")
    truth = {}
    for record in map(json.loads, file.read_text().splitlines()):
        said = [text.split()[-1] for text in record["resps"][0]]
        truth[str(record["doc_id"])] = [float(word == record["target"]) for word in said]
        assert truth[str(record["doc_id"])][0] == record["exact_match"]  # lm-eval's own score
    assert rewards(run) == truth
    assert run.answers is not None
    assert (run.answers == -1).sum() == file.read_text().count("I do not know")
    assert read(file, judge="target").rewards.sum() == 0
    for wrong in ("regex:(", "exact"):
        with pytest.raises(BadFile, match="--judge"):
            read(file, judge=wrong)


def test_verifiers_rollouts_sum_their_weighted_rewards() -> None:
    file = FILES / "verifiers_traces.jsonl"
    run = read(file)
    assert run.problems == tuple(f"sum-{i}" for i in range(4))
    assert run.unscored == 1  # a rollout that did not end well
    assert run.live.tolist() == [3] * 4
    for row in rows(file):
        if not np.isnan(row.reward):
            number = row.fields["completion"].removeprefix("It is ").rstrip(".")
            assert row.reward == float(f"sum-{number}" == row.problem_id)
    assert read(file, columns={"reward": "short"}).rewards[0] == 1.0
    with pytest.raises(BadFile, match="no reward function 'long'"):
        read(file, columns={"reward": "long"})


def test_verifiers_results_take_no_reference_answer_for_a_vote() -> None:
    file = FILES / "verifiers_results.jsonl"
    run = read(file)
    assert run.answers is None  # `answer` is the reference
    assert run.unscored == 1  # a rollout with an error
    for row in rows(file):
        if not np.isnan(row.reward):
            number = row.fields["completion"].removeprefix("It is ").rstrip(".")
            assert row.reward == float(number == row.problem_id)


def jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_arrays_of_one_problem_become_samples(tmp_path: Path) -> None:
    records = [
        {"question_id": "a", "graded_list": [True, False, True], "output_list": ["x", "y", "z"]},
        {"question_id": "b", "graded_list": [False, False], "output_list": ["u", "v"]},
    ]
    run = read(jsonl(tmp_path / "arrays.jsonl", records))
    assert rewards(run) == {"a": [1.0, 0.0, 1.0], "b": [0.0, 0.0]}
    assert [row.fields["completion"] for row in rows(tmp_path / "arrays.jsonl")] == list("xyzuv")
    graded = jsonl(tmp_path / "r.jsonl", [{"id": i, "rewards": [0.2, 0.4]} for i in range(2)])
    assert read(graded).rewards.tolist() == [0.2, 0.4, 0.2, 0.4]
    records[1]["output_list"] = ["u"]
    with pytest.raises(BadFile, match=r"'output_list' has 1 entries and 'graded_list' 2"):
        read(jsonl(tmp_path / "short.jsonl", records))


def test_counts_become_samples_and_odd_names_are_mapped(tmp_path: Path) -> None:
    counts = jsonl(tmp_path / "c.jsonl", [{"Task ID": "a", "n": 4, "c": 1}])
    assert rewards(read(counts)) == {"a": [1.0, 0.0, 0.0, 0.0]}
    odd = jsonl(tmp_path / "odd.jsonl", [{"Q": 1, "Right": 2, "Tries": 3}])
    mapped = {"problem_id": "Q", "n": "Tries", "c": "Right"}
    assert rewards(read(odd, columns=mapped)) == {"1": [1.0, 1.0, 0.0]}
    assert main(["eval", str(odd), "--map", "problem_id=Q,n=Tries,c=Right"]) == 0
    wrong = jsonl(tmp_path / "w.jsonl", [{"id": "a", "n": 4, "c": 5}])
    with pytest.raises(BadFile, match="0 ≤ c ≤ n"):
        read(wrong)


def test_capitals_do_not_matter(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", [{"Problem_ID": "a", "Is Correct": True}])
    assert rewards(read(file)) == {"a": [1.0]}


PLAIN = [{"id": f"q{i // 4}", "completion": f"t{i}", "correct": i % 3 == 0} for i in range(24)]


def test_compressed_files_are_known_by_what_they_hold(tmp_path: Path) -> None:
    plain = jsonl(tmp_path / "a.jsonl", PLAIN)
    truth = rewards(read(plain))
    data = plain.read_bytes()
    for name, packed in (
        ("b.jsonl.zst", zstandard.compress(data)),
        ("c.jsonl.gz", gzip.compress(data)),
        ("d.jsonl.bz2", bz2.compress(data)),
        ("e.jsonl.xz", lzma.compress(data)),
        ("gzip-named.jsonl", gzip.compress(data)),
        ("zstd-named.jsonl", zstandard.compress(data)),
        ("frames.jsonl.zst", zstandard.compress(data[:50]) + zstandard.compress(data[50:])),
    ):
        (tmp_path / name).write_bytes(packed)
        assert rewards(read(tmp_path / name)) == truth, name
    for module, suffix in ((zstandard, "zst"), (bz2, "bz2"), (lzma, "xz")):
        cut = tmp_path / f"cut.jsonl.{suffix}"
        cut.write_bytes(module.compress(data)[:40])
        with pytest.raises(BadFile, match=r"cut off|damaged|holds no sample"):
            read(cut)


LINES = b'{"id": "q", "correct": true}\n' * 300_000


@pytest.mark.parametrize(("module", "suffix"), [(gzip, "gz"), (zstandard, "zst"), (lzma, "xz")])
def test_a_packed_file_unpacks_to_a_bound_that_can_be_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, suffix: str
) -> None:
    bomb = tmp_path / f"bomb.jsonl.{suffix}"
    bomb.write_bytes(module.compress(LINES))
    monkeypatch.setenv("BESTOFK_MAX_UNPACKED", "1e6")
    with pytest.raises(BadFile, match=r"bytes unpack to more than 1,000,000,.*MAX_UNPACKED"):
        read(bomb)
    monkeypatch.setenv("BESTOFK_MAX_UNPACKED", str(len(LINES)))
    assert read(bomb).rewards.size == 300_000
    monkeypatch.setenv("BESTOFK_MAX_UNPACKED", "much")
    with pytest.raises(ValueError, match=r"\$BESTOFK_MAX_UNPACKED is a number of bytes"):
        read(bomb)


def test_by_default_a_packed_file_may_unpack_to_fifty_times_its_size(tmp_path: Path) -> None:
    large = tmp_path / "large.jsonl.gz"
    line = b'{"id": "q", "correct": true, "text": "' + b"x" * 1_000_000 + b'"}\n'
    large.write_bytes(gzip.compress(line * 63, 1))
    assert read(large).rewards.size == 63
    large.write_bytes(gzip.compress(line * 65, 1))
    with pytest.raises(BadFile, match="more than 64,000,000,"):
        read(large)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, 93])
def test_a_log_unpacks_to_a_bound_over_all_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    with Archive(FILES / "inspect_match.eval") as archive:
        names = [info.filename for info in archive.zip.infolist() if not info.is_dir()]
        entries = {name: archive.load(name) for name in names}
    samples = [entry for name, entry in entries.items() if name.startswith("samples/")]
    samples[-1]["messages"] = "x" * 2_000_000
    log = tmp_path / "bomb.eval"
    with zipfile.ZipFile(log, "w", zipfile.ZIP_DEFLATED) as made:
        for name, entry in entries.items():
            made.writestr(name, json.dumps(entry))
    if method == 93:
        log.write_bytes(packed_by_zstd(log))
    assert rewards(read(log)) == MATCH
    monkeypatch.setenv("BESTOFK_MAX_UNPACKED", "2e6")
    with pytest.raises(BadFile, match=r"bomb.eval: its .* bytes unpack to more than 2,000,000,"):
        read(log)


def packed_by_zstd(log: Path) -> bytes:
    """The archive with the same entries, packed by zstd: written as inspect writes them."""
    stored = io.BytesIO()
    with zipfile.ZipFile(log) as archive, zipfile.ZipFile(stored, "w") as made:
        for entry in archive.infolist():
            data = archive.read(entry)
            made.writestr(zipfile.ZipInfo(entry.filename), zstandard.compress(data))
            made.filelist[-1].compress_type = 93
            made.filelist[-1].CRC, made.filelist[-1].file_size = entry.CRC, len(data)
    return stored.getvalue()


def test_a_parquet_file_unpacks_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"id": ["q"] * 700, "completion": ["x" * 10_000] * 700, "correct": [True] * 700}
    bomb = tmp_path / "bomb.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), bomb)
    assert read(bomb).rewards.size == 700
    monkeypatch.setenv("BESTOFK_MAX_UNPACKED", "6e6")
    with pytest.raises(BadFile, match=r"bytes unpack to more than 6,000,000,"):
        read(bomb)


def test_a_file_of_empty_lines_is_an_error(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", PLAIN[:4])
    with file.open("ab") as stream:
        stream.write(b"\n" * 1_000_001)
    with pytest.raises(BadFile, match=r"line 1000005: 1,000,001 empty lines: remove them"):
        read(file)


def test_json_lines_are_read_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = jsonl(tmp_path / "a.jsonl", PLAIN).read_bytes()
    for data in (plain, gzip.compress(plain)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert main(["eval", "-", "--json"]) == 0
        [found] = json.loads(capsys.readouterr().out)
        assert found["name"] == "stdin"
        assert found["curves"][0]["estimate"][0] == pytest.approx(8 / 24)


def test_a_log_of_openai_evals_is_its_matches() -> None:
    run = read(FILES / "openai_evals.jsonl")
    said = {f"add.dev.{i}": [float((i + j) % 3 != 0) for j in range(4)] for i in range(3)}
    assert rewards(run) == said
    assert run.metadata["format"] == "OpenAI evals log"
    assert run.metadata["model"] == "toy"
    by_first = next(rows(FILES / "openai_evals.jsonl"))
    assert (by_first.line, by_first.fields["answer"], by_first.fields["completion"]) == (
        4,
        "0",
        "0",
    )


def test_a_file_that_promptfoo_wrote() -> None:
    run = read(FILES / "promptfoo.jsonl")
    drawn = [json.loads(line) for line in (FILES / "promptfoo.jsonl").read_text().splitlines()]
    said: dict[str, list[float | None]] = {}
    for one in drawn:
        right = str(one["vars"]["a"] + one["vars"]["b"]) in one["response"].get("output", "")
        lost = "output" not in one["response"]
        said.setdefault(json.dumps(one["vars"]), []).append(None if lost else float(right))
    assert rewards(run) == said
    assert sum(value is None for values in said.values() for value in values) == 1


def test_results_of_promptfoo_by_their_variables(tmp_path: Path) -> None:
    def result(number: int, right: bool, **more: Any) -> dict[str, Any]:
        return {
            "promptIdx": 0,
            "testIdx": number,
            "provider": {"id": "openai:m", "label": ""},
            "prompt": {"raw": f"add {number % 2}", "label": "add {{x}}"},
            "vars": {"x": number % 2},
            "response": {"output": f"out {number}"},
            "success": right,
            "score": 1 if right else 0.25,
            "failureReason": 0 if right else 1,
            **more,
        }

    lost = result(3, False, failureReason=2, response=None, error="429")
    results = [result(0, True), result(1, False), result(2, True), lost]
    document = {"evalId": "e", "results": {"version": 3, "results": results, "stats": {}}}
    file = tmp_path / "output.json"
    file.write_text(json.dumps(document))
    run = read(file)
    assert run.metadata["format"] == "promptfoo results"
    assert rewards(run) == {'{"x": 0}': [1.0, 1.0], '{"x": 1}': [0.0, None]}
    assert read(file, columns={"reward": "score"}).rewards[2] == 0.25
    assert rewards(read(jsonl(tmp_path / "output.jsonl", results))) == rewards(run)
    other = result(0, True, provider={"id": "openai:other"})
    with pytest.raises(
        BadFile, match=r"provider is .*openai:other.*, but .*openai:m.* in line 1.*--where"
    ):
        read(jsonl(tmp_path / "two.jsonl", [*results, other]))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_the_encoding_that_is_suggested_works(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "wide.jsonl"
    file.write_bytes("".join(json.dumps(r) + "\n" for r in PLAIN).encode(encoding))
    assert rewards(read(file, encoding=encoding))["q0"] == [1.0, 0.0, 0.0, 1.0]
    if encoding == "utf-16":
        with pytest.raises(BadFile, match="--encoding utf-16"):
            read(file)
    with pytest.raises(BadFile, match="unknown encoding 'utf-61'"):
        read(file, encoding="utf-61")


def test_a_dataset_in_parts_is_read_as_one(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "hub" / "data"
    folder.mkdir(parents=True)
    for part in range(2):
        table = pyarrow.Table.from_pylist(PLAIN[12 * part : 12 * part + 12])
        parquet.write_table(table, folder / f"test-0000{part}-of-00002.parquet")
    truth = rewards(read(jsonl(tmp_path / "a.jsonl", PLAIN)))
    assert rewards(read(tmp_path / "hub")) == truth
    shutil.copy(folder / "test-00000-of-00002.parquet", folder / "train-00000-of-00001.parquet")
    with pytest.raises(BadFile, match=r"3 files of samples .*name one of them"):
        read(tmp_path / "hub")


def test_shards_of_one_run_are_read_together_and_anything_else_is_listed(tmp_path: Path) -> None:
    truth = rewards(read(jsonl(tmp_path / "all.jsonl", PLAIN)))
    folder = tmp_path / "shards"
    folder.mkdir()
    for part in range(12):  # so that 10 comes after 9
        jsonl(folder / f"part-{part}.jsonl", PLAIN[2 * part : 2 * part + 2])
    run = read(folder)
    assert rewards(run) == truth
    assert run.metadata["path"] == str(folder)
    assert [row.line for row in rows(folder)] == list(range(1, 25))
    jsonl(folder / "other.jsonl", PLAIN)
    with pytest.raises(BadFile, match=r"holds 13 files of samples \(other\.jsonl, part-0\.jsonl"):
        read(folder)
    for name in ("base", "seed1", "step_10"):
        jsonl(tmp_path / "runs" / f"{name}.jsonl", PLAIN)
    with pytest.raises(BadFile, match=r"base\.jsonl, seed1\.jsonl, step_10\.jsonl\): name one"):
        read(tmp_path / "runs")
    jsonl(tmp_path / "some" / "a-00000-of-00003.jsonl", PLAIN)
    with pytest.raises(BadFile, match="1 parts of 3: some are missing"):
        read(tmp_path / "some")


def test_a_folder_of_steps_is_read_at_its_last_one(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        jsonl(tmp_path / "verl" / f"{step}.jsonl", PLAIN)
        jsonl(tmp_path / "trl" / "completions" / f"completions_{step:05d}.jsonl", PLAIN)
    assert locate(tmp_path / "verl").name == "100.jsonl"
    assert locate(tmp_path / "trl").name == "completions_00100.jsonl"


def test_a_reference_answer_is_not_taken_for_a_vote(tmp_path: Path) -> None:
    gold = [{**record, "answer": record["id"]} for record in PLAIN]
    file = jsonl(tmp_path / "gold.jsonl", gold)
    with pytest.raises(BadFile, match=r"'answer' holds one value per problem.*--map answer= "):
        read(file)
    assert read(file, columns={"answer": ""}).answers is None
    given = [{**record, "answer": str(record["correct"])} for record in PLAIN]
    assert read(jsonl(tmp_path / "given.jsonl", given)).answers is not None


def test_empty_answers_show_no_majority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = jsonl(tmp_path / "empty.jsonl", [{**record, "answer": None} for record in PLAIN])
    run = read(file)
    assert run.answers is None
    assert main(["eval", str(file)]) == 0
    assert "maj@" not in capsys.readouterr().out


def test_ids_of_samples_instead_of_problems_are_noticed(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "ids.jsonl", [{**r, "id": i} for i, r in enumerate(PLAIN)])
    assert any("only k = 1" in note for note in read(file).metadata["notes"])


def test_a_file_written_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"line 25: the second half repeats the first 24"):
        read(jsonl(tmp_path / "twice.jsonl", PLAIN * 2))
    bare = [{"id": i % 10, "reward": int(i % 3 == 0)} for i in range(40)]
    with pytest.raises(BadFile, match="repeats the first 40"):
        read(jsonl(tmp_path / "bare.jsonl", bare * 2))
    numbered = [{**record, "sample_id": i} for i, record in enumerate(PLAIN * 2)]
    assert len(read(jsonl(tmp_path / "numbered.jsonl", numbered)).rewards) == 48


def test_few_problems_in_common_are_noted() -> None:
    values = np.eye(12)[:, :4]
    a = samples(values, problems=[f"{i}" for i in range(12)], name="a")
    c = samples(values, problems=[f"{i + 9}" for i in range(12)], name="c")
    assert any("only 3 of 12 problems" in note for note in compare([a, c])[0].notes)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1, "reward": 1' + "0" * 400 + "}", "too large for a float"),
        ('{"id": 1, "reward": 1' + "0" * 5000 + "}", "too long"),
        ('{"id": 1, "reward": 1, "sample_id": 1180591620717411303424}', "62 bits"),  # 2**70
        ('{"id": 1, "reward": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested"),
    ],
)
def test_outlandish_values_get_a_message(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(BadFile, match=message):
        read(file)
    document = tmp_path / "odd.json"
    document.write_text(f"[{line}]")
    with pytest.raises(BadFile, match=message):
        read(document)


def test_majority_is_the_same_from_log_and_arrays() -> None:
    run = read(FILES / "lm_eval_take_first.jsonl", judge=r"regex:answer is (\d+)")
    assert curve(run, "maj@k").estimate[0] == pytest.approx(run.rewards.mean())


def test_a_results_file_of_evalplus_gives_its_own_headline_numbers() -> None:
    """The file was written by evalplus 0.3.1, which printed pass@1 .250, and .500 on base tests."""
    run = read(FILES / "evalplus_eval_results.json")
    assert run.metadata["format"] == "evalplus results"
    assert curve(run, resamples=400).estimate[0] == pytest.approx(0.25)
    base = read(FILES / "evalplus_eval_results.json", columns={"reward": "base_passed"})
    assert curve(base, resamples=400).estimate[0] == pytest.approx(0.5)
    assert (len(run.problems), int(run.live.min())) == (3, 4)


# lighteval: the answers and targets of write_lighteval.py
LIGHTEVAL = {"0": ["4", "5", "4", "4"], "1": ["6", "6", "9", "12"], "2": ["3", "1", "", "0"]}
TARGETS = {"0": "4", "1": "9", "2": "2"}
RIGHT = {
    problem: [float(answer == TARGETS[problem]) for answer in answers]
    for problem, answers in LIGHTEVAL.items()
}


def test_lighteval_passes_are_counted_from_its_pass_at_1() -> None:
    run = read(FILES / "lighteval_sums_sampled.parquet")
    found = rewards(run)
    assert {problem: sum(found[problem]) for problem in found} == {  # type: ignore[arg-type]
        problem: sum(RIGHT[problem]) for problem in RIGHT
    }
    assert run.live.tolist() == [4, 4, 4]


@pytest.mark.parametrize("judge", ["target", r"regex:^(\d+)$"])
@pytest.mark.parametrize("name", ["sampled", "majority"])
def test_lighteval_responses_are_judged_one_by_one(name: str, judge: str) -> None:
    run = read(FILES / f"lighteval_sums_{name}.parquet", judge=judge)
    assert rewards(run) == RIGHT
    texts = {
        (row.problem_id, row.fields["completion"])
        for row in rows(FILES / f"lighteval_sums_{name}.parquet", judge=judge)
    }
    assert texts == {(p, text) for p, answers in LIGHTEVAL.items() for text in answers}


def test_lighteval_with_one_response_takes_the_metric() -> None:
    run = read(FILES / "lighteval_sums_greedy.parquet")
    assert rewards(run) == {problem: right[:1] for problem, right in RIGHT.items()}
    assert rewards(read(FILES / "lighteval_sums_greedy.parquet", columns={"reward": "em"})) == (
        rewards(run)
    )


def test_lighteval_metrics_that_count_nothing_are_errors_with_a_way_out(tmp_path: Path) -> None:
    majority = FILES / "lighteval_sums_majority.parquet"
    with pytest.raises(BadFile, match=r"4 responses and one maj@n:n=4 .* --judge target"):
        read(majority)
    with pytest.raises(BadFile, match="no metric 'nope' in this document; have maj@n:n=4"):
        read(majority, columns={"reward": "nope"})
    for name in ("details_a_1.parquet", "details_b_1.parquet"):
        shutil.copy(majority, tmp_path / name)
    with pytest.raises(BadFile, match=r"2 files of samples .details_a_1.parquet, details_b_1"):
        read(tmp_path)


def test_lighteval_means_that_are_no_count_are_not_rounded(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(FILES / "lighteval_sums_sampled.parquet").to_pylist()
    table[0]["metric"] = {"avg@n:n=4": 0.3}
    parquet.write_table(
        pytest.importorskip("pyarrow").Table.from_pylist(table), tmp_path / "a.parquet"
    )
    with pytest.raises(BadFile, match="passes cannot be counted"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"metric": {}}, r"0 metrics \(none\)"),
        ({"metric": {"a": 1, "b": 0}}, r"2 metrics \(a, b\): choose one with --map reward=a"),
        ({"doc": None}, "line 1: not a record as its tool writes it"),
    ],
)
def test_damaged_lighteval_records_are_named(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    record = {"doc": {"id": 1}, "metric": {"em": 1}, "model_response": {"text": ["a"]}}
    with pytest.raises(BadFile, match=told):
        read(jsonl(tmp_path / "a.jsonl", [{**record, **change}]))
