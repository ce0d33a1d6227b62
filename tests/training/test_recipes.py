"""Every recipe in the repository is one that a run would accept."""

from pathlib import Path

import pytest

from bestofk.cli import main
from bestofk.config import read
from bestofk.training.checks import check

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*/run.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parent.name)
def test_a_recipe_is_accepted_and_has_a_readme(path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    goal = check(read(path))
    assert goal.k > 1
    assert main(["train", str(path), "--dry-run"]) == 0
    assert f"k = {goal.k}" in capsys.readouterr().out
    readme = (path.parent / "README.md").read_text(encoding="utf-8")
    assert f"recipes/{path.parent.name}/run.toml" in readme


def test_the_recipes_the_documentation_names_are_there():
    names = {path.parent.name for path in RECIPES}
    assert {"countdown-tiny", "maze-tiny", "gsm8k-smollm2", "code-smollm2", "maths-7b"} <= names
