"""The command as a person meets it: help, mistakes, pipes."""

import json
import subprocess
import sys

import pytest

import bestofk
from bestofk.cli import VERBS, main
from bestofk.objectives.catalog import CATALOG


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bestofk", *words], capture_output=True, text=True, timeout=120
    )


def test_help_names_every_verb(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    assert main([]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb):
    done = run(verb, "--help")
    assert done.returncode == 0
    assert "usage" in done.stdout.lower()
    assert "Traceback" not in done.stderr


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bestofk {bestofk.__version__}\n"


def test_a_mistyped_verb_gets_a_suggestion(capsys):
    assert main(["objectivs"]) == 2
    assert "did you mean 'objectives'?" in capsys.readouterr().err


def test_a_mistyped_objective_gets_a_suggestion(capsys):
    assert main(["objectives", "mx@8"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'max'?" in error
    assert "Traceback" not in error


def test_objectives_lists_the_whole_catalog(capsys):
    assert main(["objectives", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert len(table) == sum(map(len, CATALOG.values()))
    assert all(row["formula"] and row["claim"] and row["source"] for row in table)
    assert main(["objectives"]) == 0
    shown = capsys.readouterr().out
    assert all(row["objective"] in shown for row in table)


def test_one_objective_is_explained_stage_by_stage(capsys):
    assert main(["objectives", "max@2..1/50%/grpo"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("from")] == [
        "from 0% of the run:",
        "from 25% of the run:",
        "from 50% of the run:",
    ]


def test_a_closed_pipe_is_not_a_traceback():
    command = f"{sys.executable} -m bestofk objectives | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("Weights")
    assert "Traceback" not in done.stderr
