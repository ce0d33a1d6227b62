"""The mathematics against the cost of sorting, and against plain-Python restatements of peers.

python benchmarks/objectives.py        prints ratios; CUDA rows where there is a GPU
"""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import torch

from _measure import against, machine, milliseconds, seconds, table
from bestofk import advantages, objective
from bestofk.objectives import max_at_k_curve

RNG = np.random.default_rng(0)
HEAD = ("what", "ours", "against", "ratio", "wanted")


def sort_and_back(rewards: np.ndarray) -> np.ndarray:
    """The floor: what any method that ranks samples must do."""
    order = np.argsort(rewards, axis=-1)
    ordered = np.take_along_axis(rewards, order, axis=-1)
    result = np.empty_like(rewards)
    np.put_along_axis(result, order, ordered, axis=-1)
    return result


def verl_loop(scores: Any, ids: list[str]) -> Any:
    """verl's grpo_passk restated: tensor scalars into a dict of lists, then group by group."""
    members: dict[str, list[int]] = {}
    values: dict[str, list[Any]] = {}
    for row, name in enumerate(ids):
        members.setdefault(name, []).append(row)
        values.setdefault(name, []).append(scores[row])
    result = torch.zeros_like(scores)
    for name, rows in members.items():
        inside = torch.stack(values[name])
        top, where = torch.topk(inside, 2)
        result[rows[int(where[0])]] = (top[0] - top[1]) / (torch.std(inside) + 1e-6)
    return result


def pkpo_loop(scores: np.ndarray, k: int) -> np.ndarray:
    """PKPO's listing restated: group by group, each normalised weight a product of its own."""

    def weight(n: int, i: int, j: int) -> float:
        if i == j and i >= k - 1:
            return k / n * np.prod(np.arange(i - k + 2, i + 1) / np.arange(n - k + 1, n))
        if j > i and j >= k - 1:
            ratios = np.arange(j - k + 2, j) / np.arange(n - k + 2, n)
            return k / n * (k - 1) / (n - k + 1) * np.prod(ratios)
        return 0.0

    def transformed(row: np.ndarray) -> np.ndarray:
        n = len(row)
        order = np.argsort(row)
        ordered = row[order]
        own = np.array([weight(n, i, i) for i in range(n)])
        step = np.array([weight(n, i, i + 1) - weight(n, i + 1, i + 1) for i in range(n - 1)])
        terms = ordered * own
        terms[:-1] += ordered[1:] * step
        result = np.empty(n)
        result[order] = np.cumsum(terms[::-1])[::-1]
        return result

    return np.stack([transformed(row) for row in scores])


def ratio(name: str, ours: float, peer: float, label: str, wanted: str, faster: bool = False):
    factor = peer / ours if faster else ours / peer
    return (name, milliseconds(ours), f"{milliseconds(peer)} {label}", f"{factor:.2f}×", wanted)


def cpu_rows() -> list[tuple[str, ...]]:
    rewards = RNG.random((4096, 64))
    rows = []
    ours, floor = against(lambda: advantages(rewards, "max@16"), lambda: sort_and_back(rewards))
    rows.append(ratio("max@16, 4096 × 64", ours, floor, "sort and back", "≤ 2×"))
    ours, floor = against(lambda: max_at_k_curve(rewards), lambda: sort_and_back(rewards))
    rows.append(ratio("max@k for all k, 4096 × 64", ours, floor, "sort and back", "≤ 5×"))

    small = RNG.random((1024, 16))
    names = [str(i) for i in np.repeat(np.arange(1024), 16)]
    scores = torch.from_numpy(small.reshape(-1).copy())
    ours, peer = against(
        lambda: advantages(small, "max@16:loo-1"), lambda: verl_loop(scores, names), rounds=5
    )
    rows.append(ratio("max@16:loo-1, 1024 × 16", ours, peer, "verl's loop", "≥ 100× faster", True))
    ours, peer = against(
        lambda: advantages(small, "max@8:none"), lambda: pkpo_loop(small, 8), rounds=3
    )
    rows.append(ratio("max@8:none, 1024 × 16", ours, peer, "PKPO's listing", "≥ 100× faster", True))

    middle = RNG.random((1024, 32))
    logs = RNG.normal(size=middle.shape) * 0.3
    for text in ("max@8:loo-1", "max@8"):
        ours, peer = against(
            lambda: advantages(middle, text, log_ratio=logs),  # noqa: B023
            lambda: advantages(middle, text),  # noqa: B023
        )
        rows.append(ratio(f"{text} off policy, 1024 × 32", ours, peer, "on policy", "≤ 20×"))
    return rows


