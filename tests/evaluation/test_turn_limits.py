"""pass@(k, T) and max@(k, T): the best of k trajectories of at most T turns."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bestofk.cli import main
from bestofk.evaluation import curve, curves_by_turns, read, samples
from bestofk.reports import load
from bestofk.reports.report_data import page_data
from bestofk.reports.report_results import evaluate

TURNS = [[1, 3, 2, 5, 1], [4, 4, 1, 2, 5]]
REWARDS: dict[str, Any] = {
    "pass@k": [[1.0, 1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0, 1.0]],
    "max@k": [[-0.5, 2.0, 0.25, 1.0, -1.0], [0.5, 0.0, 0.0, 3.0, 1.0]],
}


@pytest.mark.parametrize("metric", ["pass@k", "max@k"])
def test_every_subset_counts_what_ended_in_time(metric: Any) -> None:
    rewards = REWARDS[metric]
    table = samples(rewards, turns=TURNS)
    found = curves_by_turns(table, metric)
    assert list(found) == [1, 2, 4, 5]
    least = min(0.0, *(min(row) for row in rewards))
    for most, line in found.items():
        in_time = [
            [reward if turns <= most else least for reward, turns in zip(*row, strict=True)]
            for row in zip(rewards, TURNS, strict=True)
        ]
        for k in range(1, 6):
            of_each = [np.mean([max(each) for each in combinations(row, k)]) for row in in_time]
            assert line.at(k).value == pytest.approx(np.mean(of_each), abs=1e-12)
    assert (found[5].estimate == curve(table, metric).estimate).all()


def test_a_longer_trajectory_gets_the_least_reward_that_is_stated() -> None:
    table = samples([[0.5, 0.75, 1.0]], turns=[[1, 3, 3]])
    found = curves_by_turns(table, "max@k", bounds=(0.25, 1.0))
    assert found[1].at(1).value == pytest.approx((0.5 + 0.25 + 0.25) / 3, abs=1e-12)
    assert found[3].at(1).value == pytest.approx(0.75, abs=1e-12)


def test_a_trajectory_that_could_not_be_scored_stays_so_at_every_limit() -> None:
    table = samples([[1.0, None, 1.0, 0.0]], turns=[[3, 3, 1, 1]])
    short = table.within(1)
    np.testing.assert_array_equal(short.rewards, [0.0, np.nan, 1.0, 0.0])
    assert short.live.tolist() == table.live.tolist() == [3]


def test_samples_of_one_turn_have_no_such_curves() -> None:
    for turns in (None, [[1, 1]], [[np.nan, np.nan]]):
        assert curves_by_turns(samples([[1.0, 0.0]], turns=turns), "pass@k") == {}
    assert curves_by_turns(samples([[1.0, 0.0]], turns=[[1, 2]]), "mean") == {}


def test_a_file_of_trajectories_is_evaluated_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    with file.open("w") as out:
        for p, (rewards, turns) in enumerate(zip(REWARDS["pass@k"], TURNS, strict=True)):
            for s, (reward, count) in enumerate(zip(rewards, turns, strict=True)):
                row = {"problem_id": f"p{p}", "sample_id": s, "completion": "a", "reward": reward}
                print(json.dumps({**row, "turns": count, "ended_by": "turns"}), file=out)
    np.testing.assert_array_equal(read(file).turns, np.concatenate(TURNS))
    assert main(["eval", str(file), "--k", "2"]) == 0
    two = curve(read(file).within(2), "pass@k").at(2)
    assert f"pass@(2, 2) {two.value:.4f} " in " ".join(capsys.readouterr().out.split())
    assert main(["eval", str(file), "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["by_turns"]["2"]["estimate"][1] == two.value
    page = page_data(evaluate(load([str(file)])), None, title="", version="", created="")
    shown = {each["turns"]: each["mean"][each["k"].index(2)] for each in page["by_turns"]}
    assert shown[2] == two.value
    assert list(shown) == [1, 2, 4, 5]
