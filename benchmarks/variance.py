"""Variance of the gradient estimate by baseline, on and off policy.

python benchmarks/variance.py            prints the tables of research/inner-steps.md
python benchmarks/variance.py --figure   also draws research/images/baseline-variance.svg
python benchmarks/variance.py --sampled  only the tables that need samples: sequence policies, and
                                         the best mixture of two baselines for tiny policies
python benchmarks/variance.py --model smollm2 [--device cuda] [--prompts 48] [--tokens 192]
                              [--sizes 4:16,8:32]    the same for a model on MBPP, by k:n

For a softmax over four answers every outcome of n draws is enumerated up to order, with its
probability under π_old, so that E|g|² - |E g|² of g = (1/n) Σ A_i ∇log π_θ(y_i) is a finite sum.
The grid: every chance of the best answer (four random policies each), every reward shape, every
spread of the log-ratio, every (k, n). Which baseline has less variance depends on the number of
answers: the third table has up to 4,096 of them, on 0/1 rewards, where the sum is over counts.

A_λ = (1-λ)·canonical + λ·loo-1 is exact for every fixed λ. With d = g_canonical - g_loo-1, E d = 0,
the variance is least at λ* = E⟨g_canonical, d⟩ / E|d|².
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bestofk import advantages, models, tasks
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


def variance_of_counts(text: str, n: int, answers: int, chance: float) -> float:
    """Exact on-policy variance with 0/1 rewards and any number of answers, a quarter of them right.

    All right answers are equally likely, and all wrong ones. Given which samples are right, their
    answers are independent, so E|g|² needs the mean score of each class only:
    n² |g|² = Σ_i A_i² |s_i|² + Σ_{i≠j} A_i A_j s_i·s_j.
    """
    right = max(1, answers // 4)
    sizes = np.array([answers - right, right])
    mass = np.array([1 - chance, chance])
    total = (mass**2 / sizes).sum()  # |π|²
    length = 1 - 2 * mass / sizes + total  # |e_y - π|² of a wrong and of a right answer
    means = np.diag(1 / sizes) - mass / sizes  # class → mean score per answer of each class
    inner = (means * sizes) @ means.T
    second, gradient = 0.0, np.zeros(2)
    for c in range(n + 1):
        likely = math.comb(n, c) * chance**c * (1 - chance) ** (n - c)
        rewards = np.array([0.0] * (n - c) + [1.0] * c)
        weights = advantages(rewards, text)
        by_class = np.array([weights[: n - c].sum(), weights[n - c :].sum()])
        squares = np.array([(weights[: n - c] ** 2).sum(), (weights[n - c :] ** 2).sum()])
        cross = by_class @ inner @ by_class - squares @ np.diag(inner)
        second += likely * (squares @ length + cross) / n**2
        gradient += likely * by_class @ means / n
    return float(second - (gradient**2 * sizes).sum())


def products(canonical: Any, other: Any) -> list[float]:
    """What `compared` needs of a prompt: updates (2, d) of two independent groups, by baseline."""
    middle, gap = (canonical + other) / 2, canonical - other
    pairs = ((canonical, canonical), (other, other), (canonical, gap), (gap, gap))
    return [float(middle[0] @ middle[1]), *(float((a * b).sum()) for a, b in pairs)]


def compared(prompts: Iterable[list[float]]) -> tuple[float, float, float, float]:
    """Variances relative to loo-1, of canonical and of the best mixture; λ* and its standard error.

    The inner product of two independent groups' updates estimates the squared length of their mean,
    which both baselines have.
    """
    table = np.array(list(prompts))
    mean = table[:, 0].mean()
    own, loo = (table[:, column].mean() / 2 - mean for column in (1, 2))
    over, under = table[:, 3], table[:, 4]
    share = over.sum() / under.sum()
    error = np.sqrt(((over - share * under) ** 2).sum()) / under.sum()
    least = own - share**2 * under.mean() / 2
    return float(own / loo), float(least / loo), float(share), float(error)


def sequence_updates(
    text: str, tokens: int, vocabulary: int, n: int, chance: float, groups: int = 2000
) -> np.ndarray:
    """Updates (groups, 2, d) of a policy that draws each token from a softmax of its own.

    An answer is right (1) where every token is in the first half of the vocabulary; tokens are
    that with such a chance that answers are right with the chance named.
    """
    rng = np.random.default_rng([tokens, vocabulary, n])
    half = vocabulary // 2
    right = chance ** (1 / tokens)
    weights = rng.uniform(0.5, 2.0, (tokens, vocabulary))
    weights[:, :half] *= right / weights[:, :half].sum(axis=1, keepdims=True)
    weights[:, half:] *= (1 - right) / weights[:, half:].sum(axis=1, keepdims=True)
    found = []
    for _ in range(groups):
        draws = (rng.random((2 * n, tokens, 1)) > weights.cumsum(axis=1)).sum(axis=-1)
        draws = np.minimum(draws, vocabulary - 1)
        rewards = (draws < half).all(axis=1).reshape(2, n).astype(float)
        scores = (np.eye(vocabulary)[draws] - weights).reshape(2, n, -1)
        found.append(np.einsum("gn,gnd->gd", advantages(rewards, text), scores) / n)
    return np.array(found)


TINY: dict[str, tuple[str, dict[str, Any], int]] = {
    "Countdown, partial credit": ("countdown", {"reward": "closeness"}, 24),
    "Countdown, 0/1": ("countdown", {}, 24),
    "mazes, 0/1": ("maze", {"layout": "open", "sizes": [5, 6], "test_sizes": [5, 6]}, 20),
}
"""Tasks of the shipped policies: name, options, tokens."""


def model_products(
    policy: Any, task: Any, k: int, n: int, tokens: int, prompts: int
) -> Iterator[list[float]]:
    """`products` of each prompt, of a model's updates on a task: canonical and loo-1."""
    import torch

    from bestofk import rewards
    from bestofk.sampling import Sampling
    from bestofk.sampling.decode import ModelSampler

    sampling = Sampling(samples_per_prompt=2 * n, max_new_tokens=tokens)
    chosen = [task.split("train").at(i) for i in range(prompts)]
    groups = ModelSampler(policy.model, policy.tokenizer).sample(chosen, seed=0, sampling=sampling)
    judged = rewards.judge(groups, rewards.verifier(task.verifier, **task.verifier_options))
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    device = weights[0].device
    for group, verdicts in zip(groups, judged):
        start = len(group.prompt_tokens)
        rows = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor([*group.prompt_tokens, *c.tokens]) for c in group.trajectories], True
        ).to(device)
        lengths = torch.tensor([len(c.tokens) for c in group.trajectories], device=device)
        values = np.array([verdict.reward for verdict in verdicts]).reshape(2, n)
        sides = []
        for baseline in ("", ":loo-1"):
            weighed = advantages(values, f"max@{k}{baseline}") / n
            sides.append(torch.stack([
                update(policy.model, weights, rows[half], lengths[half], start, weighed[g])
                for g, half in enumerate((slice(0, n), slice(n, 2 * n)))
            ]))  # fmt: skip
        yield products(*sides)


