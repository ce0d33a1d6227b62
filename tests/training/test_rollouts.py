"""Batches of rollouts: a slot holds the same whoever fills it; what counts is counted."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bestofk.objectives import has_signal, objective
from bestofk.rewards.base import as_verdict
from bestofk.training.batch import (
    JudgingAside,
    RolloutBatch,
    advantages_of,
    generators_for,
)
from bestofk.training.record import reward_statistics, sample_rows
from bestofk.training.train import sample_and_judge
from bestofk.types import Group, Prompt, Trajectory, Verdict


class Room:
    """Several ranks as threads that gather through a barrier."""

    def __init__(self, size):
        self.size, self.barrier, self.values = size, threading.Barrier(size, timeout=600), {}

    def rank(self, rank):
        room = self

        class Member:
            size = room.size

            def __init__(self):
                self.rank = rank

            def gather(self, value):
                room.values[rank] = value
                room.barrier.wait()
                values = [room.values[other] for other in range(room.size)]
                room.barrier.wait()
                return values

        return Member()


def prompt_at(position):
    return Prompt(id=f"p{position}", text=str(position), task="t", spec={"position": position})


def sample(prompts, again):
    """Four completions that say what was asked; their number of hits depends on the prompt."""
    return [
        Group(p, tuple(Trajectory(text=f"{p.id} {i} {again}") for i in range(4)), (1,))
        for p in prompts
    ]


def judge(groups):
    """Position p has p mod 5 right answers of four: none at 0, all at 4."""
    return [
        [as_verdict(i < group.prompt.spec["position"] % 5) for i in range(len(group.trajectories))]
        for group in groups
    ]


def everywhere(size, prompts, start, text="max@2", **options):
    room = Room(size)
    with ThreadPoolExecutor(size) as pool:
        return list(
            pool.map(
                lambda rank: sample_and_judge(
                    prompt_at,
                    sample,
                    judge,
                    objective(text),
                    room.rank(rank),
                    position=start,
                    prompts=prompts,
                    **options,
                ),
                range(size),
            )
        )


@pytest.mark.parametrize("refill", [0, 1, 3])
def test_one_process_and_several_have_the_same_groups_in_the_same_slots(refill):
    alone = everywhere(1, 12, 30, refill=refill)[0]
    for size in (2, 3, 4):
        parts = everywhere(size, 12, 30, refill=refill)
        assert [g for part in parts for g in part.groups] == list(alone.groups)
        assert {part.position for part in parts} == {alone.position}
        assert {part.refilled for part in parts} == {alone.refilled}
        assert all(len(part.groups) == 12 // size for part in parts)


def test_refilling_replaces_no_signal_groups_by_the_next_prompts_in_order():
    plain = everywhere(1, 10, 0)[0]
    assert [g.prompt.id for g in plain.groups] == [f"p{i}" for i in range(10)]
    assert plain.position == 10
    # max@2 has signal only where at least one is right and at least two are wrong: 1 and 2 of 4.
    signal = has_signal(advantages_of(objective("max@2"), plain.rewards))
    assert signal.tolist() == [False, True, True, False, False] * 2
    once = everywhere(1, 10, 0, refill=1)[0]
    ids = [g.prompt.id for g in once.groups]
    assert ids == ["p10", "p1", "p2", "p11", "p12", "p13", "p6", "p7", "p14", "p15"]
    assert (once.position, once.refilled) == (16, 6)
    twice = everywhere(1, 10, 0, refill=2)[0]
    assert [g.prompt.id for g in twice.groups][:5] == ["p16", "p1", "p2", "p11", "p12"]
    assert [g.trajectories[0].text for g in twice.groups][:2] == ["p16 0 2", "p1 0 0"]
    stops = everywhere(1, 2, 1, refill=5)[0]
    assert (stops.position, stops.refilled) == (3, 0)


def test_the_objective_says_what_signal_is():
    rewards = np.array([[1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=float)

    def signal(text, **inputs):
        return has_signal(advantages_of(objective(text), rewards, **inputs)).tolist()

    assert signal("mean") == [True, True, False]
    assert signal("max@3") == [False, True, False]
    assert signal("max@3/50%/mean", progress=0.4) == [False, True, False]
    assert signal("max@3/50%/mean", progress=0.6) == [True, True, False]


@pytest.mark.parametrize("variant", ["bootstrap", "full"])
def test_what_an_objective_draws_depends_on_the_slot_alone(variant):
    goal = objective(f"passk-training@3:{variant}")
    rewards = np.random.default_rng(0).integers(0, 2, size=(8, 12)).astype(float)
    live = np.ones((8, 12), dtype=bool)
    live[2, 3:5] = False

    def weights(slots):
        slots = list(slots)
        return advantages_of(
            goal, rewards[slots], live=live[slots], generators=generators_for(goal, slots, 5, 1)
        )

    whole = weights(range(8))
    parts = np.concatenate([weights(range(4)), weights(range(4, 8))])
    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_array_equal(whole[[6, 1]], weights([6, 1]))
    other = advantages_of(goal, rewards, live=live, generators=generators_for(goal, range(8), 5, 2))
    assert not np.array_equal(whole, other)
    assert generators_for(objective("max@3"), range(8), 5) is None


def batch_of(rewards):
    verdicts = tuple(
        tuple(Verdict.unscored("broken") if np.isnan(r) else as_verdict(r) for r in row)
        for row in rewards
    )
    groups = tuple(
        Group(
            prompt_at(p),
            tuple(Trajectory([1, 2], log_probs=[-0.5, -1.0], text=f"c{i}") for i in range(4)),
        )
        for p in range(len(rewards))
    )
    return RolloutBatch(groups, verdicts)


NAN = float("nan")
RAGGED = [[1.0, 0, 0, 0], [NAN, 1.0, 0, 0], [NAN, NAN, NAN, 1.0], [0, 0, 0, 0]]


def test_unscored_samples_are_not_live_and_groups_with_too_few_are_dropped_whole():
    batch = batch_of(RAGGED)
    live = batch.live(3)
    assert live.tolist() == [[True] * 4, [False, True, True, True], [False] * 4, [True] * 4]
    weights = advantages_of(objective("max@2"), batch.rewards, live=live)
    assert weights[2].tolist() == [0, 0, 0, 0]
    assert weights[1].tolist() == [0.0, 2.0, -1.0, -1.0]  # the weights of a group of three
    told = reward_statistics(batch.rewards, batch.verdicts, k=2, min_live=3, threshold=1.0)
    assert (told["groups"], told["groups_dropped"], told["unscored"]) == (4, 1, 4)
    assert told["reward"] == pytest.approx(3 / 12)
    assert told["max@2"] == pytest.approx((0.5 + 2 / 3 + 0.0) / 3)
    assert told["status_unscored"] == 4


def test_rows_of_samples_say_what_was_drawn_and_how_it_was_weighed():
    batch = batch_of(RAGGED)
    weights = advantages_of(objective("max@2"), batch.rewards, live=batch.live(3))
    rows = sample_rows(7, batch, weights)
    assert len(rows) == 16
    assert rows[5] | {"weight": 2.0} == rows[5]
    assert {row["step"] for row in rows} == {7}
    assert rows[4]["status"] == "unscored"
    assert rows[0]["logprob"] == -1.5
    assert sample_rows(7, batch, tokens=True)[0]["token_ids"] == [1, 2]


# ------------------------------------------- judged aside: the same verdicts as all groups at once
def named(name):
    return Group(Prompt(name, "", "test"), (Trajectory(text=name), Trajectory(text="x")))


def by_length(groups):
    return [[as_verdict(len(c.text) > 1) for c in group.trajectories] for group in groups]


def test_verdicts_come_in_the_order_they_are_asked_for():
    aside = JudgingAside(by_length)
    groups = [named("a" * i) for i in range(1, 6)]
    for group in reversed(groups):
        aside.submit(group)
    assert aside.collect(groups) == by_length(groups)
    assert aside.collect(groups[:2]) == by_length(groups[:2])  # never submitted again


def test_groups_that_wait_are_scored_as_one_batch_in_another_thread():
    sizes, go, began = [], threading.Event(), threading.Event()

    def slow(groups):
        began.set()
        go.wait(900)
        sizes.append(len(groups))
        assert threading.current_thread().name.startswith("bestofk-judge")
        return by_length(groups)

    aside = JudgingAside(slow)
    groups = [named("ab") for _ in range(5)]
    aside.submit(groups[0])
    assert began.wait(900)
    for group in groups[1:]:
        aside.submit(group)
    go.set()
    assert aside.collect(groups) == by_length(groups)
    assert sizes == [1, 4]


def test_an_error_of_the_scorer_reaches_the_loop():
    def broken(groups):
        raise RuntimeError("too much could not be scored")

    aside = JudgingAside(broken)
    aside.submit(named("ab"))
    with pytest.raises(RuntimeError, match="could not be scored"):
        aside.collect([])
