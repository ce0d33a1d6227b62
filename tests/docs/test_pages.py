"""Every command and snippet on the pages is executed, page by page, or marked as a placeholder.

Markers are comments before a block: `<!-- file: NAME -->` writes it to a file, and
`<!-- placeholder: why -->` says that it cannot run here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "install.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>file|placeholder): (?P<said>[^\n]*?) -->\n)?"
    r"```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    mark: str | None
    said: str | None


def blocks(path: Path) -> list[Block]:
    found = BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [Block(m["kind"], m["text"], m["mark"], m["said"]) for m in found]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }
    python = ""
    for block in blocks(path):
        if block.mark == "file":
            (tmp_path / str(block.said)).write_text(block.text, encoding="utf-8")
        elif block.mark == "placeholder":
            assert len(str(block.said)) > 5, "a placeholder says why"
        elif block.kind == "python":
            python += block.text
        elif block.kind == "bash":
            _run(["bash", "-euo", "pipefail", "-c", block.text], tmp_path, environment)
        else:
            assert block.kind in ("text", "{toctree}", "{eval-rst}"), f"{block.kind}: not executed"
    if python:
        _run([sys.executable, "-c", python], tmp_path, environment)
    if path.stem == "own-data" and path.parent.name == "tutorials":
        assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
        assert (tmp_path / "mine.html").is_file()
        assert list((tmp_path / "runs").glob("tiny-countdown-*/final/model.safetensors"))


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, f"{words[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_code_fits_the_page(path: Path) -> None:
    limit = 100 if path.name == "README.md" else 85
    lines = [line for block in blocks(path) for line in block.text.splitlines()]
    assert [line for line in lines if len(line) > limit] == []


def test_the_notebook_is_the_page_and_runs() -> None:
    page = ROOT / "docs" / "tutorials" / "own-loop.md"
    cells = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shown = [b.text.rstrip("\n") for b in blocks(page) if b.kind == "python" and not b.mark]
    assert code == shown
    names: dict[str, object] = {}
    for cell in code:
        exec(compile(cell, "notebook", "exec"), names)


def test_the_reference_is_made_from_the_code() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate_reference
    finally:
        sys.path.pop(0)
    from bestofk.cli import VERBS
    from bestofk.cli._settings import settings

    page = generate_reference.settings_page()
    assert all(f"| `{each.name.rpartition('.')[2]}` |" in page for each in settings())
    commands = generate_reference.command_page()
    assert all(f"### bestofk {verb}\n" in commands for verb in VERBS)
    assert "--model.path [tiny-countdown]" in commands


def test_every_field_of_the_metrics_is_explained(tmp_path: Path) -> None:
    """The fields that training writes, found in the code that writes them."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "bestofk" / "training"
    files = ("record.py", "statistics.py", "validation.py", "train.py")
    written: set[str] = set()
    for file in files:
        text = (source / file).read_text(encoding="utf-8")
        written |= set(re.findall(r'^ +"([a-z_@0-9]+)": ', text, re.MULTILINE))
        written |= set(re.findall(r'(?:merged|stats)\["([a-z_]+)"\] =', text))
    samples = {"prompt_id", "sample", "prompt", "completion", "answer", "status", "tokens",
               "logprob", "finish_reason", "weight", "kind", "value", "low", "high"}  # fmt: skip
    assert {"reward", "groups_dropped", "ess", "results", "inner_steps"} <= written
    assert [name for name in sorted(written - samples) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