def update(model: Any, weights: Any, rows: Any, lengths: Any, start: int, weighed: Any) -> Any:
    """Σ_i A_i ∇log π(y_i) of one group, (d,)."""
    import torch

    if not np.any(weighed):
        return torch.zeros(sum(weight.numel() for weight in weights), device=rows.device)
    logits = model(input_ids=rows).logits[:, start - 1 : -1].log_softmax(-1)
    token = logits.gather(-1, rows[:, start:, None])[..., 0]
    inside = torch.arange(token.shape[1], device=rows.device) < lengths[:, None]
    log_prob = torch.where(inside, token, 0.0).sum(1)
    slopes = torch.autograd.grad((torch.tensor(weighed).to(log_prob) * log_prob).sum(), weights)
    return torch.cat([slope.reshape(-1) for slope in slopes])


def show_sampled() -> None:
    print("\nSequence policies, 0/1 rewards: variances relative to loo-1, and the best mixture\n")
    print("| tokens, vocabulary | k, n | p | canonical | at λ* | λ* |\n|---|---|---|---|---|---|")
    for tokens, vocabulary in ((1, 4), (8, 4), (8, 32), (16, 8)):
        for k, n, chance in ((4, 16, 0.3), (8, 32, 0.1)):
            updates = [
                sequence_updates(f"max@{k}{name}", tokens, vocabulary, n, chance)
                for name in ("", ":loo-1")
            ]
            found = cells(map(products, *updates))
            print(f"| {tokens}, {vocabulary} | {k}, {n} | {chance:g} | {found} |")
    print(
        "\nShipped policies of 0.2 million weights on their tasks (48 prompts, two groups each)\n"
    )
    print("| task | k, n | canonical | at λ* | λ* |\n|---|---|---|---|---|")
    for what, (name, options, tokens) in TINY.items():
        task = tasks.task(name, style="compact", **options)
        for k, n in ((4, 16), (8, 32)):
            found = cells(model_products(models.load(f"tiny-{name}"), task, k, n, tokens, 48))
            print(f"| {what} | {k}, {n} | {found} |", flush=True)


