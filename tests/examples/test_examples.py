"""The examples run as they are shown, use the public API alone, and do what they say."""

import ast
import runpy
import sys
from pathlib import Path

import pytest
import torch

import bestofk
from bestofk import models
from bestofk.learning import Learner, Optimizer
from bestofk.types import Group, Prompt, Trajectory

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = {
    "bestofk", "bestofk.models", "bestofk.rewards", "bestofk.tasks", "bestofk.learning",
    "bestofk.sampling", "bestofk.sampling.decode", "bestofk.adapters", "bestofk.objectives",
}  # fmt: skip


def run(name, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return runpy.run_path(str(EXAMPLES / name))["main"]()
    finally:
        torch.set_num_threads(threads)


def test_the_loop_trains_and_compares(monkeypatch, capsys):
    words = ("--objective", "grpo", "--steps", 2, "--test-prompts", 8, "--prompts", 4)
    before, after = run("loop.py", monkeypatch, *words)
    assert after.at(4).value != before.at(4).value
    said = capsys.readouterr().out
    assert "pass@32" in said
    assert "No significant difference" in said


@pytest.mark.slow
def test_the_loop_learns_what_it_is_told_to(monkeypatch, capsys):
    """GRPO raises pass@1 in a few steps by more than the evaluation's noise (about .02)."""
    words = ("--objective", "grpo", "--steps", 25, "--test-prompts", 60, "--prompts", 16)
    before, after = run("loop.py", monkeypatch, *words)
    assert after.at(1).value > before.at(1).value + 0.04
    assert "after is better at" in capsys.readouterr().out


def test_off_policy_steps_move_the_ratios_and_stay_finite(monkeypatch, capsys):
    words = ("--batches", 3, "--prompts", 8, "--mini-batches", 4, "--samples", 16,
             "--test-prompts", 20)  # fmt: skip
    history = run("off_policy.py", monkeypatch, *words)
    assert len(history) == 3
    assert all(0 < line["spread"] < 5 for line in history)
    assert "20 problems" in capsys.readouterr().out


def test_the_plain_loop_takes_the_learners_steps(capsys):
    """Two steps on the same groups, drawn by the example: the same weights to float32."""
    plain = runpy.run_path(str(EXAMPLES / "plain_loop.py"))
    torch.manual_seed(0)
    policy, again = models.load("tiny-countdown"), models.load("tiny-countdown")
    prompts = [
        torch.tensor(policy.tokenizer(text).input_ids) for text in ("3 5 = 8:", "1 2 9 = 6:")
    ]
    groups = [(ids, plain["sample"](policy.model, ids, 1)) for ids in prompts]
    assert len({len(row) for _, rows in groups for row in rows}) > 2
    rewards = torch.rand(2, 32)
    optimizer = torch.optim.AdamW(  # with a large eps, since tiny gradients are rounding
        policy.model.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.0
    )
    learner = Learner(again.model, optimizer=Optimizer(learning_rate=1e-2, adam=(0.9, 0.999, 1e-3)))
    shaped = [
        Group(
            Prompt("p", "", "t"),
            tuple(Trajectory(row.numpy()) for row in rows),
            tuple(ids.tolist()),
        )
        for ids, rows in groups
    ]
    for _ in range(2):
        advantages = bestofk.advantages(rewards, "max@4")
        plain["step"](policy.model, optimizer, groups, advantages)
        learner.step(shaped, advantages.numpy())
    start = models.load("tiny-countdown").model.state_dict()
    for name, weight in policy.model.state_dict().items():
        moved = (weight - start[name]).abs().max()
        torch.testing.assert_close(weight, again.model.state_dict()[name], atol=2e-6, rtol=0)
        assert moved > 1e-5 or not weight.is_floating_point()
    plain["main"].__globals__["P"] = 2
    plain["main"](steps=1)
    assert "max@8" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short_and_use_the_public_api_alone(path):
    tree = ast.parse(path.read_text())
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used |= {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
    assert {name for name in used if name and name.startswith("bestofk")} <= PUBLIC
    assert len(path.read_text().splitlines()) <= 110
