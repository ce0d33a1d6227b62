"""The expected update over trajectories of two turns is the gradient of max@k, to 1e-12.

The policy draws one or two tokens, an environment answers by chance, the policy draws one more.
Every outcome of every group is enumerated in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import bestofk
from bestofk.learning.layout import BUILD
from bestofk.types import Group, Prompt, Trajectory

A, B, AB, PROMPT = range(4)
"""The text "ab" is one token or two: decoding a, b and encoding the text again gives AB."""
FIRST = [(B,), (AB,), (A, A), (A, B), (A, AB)]
"""What the policy may write in its first turn: it goes on after an a alone."""
PATHS = [(first, e, last) for first in FIRST for e in (A, B) for last in (A, B, AB)]
N = 3


def tables(seed: int) -> np.ndarray:
    """Logits of the next token after each token; the prompt's is never drawn."""
    logits = np.random.default_rng(seed).normal(size=(4, 4))
    logits[:, PROMPT] = -np.inf
    return logits


NOW, OLD = tables(0), tables(0) + 0.5 * tables(1)
REWARDS = np.random.default_rng(2).random(len(PATHS))
ANSWERS = np.random.default_rng(3).dirichlet((1, 1), size=4)
"""The chances with which the environment answers a or b, after the policy's last token."""
TRAJECTORIES = [
    Trajectory((*first, e, last), [True] * len(first) + [False, True]) for first, e, last in PATHS
]
DRAWS = np.array(list(itertools.product(range(len(PATHS)), repeat=N)))


def chances(logits: Tensor) -> Tensor:
    """The probability of each path."""
    steps = logits.log_softmax(-1).exp()
    result = []
    for first, e, last in PATHS:
        chance = steps[e, last] * float(ANSWERS[first[-1], e])
        for a, b in itertools.pairwise((PROMPT, *first)):
            chance = chance * steps[a, b]
        result.append(chance)
    return torch.stack(result)


def true_gradient() -> np.ndarray:
    """∇ E[the better of two]."""
    free = torch.tensor(NOW, requires_grad=True)
    chance = chances(free)
    best = torch.tensor(np.maximum.outer(REWARDS, REWARDS))
    (found,) = torch.autograd.grad((chance[:, None] * chance * best).sum(), free)
    return found.numpy()


def row_log_probs(logits: Tensor, trajectories: Sequence[Trajectory], layout: str) -> Tensor:
    """log π of each trajectory, by the targets of the learner's layout."""
    one = Group(Prompt("p", "", "test"), tuple(trajectories), (PROMPT,))
    batch = BUILD[layout]([one], [(0, i) for i in range(len(trajectories))], "cpu")
    steps = logits[batch.input_ids].flatten(0, 1)[batch.source].log_softmax(-1)
    each = steps.gather(-1, batch.target[:, None])[:, 0]
    return torch.zeros(len(trajectories), dtype=logits.dtype).index_add(0, batch.row_of, each)


Way = Callable[[Trajectory], Sequence[Trajectory]]
"""How a trainer keeps a trajectory: as which rows."""


def expected_update(rows_of: Way, *, off_policy: bool, layout: str = "packed") -> np.ndarray:
    """The mean over all outcomes of Σ advantage · ∇ log π, divided by the rows of a group."""
    rows = [rows_of(each) for each in TRAJECTORIES]
    parts = len(rows[0])
    flat = [row for one in rows for row in one]
    free = torch.tensor(NOW, requires_grad=True)
    drawn_by = torch.tensor(OLD if off_policy else NOW)
    now = row_log_probs(free, flat, layout)
    log_ratio = (now.detach() - row_log_probs(drawn_by, flat, layout)).numpy()
    places = (DRAWS[:, :, None] * parts + np.arange(parts)).reshape(len(DRAWS), -1)
    rewards = np.repeat(REWARDS, parts)[places]
    advantages = bestofk.advantages(
        rewards, "max@2", log_ratio=log_ratio[places] if off_policy else None
    )
    likely = chances(drawn_by).numpy()[DRAWS].prod(-1)
    weights = np.zeros(len(flat))
    np.add.at(weights, places, advantages * likely[:, None] / places.shape[1])
    (found,) = torch.autograd.grad((torch.tensor(weights) * now).sum(), free)
    return found.numpy()


def whole(trajectory: Trajectory) -> list[Trajectory]:
    return [trajectory]


def a_row_per_turn(trajectory: Trajectory) -> list[Trajectory]:
    turns = np.arange(len(trajectory.tokens)) < len(trajectory.tokens) - 1
    return [
        replace(trajectory, own=trajectory.own & turns),
        replace(trajectory, own=trajectory.own & ~turns),
    ]


def all_tokens(trajectory: Trajectory) -> list[Trajectory]:
    return [replace(trajectory, own=None)]


def tokens_of_the_text(trajectory: Trajectory) -> list[Trajectory]:
    ids, own = trajectory.tokens.tolist(), trajectory.own.tolist()
    if ids[:2] == [A, B] and own[1]:
        return [Trajectory([AB, *ids[2:]], own[1:])]
    return [trajectory]


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("off_policy", [False, True])
def test_expected_update_over_trajectories_is_the_gradient(off_policy: bool, layout: str) -> None:
    found = expected_update(whole, off_policy=off_policy, layout=layout)
    np.testing.assert_allclose(found, true_gradient(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", [a_row_per_turn, all_tokens, tokens_of_the_text])
@pytest.mark.parametrize("off_policy", [False, True])
def test_other_ways_to_keep_a_trajectory_have_another_gradient(
    wrong: Way, off_policy: bool
) -> None:
    found = expected_update(wrong, off_policy=off_policy)
    assert np.abs(found - true_gradient()).max() > 1e-3
