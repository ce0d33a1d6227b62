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
