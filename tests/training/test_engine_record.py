"""The engine's plan in the run's folder, the floor of a step, and words while a step compiles."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bestofk.common import processes_per_card
from bestofk.sampling import Sampling
from bestofk.sampling.group import GroupSampler
from bestofk.training import engine_record
from bestofk.training.display import phases
from bestofk.training.gpu_floor import Card, learning_floor, measured_card, sampling_floor
from bestofk.training.processes import backends
from bestofk.types import Prompt
from policies import fixed, group, letters, llama

PARAMS = Sampling(samples_per_prompt=3, max_new_tokens=8)
PROMPTS = [Prompt(str(i), "abcdef"[: 1 + i], "test") for i in range(4)]


def sampled(sampler: GroupSampler, prompts: Any = PROMPTS, params: Any = PARAMS) -> GroupSampler:
    sampler.sample(prompts, seed=0, params=params)
    return sampler


def test_a_resumed_run_takes_the_plan_of_the_run_before(tmp_path: Path) -> None:
    """Also where its first calls are smaller: rows are decoded in batches of the same width."""
    model, tokenizer = fixed(llama), letters(26, end=1)
    before = sampled(GroupSampler(model, tokenizer))
    engine_record.keep_plan(before, tmp_path)
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
            engine_record.take_plan(after, tmp_path)
        sampled(after, PROMPTS[:1], few)
        assert (after.plan == before.plan) == resumed


def test_a_damaged_or_missing_plan_is_made_anew(tmp_path: Path) -> None:
    sampler = GroupSampler(fixed(llama), letters(26, end=1))
    engine_record.take_plan(sampler, tmp_path)
    for damaged in ('{"slots": "many"}', "[1]", '{"slots": 1'):
        (tmp_path / "engine.json").write_text(damaged, encoding="utf-8")
        engine_record.take_plan(sampler, tmp_path)
        assert sampler.kept is None
    engine_record.keep_plan(object(), tmp_path)  # a sampler that plans nothing


def test_processes_on_one_card_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes_per_card(2, {"LOCAL_WORLD_SIZE": "3"}) == 2
    model, tokenizer = fixed(llama), letters(26, end=1)
    alone = GroupSampler(model, tokenizer)._total()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert GroupSampler(model, tokenizer)._total() == alone / 4


def test_processes_that_share_a_card_use_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL does not take two processes on one GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert backends("cuda") == []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [each.backend for each in backends("cuda")] == ["gloo"]
    assert backends("cpu") == []


def test_the_line_of_a_step_says_how_near_to_the_cards_peak_it_was() -> None:
    line = {"seconds": {"sample": 0.25, "score": 0.1}, "floor_share": {"sample": 0.41}}
    assert phases(line) == "sample 0.2s (41% of peak) score 0.1s"
    assert phases({"seconds": {"sample": 0.25}}) == "sample 0.2s"


def test_the_floor_counts_what_must_be_read_and_computed() -> None:
    """Against a walk through every step of every row."""
    groups = [group([1, 2, 3], [[4, 5], [6]]), group([1], [[2, 3, 4, 5]])]
    weights, token = 1000, 7
    moved = 0
    for step in range(4):
        moved += weights * 2
        for each in groups:
            alive = [c for c in each.completions if len(c.tokens) > step]
            moved += token * len(each.prompt_tokens) * bool(alive)
            moved += sum(token * (step + 1) for _ in alive)
    slow = Card(bytes_per_second=10.0, operations_per_second=1e12)
    shape = {"weights": weights, "weight_bytes": 2, "token_bytes": token}
    assert sampling_floor(groups, slow, slots=64, **shape) == pytest.approx(moved / 10.0)
    weak = Card(bytes_per_second=1e12, operations_per_second=10.0)
    assert sampling_floor(groups, weak, slots=64, **shape) == pytest.approx(2 * 1000 * 7 / 10.0)
    # Seven tokens drawn two at a time are four steps as well; one at a time, seven.
    more = sampling_floor(groups, slow, slots=1, **shape) - moved / 10.0
    assert more == pytest.approx(3 * weights * 2 / 10.0)
    tokens = (3 + 1 + 0) + (1 + 3)
    assert learning_floor(groups, weak, weights=weights, trained=weights) == pytest.approx(
        6 * weights * tokens / 10.0, rel=1e-6
    )


def test_a_device_is_measured_once() -> None:
    card = measured_card("cpu", 64)
    assert card.bytes_per_second > 0
    assert card.operations_per_second > 0
    assert measured_card("cpu", 64) is card


def test_a_long_first_phase_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_record, "FIRST_WORD", 0.01)
    monkeypatch.setattr(engine_record, "NEXT_WORD", 0.01)
    said: list[str] = []
    with engine_record.patient(said.append, "step 1: sampling", is_on=True):
        until = time.monotonic() + 900
        while len(said) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    count = len(said)
    assert count >= 2
    assert said[0].startswith("step 1: sampling for 0 s so far: the first step compiles")
    with engine_record.patient(said.append, "step 2", is_on=False):
        time.sleep(0.05)
    assert len(said) == count
