"""Every recipe in the repository is one that a run would accept."""

import runpy
from pathlib import Path

import pytest

from bestofk import models
from bestofk.cli import main
from bestofk.config import read
from bestofk.training.checks import check

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*/run.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parent.name)
def test_a_recipe_is_accepted_and_has_a_readme(path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    goal = check(read(path))
    assert goal.text not in ("mean", "grpo")
    assert main(["train", str(path), "--dry-run"]) == 0
    assert f"k = {goal.k}" in capsys.readouterr().out
    readme = (path.parent / "README.md").read_text(encoding="utf-8")
    assert f"recipes/{path.parent.name}/run.toml" in readme


def test_the_recipes_the_documentation_names_are_there():
    names = {path.parent.name for path in RECIPES}
    assert {"countdown-tiny", "maze-tiny", "gsm8k-smollm2", "code-smollm2", "maths-7b"} <= names


def test_a_supervised_start_learns_the_solutions(tmp_path, monkeypatch):
    script = RECIPES[0].parents[1] / "supervised-start" / "train.py"
    words = ["countdown", "--model", "tiny-countdown", "--style", "compact", "--device", "cpu"]
    size = ["--limit", "16", "--batch", "8", "--epochs", "12", "--learning-rate", "2e-3"]
    monkeypatch.setattr("sys.argv", [str(script), *words, *size, "--out", str(tmp_path / "start")])
    losses = runpy.run_path(str(script))["main"]()
    assert losses[-1] < 0.8 * losses[0]
    start = models.load("tiny-countdown").model.lm_head.weight
    assert not models.load(tmp_path / "start").model.lm_head.weight.equal(start)
