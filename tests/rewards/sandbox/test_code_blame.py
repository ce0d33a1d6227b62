"""Whose fault it is: what the task or this project breaks is unscored, never charged to a model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bestofk.rewards.base import refusals
from bestofk.rewards.code.judge_programs import CodeVerifier, reference_of
from bestofk.rewards.sandbox import Limits, SandboxError, pool
from bestofk.types import Prompt
from sandbox_watch import RIGHT, New, descendants, prompts

BROKEN_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "setup that cannot be imported": (
        {"asserts": ["assert f(1) == 2"], "setup": "import a_module_that_is_not_there"},
        "a_module_that_is_not_there",
    ),
    "setup that fails": (
        {"asserts": ["assert f(1) == 2"], "setup": "limit = 1 / 0"},
        "ZeroDivisionError",
    ),
    "an import between the tests": (
        {"asserts": "assert f(1) == 2\nimport not_there_either\nassert f(2) == 3"},
        "not_there_either",
    ),
    "an import inside a test": (
        {
            "check": "def check(candidate):\n    def holds():\n        import nor_this\n"
            "        return candidate(1) == 2\n    assert holds()",
            "entry_point": "f",
        },
        "nor_this",
    ),
    "an argument of a class": (
        {"asserts": "class A: pass\nassert f(1) == 2\nassert f(A()) == 3"},
        "type A is not plain",
    ),
    "an argument that is a function": (
        {"asserts": ["assert f(len) == 3"]},
        "builtin_function_or_method is not plain",
    ),
    "an argument that is hidden by a test": (
        {
            "check": "def check(candidate):\n    try:\n        right = candidate(len) == 3\n"
            "    except BaseException:\n        right = False\n    assert right",
            "entry_point": "f",
        },
        "is not plain",
    ),
    "an argument that is too large": (
        {"asserts": ["assert f('x' * (5 << 20)) == 3"]},
        "cannot be passed by value",
    ),
}


@pytest.mark.parametrize("name", BROKEN_TASKS)
@pytest.mark.parametrize("text", [RIGHT, "def f(x): return 3", "x =", "import os; os._exit(1)"])
def test_a_broken_task_is_unscored_whatever_a_model_writes(
    verifier: CodeVerifier, name: str, text: str
) -> None:
    spec, reason = BROKEN_TASKS[name]
    verdict = verifier(prompts(1, spec), [text])[0]
    assert verdict.status == "unscored", verdict
    assert math.isnan(verdict.reward)
    assert reason in verdict.detail
    assert "the tests of this task are broken" in verdict.detail


CAUSED_BY_MODELS = {
    "imports what is not there": "import a_module_that_is_not_there\ndef f(x): return 2",
    "raises an import error": "def f(x): raise ImportError('no', name='x')",
    "raises inside": "def f(x):\n    import not_there\n    return 2",
    "nests too deep": ("def f(x):\n    y = []\n    for _ in range(62): y = [y]\n    return y"),
    "is not plain": "def f(x): return object()",
}


@pytest.mark.parametrize("name", CAUSED_BY_MODELS)
def test_what_a_model_can_cause_stays_zero(verifier: CodeVerifier, name: str) -> None:
    spec = {"asserts": ["assert f(f(1)) == 2", "assert f([[[f(2)]]]) == 3"]}
    verdict = verifier(prompts(1, spec), [CAUSED_BY_MODELS[name]])[0]
    assert verdict.reward == 0.0, verdict


def test_a_statement_between_tests_that_a_models_value_breaks_is_the_models(
    verifier: CodeVerifier,
) -> None:
    spec = {"asserts": "value = f(1)\nmore = value + 1\nassert f(more) == 4"}
    verdict = verifier(prompts(1, spec), ["def f(x): return None"])[0]
    assert (verdict.reward, verdict.status) == (0.0, "incorrect")


def test_answers_above_the_output_limit_are_judged_where_the_task_expects_them(
    new_sandbox: New,
) -> None:
    """Six MiB are right here, and a limit of 4 MiB still stops whoever prints without need."""
    big = {"entry_point": "f", "calls": [{"args": [n]} for n in (3, 6)], "solution": LONG}
    given = {"entry_point": "f", "calls": [{"args": [6], "expected": "x" * (6 << 20)}]}
    printed = {"stdio": [{"input": "6\n", "output": "x" * (6 << 20)}]}
    small = {"entry_point": "f", "calls": [{"args": [1], "expected": "x"}]}
    script = "print('x' * (int(input()) << 20))"
    with new_sandbox(workers=1, limits=Limits(output=4 << 20)) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        specs: list[dict[str, Any]] = [big, given, printed, small]
        asked = [Prompt(str(i), "", "code", spec) for i, spec in enumerate(specs)]
        verdicts = judge(asked, [LONG, LONG, script, "def f(n): return 'x' * (6 << 20)"])
    assert [v.reward for v in verdicts] == [1.0, 1.0, 1.0, 0.0], verdicts
    assert "at most 4194304 bytes" in verdicts[-1].detail


LONG = "def f(n): return 'x' * (n << 20)"


def test_prepare_names_the_package_that_a_reference_misses(verifier: CodeVerifier) -> None:
    spec = {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}
    lines = ("import sortedcontainers", "from a_package_of_nobody.part import thing")
    asked = [
        Prompt(str(i), "", "code", spec, reference=reference_of(f"{line}\n{RIGHT}"))
        for i, line in enumerate(lines)
    ]
    pytest.importorskip("sortedcontainers")
    refused = refusals(verifier, asked)
    assert 'packages = ["sortedcontainers"]' in refused["0"]
    assert "pip install" not in refused["0"]  # it is installed, and hidden
    assert "pip install a_package_of_nobody" in refused["1"]


def test_a_checker_that_grew_is_replaced(new_sandbox: New) -> None:
    """Each task leaves its compiled and decoded tests behind; 16 of these would be 100 MiB."""

    def spec(n: int) -> dict[str, Any]:
        return {"asserts": [f"assert f({n}) == {n + 1}, {'x' * (6 << 20)!r}"]}

    with new_sandbox(workers=1) as sandbox:
        judge = CodeVerifier(sandbox=sandbox)
        assert judge(prompts(1), [RIGHT])[0].reward == 1.0
        (worker,) = sandbox._state.all
        before = descendants(worker.process.pid)
        for n in range(17):
            assert judge(prompts(1, spec(n)), [RIGHT])[0].reward == 1.0
        after = descendants(worker.process.pid)
    assert len(after) == len(before)
    assert len(set(before) - set(after)) == 1  # the checker alone


EXACT = {
    "fraction as returned": ("from fractions import Fraction", "Fraction(x, 2)", "Fraction(1, 2)"),
    "fraction as a float": ("from fractions import Fraction", "Fraction(x, 2)", "0.5"),
    "float as a fraction": ("from fractions import Fraction", "x / 2", "Fraction(1, 2)"),
    "decimal as returned": ("from decimal import Decimal", "Decimal(x) / 10", "Decimal('0.1')"),
    "decimal with zeros": ("from decimal import Decimal", "Decimal('0.100')", "Decimal('0.1')"),
    "decimal in a list": ("from decimal import Decimal", "[Decimal(x)]", "[Decimal(1)]"),
    "decimal as an integer": ("from decimal import Decimal", "Decimal(x)", "1"),
}


@pytest.mark.parametrize("name", EXACT)
def test_fractions_and_decimals_compare_by_value(verifier: CodeVerifier, name: str) -> None:
    line, value, expected = EXACT[name]
    text = f"{line}\ndef f(x): return {value}"
    other = f"{expected} + {'[7]' if expected[0] == '[' else '7'}"
    spec = {"setup": line, "asserts": [f"assert f(1) == {expected}", f"assert f(1) != {other}"]}
    assert verifier(prompts(1, spec), [text])[0].reward == 1.0


def test_fractions_and_decimals_are_answers_of_calls(verifier: CodeVerifier) -> None:
    solution = "from decimal import Decimal\nfrom fractions import Fraction\n"
    solution += "def f(x): return [Fraction(x, 3), Decimal(x) / 4]"
    spec = {"entry_point": "f", "calls": [{"args": [1]}, {"args": [2]}], "solution": solution}
    close = {
        "entry_point": "f",
        "calls": [{"args": [1], "expected": [0.3333333, 0.25]}],
        "tolerance": {"abs": 1e-6},
    }
    wrong = solution.replace("x, 3", "x, 4")
    asked = [*prompts(2, spec), *prompts(2, close)]
    verdicts = verifier(asked, [solution, wrong, solution, wrong])
    assert [v.reward for v in verdicts] == [1.0, 0.0, 1.0, 0.0], verdicts


@pytest.mark.parametrize("most", [3, 2, 1])
def test_stdin_can_be_opened_by_its_name_at_every_tier(new_sandbox: New, most: int) -> None:
    """As a regular file on standard input behaves: every opening starts at its beginning."""
    programs = [
        "print(open('/dev/stdin').read().split())",
        "import sys\nprint(open('/dev/stdin', 'rb').read().decode().split())",
        "first = input()\nprint(open('/dev/stdin', encoding='ascii').read().split())",
        "from pathlib import Path\nprint(Path('/dev/stdin').read_text().split())",
        "import io\nwith io.open('/dev/fd/0') as f: print([line.strip() for line in f])",
    ]
    spec = {"stdio": [{"input": "1\n2\n", "output": "['1', '2']\n"}]}
    try:
        sandbox = new_sandbox(tier=most, at_most=most, workers=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        verdicts = CodeVerifier(sandbox=sandbox)(prompts(len(programs), spec), programs)
    assert [v.reward for v in verdicts] == [1.0] * len(programs), verdicts


WRITING = {
    "tempfile.TemporaryFile()": "FileNotFoundError",
    "tempfile.TemporaryDirectory()": "FileNotFoundError",
    "tempfile.NamedTemporaryFile(dir='.')": "PermissionError",
    "tempfile.mkdtemp(dir='/tmp')": "PermissionError",
    "open('x', 'w')": "PermissionError",
    "open('/tmp/bestofk-x', 'a')": "PermissionError",
    "open('/tmp/bestofk-none/x', 'w')": "FileNotFoundError",
    "io.open('x', 'xb')": "PermissionError",
    "pathlib.Path('x').write_text('x')": "PermissionError",
    "pathlib.Path('x').unlink()": "FileNotFoundError",
    "os.open('x', os.O_CREAT | os.O_RDWR)": "PermissionError",
    "os.makedirs('/tmp/bestofk-a/b')": "PermissionError",
    "os.symlink('/', 'x')": "PermissionError",
    "os.remove('x')": "FileNotFoundError",
    "os.rename('x', 'y')": "FileNotFoundError",
    "os.rmdir('/tmp/bestofk-x')": "FileNotFoundError",
    "os.chmod('/tmp', 0o777)": "PermissionError",
    "shutil.rmtree('x')": "FileNotFoundError",
    "open('/dev/null', 'w').close()": "None",
    "os.getcwd()": "/",
}
WRITER = """
import io, os, pathlib, shutil, tempfile
def f(way):
    try: return str(eval(way))
    except Exception as error: return type(error).__name__
