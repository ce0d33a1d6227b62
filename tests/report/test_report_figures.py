"""Figures for papers: each says what it is about, and a name can be anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bestofk.reports import evaluate, load
from bestofk.reports.figures import drawings, write_figures
from bestofk.reports.report_data import page_data
from report_files import make_file, make_run

NAMES = ("$x_1$ <b>&</b>", "_hidden \u202e\x00")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("figures")
    run = make_run(folder / "trained")
    (run / "evaluations").mkdir()
    make_file(folder, "sharp", problems=12, n=8).rename(run / "evaluations" / "000005.jsonl")
    base = make_file(folder, "base", problems=12, n=8)
    findings = evaluate(load([f"{NAMES[0]}={base}", f"{NAMES[1]}={run}"]), resamples=400)
    return page_data(findings, None, title="t", version="0", created="now")


def test_every_figure_states_n_k_problems_and_seeds(data: dict[str, Any], tmp_path: Path) -> None:
    keep = ("coverage-pass-at-k", "difference-b-a-pass-at-k", "problems-pass-at-4", "beyond-n",
            "training-no-signal-share")  # fmt: skip
    assert set(keep) < {name for name, _ in drawings(data)}
    silent = [block for block in data["training"] if block["label"] == "No-signal share"]
    written = write_figures({**data, "training": silent}, tmp_path, "svg")
    assert {path.stem for path in written} == set(keep)
    for path in written:
        text = "".join(ElementTree.parse(path).getroot().itertext())
        assert re.search(r"\bn = ", text), path.name
        assert re.search(r"\bk = |objective max@8", text), path.name
        assert re.search(r"\d+ problems|problems per step", text), path.name
        assert re.search(r"\bseeds? ", text), path.name
        if path.stem == "coverage-pass-at-k":
            assert "A  $x_1$ <b>&</b>" in text
            assert "B  _hidden ��" in text
        assert not re.search("[\u202e\x00]", text)


def test_drawing_twice_gives_the_same_file(data: dict[str, Any], tmp_path: Path) -> None:
    only = {**data, "differences": [], "training": [], "extrapolation": []}
    only["per_problem"] = {**data["per_problem"], "measures": []}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        [path] = write_figures(only, tmp_path / name, "svg")
        assert path.name == "coverage-pass-at-k.svg"
    one, two = (next((tmp_path / name).iterdir()).read_bytes() for name in ("one", "two"))
    assert one == two
    [picture] = write_figures(only, tmp_path, "png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = make_file(tmp_path, "base", problems=12, n=2)
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from bestofk.cli import main\n"
        f"sys.exit(main(['report', {str(path)!r}, '-o', {str(tmp_path / 'r.html')!r}, "
        f"'--png', {str(tmp_path / 'png')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'bestofk[plot]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r.html").exists()  # found out before the work


def test_report_is_made_without_importing_matplotlib_or_torch(tmp_path: Path) -> None:
    path = make_file(tmp_path, "base", problems=12, n=2)
    program = (
        "import sys\nfrom bestofk.cli import main\n"
        f"assert main(['report', {str(path)!r}, '-o', {str(tmp_path / 'r.html')!r}]) == 0\n"
        "assert not {'matplotlib', 'torch', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
