"""The page's table of GPU figures is the one made from the results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def table_module() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_table", ROOT / "benchmarks" / "gpu_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_holds_the_table_of_the_results() -> None:
    module = table_module()
    results = json.loads(module.RESULTS.read_text(encoding="utf-8"))
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.page_with(module.made(results), page) == page


def test_a_changed_figure_changes_the_table() -> None:
    module = table_module()
    results = json.loads(module.RESULTS.read_text(encoding="utf-8"))
    before = module.made(results)
    results["bestofk"]["rl_step_135m_s"] = 1.11
    assert "1.11 s" in module.made(results)
    assert module.made(results) != before


def test_less_memory_is_better() -> None:
    module = table_module()
    results: dict[str, Any] = {
        "bestofk": {"lora_peak_7b_gib": 40.0},
        "goals": {},
        "trl+vllm+peft": {"lora_peak_7b_gib": 100.0},
    }
    assert "| 40 GiB |  | trl+vllm+peft 100 GiB (2.5×) |" in module.made(results)


def test_only_work_that_somebody_measured_is_listed() -> None:
    module = table_module()
    results: dict[str, Any] = {
        "bestofk": {"long_2048_share": 0.5},
        "goals": {},
        "vllm": {"sampling_long_2048_tok_s": 10_000},
    }
    rows = module.made(results).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["not measured", "50%"]
