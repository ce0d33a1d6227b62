"""Draws the figures of docs/objectives.md from the library itself: python docs/figures.py"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from bestofk import advantages

FOLDER = Path(__file__).parent / "images"
plt.style.use(Path(__file__).with_suffix(".mplstyle"))


def save(name: str) -> None:
    plt.tight_layout()
    plt.savefig(FOLDER / name, metadata={"Date": None})
    plt.close()


def weight_against_rank(n: int = 16) -> None:
    """n samples with evenly spread rewards: who is pushed up, who down, and how hard."""
    rewards = np.linspace(0, 1, n)
    rank = np.arange(1, n + 1)
    for k in (1, 2, 4, 8, 15):
        plt.plot(rank, advantages(rewards, f"max@{k}"), marker=".", label=f"max@{k}")
    plt.plot(rank, advantages(rewards, "max@8:loo-1"), "k--", lw=1, label="max@8:loo-1")
    plt.axhline(0, color="gray", lw=0.8)
    plt.xlabel(f"rank of the sample among n = {n} (rewards evenly spread over [0, 1])")
    plt.ylabel("weight $A_i$")
    plt.legend(frameon=False, ncol=2)
    save("weight-against-rank.svg")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    weight_against_rank()
