"""The workflows and the Dockerfile name only what exists, and their short commands run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bestofk.cli import VERBS

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps() -> list[dict[str, Any]]:
    read = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in WORKFLOWS)
    return [step for flow in read for job in flow["jobs"].values() for step in job["steps"]]


COMMANDS = [line for step in steps() for line in step.get("run", "").splitlines()]


def test_there_are_workflows_for_tests_and_release() -> None:
    assert [path.name for path in WORKFLOWS] == ["release.yml", "tests.yml"]
    assert len(COMMANDS) >= 12


def test_every_action_is_pinned_to_a_commit() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used
    assert not [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)]


def test_every_target_and_verb_of_the_workflows_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"make ([a-z-]+)", "\n".join(COMMANDS))
    assert {"check", "test", "docs"} <= set(targets)
    assert not [each for each in targets if not re.search(rf"^{each}:", makefile, re.MULTILINE)]
    verbs = re.findall(r"bestofk\"? ([a-z]+)", "\n".join(COMMANDS))
    assert {"demo", "train", "doctor"} <= set(verbs) <= set(VERBS)


def test_the_snippets_of_the_workflows_run(tmp_path: Path) -> None:
    snippets = [shlex.split(line)[2] for line in COMMANDS if line.startswith("python -c")]
    assert len(snippets) == 1
    for snippet in snippets:
        subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, check=True)


def test_the_tag_of_a_release_is_compared_with_the_version() -> None:
    (line,) = [each for each in COMMANDS if each.startswith("version=")]
    code = f"{line}; echo $version"
    done = subprocess.run(["sh", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    import bestofk

    assert done.stdout.strip() == bestofk.__version__


def test_the_dockerfile_copies_what_the_package_is_built_from() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {each for line in lines if line.startswith("COPY") for each in line.split()[1:-1]}
    assert all((ROOT / each).exists() for each in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {project["project"]["readme"], *project["project"]["license-files"]}
    needed |= {*wheel["packages"], *wheel["force-include"], "pyproject.toml", "constraints.txt"}
    parts = {path: {path, *map(str, Path(path).parents)} for path in needed}
    assert not [path for path, above in parts.items() if not above & copied]
    (extras,) = re.findall(r"\'\.\[(.*)\]\'", "\n".join(lines))
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])


@pytest.mark.parametrize(
    "listed", sorted((ROOT / "hosts").glob("*.txt")), ids=lambda path: path.stem
)
def test_environments_of_the_hosts_have_all_that_the_package_needs(listed: Path) -> None:
    """They are installed without looking for dependencies, so what is not listed is missing."""

    def names(lines: list[str]) -> set[str]:
        found = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines)
        return {re.sub(r"[-_.]+", "-", one[0].lower()) for one in found if one}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = names(project["dependencies"])
    assert needed <= names(listed.read_text(encoding="utf-8").splitlines())


def test_benchmarks_that_make_runs_need_no_argument():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = re.search(r"^BENCHES := (.+)$", makefile, re.MULTILINE)
    assert names is not None
    for name in names[1].split():
        source = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        arguments = re.findall(r"add_argument\(([^)]*)\)", source)
        assert all("--" in each or "nargs" in each for each in arguments), name