"""
EVERY_WAY = [(3, False), (2, False), (2, True), (1, False)]


@pytest.mark.parametrize(("tier", "by_bubblewrap"), EVERY_WAY)
def test_programs_that_write_files_are_judged_alike_at_every_tier(
    new_sandbox: New, tier: int, by_bubblewrap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_ways", lambda *_: iter([(tier, by_bubblewrap)]))
    spec = {"asserts": [f"assert f({way!r}) == {told!r}" for way, told in WRITING.items()]}
    try:
        sandbox = new_sandbox(tier=tier, at_most=tier, workers=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        verdict = CodeVerifier(sandbox=sandbox)(prompts(1, spec), [WRITER])[0]
    assert (verdict.passed, verdict.total) == (len(WRITING), len(WRITING)), verdict


@pytest.mark.parametrize(("tier", "by_bubblewrap"), EVERY_WAY)
def test_programs_may_write_files_where_that_is_asked_for_or_it_is_an_error(
    new_sandbox: New, tier: int, by_bubblewrap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never 1 at one tier and 0 at another: tiers without a folder of their own are not used."""
    monkeypatch.setattr(pool, "_ways", lambda *_: iter([(tier, by_bubblewrap)]))
    spec = {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}
    writer = (
        "import tempfile\ndef f(x):\n    with tempfile.NamedTemporaryFile('w+') as file:\n"
        "        file.write(str(x + 1)); file.flush()\n        return int(open(file.name).read())"
    )
    if tier == 1 or by_bubblewrap:
        with pytest.raises(SandboxError, match="writable=True needs a file system of its own"):
            new_sandbox(tier=tier, at_most=tier, workers=1, writable=True)
        return
    try:
        sandbox = new_sandbox(tier=tier, at_most=tier, workers=1, writable=True)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        assert CodeVerifier(sandbox=sandbox)(prompts(1, spec), [writer])[0].reward == 1.0
