"""A report on large files: 1,000 problems × 1,024 samples, one file and two.

The floor is a plain loop that parses every line of the same file and does nothing with it, measured
in the same run: what any tool that looks at every sample has to spend.
"""

from __future__ import annotations

import functools
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from _measure import machine, seconds, table
from bestofk.reports import load, make

PROBLEMS, SAMPLES = 1000, 1024


def write_file(path: Path, shape: float, seed: int) -> Path:
    """Samples as `bestofk eval` writes them, with completions of about 100 characters."""
    rng = np.random.default_rng(seed)
    chances = rng.beta(shape, 3.0, PROBLEMS)
    with open(path, "w", encoding="utf-8") as stream:
        for problem, chance in enumerate(chances):
            right = rng.random(SAMPLES) < chance
            wrong = rng.integers(0, 50, SAMPLES)
            for sample in range(SAMPLES):
                answer = "42" if right[sample] else str(wrong[sample] + 100)
                text = f"Let us think about it step by step; the answer is then {answer}. " * 2
                row = {
                    "problem_id": f"problem/{problem:04d}",
                    "sample_id": sample,
                    "prompt": f"What is the answer to problem {problem}?",
                    "completion": text,
                    "answer": answer,
                    "reward": float(right[sample]),
                    "correct": bool(right[sample]),
                    "status": "correct" if right[sample] else "incorrect",
                    "finish_reason": "stop",
                    "n_tokens": 30,
                    "logprob_sum": -25.0,
                    "seed": seed,
                    "model": "model",
                    "run_id": path.stem,
                }
                stream.write(json.dumps(row) + "\n")
    return path


def parse(path: Path) -> None:
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            json.loads(line)


def report_on(files: list[Path], page: Path) -> None:
    make(load([str(file) for file in files]), page)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [write_file(folder / "a.jsonl", 0.5, 0), write_file(folder / "b.jsonl", 0.7, 1)]
        floor = seconds(lambda: parse(files[0]))
        rows = [("report on", "seconds", "of CPU", "against parsing alone", "page")]
        for chosen in (files[:1], files):
            page = folder / "report.html"
            began = time.process_time()
            took = seconds(functools.partial(report_on, chosen, page))
            rows.append(
                (
                    f"{len(chosen)} × {PROBLEMS} problems × {SAMPLES} samples",
                    f"{took:.1f}",
                    f"{time.process_time() - began:.1f}",
                    f"{took / (floor * len(chosen)):.2f}×",
                    f"{page.stat().st_size / 1e6:.2f} MB",
                )
            )
        size = files[0].stat().st_size / 1e6
        table(f"Report ({machine()}); parsing one file of {size:.0f} MB takes {floor:.1f} s", rows)


if __name__ == "__main__":
    main()
