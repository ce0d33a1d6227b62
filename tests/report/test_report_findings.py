"""What the page is told equals what evaluation found, problem by problem and k by k."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bestofk.cli import main
from bestofk.reports import evaluate, load, make, page_of
from bestofk.reports.report_data import described, page_data, thin
from bestofk.reports.training import progress
from report_files import make_file, make_run, rollout, write_lines


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    return [str(make_file(folder, policy, graded=True)) for policy in ("base", "sharp", "wide")]


@pytest.fixture(scope="module")
def data(files: list[str]) -> dict[str, Any]:
    findings = evaluate(load(files), resamples=400)
    return page_data(findings, None, title="t", version="0", created="now")


def table_of(path: str, threshold: float | None) -> dict[str, list[float]]:
    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    table: dict[str, list[float]] = {}
    for row in rows:
        reward = float(row["reward"])
        value = reward if threshold is None else float(reward >= threshold)
        table.setdefault(row["problem_id"], []).append(value)
    return table


def best_of(rewards: list[float], k: int) -> float:
    """max@k by every subset."""
    subsets = list(itertools.combinations(rewards, k))
    return math.fsum(max(subset) for subset in subsets) / len(subsets)


@pytest.mark.parametrize(("key", "threshold"), [("pass@k", 1.0), ("max@k", None)])
def test_curves_and_scatter_are_means_over_all_subsets(
    files: list[str], data: dict[str, Any], key: str, threshold: float | None
) -> None:
    measure = next(one for one in data["measures"] if one["key"] == key)
    scatter = next(one for one in data["per_problem"]["measures"] if one["key"] == key)
    ids = data["per_problem"]["ids"]
    for run, path in enumerate(files):
        table = table_of(path, threshold)
        curve = measure["curves"][run]
        for k in (1, 2, 15, 16):
            values = {problem: best_of(rewards, k) for problem, rewards in table.items()}
            place = list(curve["k"]).index(k)
            assert curve["mean"][place] == pytest.approx(np.mean(list(values.values())), abs=1e-12)
            assert curve["low"][place] <= curve["mean"][place] <= curve["high"][place]
            if k in scatter["k"]:
                shown = scatter["values"][scatter["k"].index(k)][run]
                assert shown == pytest.approx([values[problem] for problem in ids], abs=5.1e-5)


def test_every_block_states_n_k_problems_seeds_and_confidence(data: dict[str, Any]) -> None:
    assert [run["seeds"] for run in data["runs"]] == ["0"] * 3
    for curve in (c for one in data["measures"] for c in one["curves"]):
        assert curve["n"] == (16, 16)
        assert (curve["problems"], curve["confidence"], curve["resamples"]) == (24, 0.95, 400)
        assert curve["k"][-1] == 16
    for one in data["differences"]:
        assert (one["n_a"], one["n_b"], one["problems"]) == ((16, 16), (16, 16), 24)


def test_solved_sets_partition_the_problems(files: list[str], data: dict[str, Any]) -> None:
    tables = [table_of(path, 1.0) for path in files]
    seen: list[int] = []
    for one in data["solved"]["sets"]:
        for place in one["problems"]:
            problem = data["per_problem"]["ids"][place]
            by = [run for run, table in enumerate(tables) if any(table[problem])]
            assert by == one["runs"], problem
        seen += one["problems"]
    assert sorted(seen) == list(range(24))


@pytest.mark.parametrize("last", [1, 2, 3, 17, 64, 1000, 4096])
def test_thinned_k_keep_the_ends_and_powers_of_two(last: int) -> None:
    ks = thin(last)
    assert ks == sorted(set(ks))
    assert {2**i for i in range(13) if 2**i <= last} | {1, last} <= set(ks)
    assert ks[-1] == last
    assert len(ks) <= 85


def test_problems_that_not_every_run_has_are_named(tmp_path: Path) -> None:
    path = make_file(tmp_path, "base", problems=8, n=4)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    ids = sorted({row["problem_id"] for row in rows})
    other = write_lines(tmp_path / "other.jsonl", [r for r in rows if r["problem_id"] != ids[2]])
    findings = evaluate(load([str(path), str(other)]), resamples=400)
    [note] = findings.notes
    assert note.startswith(f"base has 1 of its 8 problems that not every run has ({ids[2]})")
    assert len(findings.comparisons[0].problems) == 7
    apart = write_lines(tmp_path / "apart.jsonl", [r | {"problem_id": "x"} for r in rows[:4]])
    with pytest.raises(ValueError, match=r"no problem in common.*base has .*apart has 'x'"):
        evaluate(load([str(path), str(apart)]), resamples=400)


def test_rewards_outside_zero_one_need_a_threshold_for_pass(tmp_path: Path) -> None:
    rows = [{"problem_id": p, "reward": r} for p in range(12) for r in (-1.0, 0.0, 2.0 * (p % 2))]
    [source] = load([str(write_lines(tmp_path / "a.jsonl", rows))])
    findings = evaluate([source], resamples=400)
    assert list(findings.curves) == ["max@k"]
    assert "from -1 to 2" in findings.notes[0]
    data = page_data(findings, None, title="t", version="0", created="now")
    assert data["solved"] is None
    judged = evaluate([source], threshold=2.0, resamples=400)
    assert judged.curves["pass@k"][0].estimate[-1] == 0.5
    solved = dict(zip(judged.problems, judged.passes[0]))
    assert solved == {str(p): p % 2 for p in range(12)}
    lenient = evaluate([source], threshold=0.0, resamples=400)
    assert dict(zip(lenient.problems, lenient.passes[0])) == {str(p): 2 for p in range(12)}
    assert lenient.threshold == 0.0


def test_unscored_samples_are_counted_and_are_no_zeros(tmp_path: Path) -> None:
    rows = [rollout(1, p, s) for p in range(3) for s in range(3)]
    clean = [row | {"reward": None if math.isnan(row["reward"]) else row["reward"]} for row in rows]
    [source] = load([str(write_lines(tmp_path / "a.jsonl", clean))])
    findings = evaluate([source], resamples=400)
    assert findings.curves["pass@k"][0].unscored == 1
    assert findings.curves["pass@k"][0].estimate[0] == pytest.approx((1 / 3 + 1 / 3 + 1 / 2) / 3)
    data = page_data(findings, None, title="t", version="0", created="now")
    assert (data["runs"][0]["unscored"], data["runs"][0]["n"]) == (1, "2–3")


def test_training_figures_come_from_the_metrics(tmp_path: Path) -> None:
    sources = load([str(make_run(tmp_path / "a")), str(make_run(tmp_path / "b", samples=False))])
    data = page_data(evaluate(sources, resamples=400), None, title="t", version="0", created="now")
    blocks = {block["label"]: block for block in data["training"]}
    assert list(blocks) == ["Validation pass@1", "Validation pass@4", "Mean reward",
                            "Training max@8", "No-signal share", "Entropy"]  # fmt: skip
    assert blocks["No-signal share"]["curves"][1]["value"] == [0.25, 0.5, 0.0, 0.25, 0.5]
    assert blocks["Validation pass@4"]["curves"][0]["high"] == [0.12 * s for s in range(1, 6)]
    assert "n = 4, 9 problems · seed 7" in blocks["Validation pass@4"]["facts"]
    assert "objective max@8 · n = 3" in blocks["Entropy"]["facts"]
    first, last = (one for one in data["evaluations"] if one["run"] == 1)
    assert (first["when"], first["step"], first["mean"]) == ("first", 1, [0.02, 0.04, 0.08])
    assert (last["when"], last["step"], last["k"]) == ("last", 5, [1, 2, 4])
    assert [curve["run"] for curve in data["measures"][0]["curves"]] == [0]


def test_graded_evaluations_are_shown_by_max(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        results = line.get("results", {})
        line["results"] = results | {
            name.replace("pass", "max"): {**cell, "value": cell["value"] + 0.1}
            for name, cell in results.items()
        }
    write_lines(run / "metrics.jsonl", lines)
    findings = evaluate(load([str(run)]), resamples=400)
    data = page_data(findings, None, title="t", version="0", created="now")
    shown = [block["label"] for block in data["training"] if block["kind"] == "evaluation"]
    assert shown == ["Validation max@1", "Validation max@4"]
    assert data["training"][1]["curves"][0]["value"][0] == 0.18
    assert {one["metric"] for one in data["evaluations"]} == {"max@k"}


def test_evaluations_are_called_by_their_split(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tested = [line | {"split": "test"} if line["kind"] == "evaluation" else line for line in lines]
    write_lines(run / "metrics.jsonl", tested)
    sources = load([str(run), str(make_run(tmp_path / "b"))])
    data = page_data(evaluate(sources, resamples=400), None, title="t", version="0", created="now")
    block = data["training"][0]
    assert block["label"] == "Test and validation pass@1"
    assert block["about"].startswith("On test and validation problems")
    assert [curve["split"] for curve in data["evaluations"]] == ["test"] * 2 + ["validation"] * 2
    cell = {"max@8": {"value": 0.5, "low": 0.4, "high": 0.6}}
    line = {"kind": "evaluation", "split": "test", "step": 5, "results": cell}
    source = dataclasses.replace(sources[0], metrics=(line,), config={"run.steps": 5})
    assert str(progress(source)).endswith("· test max@8 0.500 [0.40, 0.60]")


def test_a_page_on_one_run_begins_with_its_course_and_keeps_its_colour(tmp_path: Path) -> None:
    names = [str(make_run(tmp_path / name)) for name in "ab"]
    for name in names:
        text = 'objective = "max@8"\n[run]\nsteps = 5\n'
        Path(name, "config.toml").write_text(text, encoding="utf-8")
    alone, both = (page_of(load(each), resamples=400)[1] for each in (names[:1], names))
    assert '"progress":["max@8 · step ' in alone
    assert '"progress":[]' in both
    (run,) = load(names[:1])
    assert run.samples is not None
    begun = dataclasses.replace(run.samples, metadata={"step": 0})  # its first evaluation
    assert described(dataclasses.replace(run, samples=begun)) == "max@8"
    assert described(dataclasses.replace(run, samples=begun, metrics=())) == "start"


def test_settings_that_differ_come_first(tmp_path: Path) -> None:
    runs = [str(make_run(tmp_path / name, seed=seed)) for name, seed in (("a", 7), ("b", 8))]
    data = page_data(
        evaluate(load(runs), resamples=400), None, title="t", version="0", created="now"
    )
    assert data["config"]["rows"][0] == {"key": "run.seed", "values": ["7", "8"], "same": False}
    assert all(row["same"] for row in data["config"]["rows"][1:])


def test_same_seed_gives_the_same_page(files: list[str], tmp_path: Path) -> None:
    pages = []
    for name in ("one.html", "two.html"):
        make(load(files[:2]), tmp_path / name, created="then", resamples=400)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_command_writes_a_page_under_a_megabyte(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert main(["report", *files, "-o", str(out), "--samples", "0", "--resamples", "400"]) == 0
    assert out.stat().st_size < 1_000_000
    told = capsys.readouterr().out
    findings = evaluate(load(files), resamples=400)
    assert f"max@k: {findings.comparisons[0].verdict}" in told
    assert "3 runs, 24 problems, 1,152 samples" in told


def test_terminal_gets_no_escape_sequence_or_markup_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"problem_id": f"\x1b[2J{p}", "reward": s} for p in range(12) for s in (0, 1)]
    odd = write_lines(tmp_path / "[bold]a.jsonl", rows)
    less = write_lines(tmp_path / "b.jsonl", rows[:-2])
    out = tmp_path / "report.html"
    assert main(["report", str(odd), str(less), "-o", str(out), "--resamples", "400"]) == 0
    told = capsys.readouterr()
    assert "�[2J" in told.out
    assert "\x1b" not in told.out + told.err
    assert "[bold]a has 1 of its 12 problems" in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "at least one run folder or file"),
        (["{folder}/nothing.jsonl"], "no such file or folder"),
        (["{file}", "-o", "{folder}/no/report.html"], "there is no folder"),
        (["{file}", "-o", "{folder}"], "it is a folder"),
        (["{file}", "--k", "99"], "needs at least 99 scored samples per problem"),
    ],
)
def test_command_explains_what_is_wrong(
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    known = {"file": files[0], "folder": str(tmp_path)}
    assert main(["report", *(text.format(**known) for text in arguments)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_report_is_made_without_importing_matplotlib_or_torch(tmp_path: Path) -> None:
    path = make_file(tmp_path, "base", problems=12, n=2)
    program = (
        "import sys\nfrom bestofk.cli import main\n"
        f"assert main(['report', {str(path)!r}, '-o', {str(tmp_path / 'r.html')!r}]) == 0\n"
        "assert not {'matplotlib', 'torch', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
