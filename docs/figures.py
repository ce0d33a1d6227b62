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


def eta_against_accuracy(n: int = 32) -> None:
    """The summed size of a group's weights under Pass@k Training."""
    correct = np.tril(np.ones((n + 1, n)), -1)  # row c has c ones
    for k in (1, 2, 4, 8, 16):
        eta = np.abs(advantages(correct, f"passk-training@{k}")).sum(axis=-1)
        plt.plot(np.arange(n + 1) / n, eta, label=f"k = {k}")
    plt.xlabel(f"accuracy c/n of the group, n = {n}")
    plt.ylabel("η = N₊|A₊| + N₋|A₋|")
    plt.legend(frameon=False)
    save("eta-against-accuracy.svg")


def off_policy_error(n: int = 5, k: int = 3) -> None:
    """Relative error of the expected gradient, by enumeration, as the policy moves away."""
    import itertools

    logits, step = np.array([0.2, -0.3, 0.1]), np.array([0.7, -0.9, 0.4])
    rewards = np.array([0.0, 0.4, 1.0])

    def softmax(x: np.ndarray) -> np.ndarray:
        return np.exp(x) / np.exp(x).sum()

    draws = np.array(list(itertools.product(range(3), repeat=n)))
    tuples = np.array(list(itertools.product(range(3), repeat=k)))
    sizes = np.linspace(0.01, 1.0, 25)
    forms = ("exact", "first-order", "own-ratio", "none")
    errors: dict[str, list[float]] = {form: [] for form in forms}
    for size in sizes:
        new, old = softmax(logits + size * step), softmax(logits)
        score = np.eye(3) - new
        truth = np.einsum(
            "o,o,okd->d", new[tuples].prod(-1), rewards[tuples].max(-1), score[tuples]
        )
        for form in forms:
            weights = advantages(
                rewards[draws], f"max@{k}:none", log_ratio=np.log(new / old)[draws], off_policy=form
            )
            got = np.einsum("o,on,ond->d", old[draws].prod(-1), weights, score[draws]) / n
            errors[form].append(float(np.linalg.norm(got - truth) / np.linalg.norm(truth)))
    spread = [
        np.sqrt(softmax(logits) @ (s * step - softmax(logits) @ (s * step)) ** 2) for s in sizes
    ]
    for form in forms:
        plt.plot(spread, np.maximum(errors[form], 1e-16), label=form)
    plt.yscale("log")
    plt.xlabel("standard deviation of the log-ratio")
    plt.ylabel("relative error of E[gradient]")
    plt.legend(frameon=False)
    save("off-policy-error.svg")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    weight_against_rank()
    eta_against_accuracy()
    off_policy_error()
