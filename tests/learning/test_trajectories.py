"""Trajectories: what a token weighs, what counts as the policy's, and when two are the same."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from bestofk.learning import Learner
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.types import Prompt, Trajectory
from policies import fixed, letters, llama, random_groups, with_turns


def test_a_sampled_token_weighs_at_most_16_bytes():
    """What is free again without a sampler's groups: arrays, texts and the objects around them."""
    model = fixed(llama)
    model.generation_config.eos_token_id = None
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=120)
    tracemalloc.start()
    groups = ModelSampler(model, letters(60)).sample(
        [Prompt("a", "cde", "t")], seed=1, sampling=sampling
    )
    tokens = sum(len(each.tokens) for group in groups for each in group.trajectories)
    before, _ = tracemalloc.get_traced_memory()
    del groups
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tokens == 16 * 120
    assert 8 * tokens < before - after <= 16 * tokens


def test_a_trajectory_keeps_arrays_of_its_own():
    """Not a part of a sampler's whole batch, and nothing that a caller may still change."""
    batch = np.arange(1000).reshape(10, 100)
    made = Trajectory(batch[2, :7], log_probs=-np.ones((10, 100))[2, :7])
    batch[:] = 0
    assert made.tokens.tolist() == [200, 201, 202, 203, 204, 205, 206]
    for array, dtype in ((made.tokens, "int32"), (made.own, "bool"), (made.log_probs, "float32")):
        assert array.dtype == dtype
        assert array.base is None or array.base.nbytes <= array.nbytes
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_trajectories_are_equal_where_every_value_is():
    made = Trajectory([1, 2], log_probs=[-0.5, np.nan], text="a")
    same = [
        Trajectory(np.array([1, 2]), [True, True], (-0.5, np.nan), "a", "stop"),
        pickle.loads(pickle.dumps(made)),
        replace(made, text="a"),
    ]
    others = [
        replace(made, tokens=[1, 3]),
        replace(made, own=[True, False]),
        replace(made, log_probs=[-0.25, np.nan]),
        replace(made, log_probs=()),
        replace(made, text="b"),
        replace(made, finish_reason="length"),
    ]
    assert {made, *same} == {made}
    assert made not in others
    assert len({made, *others}) == 7


@pytest.mark.parametrize(
    "values", [{"own": [True]}, {"log_probs": [-1.0]}, {"tokens": [[1, 2], [3, 4]]}]
)
def test_values_that_do_not_fit_the_tokens_are_an_error(values):
    with pytest.raises(ValueError, match=r"a trajectory of \d tokens has as many"):
        Trajectory(**{"tokens": [1, 2], "log_probs": [-1.0, -2.0], **values})


def test_tokens_of_an_environment_are_no_part_of_any_sum():
    made = Trajectory([1, 2, 3, 4], [True, False, False, True], [-1.0, 0.0, 0.0, -3.0])
    assert (made.drawn, made.log_prob, made.own_log_probs.tolist()) == (2, -4.0, [-1.0, -3.0])
    other = made.with_log_probs(np.array([-2.0, -5.0]))
    assert other.log_probs.tolist() == [-2.0, 0.0, 0.0, -5.0]
    assert (other.own == made.own).all()


def test_the_gap_to_the_sampler_is_of_the_policys_tokens_alone():
    """The sampler says 0 of the others; its own are 0.25 off in one group."""
    groups = with_turns(random_groups(2, 3))
    learner = Learner(fixed(llama))
    log_probs = learner.log_probs(groups)
    reported = [
        replace(
            group,
            trajectories=tuple(
                each.with_log_probs(row + 0.25 * p)
                for each, row in zip(group.trajectories, rows, strict=True)
            ),
        )
        for p, (group, rows) in enumerate(zip(groups, log_probs.tokens, strict=True))
    ]
    drawn = [sum(each.own.sum() for each in group.trajectories) for group in groups]
    stats = learner.step(reported, np.ones((2, 3)))
    assert stats["tokens"] == sum(drawn)
    assert stats["sampler_gap_mean"] == pytest.approx(0.25 * drawn[1] / sum(drawn), abs=1e-5)
    assert stats["sampler_gap_max"] == pytest.approx(0.25, abs=1e-4)
