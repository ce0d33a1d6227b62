"""The experiment: one small policy, trained from one start with three objectives.

A **prompt** shows the policy a few features x; one of S strategies solves it, drawn from a
log-linear law softmax(x U) that the features reveal only in part. The **policy** softmax(x W) picks
a strategy. W is shared by all prompts, so what is right depends on what the samples are for: to
succeed with one sample, pick the likeliest strategy; to succeed with one of k, keep a portfolio.
The start W_0 is a flat, blurred copy of the law, as a pre-trained model is: it can do much, seldom.

Training draws n real samples per prompt, rewards them 0 or 1, and turns rewards into weights with
`bestofk.objective`, nothing else. Evaluation is exact: on prompts never trained on, the chance p of
solving one is in the table of probabilities, and pass@k = 1 - (1 - p)^k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bestofk.objectives import objective

KS = (1, 2, 4, 8, 16, 32, 64)
CHECKPOINTS = 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides the numbers."""

    seed: int = 0
    """Worlds, prompts and samples all follow from it."""
    steps: int = 300
    """Updates of each run."""
    worlds: int = 10
    """Independent repetitions: own law, own prompts, own samples. The intervals are over them, so
    there are at least two."""
    n: int = 16
    """Samples per prompt and step."""
    k: int = 8
    """What max@k and Pass@k Training train for."""
    batch: int = 64
    """Prompts per step."""
    prompts: int = 1024
    """Prompts trained on, in each world."""
    held_out: int = 1024
    """Prompts evaluated on, in each world; from the same law, never trained on."""
    strategies: int = 32
    features: int = 8
    learning_rate: float = 0.02

    @property
    def samples(self) -> int:
        """Samples each run draws in each world: the same for every objective."""
        return self.steps * self.batch * self.n

    @property
    def runs(self) -> Mapping[str, str | None]:
        """Name shown → objective trained, None for the start."""
        return {
            "start": None,
            "mean": "mean",
            f"max@{self.k}": f"max@{self.k}",
            f"Pass@{self.k} Training": f"passk-training@{self.k}",
        }

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Steps after which the policy is evaluated; 0 is the start, the last is the end."""
        marks = np.linspace(0, self.steps, min(CHECKPOINTS, self.steps) + 1)
        return tuple(int(mark) for mark in np.round(marks))


@dataclass(frozen=True)
class Results:
    """Exact held-out values, run by run and world by world."""

    settings: Settings
    pass_at_k: np.ndarray
    """(runs, worlds, checkpoints, len(KS)), in [0, 1]."""
    entropy: np.ndarray
    """(runs, worlds, checkpoints), of the policy's choice of strategy, in nats."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.settings.runs)


@dataclass(frozen=True)
class Prompts:
    """What the policy sees, (worlds, P, 1 + features), and what solves it, (worlds, P)."""

    inputs: np.ndarray
    solution: np.ndarray


def experiment(
    settings: Settings, progress: Callable[[float], None] = lambda share: None
) -> Results:
    """Train every run in every world; all worlds go side by side along the first axis.

    `progress` is told the share of the work done, in [0, 1].
    """
    texts = list(settings.runs.values())
    marks = len(settings.checkpoints)
    passes = np.empty((len(texts), settings.worlds, marks, len(KS)))
    entropy = np.empty((len(texts), settings.worlds, marks))
    law, *trainers = np.random.default_rng(settings.seed).spawn(len(texts))
    start, training, held_out = some_worlds(settings, law)
    first_passes, first_entropy = evaluate(start, held_out)
    passes[:], entropy[:] = first_passes[:, None], first_entropy[:, None]  # the start stays there
    for run, (text, rng) in enumerate(zip(texts[1:], trainers), start=1):
        assert text is not None  # only the start is untrained
        policies = train(start, training, objective(text), settings, rng)
        for mark, policy in enumerate(policies):
            passes[run, :, mark], entropy[run, :, mark] = evaluate(policy, held_out)
            progress((run - 1 + mark / (marks - 1)) / (len(texts) - 1))
    return Results(settings, passes, entropy)


