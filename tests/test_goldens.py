"""What must not change while the code is rebuilt, recorded in goldens/*.json.

`python tests/test_goldens.py` writes the records again; a change of one is part of the review.
Also recorded, by tests of their own: resume equals uninterrupted (training/test_resume.py), the
verdicts of the attack batteries (sandbox/test_sandbox_attacks.py). The CPU time of
`bestofk --help` and `import bestofk` is a ratio in benchmarks/start.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bestofk
from bestofk.cli import main
from bestofk.objectives import Objective

HERE = Path(__file__).parent
TOOL_FILES = HERE / "evaluation" / "tool_files"
RECIPES = sorted((HERE.parent / "recipes").glob("*/run.toml"))


def said(*words: str, without: str = "") -> Any:
    """What a verb prints with --json, less a figure that differs from run to run.

    With --quiet nothing is on standard error, and the environment is as it was.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main([*words, "--json", "--quiet"]) == 0
    assert err.getvalue() == ""
    assert "BESTOFK_QUIET" not in os.environ
    result = json.loads(out.getvalue())
    return {**result, without: None} if without else result


def strings() -> list[str]:
    """Every catalogued objective with k = 3, less the one whose function is the user's."""
    every = [row["objective"].replace("@8", "@3") for row in said("objectives")]
    return [text for text in every if not text.startswith("subsets")]


NEEDED: dict[str, dict[str, Any]] = {
    "lstat@3": {"coefficients": [0.2, 0.3, 0.5]},
    "passk-training@3:drop-easy": {"accuracy_threshold": 0.5},
}


def built(text: str) -> Objective:
    price = {"price": 0.1} if text.startswith("retry") else {}
    return bestofk.objective(text, **NEEDED.get(text, price))


def conformance() -> dict[str, Any]:
    """Verdict and measures of every catalogued objective, by enumeration."""
    found = {}
    for text in strings():
        if {"scores", "answers", "tokens"} & built(
            text
        ).needs:  # it judges what looks at rewards alone
            continue
        result = bestofk.conformance(built(text), k=3, n=5, quiet=True)
        found[text] = [result.verdict, result.convention, result.bias, result.variance]
    for text in ("max@2", "mean"):
        result = bestofk.conformance(text, k=2, n=4, off_policy=True, quiet=True)
        found[f"{text} off policy"] = [result.verdict, result.bias, result.variance]
    return found


MIXED = (
    "max@1+3", "max@3+grpo", "max@3/60%/mean", "max@4..1", "rloo", "pkpo@3", "top3@4", "max@1",
)  # fmt: skip


def advantages() -> dict[str, Any]:
    """Of the catalogued objectives and eight combined ones, on fixed groups."""
    rng = np.random.default_rng(7)
    right = (rng.random((4, 8)) < [[0.1], [0.3], [0.7], [1.0]]).astype(float)
    graded = np.where(right > 0, rng.random((4, 8)).round(2), 0.25)
    graded[1, 3] = math.nan
    log_ratio = rng.normal(scale=0.3, size=(4, 8))
    found: dict[str, Any] = {}
    for text in [*strings(), *MIXED]:
        objective = built(text)
        inputs: dict[str, Any] = {
            "entropy": np.linspace(0.2, 0.9, 4),
            "rng": np.random.default_rng(1),
            "progress": 0.5,
            "scores": np.arange(32.0).reshape(4, 8) % 5,
            "answers": np.arange(32).reshape(4, 8) % 3,
            "tokens": np.arange(32.0).reshape(4, 8) % 7,
        }
        given = {name: inputs[name] for name in sorted(objective.needs)}
        rewards = right if any(term.entry.zero_one for term in objective.terms) else graded
        found[text] = np.asarray(objective(rewards, **given)).tolist()
        if objective.takes_log_ratio:
            off = objective(rewards, log_ratio=log_ratio, **given)
            found[f"{text} off policy"] = np.asarray(off).tolist()
    return found


def first_seen(answers: list[Any]) -> list[int]:
    """Which answers are equal: each one as the place where it first stands."""
    return [answers.index(answer) for answer in answers]


