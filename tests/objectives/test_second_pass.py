"""What "exact" covers: steps on samples θ has not seen. A second pass over a group is biased."""

import numpy as np
import pytest

from bestofk import advantages
from oracles import Tabular

START = Tabular(np.array([0.2, -0.3, 0.1]), np.array([0.0, 0.4, 1.0]))
N, K = 4, 2
# docs/off-policy.md shows these: relative bias of the second step at lr .3, 1, 3
SHOWN = {"max@2": (0.038, 0.158, 0.545), "max@2:loo-1": (0.010, 0.047, 0.272)}


def after_one_step(text: str, rate: float) -> list[tuple[np.ndarray, float, Tabular]]:
    """Every group of the first policy, its probability, and the policy one SGD step later."""
    draws, chance = START.outcomes(N)
    weights = advantages(START.rewards[draws], text)
    steps = np.einsum("on,ond->od", weights, START.scores()[draws]) / N
    return [
        (group, p, Tabular(START.logits + rate * step, START.rewards))
        for group, p, step in zip(draws, chance, steps)
    ]


def estimates(policy: Tabular, groups: np.ndarray, text: str) -> np.ndarray:
    """The policy's gradient by each group (o, N) of the first policy."""
    logs = np.log(policy.probabilities / START.probabilities)
    weights = advantages(START.rewards[groups], text, log_ratio=logs[groups])
    return np.einsum("on,ond->od", weights, policy.scores()[groups]) / N


@pytest.mark.parametrize("text", list(SHOWN))
def test_a_second_pass_over_the_same_group_is_biased_as_documented(text):
    for rate, shown in zip((0.3, 1.0, 3.0), SHOWN[text]):
        steps = after_one_step(text, rate)
        truth = sum(p * policy.max_gradient(K) for _, p, policy in steps)
        got = sum(p * estimates(policy, group[None], text)[0] for group, p, policy in steps)
        bias = np.linalg.norm(got - truth) / np.linalg.norm(truth)
        assert bias == pytest.approx(shown, abs=6e-4)


@pytest.mark.parametrize("text", list(SHOWN))
def test_a_step_on_another_group_of_the_same_batch_is_exact(text):
    """One pass in mini-batches: θ has moved on the first group, the second is new to it."""
    draws, chance = START.outcomes(N)
    for _, _, policy in after_one_step(text, 1.0):
        got = chance @ estimates(policy, draws, text)
        np.testing.assert_allclose(got, policy.max_gradient(K), atol=1e-12)
