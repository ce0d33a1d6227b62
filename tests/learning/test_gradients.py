"""One optimiser step is the gradient it claims to be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import bestofk
from bestofk.learning import Learner, LogProbs, Loss, Optimizer
from bestofk.types import Group, Prompt, Trajectory
from policies import answers, group, table, with_turns

PROMPT, END, LONGEST = 2, 0, 3
ANSWERS = list(answers(2, END, LONGEST))  # a, ba, bba, bbb
REWARDS = np.array([0.1, 1.0, 0.3, 0.7])
LOGITS = np.random.default_rng(0).normal(size=(3, 3))
OLD = LOGITS + 0.4 * np.random.default_rng(1).normal(size=(3, 3))
LOGITS[:, PROMPT] = OLD[:, PROMPT] = -30.0  # the prompt's token is never an answer


def gradient(learner: Learner, step: Callable[[], object]) -> np.ndarray:
    """The gradient that reaches the optimiser, before it moves anything."""
    seen: list[np.ndarray] = []

    def look(*_: object) -> None:
        (parameter,) = learner.model.parameters()
        assert parameter.grad is not None
        seen.append(parameter.grad.double().numpy().copy())

    handle = learner.update.optimizer.register_step_pre_hook(look)
    step()
    handle.remove()
    (only,) = seen
    return only


def learner_at(logits: np.ndarray, budget: int = 10_000, layout: str = "auto") -> Learner:
    settings = Optimizer(learning_rate=1e-12, max_grad_norm=0.0)
    return Learner(
        table(logits),
        optimizer=settings,
        max_new_tokens=9,
        tokens_per_micro_batch=budget,
        layout=layout,
    )


def log_probs(logits: Tensor) -> Tensor:
    """log π of every answer, token by token."""
    steps = logits.log_softmax(-1)
    totals: list[Tensor] = []
    for answer in ANSWERS:
        path = (PROMPT, *answer)
        totals.append(torch.stack([steps[a, b] for a, b in itertools.pairwise(path)]).sum())
    return torch.stack(totals)


def true_gradient(logits: np.ndarray, k: int) -> np.ndarray:
    """∇ E[best of k], by summing over all k-tuples of answers."""
    free = torch.tensor(logits, requires_grad=True)
    chances = log_probs(free).exp()
    value = torch.zeros((), dtype=torch.float64)
    for chosen in itertools.product(range(len(ANSWERS)), repeat=k):
        value = value + chances[list(chosen)].prod() * REWARDS[list(chosen)].max()
    value.backward()
    assert free.grad is not None
    return free.grad.numpy()


def all_outcomes(logits: np.ndarray, n: int) -> tuple[list[Group], np.ndarray, np.ndarray]:
    """Every way n samples can come out, as groups; their rewards and probabilities."""
    chances = log_probs(torch.tensor(logits)).exp().numpy()
    draws = np.array(list(itertools.product(range(len(ANSWERS)), repeat=n)))
    groups = [group([PROMPT], [ANSWERS[i] for i in draw]) for draw in draws]
    return groups, REWARDS[draws], chances[draws].prod(-1)


@pytest.mark.parametrize("budget", [10_000, 7])
@pytest.mark.parametrize("objective", ["max@2", "max@2:none", "max@2:loo-1"])
def test_expected_update_is_the_gradient_of_max_at_k_on_policy(objective: str, budget: int) -> None:
    """Over all outcomes, weighted by their probability; a budget of 7 tokens splits every group."""
    groups, rewards, chance = all_outcomes(LOGITS, 3)
    weights = bestofk.advantages(rewards, objective) * chance[:, None] * len(groups)
    learner = learner_at(LOGITS, budget)
    found = gradient(learner, lambda: learner.step(groups, weights))
    np.testing.assert_allclose(-found, true_gradient(LOGITS, 2), atol=2e-6)


@pytest.mark.parametrize("budget", [10_000, 7])
@pytest.mark.parametrize("objective", ["max@2", "max@2:none", "max@2:loo-1", "mean"])
def test_expected_update_is_the_gradient_off_policy(objective: str, budget: int) -> None:
    """Samples of another policy; the weights take all siblings' current log-ratios."""
    groups, rewards, chance = all_outcomes(OLD, 3)
    learner = learner_at(LOGITS, budget)
    old = learner_at(OLD).log_probs(groups)
    log_ratio = learner.sequence_log_probs(groups) - old.log_prob
    made = bestofk.advantages(rewards, objective, log_ratio=log_ratio)
    weights = made * chance[:, None] * len(groups)
    found = gradient(learner, lambda: learner.step(groups, weights))
    k = 1 if objective == "mean" else 2
    np.testing.assert_allclose(-found, true_gradient(LOGITS, k), atol=2e-6)
    assert abs(log_ratio).max() > 0.3


