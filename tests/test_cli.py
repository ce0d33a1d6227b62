"""The command as a person meets it: help, mistakes, pipes."""

import json
import subprocess
import sys

import pytest

import bestofk
from bestofk.cli import VERBS, main
from bestofk.cli._settings import COMMON, settings
from bestofk.config import OPTION_FIELDS, Config, leaves
from bestofk.objectives.catalog import CATALOG

WITHOUT_TORCH = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from bestofk.cli import main
"""


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


@pytest.mark.parametrize(
    ("words", "first"), [("objectives", "Weights"), ("--help", "usage"), ("train --help-all", "us")]
)
def test_a_closed_pipe_is_not_a_traceback(words, first):
    command = f"{sys.executable} -u -m bestofk {words} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(first)
    assert done.stderr == ""


def test_help_fits_80_columns_and_one_screen(capsys):
    main(["--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) < 82
    main(["train", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80
    assert len(lines) <= 40
    assert sum(line.startswith("  --") and "." in line for line in lines) >= 17
    main(["train", "--help-all"])
    everything = capsys.readouterr().out
    assert max(map(len, everything.splitlines())) < 80
    assert "--no-" not in everything
    assert "None" not in everything


def test_every_setting_of_a_recipe_is_explained():
    explained = {each.name: each.text for each in settings()}
    names = {name for name, _ in leaves(Config())} | set(OPTION_FIELDS)
    assert names <= explained.keys()
    assert [name for name, text in explained.items() if not text] == []
    assert set(COMMON) <= explained.keys()
    assert len(COMMON) == 18


def test_a_missing_package_names_the_extra():
    """`bestofk model NAME` without torch, as in an environment with the core alone."""
    code = WITHOUT_TORCH + "sys.exit(main(['model', 'tiny-maze']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "pip install 'bestofk[train]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_a_script_that_knows_verbs_and_settings(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    asked = f"{script}\nCOMP_WORDS=(bestofk ob); COMP_CWORD=1; _bestofk; echo ${{COMPREPLY[@]}}"
    if shell == "bash":
        done = subprocess.run(["bash", "-c", asked], text=True, capture_output=True, check=True)
        assert done.stdout == "objectives\n"
    assert "--run.options.push_to_hub" in script


def test_a_shipped_recipe_is_found_by_its_name(capsys):
    assert main(["train", "countdown-tiny", "--run.seed", "7", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "objective = 'passk-training@16'  (default 'max@8')" in shown
    assert "run.seed = 7  (default 0)" in shown
    assert "run.trackers" not in shown  # a default
    assert main(["train", "countdwn-tiny"]) == 2
    assert "did you mean 'countdown-tiny'?" in capsys.readouterr().err


def test_flags_of_every_verb():
    done = run("train", "nowhere.toml", "--verbose")
    assert "Traceback" in done.stderr
    assert "Traceback" not in run("train", "nowhere.toml").stderr


def test_a_dry_run_works_without_torch():
    code = WITHOUT_TORCH + "sys.exit(main(['train', 'countdown-tiny', '--dry-run']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "rollouts: 1,024 completions a step" in done.stdout


def test_evaluation_and_reports_import_where_there_is_no_fcntl():
    """As on Windows: no module of theirs needs what only Unix has."""
    code = (
        "import sys; [sys.modules.__setitem__(n, None) for n in ('fcntl', 'resource', 'pwd')]\n"
        "import bestofk, bestofk.evaluation, bestofk.reports, bestofk.demo, bestofk.conformance\n"
        "import bestofk.rewards, bestofk.tasks, bestofk.cli.eval_command, bestofk.api\n"
        "print(bestofk.evaluate([[1, 0], [0, 0]]).at(2).value)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0.5\n", done.stderr
