"""The experiment does what it says: real samples, exact evaluation, one start, one budget."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from bestofk.demo import KS, Results, Settings, experiment
from bestofk.demo.conclusions import compare
from bestofk.demo.experiment import (
    Adam,
    Prompts,
    draw,
    evaluate,
    policy_gradient,
    softmax,
    some_worlds,
    train,
)
from bestofk.objectives import Objective, objective

BASE, MEAN, MAX, PASSK = range(4)


def a_tiny_case(seed: int = 0) -> tuple[np.ndarray, Prompts]:
    rng = np.random.default_rng(seed)
    policy = rng.normal(size=(2, 3, 4))  # two worlds, three features, four strategies
    return policy, Prompts(rng.normal(size=(2, 5, 3)), rng.integers(4, size=(2, 5)))


def test_pass_at_k_is_the_chance_over_all_tuples_of_samples() -> None:
    policy, prompts = a_tiny_case()
    found, _ = evaluate(policy, prompts)
    for world, (place, k) in itertools.product(range(2), enumerate((1, 2, 4))):
        assert KS[place] == k
        chances = []
        for seen, solution in zip(prompts.inputs[world], prompts.solution[world]):
            powers = np.exp(seen @ policy[world])
            single = powers / powers.sum()
            chances.append(
                sum(
                    np.prod(single[list(samples)])
                    for samples in itertools.product(range(4), repeat=k)
                    if solution in samples
                )
            )
        assert found[world, place] == pytest.approx(np.mean(chances), abs=1e-12)


def test_entropy_is_that_of_the_choice() -> None:
    policy, prompts = a_tiny_case()
    _, found = evaluate(policy, prompts)
    for world in range(2):
        single = softmax(prompts.inputs[world] @ policy[world])
        expected = np.mean([-sum(p * np.log(p) for p in row) for row in single])
        assert found[world] == pytest.approx(expected, abs=1e-12)


def test_a_certain_policy_is_evaluated_to_finite_numbers() -> None:
    seen = np.ones((1, 2, 1))
    certain = np.array([[[2000.0, 0.0]]])  # always the first strategy
    passes, entropy = evaluate(certain, Prompts(seen, np.array([[0, 1]])))
    np.testing.assert_allclose(passes, 0.5, atol=1e-12)  # one prompt always, the other never
    np.testing.assert_allclose(entropy, 0.0, atol=1e-12)


def test_gradient_is_the_derivative_of_the_weighted_log_likelihood() -> None:
    policy, prompts = a_tiny_case()
    rng = np.random.default_rng(1)
    samples = rng.integers(4, size=(2, 5, 6))
    weights = rng.normal(size=samples.shape)

    def likelihood(candidate: np.ndarray) -> float:
        logs = np.log(softmax(prompts.inputs @ candidate))
        return float((weights * np.take_along_axis(logs, samples, axis=-1)).sum() / (5 * 6))

    found = policy_gradient(prompts.inputs, softmax(prompts.inputs @ policy), samples, weights)
    for place in np.ndindex(policy.shape):
        nudge = np.zeros_like(policy)
        nudge[place] = 1e-6
        slope = (likelihood(policy + nudge) - likelihood(policy - nudge)) / 2e-6
        assert found[place] == pytest.approx(slope, abs=1e-8)


def test_samples_follow_the_policy() -> None:
    chances = np.array([[[0.5, 0.0, 0.3, 0.2], [0.0, 1.0, 0.0, 0.0]]])
    samples = draw(chances, 20_000, np.random.default_rng(0))
    assert samples.shape == (1, 2, 20_000)
    shares = np.bincount(samples[0, 0], minlength=4) / 20_000
    assert shares[1] == 0
    np.testing.assert_allclose(shares, chances[0, 0], atol=5 * 0.5 / np.sqrt(20_000))
    assert (samples[0, 1] == 1).all()


def test_adams_first_step_is_the_rate_in_every_direction() -> None:
    step = Adam(0.1, np.zeros(3)).step(np.array([5.0, -1e-3, 2.0]))
    np.testing.assert_allclose(step, [0.1, -0.1, 0.1], rtol=1e-4)


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others() -> None:
    brief = {"steps": 5, "worlds": 2}
    first, again, other = (experiment(Settings(seed=seed, **brief)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.pass_at_k, again.pass_at_k)
    np.testing.assert_array_equal(first.entropy, again.entropy)
    assert (first.pass_at_k[:, 0] != other.pass_at_k[:, 0]).all()


def test_worlds_differ(small: Results) -> None:
    assert len({float(value) for value in small.pass_at_k[BASE, :, 0, 0]}) == small.settings.worlds


def test_all_runs_leave_one_start_and_the_base_stays(small: Results) -> None:
    assert np.ptp(small.pass_at_k[:, :, 0], axis=0).max() == 0
    assert np.ptp(small.pass_at_k[BASE], axis=1).max() == 0
    assert np.ptp(small.entropy[BASE], axis=1).max() == 0
    assert (small.pass_at_k[MEAN:, :, -1] != small.pass_at_k[BASE, :, -1]).all()


def test_every_run_is_weighed_by_its_objective_on_the_same_number_of_real_samples() -> None:
    settings = Settings(steps=7, worlds=2)
    start, prompts, held_out = some_worlds(settings, np.random.default_rng(0))
    assert [text for text in settings.runs.values() if text] == [
        "mean",
        "max@8",
        "passk-training@8",
    ]
    for text in filter(None, settings.runs.values()):
        weights = objective(text)
        seen: list[np.ndarray] = []

        def spied(
            rewards: np.ndarray, weights: Objective = weights, seen: list[np.ndarray] = seen
        ) -> np.ndarray:
            seen.append(rewards)
            return weights(rewards)

        policies = list(train(start, prompts, spied, settings, np.random.default_rng(1)))
        drawn = np.stack(seen)
        assert drawn.size == settings.samples * settings.worlds
        assert set(np.unique(drawn)) == {0.0, 1.0}
        assert len(policies) == len(settings.checkpoints)
    assert not {row.tobytes() for row in held_out.inputs[0]} & {
        row.tobytes() for row in prompts.inputs[0]
    }


def test_training_for_the_mean_sharpens_and_best_of_k_pays() -> None:
    results = experiment(Settings(steps=200, worlds=4))
    last = results.pass_at_k[:, :, -1]
    at_1, at_8, at_64 = (last[..., KS.index(k)] for k in (1, 8, 64))
    assert compare(at_1[MEAN], at_1[BASE]) == "higher"
    for run in (BASE, MAX, PASSK):
        assert compare(at_64[MEAN], at_64[run]) == "lower"
        assert compare(results.entropy[MEAN, :, -1], results.entropy[run, :, -1]) == "lower"
    for run in (BASE, MEAN):
        assert compare(at_8[MAX], at_8[run]) == "higher"
        assert compare(at_8[PASSK], at_8[run]) == "higher"
    assert compare(at_1[MAX], at_1[MEAN]) == "lower"  # what max@8 costs is part of the story


def test_checkpoints_run_from_the_start_to_the_end() -> None:
    for steps in (1, 2, 19, 21, 300, 9999):
        marks = Settings(steps=steps).checkpoints
        assert marks[0] == 0
        assert marks[-1] == steps
        assert all(earlier < later for earlier, later in zip(marks, marks[1:]))


def test_the_core_dependencies_are_enough() -> None:
    code = (
        "import sys, tempfile, os; os.chdir(tempfile.mkdtemp()); from bestofk.cli import main; "
        "assert main(['demo', '--steps', '2', '--worlds', '2']) == 0; "
        "print({'torch', 'transformers', 'matplotlib', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
