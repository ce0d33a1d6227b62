"""Draws the figures of docs/objectives.md from the library itself: python docs/figures.py"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from bestofk import advantages

FOLDER = Path(__file__).parent / "images"
COLOURS = {1: "#bb5566", 2: "#a6c8ec", 4: "#6699cc", 8: "#3370aa", 15: "#004488"}
"""One sample red, k blue, as on every page."""
plt.style.use(Path(__file__).with_suffix(".mplstyle"))


def save(name: str) -> None:
    plt.tight_layout()
    plt.savefig(FOLDER / name, metadata={"Date": None})
    plt.close()


def weight_against_rank(n: int = 16) -> None:
    """n samples with evenly spread rewards: who is pushed up, who down, and how hard."""
    rewards = np.linspace(0, 1, n)
    rank = np.arange(1, n + 1)
    for k, colour in COLOURS.items():
        plt.plot(rank, advantages(rewards, f"max@{k}"), ".-", color=colour, label=f"max@{k}")
    pushed_up = advantages(rewards, "max@8:loo-1")
    plt.plot(rank, pushed_up, "--", color=COLOURS[8], lw=1, label="max@8:loo-1")
    plt.axhline(0, color="gray", lw=0.8)
    plt.xlabel(f"rank of the sample among n = {n} (rewards evenly spread over [0, 1])")
    plt.ylabel("weight $A_i$")
    plt.legend(frameon=False, ncol=2)
    save("weight-against-rank.svg")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    weight_against_rank()