def traced_rows() -> list[tuple[str, ...]]:
    """torch.compile and jax.jit of the unchecked call against the eager, checked one."""
    rows = []
    rewards = torch.from_numpy(RNG.random((256, 16)))
    many = torch.from_numpy(RNG.random((4096, 64)))
    logs = torch.from_numpy(RNG.normal(size=(256, 16)) * 0.2)
    plain, wide = objective("max@4"), objective("max@16")
    cases = {
        "max@4, 256 × 16": ((rewards,), lambda r, **o: plain(r, **o)),
        "max@16, 4096 × 64": ((many,), lambda r, **o: wide(r, **o)),
        "max@4 off policy, 256 × 16": (
            (rewards, logs),
            lambda r, x, **o: plain(r, log_ratio=x, **o),
        ),
    }
    for name, (given, call) in cases.items():
        traced = torch.compile(
            lambda *a, call=call: call(*a, check=False), fullgraph=True, dynamic=False
        )
        ours, eager = against(lambda: traced(*given), lambda: call(*given), rounds=5)  # noqa: B023
        rows.append(ratio(f"{name}, torch.compile", ours, eager, "eager", "≤ 1×"))
    try:
        import jax
    except ImportError:
        return rows
    jax.config.update("jax_enable_x64", True)
    for name, (given, call) in cases.items():
        arrays = [jax.numpy.asarray(value.numpy()) for value in given]
        traced = jax.jit(lambda *a, call=call: call(*a, check=False))
        ours, eager = against(
            lambda: traced(*arrays).block_until_ready(),  # noqa: B023
            lambda: call(*arrays).block_until_ready(),  # noqa: B023
            rounds=5,
        )
        rows.append(ratio(f"{name}, jax.jit", ours, eager, "eager", "≤ 1×"))
    return rows


def scaling_rows() -> list[tuple[str, ...]]:
    rows = []
    for shape, wanted in [((16384, 64), "≈ 4× for 4× groups"), ((4096, 256), "≈ 4–5× for 4× n")]:
        big, base = RNG.random(shape), RNG.random((4096, 64))
        ours, small = against(lambda: advantages(big, "max@16"), lambda: advantages(base, "max@16"))  # noqa: B023
        rows.append(ratio(f"max@16, {shape[0]} × {shape[1]}", ours, small, "4096 × 64", wanted))
    n, k = 4096, 1024
    rewards = RNG.random(n)
    got = np.sort(advantages(rewards, f"max@{k}"))
    ordered = [Fraction(float(value)) for value in np.sort(rewards)]
    group = sum(comb(j, k - 1) * ordered[j] for j in range(k - 1, n)) / comb(n, k)
    best = float(Fraction(k * n, n - k) * (ordered[-1] - group))
    error = abs(got[-1] - best) / best
    rows.append(("max@1024, n = 4096", "finite", "rational arithmetic", f"{error:.0e}", "≤ 1e-9"))
    return rows


def start_rows() -> list[tuple[str, ...]]:
    def command(*words: str) -> float:
        run = [sys.executable, *words]
        return min(
            seconds(lambda: subprocess.run(run, check=True, capture_output=True)) for _ in range(7)
        )

    bare = command("-c", "pass")
    rows = []
    for name, words in {
        "import bestofk": ("-c", "import bestofk"),
        "bestofk --help": ("-m", "bestofk", "--help"),
    }.items():
        taken = command(*words)
        rows.append(ratio(name, taken, bare, "bare Python", "≤ 0.5 s"))
    return rows


def cuda_rows() -> list[tuple[str, ...]]:
    if not torch.cuda.is_available():
        return []
    rows = []
    for dtype in (torch.float32, torch.float64):
        rewards = torch.rand((65536, 64), device="cuda", dtype=dtype)

        def ours(rewards=rewards) -> None:
            advantages(rewards, "max@16")
            torch.cuda.synchronize()

        def floor(rewards=rewards) -> None:
            torch.sort(rewards, dim=-1)
            torch.cuda.synchronize()

        mine, sort = against(ours, floor, rounds=30)
        name = f"max@16, 65536 × 64, {str(dtype).removeprefix('torch.')}"
        rows.append(ratio(name, mine, sort, "torch.sort", "≤ 3×"))
    return rows


if __name__ == "__main__":
    table(f"objectives, NumPy {np.__version__}, {machine()}", [HEAD, *cpu_rows()])
    table("traced with check=False", [HEAD, *traced_rows()])
    table("scaling and range", [HEAD, *scaling_rows()])
    table("start", [HEAD, *start_rows()])
    if rows := cuda_rows():
        table(f"CUDA, {torch.cuda.get_device_name()}, torch {torch.__version__}", [HEAD, *rows])
