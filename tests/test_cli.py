"""The command as a person meets it: help, mistakes, pipes."""

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bestofk.cli import VERBS, main
from bestofk.cli._options import VerbOptions, flags_of, parsed
from bestofk.cli._recipe_flags import COMMON, recipe_flags
from bestofk.cli.eval_command import EvalOptions
from bestofk.cli.sample_command import SampleOptions
from bestofk.config import Config, leaves
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


def ran(code):
    """Python code in a process of its own, where nothing is imported yet."""
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=900)


def test_help_names_every_verb(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    assert main([]) == 0
    assert capsys.readouterr().out == shown


def test_objectives_lists_the_whole_catalog(capsys):
    assert main(["objectives", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert len(table) == sum(map(len, CATALOG.values()))
    assert all(row["formula"] and row["claim"] and row["source"] for row in table)
    assert main(["objectives", "--all"]) == 0
    shown = capsys.readouterr().out
    listed = [row["objective"] for row in table if row["objective"].count(":") < 2]
    assert all(text in shown for text in listed)  # a rule with a baseline is explained once
    assert "maj@8:weighted:ties-wrong:loo-1" in shown
    assert main(["objectives"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) < 80


def test_one_objective_is_explained_stage_by_stage(capsys):
    assert main(["objectives", "max@2..1/50%/grpo"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("from")] == [
        "from 0% of the run:",
        "from 25% of the run:",
        "from 50% of the run:",
    ]


@pytest.mark.parametrize(
    ("words", "first"),
    [("objectives --all", "Weights"), ("--help", "usage"), ("train --help-all", "usage")],
)
def test_a_closed_pipe_is_not_a_traceback(words, first):
    command = f"{sys.executable} -u -m bestofk {words} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=900)
    assert done.stdout.startswith(first)
    assert done.stderr == ""


WITH_OPTIONS = [*(verb for verb in VERBS if verb != "train"), "tasks show"]


@pytest.mark.parametrize("verb", [*VERBS, "tasks show", ""])
def test_help_fits_80_columns_and_one_screen(verb, capsys):
    helped([*verb.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: bestofk")
    assert max(map(len, lines)) < 80
    assert len(lines) <= 40
    assert "--json" in lines[-1] or not verb
    if verb:
        helped([*verb.split(), "--help-all"])
        everything = capsys.readouterr().out
        assert max(map(len, everything.splitlines())) < 80
        for shown in ("\n".join(lines), everything):
            assert "None" not in shown
            assert "[]" not in shown
            assert not re.search(r"--(\S+).*--no-\1", shown, re.DOTALL)


def helped(words):
    with contextlib.suppress(SystemExit):
        assert main(words) == 0


def options_of(verb):
    module = importlib.import_module(f"bestofk.cli.{verb.split()[0]}_command")
    kinds = [each for each in vars(module).values() if isinstance(each, type)]
    kinds = [each for each in kinds if issubclass(each, VerbOptions)]
    kinds = [each for each in kinds if each.__module__ == module.__name__]
    (kind,) = [each for each in kinds if verb.split()[0] != "tasks"
               or (each.__name__ == "TaskShowOptions") == (verb == "tasks show")]  # fmt: skip
    return kind


@pytest.mark.parametrize("verb", WITH_OPTIONS)
def test_every_option_is_explained_by_help_all(verb, capsys):
    helped([*verb.split(), "--help-all"])
    shown = capsys.readouterr().out
    for flag in flags_of(options_of(verb)):
        assert flag.text, flag.name
        assert flag.name == "json" or all(word in shown for word in flag.words[:1])


@pytest.mark.parametrize("verb", WITH_OPTIONS)
def test_a_mistyped_option_is_one_line_with_a_way_out(verb, capsys):
    assert main([*verb.split(), "--jsn"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "--json" in error or "is missing" in error
    assert "--help" in error


def test_values_are_checked_and_suggested(capsys):
    for words, message in (
        ("demo --seed x", "--seed takes a whole number, got 'x'"),
        ("plan --k 4 --width wide", "--width takes a number, got 'wide'"),
        ("report a --metrics pas@k", "did you mean 'pass@k'?"),
        ("plan --k 4 --population 1", "--population needs 2 values, got 1"),
        ("plan --width 0.1", "--k is missing"),
        ("demo now", "unexpected argument 'now'"),
        ("objectivs", "did you mean 'objectives'?"),
        ("plan --powr .8", "unknown option --powr; did you mean --power?"),
    ):
        assert main(words.split()) == 2
        assert message in capsys.readouterr().err


def test_options_take_lists_repeats_and_underscores(capsys):
    parse = ["--task_option", "a=1", "--task-option", "b=2", "c=3", "--temperature", "0.5"]
    found = parsed(SampleOptions, ["m", *parse, "--stop=x y"], "bestofk sample")
    assert found.task_option == ("a=1", "b=2", "c=3")
    assert (found.temperature, found.stop, found.target) == ((0.5,), ("x y",), "m")
    between = parsed(EvalOptions, ["a", "--k", "1", "b", "--bounds", "-1", "1"], "bestofk eval")
    assert (between.targets, between.bounds) == (("a", "b"), (-1.0, 1.0))
    assert not parsed(EvalOptions, ["a", "--no-diversity"], "bestofk eval").diversity


RUN = {
    "train": "train countdown-tiny --run.steps 1 --sampling.prompts_per_step 2 "
    "--sampling.samples_per_prompt 17 --evaluation.every 0 --run.dir run",
    "model": "model tiny-maze",
    "sample": "sample tiny-countdown --task countdown --problems 2 "
    "--n 2 --max-new-tokens 4 --out drawn.jsonl",
    "solve": "solve tiny-countdown --task countdown --problems 2 --k 2 --max-new-tokens 4",
    "doctor": "doctor",
    "completion": "completion bash",
}
RECORDED = {verb: verb for verb in ("demo", "objectives", "tasks", "eval", "compare", "plan",
                                    "report")} | {"tasks show": "task"}  # fmt: skip
"""Verbs whose JSON is among the goldens, by its name there."""


def documented(verb):
    """The fields that the page on JSON output names first for a verb."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "json.md").read_text()
    (part,) = re.findall(rf"^## bestofk {verb}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    rows = re.search(r"^- .*?(?=\n\n|\Z)", part, re.MULTILINE | re.DOTALL)
    assert rows is not None
    names = [row.partition(": ")[0] for row in rows[0].splitlines()]
    return set(re.findall(r"`([^`]+)`", " ".join(names)))


@pytest.mark.parametrize("verb", RUN)
def test_json_of_a_verb_has_the_documented_fields(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN[verb].split(), "--json", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert documented(verb) == set(json.loads(shown.out))
    assert shown.err == "" or verb == "train"  # where the table of steps goes with --json


def test_json_of_the_goldens_has_the_documented_fields():
    goldens = json.loads((Path(__file__).parent / "goldens" / "verbs.json").read_text("utf-8"))
    for verb, name in RECORDED.items():
        first = goldens[name][0] if isinstance(goldens[name], list) else goldens[name]
        assert documented(verb) == set(first), verb
    assert {*VERBS, "tasks show"} == {*RUN, *RECORDED, "quickstart", "serve"}
    assert documented("quickstart")


@pytest.mark.parametrize("verb", WITH_OPTIONS)
def test_verbose_shows_the_traceback_of_every_verb(verb, capsys):
    with pytest.raises(ValueError):
        main([*verb.split(), "--nowhere", "--verbose"])
    assert "BESTOFK_TRACEBACK" not in os.environ


def test_every_setting_of_a_recipe_is_explained():
    explained = {flag.name: flag.text for flag in recipe_flags()}
    assert explained.keys() >= {name for name, _ in leaves(Config())}
    assert [name for name, text in explained.items() if not text] == []
    assert set(COMMON) <= explained.keys()
    assert len(COMMON) == 18


def test_without_torch_a_missing_package_names_the_extra_and_a_dry_run_works():
    done = ran(WITHOUT_TORCH + "sys.exit(main(['model', 'tiny-maze']))")
    assert done.returncode == 2
    assert "pip install 'bestofk[train]'" in done.stderr
    assert "Traceback" not in done.stderr
    done = ran(WITHOUT_TORCH + "sys.exit(main(['train', 'countdown-tiny', '--dry-run']))")
    assert done.returncode == 0, done.stderr
    assert "rollouts: 1,024 completions a step" in done.stdout


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
    assert "--run.advanced.keep_best" in script


def test_a_shipped_recipe_is_found_by_its_name(capsys):
    assert main(["train", "countdown-tiny", "--run.seed", "7", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "optimizer.learning_rate = 0.00015" in shown
    assert "run.seed = 7  (default 0)" in shown
    assert "run.trackers" not in shown  # a default
    assert main(["train", "countdwn-tiny"]) == 2
    assert "did you mean 'countdown-tiny'?" in capsys.readouterr().err


def test_a_message_is_wrapped_at_the_width_of_a_terminal(tmp_path):
    """In a terminal of 80 columns no word is cut; into a pipe the message stays one line."""
    import pty

    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "bestofk", "objectives", "nope"]
    environment = {**os.environ, "COLUMNS": "80"}
    subprocess.run(words, stderr=theirs, env=environment, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode().replace("\r", "").strip()
    os.close(ours)
    piped = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60).stderr
    assert shown.count("\n") >= 2
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.replace("\n", " ") == piped.strip()


def test_what_is_public_is_listed_and_loads_when_used():
    code = (
        "import sys, bestofk; assert 'numpy' not in sys.modules; import inspect;"
        "assert {'train', 'advantages', 'conformance'} <= set(dir(bestofk));"
        "assert not {'Any', 'importlib', 'TYPE_CHECKING'} & set(dir(bestofk));"
        "assert 'log_ratio' in inspect.signature(bestofk.advantages).parameters;"
        "from bestofk import *; print(len(dir(bestofk)))"
    )
    done = ran(code)
    assert done.stdout == "13\n", done.stderr


def test_two_notes_of_the_compiler_are_silent_and_no_others():
    code = (
        "import warnings; from bestofk.cli import main; main(['objectives', 'max@2'])\n"
        "warnings.warn('TensorFloat32 tensor cores for float32 matrix multiplication available')\n"
        "warnings.warn('\\nOnline softmax is disabled on the fly since Inductor decides')\n"
        "warnings.warn('another')"
    )
    done = ran(code)
    assert done.stderr == "note: another\n"


def test_a_command_works_without_a_home_or_a_working_folder(tmp_path):
    """As under cron or in a container; the working folder was removed."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; {sys.executable} -m bestofk plan --k 2 --width 0.2 --json"
    done = subprocess.run(
        ["bash", "-c", command], cwd=gone, env={"PATH": os.environ["PATH"], "PYTHONPATH":
        os.environ.get("PYTHONPATH", "")}, capture_output=True, text=True, timeout=900
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["k"] == 2


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_an_adapter_without_torch_says_what_to_install(host):
    hidden = "import importlib.util\nfind = importlib.util.find_spec\n"
    hidden += "importlib.util.find_spec = lambda name: None if name == 'torch' else find(name)\n"
    done = ran(f"{hidden}import bestofk.adapters.{host}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "bestofk.adapters needs torch" in last
    assert "pip install 'bestofk[trl]'" in last


def test_evaluation_and_reports_import_where_there_is_no_fcntl():
    """As on Windows: no module of theirs needs what only Unix has."""
    code = (
        "import sys; [sys.modules.__setitem__(n, None) for n in ('fcntl', 'resource', 'pwd')]\n"
        "import bestofk, bestofk.evaluation, bestofk.reports, bestofk.demo\n"
        "import bestofk.estimator_checks, bestofk.rewards, bestofk.tasks\n"
        "import bestofk.cli.eval_command, bestofk.api\n"
        "print(bestofk.evaluate([[1, 0], [0, 0]]).at(2).value)"
    )
    done = ran(code)
    assert done.stdout == "0.5\n", done.stderr
