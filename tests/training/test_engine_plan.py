"""The engine's plan in the run's folder, and words while a step compiles."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bestofk.devices import processes_per_card
from bestofk.sampling import Sampling
from bestofk.sampling.engine.engine_model import EngineModel
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.training import display
from bestofk.training.resume import keep_plan, take_plan
from bestofk.types import Prompt
from policies import fixed, letters, llama

PARAMS = Sampling(samples_per_prompt=3, max_new_tokens=8)
PROMPTS = [Prompt(str(i), "abcdef"[: 1 + i], "test") for i in range(4)]


def sampled(sampler: GroupSampler, prompts: Any = PROMPTS, sampling: Any = PARAMS) -> GroupSampler:
    sampler.sample(prompts, seed=0, sampling=sampling)
    return sampler


def test_a_resumed_run_takes_the_plan_of_the_run_before(tmp_path: Path) -> None:
    """Also where its first calls are smaller: rows are decoded in batches of the same width."""
    model, tokenizer = fixed(llama), letters(26, end=1)
    before = sampled(GroupSampler(model, tokenizer))
    keep_plan(before, tmp_path)
    stored = json.loads((tmp_path / "engine.json").read_text(encoding="utf-8"))
    assert stored["slots"] == 16
    assert (
        stored["token_bytes"] == 3 * 2 * 2 * 8 * 4
    )  # layers, keys and values, heads, size, float32
    assert stored["processes_on_the_card"] == 1
    few = Sampling(samples_per_prompt=1, max_new_tokens=2)
    for resumed in (False, True):
        after = GroupSampler(model, tokenizer)
        if resumed:
            take_plan(after, tmp_path)
        sampled(after, PROMPTS[:1], few)
        assert (after.plan == before.plan) == resumed


def test_a_damaged_or_missing_plan_is_made_anew(tmp_path: Path) -> None:
    sampler = GroupSampler(fixed(llama), letters(26, end=1))
    take_plan(sampler, tmp_path)
    for damaged in ('{"slots": "many"}', "[1]", '{"slots": 1'):
        (tmp_path / "engine.json").write_text(damaged, encoding="utf-8")
        take_plan(sampler, tmp_path)
        assert sampler.resident.stored_plan is None
    keep_plan(object(), tmp_path)  # a sampler that plans nothing


def test_processes_on_one_card_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes_per_card(2, {"LOCAL_WORLD_SIZE": "3"}) == 2
    model, tokenizer = fixed(llama), letters(26, end=1)
    engine_model = EngineModel(model, torch.bfloat16)
    held = engine_model.held_bytes(model)
    matrices, gains = (
        sum(p.numel() for p in model.parameters() if (p.dim() > 1) == matrix)
        for matrix in (True, False)
    )
    assert held == 6 * matrices + 8 * gains  # and a copy, of factors of products in bfloat16
    alone = GroupSampler(model, tokenizer).resident.room_bytes(engine_model) + held
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert GroupSampler(model, tokenizer).resident.room_bytes(engine_model) + held == alone / 4


def test_a_long_first_phase_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "FIRST_WORD", 0.01)
    monkeypatch.setattr(display, "NEXT_WORD", 0.01)
    said: list[str] = []
    with display.say_while_waiting(said.append, "step 1: sampling"):
        until = time.monotonic() + 900
        while len(said) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    count = len(said)
    assert count >= 2
    assert said[0].startswith("step 1: sampling for 0 s so far: the first step compiles")
    time.sleep(0.05)
    assert len(said) == count


def test_the_evaluation_line_shows_max_at_k_for_graded_rewards() -> None:
    def line(passed: float, best: float) -> str:
        cells = {"pass@1": passed, "pass@8": passed, "max@1": best, "max@8": 2 * best}
        results = {name: {"value": v, "low": v, "high": v} for name, v in cells.items()}
        facts = {"step": 1, "split": "validation", "prompts": 8, "samples_per_prompt": 8}
        return display.evaluation_line({**facts, "results": results})

    assert "max@1 0.300 [0.300, 0.300]  max@8 0.600" in line(0.0, 0.3)
    assert "pass@" not in line(0.0, 0.3)
    assert "pass@8 0.500" in line(0.5, 0.5)
    assert "max@" not in line(0.5, 0.5)
