"""The examples run as they are shown, use the public API alone, and do what they say."""

import ast
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = {
    "bestofk", "bestofk.models", "bestofk.rewards", "bestofk.tasks", "bestofk.learning",
    "bestofk.sampling", "bestofk.sampling.decode",
}  # fmt: skip


def run(name, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return runpy.run_path(str(EXAMPLES / name))["main"]()
    finally:
        torch.set_num_threads(threads)


def test_the_loop_learns_what_it_is_told_to(monkeypatch, capsys):
    """GRPO raises pass@1 in a few steps by more than the evaluation's noise (about .02)."""
    shown = run(
        "loop.py", monkeypatch,
        "--objective", "grpo", "--steps", 25, "--test-prompts", 60, "--prompts", 16,
    )  # fmt: skip
    assert shown["after"][1] > shown["before"][1] + 0.04
    assert list(shown["before"]) == [1, 4, 16, 32]
    assert "pass@32" in capsys.readouterr().out


def test_off_policy_steps_move_the_ratios_and_stay_finite(monkeypatch):
    history = run("off_policy.py", monkeypatch, "--steps", 3, "--prompts", 8)
    assert len(history) == 3
    assert all(0 < line["spread"] < 5 for line in history)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short_and_use_the_public_api_alone(path):
    tree = ast.parse(path.read_text())
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used |= {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
    assert {name for name in used if name and name.startswith("bestofk")} <= PUBLIC
    assert len(path.read_text().splitlines()) <= 110