ANSWER_TO = np.array([[0.2, 0.8], [0.7, 0.3]])
"""The chances with which an environment answers a token of the policy."""


@pytest.mark.parametrize("off_policy", [False, True])
def test_expected_update_is_the_gradient_where_an_environment_answers_by_chance(
    off_policy: bool,
) -> None:
    """Two turns: the policy draws a token, its environment one, the policy another."""
    outcomes = list(itertools.product(range(2), repeat=3))
    rewards = np.random.default_rng(5).random(len(outcomes))

    def chances(logits: Tensor) -> Tensor:
        steps = logits.log_softmax(-1).exp()
        return torch.stack(
            [steps[PROMPT, a] * float(ANSWER_TO[a, e]) * steps[e, b] for a, e, b in outcomes]
        )

    free = torch.tensor(LOGITS, requires_grad=True)
    pairs = torch.tensor(np.maximum.outer(rewards, rewards))
    chance = chances(free)
    (wanted,) = torch.autograd.grad((chance[:, None] * chance * pairs).sum(), free)
    draws = np.array(list(itertools.product(range(len(outcomes)), repeat=3)))
    own = np.array([True, False, True])
    groups = [
        Group(
            Prompt("p", "", "test"),
            tuple(Trajectory(np.array(outcomes[i]), own) for i in draw),
            (PROMPT,),
        )
        for draw in draws
    ]
    learner, log_ratio = learner_at(LOGITS), None
    if off_policy:
        log_ratio = learner.sequence_log_probs(groups) - learner_at(OLD).log_probs(groups).log_prob
    drawn_by = torch.tensor(OLD if off_policy else LOGITS)
    likely = chances(drawn_by).numpy()[draws].prod(-1)
    made = bestofk.advantages(rewards[draws], "max@2", log_ratio=log_ratio)
    found = gradient(learner, lambda: learner.step(groups, made * likely[:, None] * len(groups)))
    np.testing.assert_allclose(-found, wanted.numpy(), atol=2e-6)


def one_batch(turns: bool = False) -> tuple[list[Group], np.ndarray]:
    draws = np.random.default_rng(3).integers(0, len(ANSWERS), (4, 5))
    groups = [group([PROMPT], [ANSWERS[i] for i in draw], f"p{p}") for p, draw in enumerate(draws)]
    weights = np.random.default_rng(4).normal(size=draws.shape)
    return with_turns(groups) if turns else groups, weights


