"""`bestofk eval`, `compare` and `plan` as people call them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bestofk.api.sampling_run import whole_lines
from bestofk.cli import main


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    """Two runs: the second is surer, and gives up on half of the problems."""
    rng = np.random.default_rng(0)
    files = []
    for name, chance in (("a", np.full(80, 0.2)), ("b", np.where(np.arange(80) % 2, 0.6, 0.0))):
        file = tmp_path / f"{name}.jsonl"
        with file.open("w") as out:
            for problem, p in enumerate(chance):
                for sample in range(16):
                    right = bool(rng.random() < p)
                    record = {"id": f"q{problem}", "sample_id": sample, "correct": right}
                    record["answer"] = "4" if right else str(rng.integers(5, 9))
                    out.write(json.dumps(record) + "\n")
        files.append(str(file))
    return files[0], files[1]


def test_eval_shows_mapping_metrics_and_intervals(
    two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", two[0], "--k", "1,8", "--wide"]) == 0
    text = capsys.readouterr().out
    assert "problem_id=id" in text
    assert "reward=correct" in text
    for word in ("pass@8", "maj@8", "95% over problems", "these problems only", "band, all k"):
        assert word in text
    assert "diversity, counted in a draw of m = 16 samples" in text


def test_eval_as_json_is_complete_and_valid(
    two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", f"mine={two[0]}", "--json", "--metric", "pass^k"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda c: pytest.fail(c))
    assert found[0]["name"] == "mine"
    curve = found[0]["curves"][0]
    assert curve["metric"] == "pass^k"
    assert len(curve["estimate"]) == 16
    assert curve["interval"]["low"][0] < curve["estimate"][0] < curve["interval"]["high"][0]


def test_compare_gives_the_verdict_and_the_crossing(
    two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", f"base={two[0]}", f"new={two[1]}"]) == 0
    text = capsys.readouterr().out
    assert "new is better at k = 1 (+0." in text
    assert "worse at k ≥" in text
    assert "p ≤ 0.05 where the interval excludes 0" in text
    assert "The curves cross at k =" in text
    assert "base is ahead after it" in text
    assert "Solved only by base:" in text
    assert main(["compare", two[0], two[1], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found[0]["a"], found[0]["b"]) == ("a", "b")


def test_files_of_one_name_are_told_apart(
    tmp_path: Path, two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for folder, source in zip(("x", "y"), two):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "samples.jsonl"
        path.write_text(Path(source).read_text())
        paths.append(str(path))
    assert main(["compare", *paths]) == 0
    assert "y/samples minus x/samples" in capsys.readouterr().out


def test_graded_rewards_show_max_at_k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "g.csv"
    file.write_text("id,reward\n" + "".join(f"{i // 4},{i % 4 / 4}\n" for i in range(40)))
    assert main(["eval", str(file)]) == 0
    text = capsys.readouterr().out
    assert "max@4" in text
    assert "mean" in text
    assert main(["eval", str(file), "--threshold", "0.5"]) == 0
    assert "pass = reward ≥ 0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval"], "name at least one run folder or file of samples"),
        (["eval", "some-model"], "no such file or folder: some-model"),
        (["sample", "some-model"], "state --task"),
        (["sample", "http://127.0.0.1:1/v1", "--task", "countdown"], "state --model"),
        (["sample", "m", "--task", "countdown", "--extra-body", "[1]"], "takes a JSON object"),
        (["eval", "FILE", "--k", "1,two"], "--k takes whole numbers"),
        (["eval", "FILE", "--k", "32"], "pass@32 needs at least 32"),
        (["eval", "FILE", "--map", "reward"], "--map takes key=value"),
        (["compare", "FILE", "FILE", "--at", "0"], "--at takes k of at least 1"),
        (["eval", "FILE", "--columns", "reward=rewards"], "no column 'rewards'"),  # the former name
        (["eval", "FILE", "--metric", "passk"], "unknown metric 'passk'; did you mean 'pass@k'"),
        (["compare", "FILE"], "at least two runs, got 1; or two metrics of one file"),
        (["compare", "FILE", "FILE"], "two runs are called 'a' ("),
        (["compare", "a=FILE", "a=FILE"], "two runs are called 'a'"),
        (["plan", "--k", "8"], "one of them"),
        (["plan", "--k", "8", "--width", "3"], "--width takes below 1, got 3"),
    ],
)
def test_mistakes_end_with_two_and_a_way_out(
    arguments: list[str],
    message: str,
    two: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("cwd")
    monkeypatch.chdir(folder)
    status = main([each.replace("FILE", two[0]) for each in arguments])
    shown = capsys.readouterr()
    assert status == 2
    assert message in shown.err
    assert not list(folder.iterdir())  # a mistake leaves no file behind


def test_tables_fit_into_eighty_columns(
    two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", f"a-very-long-name-of-a-run={two[0]}", f"another-one={two[1]}"]) == 0
    assert main(["eval", two[0]]) == 0
    assert main(["plan", "--k", "4", "--width", "0.1"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "@" in line or "──" in line]
    table = [line for line in rows if line.startswith(" ")]
    assert len(table) > 10
    assert max(map(len, table)) <= 80
    assert not any("…" in line for line in table if "@" in line)


def test_a_k_chosen_beforehand_and_all_pairs(
    two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *two, "--at", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["k"] for each in found] == [[8]]
    assert main(["compare", *two, f"c={two[0]}", "--all-pairs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["a"], each["b"]) for each in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert main(["compare", *two, "--at", "8", "--wide"]) == 0
    assert "pass@8" in capsys.readouterr().out


# Fields of --json are promised (docs/evaluation.md, JSON output): more may come, none may go.
CURVE_FIELDS = {
    *("name", "metric", "k", "estimate", "interval", "fixed", "band", "values", "problems"),
    *("left_out", "n", "unscored", "informative", "bounds", "threshold", "confidence"),
    *("resamples", "seed", "notes"),
}
COMPARISON_FIELDS = {
    *("a", "b", "metric", "k", "difference", "band", "p_value"),
    *("wins", "losses", "ties", "crossing", "verdict", "values_a", "values_b", "problems"),
    *("only_a", "only_b", "solved_only_a", "solved_only_b", "n_a", "n_b", "threshold"),
    *("confidence", "resamples", "seed", "notes"),
}
PLAN_FIELDS = {
    *("goal", "target", "effect", "k", "population", "rows", "best", "confidence", "at", "notes"),
}


def test_json_keeps_its_fields(two: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", two[0], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert {"name", "metadata", "curves", "diversity"} <= set(found)
    assert set(found["curves"][0]) >= CURVE_FIELDS
    assert main(["compare", *two, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)[0]) >= COMPARISON_FIELDS
    assert main(["plan", "--k", "4", "--width", "0.1", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= PLAN_FIELDS
    documented = Path(__file__).parents[2].joinpath("docs/reference/json.md").read_text()
    for field in CURVE_FIELDS | COMPARISON_FIELDS | PLAN_FIELDS:
        assert f"`{field}`" in documented, field


def test_plan_from_a_pilot(two: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--k", "4", "--width", "0.1", "--pilot", two[0]]) == 0
    text = capsys.readouterr().out
    assert "fitted to a (80 problems)" in text
    assert "* fewest samples:" in text
    power = ["plan", "--k", "4", "--power", "0.8", "--effect", "0.05", "--pilot", *two, "--json"]
    assert main(power) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["goal"] == "power"
    assert found["best"]["value"] >= 0.8


SAMPLE = (
    *("sample", "tiny-countdown", "--task", "countdown", "--task-option", "style=compact"),
    *("--problems", "3", "--max-new-tokens", "16"),
)


def test_a_model_is_sampled_and_more_samples_are_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "m.jsonl"
    command = [*SAMPLE, "--out", str(out), "--n"]
    assert main([*command, "2"]) == 0
    short = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(short) == 6
    capsys.readouterr()
    assert main([*command, "4"]) == 0
    shown = capsys.readouterr()
    assert "6 of 12 there" in shown.err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[:6] == short
    assert len({(line["problem_id"], line["sample_id"]) for line in lines}) == 12
    assert all(line["logprob_sum"] < 0 for line in lines)
    assert f"bestofk eval {out}" in shown.out
    assert main(["eval", "tiny-countdown"]) == 2
    assert "samples from a model or an endpoint with bestofk sample" in capsys.readouterr().err


def test_a_journal_of_another_run_is_not_taken_for_samples_of_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was killed before anything was scored left a journal alone."""
    pytest.importorskip("torch")
    out, journal = tmp_path / "m.jsonl", tmp_path / "m.jsonl.journal"
    left = '{"problem_id": "a", "sample_id": 0, "completion": "x", "run_id": "other"}\n'
    journal.write_text(left)
    assert main([*SAMPLE, "--out", str(out), "--n", "2"]) == 2
    assert f"{journal} holds samples of another run" in capsys.readouterr().err
    assert journal.read_text() == left


