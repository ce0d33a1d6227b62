"""Evaluation against a plain loop, in the same run: curves with intervals; a comparison of files.

    python benchmarks/evaluation.py [--problems 1000] [--samples 1024]

The peer is what harnesses do: Chen's product formula in NumPy, once per problem and k, and no
interval. Its full cost is measured on some of the k and scaled to all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bestofk.evaluation import compare, curve, read, samples


def chen(n: int, c: int, k: int) -> float:
    """Chen et al. 2021: 1 - Π (1 - k/j), the form that is found in most harnesses."""
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


Time = tuple[float, float]
"""Seconds on the wall, and of the processors: they part when the machine is shared."""


def seconds(work: Callable[[], Any], repeats: int = 3) -> tuple[Time, Any]:
    """The best of a few tries, and the result."""
    best, result = (float("inf"), float("inf")), None
    for _ in range(repeats):
        began = time.perf_counter(), time.process_time()
        result = work()
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        best = min(best[0], took[0]), min(best[1], took[1])
    return best, result


def write(path: Path, rewards: np.ndarray) -> None:
    with path.open("w") as file:
        for problem, row in enumerate(rewards):
            for sample, reward in enumerate(row):
                line = {"problem_id": f"task/{problem}", "sample_id": sample, "reward": reward}
                file.write(json.dumps({**line, "completion": "<answer>42</answer>"}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1024)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    chance = rng.beta(0.3, 0.7, asked.problems)
    runs = [
        (rng.random((asked.problems, asked.samples)) < p[:, None]).astype(float)
        for p in (chance, np.clip(1.3 * chance, 0, 1))
    ]
    curve(samples(runs[0][:4]), "pass@k")  # import and warm up

    some_k = np.unique(np.geomspace(1, asked.samples, 12).astype(int))
    passes = runs[0].sum(axis=1).astype(int)
    part, loop = seconds(
        lambda: {k: np.mean([chen(asked.samples, int(c), int(k)) for c in passes]) for k in some_k}
    )
    peer = tuple(each / len(some_k) * asked.samples for each in part)

    held = samples(runs[0], name="a")
    whole, found = seconds(lambda: curve(replace(held), "pass@k"), 5)
    assert all(abs(found.estimate[k - 1] - value) < 1e-9 for k, value in loop.items())
    partial = samples(runs[0] * rng.random(runs[0].shape))
    graded, _ = seconds(lambda: curve(replace(partial), "max@k"), 2)

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("a.jsonl", "b.jsonl")]
        for file, rewards in zip(files, runs):
            write(file, rewards)
        size = files[0].stat().st_size / 1e6
        parsing, _ = seconds(lambda: [json.loads(line) is None for line in files[0].open("rb")], 1)
        reading, first = seconds(lambda: read(files[0]), 1)
        second = read(files[1])
        both, _ = seconds(lambda: compare([first, second]), 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    shape = f"{asked.problems} problems × {asked.samples} samples"
    print(f"{shape}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    rows = [
        ("Chen's formula in a loop, every k, no interval", peer, ""),
        ("full pass@k curve, intervals, band, fixed set", whole, f"{peer[1] / whole[1]:.0f}×"),
        ("full max@k curve of graded rewards, the same", graded, f"{peer[1] / graded[1]:.0f}×"),
        (f"parse the lines of one file ({size:.0f} MB JSONL)", parsing, ""),
        ("read it", reading, f"{reading[1] / parsing[1]:.1f} × parsing"),
        ("compare two runs, 4,000 sign flips, crossing", both, ""),
    ]
    print(f"{'':<50} {'seconds':>8}  {'of CPU':>8}  {'ratio (CPU)':>11}")
    for name, (wall, processor), ratio in rows:
        print(f"{name:<50} {wall:8.2f}  {processor:8.2f}  {ratio:>11}")
    print(f"\npeak memory of all of this: {peak:.0f} MB")
    goals = {"curve under 2 s": whole[0] < 2, "50 times the loop": peer[1] / whole[1] >= 50}
    goals["read under 3 times the parsing"] = reading[1] / parsing[1] < 3
    goals["compare under 5 s"] = both[0] < 5
    print("; ".join(f"{goal}: {'yes' if met else 'NO'}" for goal, met in goals.items()))


if __name__ == "__main__":
    main()
