"""Exact variance of the gradient estimate by baseline, on and off policy: no sampling anywhere.

python benchmarks/variance.py            prints the tables of docs/off-policy.md
python benchmarks/variance.py --figure   also draws docs/images/baseline-variance.svg

For a softmax over four answers every outcome of n draws is enumerated up to order, with its
probability under π_old, so that E|g|² - |E g|² of g = (1/n) Σ A_i ∇log π_θ(y_i) is a finite sum.
The grid: every chance of the best answer (four random policies each), every reward shape, every
spread of the log-ratio, every (k, n).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from bestofk import advantages
from bestofk.objectives import off_policy_max_at_k

ANSWERS = 4
SEEDS = range(4)
CHANCES = (0.02, 0.1, 0.3, 0.6)
"""Of the best answer under π_old."""
SIZES = ((1, 8), (2, 4), (2, 8), (4, 8), (7, 8), (8, 8), (4, 16), (8, 16))
SPREADS = (0.0, 0.2, 0.6, 1.0)
SHAPES = {
    "0/1": (0.0, 0.0, 0.0, 1.0),
    "0/1, two right": (0.0, 0.0, 1.0, 1.0),
    "graded": (0.0, 0.3, 0.7, 1.0),
    "tied": (0.0, 0.2, 0.2, 1.0),
    "outlier": (0.0, 0.1, 0.2, 5.0),
}
BASELINES = ("none", "J(B∖i)", "canonical", "loo", "loo-1")


@cache
def outcomes(n: int) -> tuple[np.ndarray, np.ndarray]:
    """All multisets of n of the answers, and the log of how many ordered draws each stands for."""
    draws = np.array(list(itertools.combinations_with_replacement(range(ANSWERS), n)))
    counts = np.stack([(draws == a).sum(axis=-1) for a in range(ANSWERS)])
    factorial = np.vectorize(math.lgamma)
    return draws, math.lgamma(n + 1) - factorial(counts + 1.0).sum(axis=0)


def without_own_sample(rewards: np.ndarray, logs: np.ndarray, k: int) -> np.ndarray:
    """Minus k ρ_i J_k(B∖i): unbiased, but it moves with the offset of the rewards."""
    weights = advantages(rewards, f"max@{k}:none", log_ratio=logs)
    for i in range(rewards.shape[1]):
        others = off_policy_max_at_k(np.delete(rewards, i, 1), np.delete(logs, i, 1), k)
        weights[:, i] -= k * np.exp(logs[:, i]) * others
    return weights


def estimator(name: str, k: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    if name == "J(B∖i)":
        return lambda rewards, logs: without_own_sample(rewards, logs, k)
    text = f"max@{k}" + ("" if name == "canonical" else f":{name}")
    if name == "loo":
        return lambda rewards, logs: advantages(rewards, text)
    return lambda rewards, logs: advantages(rewards, text, log_ratio=logs)


def applies(name: str, k: int, n: int, spread: float) -> bool:
    if name in ("canonical", "J(B∖i)", "loo") and k == n:
        return False
    return name != "loo" or spread == 0


def moved(
    shape: tuple[float, ...], chance: float, spread: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """π_old with the given chance of a best answer, and π_θ a spread of the log-ratio away."""
    best = np.array(shape) == max(shape)
    old = rng.uniform(0.5, 2.0, ANSWERS)
    old = np.where(best, chance * old / old[best].sum(), (1 - chance) * old / old[~best].sum())
    direction = rng.normal(size=ANSWERS)
    direction = direction - old @ direction
    logits = np.log(old) + spread * direction / np.sqrt(old @ direction**2)
    raised = np.exp(logits - logits.max())
    return old, raised / raised.sum()


def variances(
    k: int, n: int, shape: tuple[float, ...], spread: float, seed: int, chance: float, shift: float
) -> dict[str, float]:
    """Exact variance of the gradient estimate for every baseline, under one policy."""
    old, new = moved(shape, chance, spread, np.random.default_rng([seed, n, k]))
    draws, log_count = outcomes(n)
    likely = np.exp(log_count + np.log(old)[draws].sum(axis=-1))
    rewards, logs = (np.array(shape) + shift)[draws], np.log(new / old)[draws]
    scores = np.eye(ANSWERS) - new
    found = {}
    for name in BASELINES:
        if applies(name, k, n, spread):
            weights = estimator(name, k)(rewards, logs)
            update = np.einsum("on,ond->od", weights, scores[draws]) / n
            mean = likely @ update
            found[name] = float(likely @ ((update - mean) ** 2).sum(axis=-1))
    return found


@cache
def grid(k: int, n: int, spread: float, chance: float, shift: float = 0.0) -> list[dict]:
    return [
        variances(k, n, shape, spread, seed, chance, shift)
        for shape in SHAPES.values()
        for seed in SEEDS
    ]


def whole(k: int, n: int, spread: float, shift: float = 0.0) -> list[dict[str, float]]:
    return [cell for chance in CHANCES for cell in grid(k, n, spread, chance, shift)]


def relative(cells: list[dict[str, float]], name: str) -> float:
    """Geometric mean of the variance over that of loo-1."""
    return float(np.exp(np.mean([np.log(cell[name] / cell["loo-1"]) for cell in cells])))


def lowest(cells: list[dict[str, float]], name: str) -> int:
    rivals = [other for other in ("canonical", "loo", "loo-1") if other in cells[0]]
    return sum(cell[name] <= min(cell[other] for other in rivals) * (1 + 1e-9) for cell in cells)


def show() -> None:
    count = len(SHAPES) * len(SEEDS) * len(CHANCES)
    print(f"Variance relative to loo-1, geometric mean over {count} cells\n")
    columns = " | ".join(f"canonical, p = {chance:g}" for chance in CHANCES)
    print(
        f"| k, n | sd of log-ratio | none | J(B∖i) | loo | canonical | {columns} | loo-1 lowest |"
    )
    print("|" + "---|" * (7 + len(CHANCES)))
    for k, n in SIZES:
        for spread in SPREADS:
            cells = whole(k, n, spread)
            row = [f"{relative(cells, name):.3g}" if name in cells[0] else "–"
                   for name in ("none", "J(B∖i)", "loo", "canonical")]  # fmt: skip
            by_chance = [f"{relative(grid(k, n, spread, chance), 'canonical'):.3g}"
                         if k < n else "–" for chance in CHANCES]  # fmt: skip
            best = f"{lowest(cells, 'loo-1')} of {count}" if 1 < k < n else "–"
            print(f"| {k}, {n} | {spread:g} | {' | '.join([*row, *by_chance, best])} |")
    print("\nVariance when a constant is added to all rewards (k = 4, n = 8, sd .6)\n")
    names = ("none", "J(B∖i)", "canonical", "loo-1")
    print(f"| shift | {' | '.join(names)} |\n|" + "---|" * 5)
    for shift in (0.0, 1.0, 10.0):
        cells = whole(4, 8, 0.6, shift)
        row = [np.exp(np.mean([np.log(cell[name]) for cell in cells])) for name in names]
        print(f"| {shift:g} | " + " | ".join(f"{value:.3g}" for value in row) + " |")


def draw() -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "bestofk", "svg.fonttype": "none", "font.size": 11,
                         "axes.spines.top": False, "axes.spines.right": False})  # fmt: skip
    sizes = [(2, 8), (4, 8), (8, 16)]
    figure, axes = plt.subplots(1, len(sizes), figsize=(9, 3.4), sharey=True)
    for axis, (k, n) in zip(axes, sizes):
        for name in ("none", "J(B∖i)", "canonical"):
            values = [relative(whole(k, n, spread), name) for spread in SPREADS]
            axis.plot(SPREADS, values, marker="o", label=name)
        axis.axhline(1, color="black", lw=1, ls="--", label="loo-1")
        axis.set(title=f"k = {k}, n = {n}", yscale="log", xlabel="sd of the log-ratio")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("variance relative to loo-1")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    target = Path(__file__).resolve().parent.parent / "docs/images/baseline-variance.svg"
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    show()
    if "--figure" in sys.argv:
        draw()
