"""Which samples go on the page."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bestofk import evaluation
from bestofk.reports.chosen_samples import (
    HEAD,
    LEAST,
    TAIL,
    bests,
    choose,
    conversation,
    cut,
    excerpts,
    prompt_text,
    shares,
)
from bestofk.reports.sources import Source

rewards = st.lists(st.sampled_from([0.0, 0.25, 1.0, math.nan]), min_size=1, max_size=40).map(
    np.array
)


@given(rewards)
def test_best_of_first_k_is_the_first_of_the_largest(group: np.ndarray) -> None:
    found = dict(bests(group))
    for k in [2**i for i in range(7) if 2**i < group.size] + [group.size]:
        scored = [r for r in group[:k].tolist() if not math.isnan(r)]
        if not scored:
            assert k not in found
        else:
            assert found[k] == group[:k].tolist().index(max(scored))


@given(rewards, st.integers(2, 50))
def test_chosen_fill_the_quota_and_hold_the_best(group: np.ndarray, quota: int) -> None:
    chosen = choose(group, quota)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(quota, group.size)
    if not np.isnan(group).all():
        assert bests(group)[-1][1] in chosen


@given(rewards)
def test_with_room_every_best_of_the_first_k_is_there(group: np.ndarray) -> None:
    depths = {index for _, index in bests(group)}
    assert depths <= set(choose(group, max(2, len(depths))))


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 400))
def test_shares_stay_within_the_limit_and_prefer_what_differs(
    marks: list[bool], runs: int, limit: int
) -> None:
    places, quota = shares(range(len(marks)), marks, runs, limit)
    assert places == sorted(set(places))
    assert len(places) * quota * runs <= limit
    if len(places) < len(marks):
        assert quota == LEAST
        differing = {i for i, mark in enumerate(marks) if mark}
        assert differing <= set(places) or set(places) <= differing


def test_long_text_is_cut_in_the_middle_and_the_rest_counted() -> None:
    text = "a" * HEAD + "b" * 500 + "c" * TAIL
    assert cut(text) == {"t": "a" * HEAD, "e": "c" * TAIL, "cut": 500}
    assert cut(text[500:]) == {"t": text[500:], "e": None, "cut": 0}


@given(st.lists(st.integers(0, 9000), max_size=40))
def test_a_conversation_has_the_room_of_a_completion(sizes: list[int]) -> None:
    messages = [{"role": "tool", "content": "x" * size} for size in sizes]
    talk = conversation(messages)
    assert len(talk["messages"]) + talk["omitted"] == len(sizes)
    shown = [len(each["t"]) + len(each["e"] or "") for each in talk["messages"]]
    assert sum(shown) <= HEAD + TAIL
    if not talk["omitted"]:
        assert [n + each["cut"] for n, each in zip(shown, talk["messages"])] == sizes
        if sum(sizes) > HEAD + TAIL:  # nothing is wasted
            assert sum(shown) > HEAD + TAIL - len(sizes)


def test_prompt_of_any_shape_becomes_text() -> None:
    assert prompt_text("plain") == "plain"
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert prompt_text(chat) == "[system]\ns\n\n[user]\nu"
    assert prompt_text({"odd": 1}) == '{"odd": 1}'
    assert "characters are left out" in prompt_text("x" * 10_000)


def test_groups_carry_counts_and_depths_of_all_samples_not_only_the_shown() -> None:
    table = [[0.0] * 30 + [1.0, 0.0], [math.nan] * 32]
    samples = evaluation.samples(table, name="a", problems=["p", "q"])
    texts = {
        i: {"completion": f"text {i}", "status": "correct" if i == 30 else "incorrect"}
        for i in range(64)
    }
    source = Source(name="a", path="a", format="f", samples=samples,
                    fetch=lambda at: {i: texts[i] for i in at})  # fmt: skip
    found = excerpts([source], ["p", "q"], np.array([[1.0, np.nan]]), 1.0, 8)
    assert found is not None
    first, second = (one["runs"][0] for one in found["problems"])
    assert (first["n"], first["scored"], first["passed"], first["best_reward"]) == (32, 32, 1, 1.0)
    assert first["best"] == [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (32, 31)]
    assert [item["i"] for item in first["items"]] == [1, 2, 3, 31]
    assert first["items"][-1]["t"] == "text 30"
    assert found["statuses"][first["items"][-1]["s"]] == "correct"
    assert (second["scored"], second["passed"], second["best"]) == (0, 0, [])
    assert found["total"] == 64
    assert excerpts([source], ["p", "q"], np.array([[1.0, np.nan]]), 1.0, 0) is None
