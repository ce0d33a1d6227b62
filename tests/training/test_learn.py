"""Learning from judged batches: known optima are reached, and what is logged is what happened."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bestofk.cli.objectives_command import rows
from bestofk.config import OffPolicySection as OffPolicy
from bestofk.learning import Learner, Loss, Optimizer
from bestofk.models import tiny
from bestofk.objectives import effective_share, objective, signal, trust_region_mask
from bestofk.rewards.base import as_verdict
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.training.batch import (
    RolloutBatch,
    advantages_of,
    choices_of,
    merge_statistics,
    ratio_statistics,
    sampler_log_probs,
    whole_groups,
)
from bestofk.training.train import for_later, learn, needs_old_log_probs
from bestofk.types import Prompt, Verdict


class Alone:
    rank, size = 0, 1

    def gather(self, value):
        return [value]


@pytest.fixture
def bandit():
    """One token per completion; its class (even or odd id) is the arm.

    The model cannot tell the prompts apart, but 4 of 5 pay for even and 1 of 5 for odd. With p the
    probability of even, the mean is best at p = 1; max@k = .8 (1 - (1-p)^k) + .2 (1 - p^k) is best
    where ((1-p)/p)^(k-1) = .2/.8.
    """
    model = tiny.untrained(hidden=16, layers=1, heads=1, inner=16, seed=0)
    sampler = ModelSampler(model, tiny.tokenizer())
    prompts = [Prompt(f"p{i}", "?", "bandit", {"even": i % 5 != 0}) for i in range(10)]

    def batch(step, n=16):
        groups = sampler.sample(
            prompts, seed=step, sampling=Sampling(samples_per_prompt=n, max_new_tokens=1)
        )
        verdicts = [
            tuple(
                replace(
                    as_verdict((c.tokens[0] % 2 == 0) == g.prompt.spec["even"]),
                    score=float(c.tokens[0] % 3),
                    answer=str(c.tokens[0] % 5),
                )
                for c in g.trajectories
            )
            for g in groups
        ]
        return RolloutBatch(tuple(groups), tuple(verdicts))

    def even():
        prompt_ids = torch.tensor([batch(0).groups[0].prompt_tokens])
        with torch.no_grad():
            probabilities = model(prompt_ids).logits[0, -1].double().softmax(-1)
        return float(probabilities[::2].sum())

    return model, batch, even


ONE_STEP = OffPolicy()
ON_POLICY: dict[str, Any] = {"loss": Loss(), "off_policy": ONE_STEP}


def drive(bandit, text, steps=120, rate=3e-3, **how):
    model, batch, even = bandit
    learner = Learner(model, optimizer=Optimizer(learning_rate=rate))
    how = {**ON_POLICY, **how}
    for step in range(steps):
        progress = step / steps
        learn(
            learner, objective(text), batch(step), Alone(), progress=progress, seed=(0, step), **how
        )
    return even()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "best"), [("max@2", 0.8), ("max@4:loo-1", 1 / (1 + 0.25 ** (1 / 3))), ("mean", 1.0)]
)
def test_a_bandit_is_driven_to_the_optimum_of_its_objective(bandit, text, best):
    assert drive(bandit, text) == pytest.approx(best, abs=0.04)


def test_several_exact_steps_per_batch_reach_the_same_optimum(bandit):
    several = OffPolicy(passes=2, mini_batches=2)
    assert drive(bandit, "max@2", steps=60, off_policy=several) == pytest.approx(0.8, abs=0.06)


@pytest.mark.slow
def test_a_clipped_loss_reaches_the_mean_s_optimum(bandit):
    how: dict[str, Any] = {"loss": Loss(name="clipped"), "off_policy": OffPolicy(passes=2)}
    assert drive(bandit, "grpo", steps=60, **how) > 0.95


NAMES = [text for text, _ in rows()]
COMBINED = ["max@1+8", "max@8/60%/mean", "max@8..1", "rloo", "pkpo@8"]


@pytest.mark.parametrize("text", [*NAMES, *COMBINED])
def test_every_objective_takes_steps_with_the_weights_it_gives(bandit, text):
    """One exact step; then several: exact where it has an off-policy form, clipped where not."""
    model, batch, _ = bandit
    known: dict[str, dict[str, Any]] = {
        "lstat@8": {"coefficients": (0.0,) * 6 + (0.5, 0.5)},
        "passk-training@8:drop-easy": {"accuracy_threshold": 0.8},
        "retry@8": {"price": 0.05},
        "subsets@8": {"value": lambda rewards, scores, answers: float(max(rewards)), "sets": 64},
    }
    options = known.get(text) or known.get(text.partition(":")[0], {})
    goal, learner = (
        objective(text, **options),
        Learner(model, optimizer=Optimizer(learning_rate=1e-4)),
    )
    loss = Loss() if goal.takes_log_ratio else Loss(name="clipped")
    several: dict[str, Any] = {"loss": loss, "off_policy": OffPolicy(passes=2)}
    for step, how in enumerate((ON_POLICY, several)):
        data = batch(step)
        weights, stats = learn(learner, goal, data, Alone(), progress=0.3, seed=(step,), **how)
        if not goal.needs & {"rng", "entropy"}:
            inputs: dict[str, Any] = {"progress": 0.3} if "progress" in goal.needs else {}
            inputs |= choices_of(data.groups, data.verdicts)
            np.testing.assert_allclose(
                weights, advantages_of(goal, data.rewards, **inputs), atol=1e-12
            )
        entered = np.abs(weights).max() > 0
        assert stats["groups_with_signal"] == (np.abs(weights).max(axis=1) > 1e-12).sum()
        assert np.isfinite(stats["grad_norm"])
        assert (stats["grad_norm"] > 0) == entered
    assert learner.steps == 3


def test_off_policy_weights_come_from_all_siblings_current_ratios(bandit):
    """The second pass over one batch weighs by the ratios that the first step made."""
    model, batch, _ = bandit
    learner, goal = (
        Learner(model, optimizer=Optimizer(learning_rate=0.05)),
        objective("max@2"),
    )
    groups = batch(1)
    before = learner.log_probs(groups.groups).log_prob
    how: dict[str, Any] = {"loss": Loss(), "off_policy": OffPolicy(passes=2)}
    weights, stats = learn(learner, goal, groups, Alone(), progress=0.0, seed=(0,), **how)
    assert np.allclose(weights, goal(groups.rewards))  # what is returned are the first weights
    assert stats["log_ratio_std"] > 0.01
    assert 0 < stats["ess"] < 1
    assert stats["sampler_gap_max"] < 1e-4
    assert not np.allclose(learner.log_probs(groups.groups).log_prob, before, atol=1e-3)


def test_on_policy_nothing_is_scored_twice_and_the_sampler_is_measured_all_the_same(bandit):
    model, batch, _ = bandit
    goal = objective("max@2")
    assert not needs_old_log_probs(goal, Loss(), ONE_STEP)
    assert needs_old_log_probs(goal, Loss(), OffPolicy(passes=2))
    assert needs_old_log_probs(goal, Loss(), OffPolicy(correct_sampler=True))
    assert needs_old_log_probs(goal, Loss(name="clipped"), ONE_STEP)
    assert needs_old_log_probs(objective("passk-training@2:adaptive"), Loss(), ONE_STEP)
    learner = Learner(model, optimizer=Optimizer(learning_rate=1e-3))
    learner.log_probs(batch(0).groups)  # the first batch is also scored in the other layout
    passes = []
    learner.passes.wrapped.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    true = batch(0)
    _, stats = learn(learner, goal, true, Alone(), progress=0, seed=(0,), **ON_POLICY)
    assert 0 <= stats["sampler_gap_mean"] <= stats["sampler_gap_max"] < 1e-4
    assert passes == [True]  # one pass, the step's own
    # Every row that enters counts: one that the sampler misjudges is seen among all of them.
    weights = goal(true.rewards)
    row = tuple(int(at) for at in np.argwhere(weights != 0)[-1])
    off = misjudged(true, lambda p, i: 0.5 if (p, i) == row else 0.0)
    _, stats = learn(learner, goal, off, Alone(), progress=0, seed=(0,), **ON_POLICY)
    assert stats["sampler_gap_max"] == pytest.approx(0.5, abs=0.05)
    assert stats["sampler_gap_mean"] == pytest.approx(0.5 / (weights != 0).sum(), abs=0.05)
    # Where nothing enters, a group is looked at.
    silent = misjudged(replace(true, verdicts=((Verdict(1.0, "correct"),) * 16,) * 10),
                       lambda p, i: 0.25)  # fmt: skip
    _, stats = learn(learner, goal, silent, Alone(), progress=0, seed=(0,), **ON_POLICY)
    assert (stats["tokens"], stats["groups_with_signal"]) == (0, 0)
    assert stats["sampler_gap_mean"] == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("size", [1e-13, 0.7, 1e9])
def test_a_step_counts_the_groups_with_signal_that_the_function_counts(bandit, size):
    model, batch, _ = bandit
    drawn = batch(0, n=8)
    passes = np.arange(10)[:, None] % 9 > np.arange(8)  # 0 to 8 of 8, and 0 again
    verdicts = tuple(tuple(as_verdict(size * float(each)) for each in row) for row in passes)
    for text in ("min@4", "median@3", "max@2", "grpo"):
        learner = Learner(model, optimizer=Optimizer(learning_rate=1e-9))
        judged = replace(drawn, verdicts=verdicts)
        _, stats = learn(
            learner, objective(text), judged, Alone(), progress=0, seed=(0,), **ON_POLICY
        )
        counted = signal(judged.rewards, text)
        assert stats["groups_no_signal"] == counted.silent, text
    assert signal(size * passes, "min@4").silent == 6  # 0 to 3, 8 and 0 passes: no subset differs


def misjudged(batch, by):
    """The batch of a sampler whose log-probs of completion (p, i) are off by so much."""
    groups = tuple(
        replace(group, trajectories=tuple(
            replace(c, log_probs=c.log_probs + by(p, i))
            for i, c in enumerate(group.trajectories)))
        for p, group in enumerate(batch.groups)
    )  # fmt: skip
    return replace(batch, groups=groups)


def test_a_sampler_that_is_off_is_measured_and_corrected(bandit):
    """Log-probs of a sampler that believed every token twice as likely as it was."""
    model, batch, _ = bandit
    true = batch(0)
    off = misjudged(true, lambda p, i: float(np.log(2)))
    goal = objective("max@2")
    learner = Learner(model, optimizer=Optimizer(learning_rate=1e-12))
    how: dict[str, Any] = {"loss": Loss(), "off_policy": OffPolicy(correct_sampler=True)}
    weights, stats = learn(learner, goal, off, Alone(), progress=0.0, seed=(0,), **how)
    assert stats["sampler_gap_mean"] == pytest.approx(np.log(2), abs=1e-4)
    halves = np.full(true.rewards.shape, -np.log(2))
    assert np.allclose(weights, goal(true.rewards, log_ratio=halves), atol=1e-3)


def moved_on(bandit, rate, **off_policy):
    """A batch drawn two steps ago, and the advantages and statistics of the step on it."""
    model, batch, _ = bandit
    goal, settings = objective("max@2"), OffPolicy(**off_policy)
    learner = Learner(model, optimizer=Optimizer(learning_rate=rate))
    off = misjudged(batch(1), lambda p, i: 0.01 * i)
    stale = for_later(
        off, learner.log_probs(off.groups), Alone(), against_sampler=settings.correct_sampler
    )
    drawn = sampler_log_probs(stale.groups)
    for step in (2, 3):
        learn(learner, goal, batch(step), Alone(), progress=0.0, seed=(0,), **ON_POLICY)
    log_ratio = learner.log_probs(off.groups).log_prob - drawn
    how: dict[str, Any] = {"loss": Loss(), "off_policy": settings}
    weights, stats = learn(learner, goal, stale, Alone(), progress=0.0, seed=(0,), **how)
    return weights, stats, stale.rewards, log_ratio, goal


@pytest.mark.parametrize("against_sampler", [False, True])
def test_a_batch_drawn_ahead_is_weighed_by_the_recorded_log_probs(bandit, against_sampler):
    weights, stats, rewards, log_ratio, goal = moved_on(
        bandit, 0.01, correct_sampler=against_sampler
    )
    assert log_ratio.std() > 0.02
    np.testing.assert_allclose(weights, goal(rewards, log_ratio=log_ratio), rtol=1e-6)
    assert not {"below_floor", "masked"} & set(stats)
    assert stats["sampler_gap_mean"] == pytest.approx(0.075, abs=1e-4)  # when it was drawn


def test_a_first_step_below_the_floor_is_taken_inside_a_region_and_counted(bandit):
    weights, stats, rewards, log_ratio, goal = moved_on(bandit, 0.3, ess_floor=0.99)
    whole = goal(rewards, log_ratio=log_ratio)
    kept = trust_region_mask(whole, log_ratio, math.log(2), math.log(2))
    assert 0 < stats["masked"] == (~kept).mean()
    np.testing.assert_allclose(weights, np.where(kept, whole, 0.0), rtol=1e-6)
    assert (stats["below_floor"], stats["inner_steps"]) == (1, 1)


def test_the_adaptive_design_compares_with_the_median_of_all_processes(bandit):
    class Two(Alone):
        size = 2

        def gather(self, value):
            entropies = isinstance(value, np.ndarray) and value.dtype == float
            return [value, value - 10.0] if entropies else [value, value]

    model, batch, _ = bandit
    goal = objective("passk-training@2:adaptive")
    learner = Learner(model, optimizer=Optimizer(learning_rate=1e-12))
    how: dict[str, Any] = {"loss": Loss(name="clipped"), "off_policy": ONE_STEP}
    data = batch(3)
    alone, _ = learn(learner, goal, data, Alone(), progress=0.0, seed=(0,), **how)
    among, _ = learn(learner, goal, data, Two(), progress=0.0, seed=(0,), **how)
    # Beside a process of lower entropies, all groups here lie above the median: all use pass@1.
    assert np.allclose(among, objective("passk-training@1")(data.rewards))
    assert np.allclose(alone, objective("passk-training@2")(data.rewards))  # all equal the median
    assert not np.allclose(among, alone)


def test_mini_batches_are_whole_groups_each_once_a_pass():
    rows = list(whole_groups(9, passes=2, mini_batches=3))
    assert [is_first for _, is_first in rows] == [True] * 3 + [False] * 3
    assert sorted(row for part, _ in rows[:3] for row in part) == list(range(9))
    assert {len(part) for part, _ in rows} == {3}


def test_ratio_statistics_are_of_live_samples():
    log_ratio = np.array([[0.5, -0.5, 0.1, 2.0], [0.0, 0.0, 9.0, 0.0]])
    live = np.array([[True] * 4, [True, True, False, True]])
    goal = objective("max@2", truncate=1.0)
    told = ratio_statistics(log_ratio, live, goal, Alone(), progress=0.0)
    assert told["log_ratio_max"] == 2.0
    assert told["truncated"] == pytest.approx(1 / 7)
    spread = [math.exp(x) - 1 - x for x in log_ratio[live]]
    assert told["ess"] == pytest.approx(effective_share(sum(spread) / 7, 2, 4))
    none = np.zeros_like(live)
    assert ratio_statistics(log_ratio, none, goal, Alone(), progress=0.0) == {}


def log_ratio_of_the_winner(bandit, passes, **off_policy):
    """The largest log-ratio of a pushed-up sample after passes over one fixed batch."""
    model, batch, _ = bandit
    learner = Learner(model, optimizer=Optimizer(learning_rate=0.003))
    data = batch(7)
    old = learner.log_probs(data.groups).log_prob
    _, stats = learn(
        learner, objective("max@2"), data, Alone(), progress=0.0, seed=(0,),
        loss=Loss(), off_policy=OffPolicy(passes=passes, ess_floor=0.0, **off_policy),
    )  # fmt: skip
    moved = learner.log_probs(data.groups).log_prob - old
    return float(moved[objective("max@2")(data.rewards) > 0].max()), stats


def test_a_trust_region_levels_off_what_runs_away_without_it(bandit):
    model = bandit[0]
    start = {name: value.clone() for name, value in model.state_dict().items()}
    reached = {}
    for region in (None, (0.2, 0.2)):
        for passes in (20, 60):
            model.load_state_dict(start)
            reached[region, passes], stats = log_ratio_of_the_winner(
                bandit, passes, trust_region=region
            )
        assert ("masked" in stats) == (region is not None)
    assert stats["masked"] > 0
    region = (0.2, 0.2)
    assert reached[None, 60] > 2 * reached[region, 60]
    assert reached[region, 60] < reached[region, 20] + 0.1  # levelled off
    assert reached[None, 60] > reached[None, 20] + 0.1  # still running


def test_inner_steps_end_when_the_samples_no_longer_count(bandit):
    model, batch, _ = bandit
    taken = {}
    for floor in (0.0, 0.5):
        learner = Learner(model, optimizer=Optimizer(learning_rate=0.1))
        how: dict[str, Any] = {"loss": Loss(), "off_policy": OffPolicy(passes=12, ess_floor=floor)}
        _, stats = learn(
            learner, objective("max@2"), batch(1), Alone(), progress=0.0, seed=(0,), **how
        )
        taken[floor] = stats["inner_steps"]
        assert stats["ess"] < 0.5  # also where that ended it
        assert learner.steps == stats["inner_steps"]
    assert taken[0.0] == 12
    assert 1 <= taken[0.5] < 12


def test_statistics_of_inner_steps_are_joined_by_their_kind():
    history = [{"tokens": 3, "grad_norm": 2.0, "lr": 0.1, "loss": 1.0},
               {"tokens": 4, "grad_norm": 1.0, "lr": 0.2, "loss": 3.0, "ess": 0.5}]  # fmt: skip
    assert merge_statistics(history) == {
        "tokens": 7,
        "grad_norm": 2.0,
        "lr": 0.2,
        "loss": 2.0,
        "ess": 0.5,
    }
