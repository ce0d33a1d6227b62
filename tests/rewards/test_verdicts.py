"""A verdict whose reward and status disagree cannot be made."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bestofk.types import STATUSES, Verdict


@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0, math.nan])
@pytest.mark.parametrize("status", STATUSES)
def test_a_status_has_its_rewards(reward: float, status: Any) -> None:
    earns = {"correct": reward == 1.0, "partial": reward == 0.5, "unscored": math.isnan(reward)}
    if earns.get(status, reward == 0.0):
        assert Verdict(reward, status).status == status
    else:
        with pytest.raises(ValueError, match=f"got (nan|{reward}) with '{status}'"):
            Verdict(reward, status)


def test_a_mistyped_status_says_what_to_type() -> None:
    wrong: Any = "incorect"
    with pytest.raises(ValueError, match="unknown status 'incorect'; did you mean 'incorrect'"):
        Verdict(1.0, wrong)


@pytest.mark.parametrize("reward", [math.inf, -math.inf])
def test_a_reward_is_finite(reward: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Verdict(reward, "correct")


@pytest.mark.parametrize(
    ("reward", "status"),
    [(-1.0, "incorrect"), (-0.1, "timeout"), (1.1, "correct"), (7.0, "correct")],
)
def test_rewards_of_any_range_are_verdicts(reward: float, status: Any) -> None:
    assert Verdict(reward, status).reward == reward
