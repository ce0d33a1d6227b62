"""Make the picture of docs/reports.md: simulated samples, Chromium.

python docs/report_pictures.py
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

from bestofk.reports import load, make

IMAGES = Path(__file__).parent / "images"
PROBLEMS, SAMPLES = 120, 64


def runs(folder: Path) -> list[str]:
    """Three simulated runs: a start, one that gives up on half of the problems, one that gains."""
    rng = np.random.default_rng(0)
    start = rng.beta(0.5, 2.0, PROBLEMS)
    sharp = np.where(rng.random(PROBLEMS) < 0.5, np.minimum(1, 3.0 * start + 0.2), 0.05 * start)
    broad = np.minimum(1, 1.35 * start + 0.02)
    named = []
    for name, chances in (("start", start), ("mean", sharp), ("max@8", broad)):
        path = folder / f"{name}.jsonl"
        with path.open("w") as file:
            for problem, chance in enumerate(chances):
                for sample in range(SAMPLES):
                    file.write(json.dumps(row(problem, sample, chance, rng)) + "\n")
        named.append(f"{name}={path}")
    return named


def row(problem: int, sample: int, chance: float, rng: np.random.Generator) -> dict[str, Any]:
    goal = 2 * problem + 10
    passed = bool(rng.random() < chance)
    answer = goal if passed else goal + int(rng.integers(1, 6))
    return {
        "problem_id": f"sum-{problem:03d}",
        "sample_id": sample,
        "prompt": f"Use the numbers {problem}, {problem + 3} and 7 to make {goal}.",
        "completion": f"{problem} + {problem + 3} + 7 = {answer}\n<answer>{answer}</answer>",
        "answer": str(answer),
        "reward": float(passed),
        "status": "correct" if passed else "incorrect",
        "seed": 0,
    }


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    page = make(load(runs(folder)), folder / "report.html", title="Three simulated runs").page
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        opened = browser.new_page(viewport={"width": 1200, "height": 940}, color_scheme="light")
        opened.goto(page.as_uri())
        opened.wait_for_timeout(800)
        opened.screenshot(path=IMAGES / "report-light.png")
        browser.close()


if __name__ == "__main__":
    main()