def show_model(asked: argparse.Namespace) -> None:
    """On MBPP, the reward is the fraction of tests passed; limits as in recipes/code-qwen."""
    policy = models.load(asked.model, device=asked.device)
    task = tasks.task("mbpp", reward="fraction")
    limits = {"cpu_per_test": 0.25, "cpu_per_program": 0.5}
    task = replace(task, verifier_options={**task.verifier_options, "limits": limits})
    print("| k, n | prompts with signal | canonical | at λ* | λ* |\n|---|---|---|---|---|")
    for k, n in (map(int, size.split(":")) for size in asked.sizes.split(",")):
        found = list(model_products(policy, task, k, n, asked.tokens, asked.prompts))
        signal = sum(map(any, found))  # without signal every update is 0
        print(f"| {k}, {n} | {signal} of {asked.prompts} | {cells(found)} |", flush=True)


def cells(prompts: Iterable[list[float]]) -> str:
    ratio, least, share, error = compared(prompts)
    return f"{ratio:.2f} | {least:.2f} | {share:.2f} ± {error:.2f}"


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
        means = [np.exp(np.mean([np.log(cell[name]) for cell in cells])) for name in names]
        print(f"| {shift:g} | " + " | ".join(f"{value:.3g}" for value in means) + " |")
    print("\nCanonical relative to loo-1 by the number of answers (on policy, 0/1 rewards)\n")
    counts = (4, 16, 64, 4096)
    print(f"| k, n | p | {' | '.join(map(str, counts))} |\n|" + "---|" * (2 + len(counts)))
    for k, n, chance in ((4, 8, 0.02), (4, 8, 0.3), (4, 16, 0.3), (8, 16, 0.3), (8, 32, 0.6)):
        ratios = [variance_of_counts(f"max@{k}", n, answers, chance)
               / variance_of_counts(f"max@{k}:loo-1", n, answers, chance)
               for answers in counts]  # fmt: skip
        print(f"| {k}, {n} | {chance:g} | " + " | ".join(f"{value:.2f}" for value in ratios) + " |")


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
    target = Path(__file__).resolve().parent.parent / "research/images/baseline-variance.svg"
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figure", action="store_true")
    parser.add_argument("--sampled", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--sizes", default="4:16,8:32", help="k:n, separated by commas")
    asked = parser.parse_args()
    if asked.model:
        return show_model(asked)
    if not asked.sampled:
        show()
    show_sampled()
    if asked.figure:
        draw()
    return None


if __name__ == "__main__":
    main()
