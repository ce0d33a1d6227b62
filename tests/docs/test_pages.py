"""Every command and snippet on the pages is executed, page by page, or marked as a placeholder.

Markers are comments before a block: `<!-- file: NAME -->` writes it to a file, `<!-- placeholder:
why -->` says that it cannot run here, `<!-- tested: FILE -->` names the test that executes it in
the environment of its host, and `<!-- before: CODE -->` holds what is executed first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = {"command-line.md", "settings.md"}  # by docs/generate_reference.py, from the code
PAGES = [
    ROOT / "README.md",
    *sorted(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if "_build" not in path.parts and path.name not in MADE
    ),
    *sorted((ROOT / "recipes").glob("*/README.md")),
]
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>file|placeholder|tested|before):\s(?P<said>(?:(?!-->).)*?)\s-->\n)?"
    r"^(?P<fence>`{3,})(?P<kind>[^\n`]*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
NOT_CODE = ("text", "{toctree}", "{eval-rst}", "{include} mutants.md")
RUN = """
import ast, asyncio, inspect, sys
code = compile(open(sys.argv[1]).read(), sys.argv[1], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
made = eval(code, {"__name__": "page"})
if inspect.iscoroutine(made):
    asyncio.run(made)
"""


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
    if path.parents[1].name == "recipes" or "recipes/" in path.read_text(encoding="utf-8"):
        (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    python = ""
    for block in blocks(path):
        before = f"{block.said}\n" if block.mark == "before" else ""
        if block.mark == "file":
            (tmp_path / str(block.said)).write_text(block.text, encoding="utf-8")
        elif block.mark == "placeholder":
            assert len(str(block.said)) > 5, "a placeholder says why"
        elif block.mark == "tested":
            assert path.name in (ROOT / str(block.said)).read_text(encoding="utf-8"), block.said
        elif block.kind == "python":
            python += before + block.text
        elif block.kind in ("bash", "sh"):
            words = ["bash", "-euo", "pipefail", "-c", before + block.text]
            _run(words, tmp_path, environment)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        else:
            assert block.kind in NOT_CODE, f"{block.kind}: not executed"
    if python:
        (tmp_path / "page.py").write_text(python, encoding="utf-8")
        _run([sys.executable, "-c", RUN, "page.py"], tmp_path, environment)
    if path.stem == "own-data" and path.parent.name == "tutorials":
        assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
        assert (tmp_path / "mine.html").is_file()
        assert list((tmp_path / "runs").glob("tiny-countdown-*/final/model.safetensors"))


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"{words[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_code_fits_the_page(path: Path) -> None:
    """The site shows 88 columns of code without scrolling, a README on a package page 100."""
    limit = 100 if path.name == "README.md" else 88
    if path.parent.name == "adapters":
        limit = 130  # flags and settings of the hosts, as their own pages write them
    kinds = ("python", "bash", "sh", "toml", "json")
    code = [block for block in blocks(path) if block.kind in kinds]
    lines = [line for block in code for line in block.text.splitlines()]
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
