"""What a run on a GPU says and keeps about its engine: its plan, its pace, and that it compiles."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bestofk.common import base_model, write_atomically
from bestofk.training.batch import RolloutBatch
from bestofk.training.gpu_floor import learning_floor, measured_card, sampling_floor

PLAN = "engine.json"
"""In the run's folder: the sizes of the engine's memory, which a resumed run takes again."""
FIRST_WORD, NEXT_WORD = 5.0, 15.0
"""Seconds until a long first phase is spoken of, and between two words."""


def plan_of(sampler: Any) -> dict[str, Any] | None:
    """The sampler's sizes, where it plans any."""
    plan = getattr(sampler, "plan", None)
    if plan is None:
        return None
    return {**asdict(plan), **sampler.about}


def keep_plan(sampler: Any, folder: Path) -> None:
    """Write the plan into the run's folder where it is not what stands there."""
    plan = plan_of(sampler)
    if plan is None:
        return
    text = json.dumps(plan, indent=1) + "\n"
    path = Path(folder) / PLAN
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)


def take_plan(sampler: Any, folder: Path) -> None:
    """Let the sampler begin with the plan that stands in the run's folder.

    How many rows are decoded together decides how products are rounded: with the same plan a
    resumed run draws what the uninterrupted one draws.
    """
    path = Path(folder) / PLAN
    if not hasattr(sampler, "begin_with") or not path.is_file():
        return
    with contextlib.suppress(ValueError):  # a damaged file: the plan is made anew
        stored = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(stored, dict):
            sampler.begin_with(stored)


def floor_shares(
    sampler: Any, learner: Any, batch: RolloutBatch, seconds: Mapping[str, float], steps: int
) -> dict[str, dict[str, float]]:
    """The share of its floor that each phase reached (1 is as fast as the card), on CUDA."""
    plan = plan_of(sampler)
    if plan is None or learner.device.type != "cuda":
        return {}
    card = measured_card(str(learner.device))
    parameters = list(base_model(learner.model).parameters())
    weights = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    floors = {
        "sample": sampling_floor(
            batch.groups, card, weights=weights, weight_bytes=plan["weight_bytes"],
            token_bytes=plan["token_bytes"], slots=plan["slots"],
        ),
        "learn": learning_floor(
            batch.groups, card, weights=weights, trained=trained, steps=steps
        ),
    }  # fmt: skip
    return {"floor_share": {
        name: float(f"{floor / seconds[name]:.3g}")
        for name, floor in floors.items()
        if seconds.get(name)
    }}  # fmt: skip


@contextlib.contextmanager
def patient(say: Callable[[str], None], what: str, *, is_on: bool) -> Iterator[None]:
    """Say now and then that something still goes on: the first step compiles its kernels."""
    if not is_on:
        yield
        return
    over, began = threading.Event(), time.monotonic()

    def watch() -> None:
        wait = FIRST_WORD
        while not over.wait(wait):
            spent = time.monotonic() - began
            say(f"{what} for {spent:.0f} s so far: the first step compiles for this GPU")
            wait = NEXT_WORD

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