def some_worlds(
    settings: Settings, rng: np.random.Generator
) -> tuple[np.ndarray, Prompts, Prompts]:
    """The start W_0 of each world, its prompts to train on, its prompts to evaluate on.

    The bias of a strategy falls as 1.2 log rank, so a few are popular and most are rare; each
    feature moves it with standard deviation 0.7. The start has half the law's logits, plus noise.
    """
    shape = (settings.worlds, settings.features, settings.strategies)
    popularity = -1.2 * np.log(np.arange(1, settings.strategies + 1))
    rows = np.broadcast_to(popularity, (settings.worlds, 1, settings.strategies))
    law = np.concatenate([rows, 0.7 * rng.normal(size=shape)], axis=1)
    start = 0.5 * law + 0.3 * rng.normal(size=law.shape)
    training = some_prompts(settings.prompts, law, rng)
    return start, training, some_prompts(settings.held_out, law, rng)


def some_prompts(count: int, law: np.ndarray, rng: np.random.Generator) -> Prompts:
    worlds, features = law.shape[0], law.shape[1] - 1
    ones = np.ones((worlds, count, 1))
    inputs = np.concatenate([ones, rng.normal(size=(worlds, count, features))], axis=-1)
    return Prompts(inputs, draw(softmax(inputs @ law), 1, rng)[..., 0])


def train(
    start: np.ndarray,
    prompts: Prompts,
    weigh: Callable[[np.ndarray], np.ndarray],
    settings: Settings,
    rng: np.random.Generator,
) -> Iterator[np.ndarray]:
    """The policies (worlds, 1 + features, S) at every checkpoint: on-policy ascent with Adam.

    `weigh` turns 0/1 rewards (worlds, prompts, n) into weights of the same shape: an objective.
    """
    yield start
    policy = start
    adam = Adam(settings.learning_rate, policy)
    checkpoints = set(settings.checkpoints)
    for step in range(1, settings.steps + 1):
        chosen = rng.choice(settings.prompts, settings.batch, replace=False)
        inputs = prompts.inputs[:, chosen]
        chances = softmax(inputs @ policy)
        samples = draw(chances, settings.n, rng)
        rewards = (samples == prompts.solution[:, chosen, None]).astype(float)
        weights = weigh(rewards)
        policy = policy + adam.step(policy_gradient(inputs, chances, samples, weights))
        if step in checkpoints:
            yield policy


def policy_gradient(
    inputs: np.ndarray, chances: np.ndarray, samples: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Mean over a world's prompts of (1/n) Σ_i A_i ∇_W log π(y_i | x), for π = softmax(x W).

    ∇_W log π(y | x) = x (e_y - π)ᵀ. Shapes: inputs (..., P, D), chances (..., P, S), samples and
    weights (..., P, n) → (..., D, S).
    """
    strategies = chances.shape[-1]
    count, n = samples.shape[-2:]
    rows = np.arange(samples.size // n)[:, None] * strategies
    flat = (rows + samples.reshape(-1, n)).ravel()
    pushed = np.bincount(flat, weights.ravel(), minlength=chances.size).reshape(chances.shape)
    pushed -= chances * weights.sum(axis=-1, keepdims=True)
    return np.swapaxes(inputs, -1, -2) @ pushed / (count * n)


class Adam:
    """Adam (arXiv:1412.6980) with its usual constants: it makes objectives of unequal scale
    comparable at one learning rate."""

    def __init__(self, rate: float, like: np.ndarray) -> None:
        self.rate = rate
        self.count = 0
        self.first = np.zeros_like(like)
        self.second = np.zeros_like(like)

    def step(self, gradient: np.ndarray) -> np.ndarray:
        self.count += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient**2 - self.second)
        first = self.first / (1 - 0.9**self.count)
        second = self.second / (1 - 0.999**self.count)
        return self.rate * first / (np.sqrt(second) + 1e-8)


def evaluate(policy: np.ndarray, prompts: Prompts) -> tuple[np.ndarray, np.ndarray]:
    """Exact pass@k (worlds, len(KS)) and entropy (worlds,), averaged over prompts."""
    chances = softmax(prompts.inputs @ policy)
    solved = np.take_along_axis(chances, prompts.solution[..., None], axis=-1)
    failed = np.log1p(-np.minimum(solved, 1 - 1e-16))
    passes = -np.expm1(failed * np.array(KS)).mean(axis=-2)
    surprise = -np.log(np.maximum(chances, 1e-300))
    return passes, (chances * surprise).sum(axis=-1).mean(axis=-1)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Along the last axis.

    >>> softmax(np.log([[1.0, 3.0]]))
    array([[0.25, 0.75]])
    """
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def draw(chances: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """n independent draws from each row of (..., S): (..., n)."""
    steps = chances.cumsum(axis=-1)[..., None, :-1]
    return (steps < rng.random((*chances.shape[:-1], n, 1))).sum(axis=-1)