def drawn(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Each token that the policy drew, after the one before it."""
    pairs = itertools.pairwise((PROMPT, *trajectory.tokens.tolist()))
    return [pair for pair, own in zip(pairs, trajectory.own, strict=True) if own]


def by_hand(
    groups: Sequence[Group], total: Callable[[list[list[Tensor]], Tensor], Tensor]
) -> np.ndarray:
    """Gradient of a loss written out token by token on the table, in float64."""
    free = torch.tensor(LOGITS, requires_grad=True)
    steps = free.log_softmax(-1)
    tokens = [
        [torch.stack([steps[a, b] for a, b in drawn(each)]) for each in one.trajectories]
        for one in groups
    ]
    total(tokens, steps).backward()
    assert free.grad is not None
    return free.grad.numpy()


CLIPPED = [
    Loss(name="clipped"),
    Loss(name="clipped", clip=(0.1, 0.28), normaliser="grpo"),
    Loss(name="clipped", normaliser="dapo"),
    Loss(name="clipped", normaliser="dr-grpo"),
    Loss(name="gspo", clip=(0.05, 0.05)),
]


@pytest.mark.parametrize(("budget", "turns"), [(10_000, False), (7, False), (7, True)])
@pytest.mark.parametrize("loss", CLIPPED, ids=lambda loss: f"{loss.name}-{loss.normaliser}")
def test_clipped_loss_is_its_definition(loss: Loss, budget: int, turns: bool) -> None:
    groups, weights = one_batch(turns)
    old = learner_at(OLD).log_probs(groups)
    mean_length = np.mean([each.own.sum() for one in groups for each in one.trajectories])

    def total(tokens: list[list[Tensor]], _: Tensor) -> Tensor:
        gain = torch.zeros((), dtype=torch.float64)
        for p, i in np.ndindex(weights.shape):
            now, then, a = tokens[p][i], torch.tensor(old.tokens[p][i]).double(), weights[p, i]
            z = {"none": 1, "grpo": len(now), "dapo": mean_length, "dr-grpo": 9}[loss.normaliser]
            ratio = (now - then).exp()
            if loss.name == "gspo":
                ratio, z = (now - then).mean().exp()[None], 1
            for r in ratio:
                plain = r.item()
                bounded = min(max(plain, 1 - loss.clip[0]), 1 + loss.clip[1])
                gain = gain + (r * a if plain * a <= bounded * a else bounded * a) / z
        return -gain / weights.size

    learner = learner_at(LOGITS, budget)
    stats: list[dict[str, float]] = []
    found = gradient(
        learner, lambda: stats.append(learner.step(groups, weights, loss=loss, old=old))
    )
    np.testing.assert_allclose(found, by_hand(groups, total), atol=2e-6)
    assert 0.0 < stats[0]["clip_fraction"] < 1.0


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_and_entropy_terms_are_their_definitions(
    estimator: Literal["k2", "k3"], turns: bool
) -> None:
    groups, weights = one_batch(turns)
    loss = Loss(kl=0.3, kl_estimator=estimator, entropy_bonus=0.2)
    reference = learner_at(OLD).log_probs(groups)

    def total(tokens: list[list[Tensor]], steps: Tensor) -> Tensor:
        value = torch.zeros((), dtype=torch.float64)
        spreads: list[Tensor] = []
        for p, i in np.ndindex(weights.shape):
            gap = tokens[p][i] - torch.tensor(reference.tokens[p][i])
            kl = gap**2 / 2 if estimator == "k2" else (-gap).exp() + gap - 1
            a_i = float(weights[p, i])
            value = value + (0.3 * kl.sum() - a_i * tokens[p][i].sum()) / weights.size
            for a, _ in drawn(groups[p].trajectories[i]):
                spreads.append(-(steps[a].exp() * steps[a]).sum())
        return value - 0.2 * torch.stack(spreads).mean()

    learner = learner_at(LOGITS, 9)
    found = gradient(learner, lambda: learner.step(groups, weights, loss=loss, reference=reference))
    np.testing.assert_allclose(found, by_hand(groups, total), atol=2e-6)


def test_k2_has_the_gradient_of_the_kl_to_the_reference() -> None:
    """On policy, over all single-token answers, exactly; k3's is that of the other direction."""
    logits, other = LOGITS[PROMPT], OLD[PROMPT]
    chance = np.exp(logits) / np.exp(logits).sum()
    groups = [group([PROMPT], [[token]]) for token in range(3)]
    reference = learner_at(OLD).log_probs(groups)
    free = torch.tensor(logits, requires_grad=True)
    mine, theirs = free.log_softmax(-1), torch.tensor(other).log_softmax(-1)
    directions: dict[Literal["k2", "k3"], Tensor] = {
        "k2": mine.exp() * (mine - theirs),
        "k3": theirs.exp() * (theirs - mine),
    }
    for estimator, terms in directions.items():
        (wanted,) = torch.autograd.grad(terms.sum(), free, retain_graph=True)
        found = np.zeros(3)
        for token in range(3):
            learner = learner_at(LOGITS)
            one = LogProbs((reference.tokens[token],), (reference.entropies[token],))
            step = partial(learner.step, [groups[token]], [[0.0]], reference=one)
            loss = Loss(kl=1.0, kl_estimator=estimator)
            found += chance[token] * gradient(learner, partial(step, loss=loss))[PROMPT]
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)


def test_dead_samples_and_dropped_groups_count_for_nothing() -> None:
    """n is a group's live count, P the groups with a live sample."""
    groups, weights = one_batch()
    live = np.ones(weights.shape, dtype=bool)
    live[0, 1:3] = False
    live[2] = False
    weights[~live] = 1e6

    def total(tokens: list[list[Tensor]], _: Tensor) -> Tensor:
        terms = [
            sum(weights[p, i] * tokens[p][i].sum() for i in np.flatnonzero(live[p])) / live[p].sum()
            for p in (0, 1, 3)
        ]
        return -sum(terms[1:], terms[0]) / 3

    learner = learner_at(LOGITS)
    found = gradient(learner, lambda: learner.step(groups, weights, live=live))
    np.testing.assert_allclose(found, by_hand(groups, total), atol=2e-6)


def test_rows_without_weight_are_not_computed_but_counted() -> None:
    groups, weights = one_batch()
    weights[1:] = 0.0
    learner = learner_at(LOGITS)
    stats: list[dict[str, float]] = []
    found = gradient(learner, lambda: stats.append(learner.step(groups, weights)))
    alone = learner_at(LOGITS)
    quarter = gradient(alone, lambda: alone.step(groups[:1], weights[:1])) / 4
    np.testing.assert_allclose(found, quarter, atol=1e-7)
    assert stats[0]["rows"] == 5
