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
from dataclasses import dataclass, replace
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
NOT_CODE = ("text", "{toctree}", "{eval-rst}")
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


SMALLER = {
    "range(4000)": "range(400)", "steps=40": "steps=4", "evaluate_every=20": "evaluate_every=2",
    '"evaluation.prompts": 200': '"evaluation.prompts": 16', "--problems 200": "--problems 16",
    "--evaluation.every 2": "--evaluation.every 2 --evaluation.prompts 8",
}  # fmt: skip
"""Sizes of the pages, and those that they run with unless long tests are asked for."""


def smaller(text: str) -> str:
    for shown, tried in SMALLER.items():
        text = text.replace(shown, tried)
    return text


def blocks_to_run(path: Path, *, full: bool) -> list[Block]:
    found = blocks(path)
    return found if full else [replace(block, text=smaller(block.text)) for block in found]


LONG = [path for path in PAGES if blocks_to_run(path, full=False) != blocks(path)]


@pytest.mark.slow
@pytest.mark.parametrize("path", LONG, ids=name_of)
def test_a_page_runs_at_its_size(path: Path, tmp_path: Path, warm: Path) -> None:
    _run_page(path, tmp_path, warm, full=True)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_runs_from_top_to_bottom(path: Path, tmp_path: Path, warm: Path) -> None:
    _run_page(path, tmp_path, warm, full=False)


def _run_page(path: Path, tmp_path: Path, warm: Path, *, full: bool) -> None:
    folders = [str(warm), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(folders), "COLUMNS": "80"}
    if path.parents[1].name == "recipes" or "recipes/" in path.read_text(encoding="utf-8"):
        (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    python = ""
    for block in blocks_to_run(path, full=full):
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
            python = _run_python(python, tmp_path, environment)
            words = ["bash", "-euo", "pipefail", "-c", before + block.text]
            _run(words, tmp_path, environment)
        elif block.kind == "toml":
            tomllib.loads(block.text)
        else:
            assert block.kind in NOT_CODE, f"{block.kind}: not executed"
    _run_python(python, tmp_path, environment)
    if path.stem == "own-data" and path.parent.name == "tutorials":
        assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
        assert (tmp_path / "mine.html").is_file()
        assert list((tmp_path / "runs").glob("tiny-countdown-*/final/model.safetensors"))


def _run_python(code: str, folder: Path, environment: dict[str, str]) -> str:
    """Run the page's Python up to here as one program; what follows begins a new one."""
    if code:
        (folder / "page.py").write_text(code, encoding="utf-8")
        _run(["python", "-c", RUN, "page.py"], folder, environment)
    return ""


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


def test_the_notebook_is_the_page() -> None:
    """All of its Python, as it is: what runs on the page runs in the notebook."""
    page = ROOT / "docs" / "tutorials" / "own-loop.md"
    cells = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shown = [block for block in blocks(page) if block.kind == "python"]
    assert code == [block.text.rstrip("\n") for block in shown]
    assert {block.mark for block in shown} == {None}


SHORT = {
    "range(4000)": "range(200)", "steps=80, evaluate_every=40": "steps=2, evaluate_every=1",
    "prompts_per_step=32": "prompts_per_step=4",
    '"evaluation.prompts": 200': '"evaluation.prompts": 8',
    '"evaluation.samples_per_prompt": 64': '"evaluation.samples_per_prompt": 16',
}  # fmt: skip


def training_notebook(folder: Path, shorter: dict[str, str]) -> str:
    """What its cells print, run from top to bottom on a CPU."""
    notebook = json.loads((ROOT / "examples" / "train.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    for long, short in shorter.items():
        assert code.count(long) == 1, long
        code = code.replace(long, short)
    (folder / "notebook.py").write_text(code, encoding="utf-8")
    words = [sys.executable, "notebook.py"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    return done.stdout


def test_the_training_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    printed = training_notebook(tmp_path, SHORT)
    assert "max@1+4+16 best of 1:" in printed
    assert len(list((tmp_path / "runs").glob("*/final/model.safetensors"))) == 2


@pytest.mark.slow
def test_the_training_notebook_shows_what_it_says(tmp_path: Path) -> None:
    printed = training_notebook(tmp_path, {})
    shown = dict(re.findall(r"^(\S+) best of 1: .* best of 16: (\S+)$", printed, re.M))
    assert float(shown["grpo"]) < float(shown["start"]) < float(shown["max@1+4+16"]) + 0.02


def test_the_reference_is_made_from_the_code() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate_reference
    finally:
        sys.path.pop(0)
    from bestofk.cli import VERBS
    from bestofk.cli._recipe_flags import recipe_flags

    page = generate_reference.settings_page()
    assert all(f"| `{each.name.rpartition('.')[2]}` |" in page for each in recipe_flags())
    commands = generate_reference.command_page()
    assert all(f"### bestofk {verb}\n" in commands for verb in VERBS)
    assert "--model.path [tiny-countdown]" in commands


SETTING = re.compile(
    r"(?:--|`)((?:model|task|sampling|loss|off_policy|optimizer|evaluation|run)\.[a-z][a-z0-9_.-]+)"
)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_setting_on_a_page_exists(path: Path) -> None:
    from bestofk.cli._recipe_flags import recipe_flags

    known = {flag.name for flag in recipe_flags()} | {"run.toml", "run.model", "run.sample"}
    tables = ("task.options.", "task.verifier_options.")
    text = path.read_text(encoding="utf-8")
    named = {name.rstrip(".-").replace("-", "_") for name in SETTING.findall(text)}
    assert sorted(n for n in named - known if not n.startswith(tables)) == []


def test_every_field_of_the_metrics_is_explained(tmp_path: Path) -> None:
    """The fields that a run writes: off policy with a trust region and KL, and its evaluations."""
    from bestofk import metrics
    from bestofk.cli import main
    from bestofk.runs import read_metrics

    settings = {
        "objective": "max@8", "run.dir": tmp_path / "run", "run.steps": 1, "loss.kl": 0.01,
        "sampling.prompts_per_step": 2, "sampling.samples_per_prompt": 10, "sampling.refill": 1,
        "off_policy.passes": 2, "off_policy.trust_region": "[0.2, 0.2]",
        "evaluation.prompts": 2, "evaluation.samples_per_prompt": 8, "evaluation.best_by": "max@8",
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    assert main(["train", "countdown-tiny", *flags, "--quiet"]) == 0
    lines = list(read_metrics(tmp_path / "run"))
    assert {line["kind"] for line in lines} == {"train", "evaluation"}
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    written = {re.sub(r"@\d+", "@k", name) for line in lines for name in line}
    assert {"reward", "groups_dropped", "ess", "results", "inner_steps"} <= written
    constants = [value for name, value in vars(metrics).items() if name.isupper()]
    named = {each for each in constants if isinstance(each, str)} - {metrics.STATUS}
    assert {"clip_fraction", "probe_after", "lr"} <= named
    own = written | {re.sub(r"@\d+", "@k", name) for name in named}
    assert sorted(name for name in own if f"`{name}`" not in page) == []


def test_links_lead_somewhere() -> None:
    pages = [*PAGES, *(ROOT / "research").glob("*.md"), *ROOT.glob("*.md")]
    links = [
        (path, target)
        for path in pages
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
        if not target.startswith("http") and Path(target).name not in MADE
    ]
    assert [each for each in links if not (each[0].parent / each[1]).exists()] == []