def tool_files() -> dict[str, Any]:
    """Figures read from the files that other tools wrote."""
    choices = {
        "inspect_two_scorers.eval": "score_match",
        "evalplus_eval_results.json": "base_passed",
    }
    found: dict[str, Any] = {}
    for path in sorted(TOOL_FILES.iterdir()):
        if path.suffix in (".py", ".txt"):
            continue
        columns = {"reward": choices[path.name]} if path.name in choices else None
        try:
            samples = bestofk.read(path, columns=columns)
        except ValueError as error:
            found[path.name] = str(error).replace(str(TOOL_FILES), "")
            continue
        found[path.name] = {
            "problems": list(samples.problems),
            "rewards": samples.rewards.tolist(),
            "answers": None if samples.answers is None else first_seen(samples.answers.tolist()),
        }
    return found


def verbs() -> dict[str, Any]:
    """`--json` of the verbs that need neither torch nor this machine, on fixed files."""
    rng = np.random.default_rng(3)
    for name, shift in (("a", 0.0), ("b", 0.15)):
        with Path(f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for problem, p in enumerate(np.linspace(0.05, 0.8, 12)):
                for right in rng.random(8) < p + shift:
                    answer = "x" if right else f"y{rng.integers(3)}"
                    line = {"problem_id": f"p{problem}", "reward": float(right), "answer": answer}
                    file.write(json.dumps(line) + "\n")
    return {
        "eval": said("eval", "a.jsonl", "--k", "1,2,8"),
        "eval maj": said("eval", "a.jsonl", "b.jsonl", "--metric", "maj@k"),
        "compare": said("compare", "a.jsonl", "b.jsonl"),
        "plan": said("plan", "--k", "4", "--width", "0.1"),
        "plan power": said(
            "plan", "--k", "4", "--power", "0.8", "--effect", "0.05", "--pilot", "a.jsonl"
        ),
        "report": said("report", "a.jsonl", "b.jsonl", "--out", "page.html", without="bytes"),
        "objectives": [
            {**row, "formula": "", "claim": "", "source": ""} for row in said("objectives")
        ],
        "tasks": [{**row, "summary": "", "options": {}} for row in said("tasks")],
        "task": said("tasks", "show", "countdown"),
        "demo": said("demo", "--steps", "3", "--worlds", "2", without="seconds"),
        "dry run": sorted(said("train", "countdown-tiny", "--dry-run")),
    }


def recipes() -> dict[str, Any]:
    """Two recipes as they are read; reading what was written of any gives the same."""
    from bestofk import config

    found = {}
    for path in RECIPES:
        recipe = config.read(path)
        Path("again.toml").write_text(config.to_toml(recipe), encoding="utf-8")
        assert config.read("again.toml") == recipe
        if path.parent.name in ("countdown-tiny", "maths-7b"):
            found[path.parent.name] = dict(config.leaves(recipe))
    return found


GOLDENS: dict[str, Callable[[], dict[str, Any]]] = {
    each.__name__: each for each in (conformance, advantages, tool_files, verbs, recipes)
}


def flat(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list | tuple) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inside in pairs:
            yield from flat(inside, f"{where}/{key}")
    else:
        yield where, list(value) if isinstance(value, tuple) else value


def made(name: str) -> dict[str, Any]:
    """A golden computed now, in an empty folder."""
    before = Path.cwd()
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return GOLDENS[name]()
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens(name: str) -> None:
    recorded = dict(flat(json.loads((HERE / "goldens" / f"{name}.json").read_text("utf-8"))))
    now = dict(flat(made(name)))
    assert now.keys() == recorded.keys()
    for key, value in recorded.items():
        if isinstance(value, float):
            assert now[key] == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), key
        else:
            assert now[key] == value, key


if __name__ == "__main__":
    for name in GOLDENS:
        text = json.dumps(made(name), ensure_ascii=False)
        (HERE / "goldens" / f"{name}.json").write_text(text + "\n", encoding="utf-8")
