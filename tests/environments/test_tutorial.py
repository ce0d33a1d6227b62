"""The environment of the tutorial "An agent in forty lines", and what a few steps teach."""

from __future__ import annotations

import random
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bestofk

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "agent.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def hints() -> Any:
    names: dict[str, Any] = {"__name__": "hints"}
    exec(BLOCKS[0], names)
    return names["Hints"]


def test_the_program_has_at_most_forty_lines() -> None:
    lines = [line for block in BLOCKS for line in block.splitlines() if line.strip()]
    assert len(lines) <= 40
    assert "steps=40" in BLOCKS[1]


def test_a_hint_begins_a_right_answer_and_each_costs(hints: Any) -> None:
    """All signs and all turns in which the answer is found."""
    for *signs, solved in product((-1, 1), (-1, 1), (-1, 1), (1, 2, 3)):
        terms = [9, *(sign * size for sign, size in zip(signs, (4, 3, 11), strict=True))]
        answer, target = "".join(f"{term:+}" for term in terms)[1:], sum(terms)
        played = hints()
        played.reset(prompt="9 4 3 11:", terms=terms, target=target)
        begun = ""
        for turn in range(1, solved):
            reply = played(["?", "", f"+{target}"][turn])
            assert reply.startswith("\n9 4 3 11:")
            begun = reply.removeprefix("\n9 4 3 11:")
            assert answer.startswith(begun)
            assert len(re.findall(r"\d+", begun)) == turn + 1
        assert played(answer[len(begun) :]) is None
        assert played.get_reward() == 1 / solved
    for wrong in ("9+4+3+11+0", "9*4", "+9-4", "9+4+3", "27", "9 + 4+3+11"):
        played = hints()
        played.reset(prompt="", terms=[9, 4, 3, 11], target=27)
        assert played(wrong) is not None
        assert played.get_reward() == 0


def test_a_few_steps_of_the_tutorial_teach(hints: Any, tmp_path: Path) -> None:
    """Of the same 48 held-out problems more are solved, sooner, than before."""
    rows: list[dict[str, Any]] = []
    numbers = random.Random(0)
    while len(rows) < 1000:
        terms = [numbers.randint(1, 25)]
        terms += [numbers.choice((-1, 1)) * numbers.randint(1, 25) for _ in range(3)]
        if sum(terms) >= 10:
            prompt = " ".join(str(abs(term)) for term in terms) + f" = {sum(terms)}:"
            rows.append({"prompt": prompt, "terms": terms, "target": sum(terms)})
    run = bestofk.train(
        "tiny-countdown", rows, environment=hints, objective="max@4", samples_per_prompt=16,
        steps=12, learning_rate=5e-4, max_new_tokens=96, evaluate_every=12, dir=tmp_path / "run",
        settings={"task.limits.turn_tokens": 12, "evaluation.prompts": 48, "model.device": "cpu",
                  "evaluation.samples_per_prompt": 16},
    )  # fmt: skip
    gains = run.final.rewards.reshape(48, 16).mean(1) - run.start.rewards.reshape(48, 16).mean(1)
    assert gains.mean() > 2 * gains.std(ddof=1) / np.sqrt(48)
    assert gains.mean() > 0.03
    assert run.final.most_turns == 3
    assert run.final.within(1).rewards.mean() < run.final.rewards.mean()