def test_options_of_the_verifier_change_the_verdicts_and_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "m.jsonl"
    command = [*SAMPLE, "--out", str(out), "--n", "4"]
    assert main([*command, "--verifier-option", "reward=closeness"]) == 0
    rewards = {json.loads(line)["reward"] for line in out.read_text().splitlines()}
    assert rewards - {0.0, 1.0}
    assert main(command) == 2
    assert "samples of another run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [out]
    out.unlink()
    assert main(command) == 0
    assert {json.loads(line)["reward"] for line in out.read_text().splitlines()} <= {0.0, 1.0}
    assert main([*command, "--verifier-option", "rewards=closeness"]) == 2
    assert "did you mean 'reward'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"", b""),
        (b"{}\n", b"{}\n"),
        (b'{}\n{"problem_id": 1}', b"{}\n"),
        (b'{"probl', b""),
        (b"{}\n{}", None),
        (b"text", None),
    ],
)
def test_only_a_torn_last_line_is_cut(tmp_path: Path, data: bytes, kept: bytes | None) -> None:
    file = tmp_path / "f"
    file.write_bytes(data)
    if kept is None:  # a file of another kind
        with pytest.raises(ValueError, match="choose another --out"):
            whole_lines(file)
        assert file.read_bytes() == data
        return
    assert whole_lines(file) == [{}] * kept.count(b"\n")
    assert file.read_bytes() == kept


@pytest.mark.slow
def test_a_million_samples_stay_within_bounded_memory(tmp_path: Path) -> None:
    file = tmp_path / "big.jsonl"
    with file.open("w") as out:
        for problem in range(1000):
            for sample in range(1000):
                reward = (problem * 7919 + sample * 104729) % 10 < 3
                record = {"problem_id": f"p{problem}", "sample_id": sample, "reward": int(reward)}
                record |= {"completion": "word " * 40 + str(sample), "answer": str(sample % 50)}
                out.write(json.dumps(record) + "\n")
    code = (
        "import re, sys; from bestofk.evaluation import read; run = read(sys.argv[1]); "
        "status = open('/proc/self/status').read(); "
        "print(len(run.rewards), int(re.search(r'VmHWM:\\s+(\\d+)', status)[1]) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    count, peak = map(int, done.stdout.split())
    assert count == 1_000_000
    assert peak <= 300
