"""The command as a person meets it: help, mistakes, pipes."""

import contextlib
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bestofk
from bestofk.cli import VERBS, main
from bestofk.cli._options import VerbOptions, field_texts, flags_of, parsed
from bestofk.cli._sampling_job import SampleOptions
from bestofk.cli._settings import COMMON, settings
from bestofk.cli.eval_command import EvalOptions
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
        [sys.executable, "-m", "bestofk", *words], capture_output=True, text=True, timeout=900
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


def test_train_help_shows_the_settings_that_most_people_change(capsys):
    main(["train", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  --") and "." in line for line in lines) >= 17


def options_of(verb):
    module = importlib.import_module(f"bestofk.cli.{verb.split()[0]}_command")
    kinds = [each for each in vars(module).values() if isinstance(each, type)]
    kinds = [each for each in kinds if issubclass(each, VerbOptions) and each is not VerbOptions]
    kinds = [each for each in kinds if each.__name__ != "FileOptions"]
    (kind,) = [each for each in kinds if verb.split()[0] != "tasks"
               or (each.__name__ == "Show") == (verb == "tasks show")]  # fmt: skip
    return kind


@pytest.mark.parametrize("verb", WITH_OPTIONS)
def test_every_option_is_explained_by_help_all(verb, capsys):
    helped([*verb.split(), "--help-all"])
    shown = capsys.readouterr().out
    texts = field_texts(options_of(verb))
    for each in dataclasses.fields(options_of(verb)):
        assert each.name == "json" or texts[each.name], each.name
        assert each.name == "json" or all(flag in shown for flag in flags_of(each)[:1])


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
        ("plan --k 4 --population 1", "--population: expected 2 arguments"),
        ("plan --width 0.1", "--k is missing"),
        ("demo now", "unexpected argument 'now'"),
    ):
        assert main(words.split()) == 2
        assert message in capsys.readouterr().err


def test_options_take_lists_repeats_and_underscores(capsys):
    parse = ["--task_option", "a=1", "--task-option", "b=2", "c=3", "--temperature", "0.5", "1"]
    found = parsed(
        SampleOptions, ["m", *parse, "--price", "1", "2", "--stop=x y"], "bestofk sample"
    )
    assert found.task_option == ("a=1", "b=2", "c=3")
    assert found.temperature == (0.5, 1.0)
    assert (found.price, found.stop, found.target) == ((1.0, 2.0), ("x y",), "m")
    between = parsed(EvalOptions, ["a", "--k", "1", "b", "--bounds", "-1", "1"], "bestofk eval")
    assert (between.targets, between.bounds) == (("a", "b"), (-1.0, 1.0))
    assert not parsed(EvalOptions, ["a", "--no-diversity"], "bestofk eval").diversity


PRINTED = {
    "demo": "demo --steps 5 --worlds 3 --out demo.html",
    "train": "train countdown-tiny --run.steps 1 --sampling.prompts_per_step 2 "
    "--sampling.samples_per_prompt 17 --evaluation.every 0 --run.dir run",
    "objectives": "objectives",
    "tasks": "tasks",
    "tasks show": "tasks show countdown --n 1",
    "model": "model tiny-maze",
    "sample": "sample tiny-countdown --task countdown --task-option style=compact --problems 2 "
    "--n 2 --max-new-tokens 4 --out drawn.jsonl",
    "eval": "eval a.jsonl --k 1,2",
    "compare": "compare a.jsonl b.jsonl",
    "plan": "plan --k 2 --width 0.2",
    "report": "report a.jsonl b.jsonl --out page.html",
    "doctor": "doctor",
    "completion": "completion bash",
}


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, shift in (("a", 0), ("b", 1)):
        rows = [
            {"problem_id": f"p{p}", "sample_id": s, "reward": int((p + s + shift) % 3 == 0)}
            for p in range(12)
            for s in range(4)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def documented(verb):
    """The fields that the page on JSON output names first for a verb."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "json.md").read_text()
    (part,) = re.findall(rf"^## bestofk {verb}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    table = part.partition("| field | |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()]
    return set(re.findall(r"`([^`]+)`", " ".join(cells)))


@pytest.mark.parametrize("verb", PRINTED)
def test_json_of_every_verb_has_the_documented_fields(verb, two_files, capsys):
    assert main([*PRINTED[verb].split(), "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)
    first = printed[0] if isinstance(printed, list) else printed
    assert documented(verb)
    assert documented(verb) == set(first)


def test_every_verb_is_on_the_page_on_json_output():
    assert {*VERBS, "tasks show"} == {*PRINTED, "quickstart"}
    assert all(documented(verb) for verb in (*PRINTED, "quickstart"))


@pytest.mark.parametrize(
    "verb", ["demo", "objectives", "tasks", "sample", "eval", "compare", "plan"]
)
def test_quiet_leaves_standard_error_empty_and_the_environment_as_it_was(verb, two_files, capsys):
    assert main([*PRINTED[verb].split(), "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out
    assert "BESTOFK_QUIET" not in os.environ


@pytest.mark.parametrize("verb", WITH_OPTIONS)
def test_verbose_shows_the_traceback_of_every_verb(verb, capsys):
    with pytest.raises(ValueError):
        main([*verb.split(), "--nowhere", "--verbose"])
    assert "BESTOFK_TRACEBACK" not in os.environ


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
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


def test_an_unknown_option_is_named_before_a_missing_one(capsys):
    assert main(["plan", "--powr", ".8"]) == 2
    assert "unknown option --powr; did you mean '--power'?" in capsys.readouterr().err


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


def test_flags_of_every_verb():
    done = run("train", "nowhere.toml", "--verbose")
    assert "Traceback" in done.stderr
    assert "Traceback" not in run("train", "nowhere.toml").stderr


@pytest.mark.parametrize("host", ["trl", "verl", "skyrl", "openrlhf"])
def test_an_adapter_without_torch_says_what_to_install(host):
    hidden = "import importlib.util\nfind = importlib.util.find_spec\n"
    hidden += "importlib.util.find_spec = lambda name: None if name == 'torch' else find(name)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}import bestofk.adapters.{host}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "bestofk.adapters needs torch" in last
    assert "pip install 'bestofk[trl]'" in last


def test_a_dry_run_works_without_torch():
    code = WITHOUT_TORCH + "sys.exit(main(['train', 'countdown-tiny', '--dry-run']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.stdout == "0.5\n", done.stderr
