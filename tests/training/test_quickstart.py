"""The quickstart: two runs from one start, a table with intervals, a page."""

import json
import re

import pytest

from bestofk.cli import main
from bestofk.config import leaves, read
from bestofk.runs import read_metrics


@pytest.mark.usefixtures("one_thread")
def test_the_quickstart_trains_compares_and_writes_a_page(tmp_path, capsys):
    words = ["quickstart", "--dir", str(tmp_path / "q"), "--steps", "1", "--problems", "4"]
    assert main(words) == 0
    said = capsys.readouterr().out
    for name in ("start", "grpo", "passk-training@16"):
        row = rf"^{re.escape(name)} +([01]\.\d{{3}} \[[\d.]+, [\d.]+\] *){{4}}$"
        assert re.search(row, said, re.MULTILINE), name
    assert sum(line.startswith("pass@k: ") for line in said.splitlines()) == 3  # each against each
    page = (tmp_path / "q" / "report.html").read_text()
    assert "passk-training@16" in page
    one, other = (
        read(tmp_path / "q" / name / "config.toml") for name in ("one-sample", "k-samples")
    )
    a, b = dict(leaves(one)), dict(leaves(other))
    assert {name for name in a if a[name] != b[name]} == {"objective", "run.dir"}
    starts = [read_metrics(tmp_path / "q" / name)[0] for name in ("one-sample", "k-samples")]
    assert starts[0]["results"] == starts[1]["results"]  # the same start, judged on the same draws
    assert main([*words, "--json"]) == 0  # a second one replaces the first
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"folder", "page", "results"}
    assert set(printed["results"]) == {"start", "grpo", "passk-training@16"}
    assert 0 <= printed["results"]["start"]["pass@4"]["value"] <= 1


def test_the_quickstart_removes_no_folder_that_is_not_its_own(tmp_path, capsys):
    (tmp_path / "one-sample").mkdir()
    assert main(["quickstart", "--dir", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    assert main(["quickstart", "--dir", str(tmp_path), "--objective", "grpo"]) == 2
    assert "differ by their objective" in capsys.readouterr().err
