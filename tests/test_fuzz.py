"""Everything that reads what others wrote holds its rule on kept and on mutated inputs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load() -> ModuleType:
    path = Path(__file__).parents[1] / "tools" / "fuzz.py"
    specification = importlib.util.spec_from_file_location("fuzz_targets", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["fuzz_targets"] = module
    specification.loader.exec_module(module)
    return module


fuzzing = load()


@pytest.mark.parametrize("name", list(fuzzing.TARGETS))
def test_every_kept_input_holds(name: str) -> None:
    kept = fuzzing.seeds(name)
    assert kept
    kinds = {fuzzing.TARGETS[name](data) for data in kept}
    assert len(kinds) > 1  # they are not all turned away at the door


@pytest.mark.slow
@pytest.mark.parametrize("name", list(fuzzing.TARGETS))
def test_mutated_inputs_hold(name: str) -> None:
    target, kept = fuzzing.TARGETS[name], fuzzing.seeds(name)
    tried, kinds, bad = fuzzing.fuzz(target, kept, 20.0, seed=1, least=len(kept) + 50)
    assert bad is None, bad
    assert tried >= len(kept) + 50
    assert kinds > 2


def test_the_fuzzer_finds_a_defect_and_shortens_it() -> None:
    def careless(data: bytes) -> str:
        if b"d" in data and data[:1] == b"N":
            raise KeyError(data)
        return str(len(data) % 4)

    seeds = [b"N some longer text", b"other input: d"]
    _, _, bad = fuzzing.fuzz(careless, seeds, 60.0)
    assert bad == b"Nd"


def test_the_fuzzer_finds_what_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = 0.0
    monkeypatch.setattr(fuzzing.time, "process_time", lambda: spent)

    def quadratic(data: bytes) -> str:
        nonlocal spent
        spent += 20e-6 * len(data) ** 2
        return str(len(data) % 4)

    _, _, bad = fuzzing.fuzz(quadratic, [b"abc" * 150], 60.0)
    assert bad is not None
    assert len(bad) > 500
