"""Where the default of a setting is decided: once, the same for the command and for Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bestofk
from bestofk.cli import main
from bestofk.config import Config, leaves, merged, read
from bestofk.training.resolve import HELD_OUT, resolve, resumed
from bestofk.training.train import train


def rows_in(folder: Path, count: int) -> Path:
    file = folder / f"rows-{count}.jsonl"
    lines = [{"prompt": f"{i} 2 3 = {i + 5}:", "answer": str(i)} for i in range(count)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.mark.parametrize("count", [12, 2 * HELD_OUT])
def test_python_and_the_command_line_train_the_same_thing(
    tmp_path: Path, small_model: Path, count: int
) -> None:
    """With everything left out that may be left out; the folder of the run differs alone."""
    rows, by_python, by_command = rows_in(tmp_path, count), tmp_path / "a", tmp_path / "b"
    stated = {"sampling.max_new_tokens": 4, "evaluation.every": 0, "model.device": "cpu"}
    bestofk.train(
        small_model, rows, "maths", "max@2", samples_per_prompt=4, steps=1, dir=by_python,
        settings=stated,
    )  # fmt: skip
    words = [
        f"--model.path={small_model}", "--task.name=dataset", f"--task.options.train={rows}",
        "--task.verifier=maths", "--objective=max@2", "--sampling.samples_per_prompt=4",
        "--run.steps=1", f"--run.dir={by_command}",
    ]  # fmt: skip
    assert main(["train", *words, *(f"--{name}={value}" for name, value in stated.items())]) == 0
    one, other = (dict(leaves(read(path / "config.toml"))) for path in (by_python, by_command))
    assert {name for name in one if one[name] != other.get(name)} == {"run.dir"}
    assert one.keys() == other.keys()
    assert one["sampling.prompts_per_step"] == min(16, count)
    assert one["task.options.validation_share"] == (0.5 if count > 100 else 0.0)


def test_python_and_the_command_line_draw_answers_of_equal_length(tmp_path: Path) -> None:
    """As many tokens as answers to the task may need, unless the number is stated."""
    task = {"name": "dataset", "options": {"train": str(rows_in(tmp_path, 200))}}
    config = Config(model={"path": "some/model-1b"}, task=task)  # type: ignore[arg-type]
    settings = resolve(config, dry=True)
    assert settings.sampling.max_new_tokens == 512
    assert "answers to dataset" in settings.reasons["sampling.max_new_tokens"]
    stated = resolve(merged(config, {"sampling.max_new_tokens": 256}), dry=True)
    assert stated.sampling.max_new_tokens == 256
    assert "sampling.max_new_tokens" not in stated.reasons


@pytest.mark.parametrize(
    ("changes", "decided"),
    [
        ({}, {"sampling.prompts_per_step": 12, "evaluation.split": "train"}),
        ({"sampling.prompts_per_step": 16}, {"sampling.prompts_per_step": 16}),
        ({"off_policy.mini_batches": 8}, {"sampling.prompts_per_step": 8}),
        ({"evaluation.split": "validation"}, {"task.options.validation_share": None}),
        ({"task.options.validation_share": 0.4}, {"task.options.validation_share": 0.4}),
    ],
)
def test_what_is_stated_stays_and_the_rest_follows_the_rows(
    tmp_path: Path, changes: dict[str, Any], decided: dict[str, Any]
) -> None:
    task = {"name": "dataset", "options": {"train": str(rows_in(tmp_path, 12))}}
    config = merged(Config(task=task), changes)  # type: ignore[arg-type]
    found = dict(leaves(resolve(config, dry=True).recipe))
    assert {name: found.get(name) for name in decided} == decided


def test_what_picks_the_checkpoint_and_ends_a_run_is_decided_once() -> None:
    config = merged(Config(), {"objective": "max@6", "evaluation.samples_per_prompt": 16})
    settings = resolve(config, dry=True)
    assert (settings.metrics, settings.best_by, settings.largest_gap) == ((), "max@4", 1e-3)
    chosen = {"objective": "select@8+max@2", "evaluation.metrics": ["pass^k"]}
    settings = resolve(merged(config, {**chosen, "model.precision": "bf16"}), dry=True)
    assert (settings.metrics, settings.best_by) == (("select@k", "pass^k"), "select@8")
    assert settings.largest_gap == 0.1
    stated = {"evaluation.best_by": "pass^2", "sampling.advanced.agreement": 0.5}
    settings = resolve(merged(config, {**chosen, **stated}), dry=True)
    assert (settings.best_by, settings.largest_gap) == ("pass^2", 0.5)


def test_a_resumed_run_decides_nothing_anew(recipe: Any) -> None:
    """What was left out stands in its folder; other defaults of a later version do not matter."""
    config = merged(read(recipe(run={"steps": 1})), {"optimizer.learning_rate": None})
    path = train(resolve(config)).path
    before = read(path / "config.toml")
    assert before.optimizer.learning_rate == 1e-4
    again = resumed(path, {"run.steps": 3})
    assert not again.reasons
    assert again.recipe == merged(before, {"run.steps": 3})
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: 0.0001 → 0.5"):
        resumed(path, {"optimizer.learning_rate": 0.5})
    with pytest.raises(FileNotFoundError, match=r"is not a run: it has no config\.toml"):
        resumed(path.parent, {})
