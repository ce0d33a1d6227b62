"""The quickstart: two runs from one start, a table with intervals, a page."""

import json
import re
import shlex
import signal

from bestofk.cli import main
from bestofk.config import leaves, read
from bestofk.runs import read_metrics
from bestofk.training.session import Session


def test_the_quickstart_resumes_after_an_interrupt_compares_and_writes_a_page(
    tmp_path, capsys, monkeypatch
):
    """Ctrl-C during the second run: the next start keeps the first and continues the second."""
    folder = tmp_path / "q"
    earlier = folder / "one-sample"  # another one is replaced
    earlier.mkdir(parents=True)
    (earlier / "config.toml").write_text("")
    words = ["quickstart", "--dir", str(folder), "--steps", "2", "--problems", "4", "--json"]

    def interrupt(session, step, *rest, record=Session.record):
        record(session, step, *rest)
        if session.context.objective.text == "grpo":  # the second run
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Session, "record", interrupt)
    assert main(words) == 130
    assert f"to resume: bestofk {shlex.join(words)}" in capsys.readouterr().err
    monkeypatch.undo()
    finished = (folder / "k-samples" / "metrics.jsonl").stat()
    assert main(words) == 0
    assert (folder / "k-samples" / "metrics.jsonl").stat() == finished
    steps = [line["step"] for line in read_metrics(folder / "one-sample") if "reward" in line]
    assert steps == [1, 2]

    printed, said = capsys.readouterr()
    cell = r"1?\.\d+ \[1?\.\d+, 1?\.\d+\]"
    row = rf"^16 +({cell} +){{3}}[+-]1?\.\d+ \[[+-]1?\.\d+, [+-]1?\.\d+\]$"
    assert re.search(row, said, re.MULTILINE)
    assert re.search(r"^best of +start +grpo +max@1\+4\+16 +minus grpo$", said, re.MULTILINE)
    end = said[said.index("At best of 16, training for max@1+4+16 ") :]
    assert all(len(line) <= 80 for line in end.splitlines()[:-1])  # the last one names the folder
    assert end.count("max@k: ") == 3  # each against each
    head = " ".join(end.partition("\n\n")[0].split())
    assert re.fullmatch(
        r"At best of 16.* grpo \(.*\) and .* start \(.*\); 100 is the optimum", head
    )
    page = (folder / "report.html").read_text()
    assert head in page
    shown = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    pairs = [(each["b"], each["a"]) for each in shown["differences"]]
    assert pairs == [(2, 1), (1, 0), (2, 0)]  # k against one sample first, then against the start
    assert shown["verdicts"][0].startswith("max@1+4+16 against grpo: ")
    assert {run["task"] for run in shown["runs"]} == {"construct, test split"}
    one, other = (read(folder / name / "config.toml") for name in ("one-sample", "k-samples"))
    a, b = dict(leaves(one)), dict(leaves(other))
    assert {name for name in a if a[name] != b[name]} == {"objective", "run.dir"}
    starts = [read_metrics(folder / name)[0] for name in ("one-sample", "k-samples")]
    assert starts[0]["results"] == starts[1]["results"]  # the same start, judged on the same draws
    found = json.loads(printed)
    assert set(found) == {"folder", "page", "results"}
    assert set(found["results"]) == {"start", "grpo", "max@1+4+16"}
    assert 0 <= found["results"]["start"]["max@4"]["value"] <= 1


def test_the_quickstart_removes_no_folder_that_is_not_its_own(tmp_path, capsys):
    (tmp_path / "one-sample").mkdir()
    assert main(["quickstart", "--dir", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    assert main(["quickstart", "--dir", str(tmp_path), "--objective", "grpo"]) == 2
    assert "differ by their objective" in capsys.readouterr().err
