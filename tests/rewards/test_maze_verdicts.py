"""Maze: walks against a plain walker on rows and columns, and what else a model may write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards import verifier
from bestofk.rewards.puzzles.judge_maze import distances, walk
from bestofk.types import Prompt, Verdict

STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


def judge(grid: list[str], text: str, reward: str = "exact") -> Verdict:
    prompt = Prompt("p", "", "maze", {"grid": grid, "answer": "whole"})
    (verdict,) = verifier("maze", reward=reward)([prompt], [text])
    return verdict


@st.composite
def grids(draw: Any) -> list[str]:
    rows, columns = draw(st.integers(2, 6)), draw(st.integers(2, 6))
    cells = [[draw(st.sampled_from("*..")) for _ in range(columns)] for _ in range(rows)]
    start, end = draw(
        st.lists(st.integers(0, rows * columns - 1), min_size=2, max_size=2, unique=True)
    )
    cells[start // columns][start % columns] = "S"
    cells[end // columns][end % columns] = "E"
    return ["".join(row) for row in cells]


def plain_walk(grid: list[str], moves: str) -> tuple[tuple[int, int], int]:
    at = next((r, row.index("S")) for r, row in enumerate(grid) if "S" in row)
    for made, move in enumerate(moves):
        row, column = at[0] + STEPS[move][0], at[1] + STEPS[move][1]
        if not (0 <= row < len(grid) and 0 <= column < len(grid[0])) or grid[row][column] == "*":
            return at, made
        at = row, column
    return at, len(moves)


def plain_distances(grid: list[str]) -> dict[tuple[int, int], int]:
    """By repeated relaxation: slower and more obvious than a search."""
    found = {(r, row.index("E")): 0 for r, row in enumerate(grid) if "E" in row}
    for _ in range(len(grid) * len(grid[0])):
        for (row, column), distance in list(found.items()):
            for dr, dc in STEPS.values():
                r, c = row + dr, column + dc
                if 0 <= r < len(grid) and 0 <= c < len(grid[0]) and grid[r][c] != "*":
                    found[r, c] = min(found.get((r, c), 10**9), distance + 1)
    return found


@given(grids(), st.text(alphabet="UDLR", min_size=1, max_size=20))
def test_a_walk_is_right_exactly_when_a_plain_walker_arrives(grid: list[str], moves: str) -> None:
    at, made = plain_walk(grid, moves)
    arrived = made == len(moves) and grid[at[0]][at[1]] == "E"
    assert judge(grid, moves).reward == float(arrived)
    flat = "\n".join(grid) + "\n"
    assert walk(flat, moves) == (at[0] * (len(grid[0]) + 1) + at[1], made)


@given(grids(), st.text(alphabet="UDLR", min_size=1, max_size=20))
def test_progress_is_as_stated(grid: list[str], moves: str) -> None:
    away = plain_distances(grid)
    start = next((r, row.index("S")) for r, row in enumerate(grid) if "S" in row)
    if start not in away:
        return
    flat = "\n".join(grid) + "\n"
    width = len(grid[0]) + 1
    assert {divmod(cell, width): d for cell, d in distances(flat).items()} == away
    at, made = plain_walk(grid, moves)
    verdict = judge(grid, moves, "progress")
    if made == len(moves) and grid[at[0]][at[1]] == "E":
        assert verdict.reward == pytest.approx(0.5 + 0.5 * away[start] / made)
        assert (verdict.reward == 1.0) == (made == away[start])
    else:
        assert verdict.reward == pytest.approx(max(0.0, 0.5 * (1 - away[at] / away[start])))
        assert verdict.reward <= 0.5


GRID = ["S..", "**.", "E.."]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("RRDDLL", "correct"),
        ("R R D D L L", "correct"),
        ("R,R,D,D,L,L", "correct"),
        ("RLRRDDLL", "correct"),
        ("RRDDLLR", "incorrect"),
        ("DD", "incorrect"),
        ("LRRRDDLL", "incorrect"),
        ("RRRRDDLL", "incorrect"),
        ("UDRRDDLL", "incorrect"),
        ("rrddll", "correct"),
        ("r, r, d, d, l, l", "correct"),
        ("lrddll", "incorrect"),
        ("rrddll done", "unparsed"),
        ("Right", "unparsed"),
        ("", "unparsed"),
        (",", "unparsed"),
        ("RRDDLL RRDDLL done", "unparsed"),
        ("RRDDLL\x00", "unparsed"),
        ("ＲＲＤＤＬＬ", "unparsed"),
        ("RL" * 4998 + "RRDDLL", "unparsed"),
        ("RL" * 4997 + "RRDDLL", "correct"),
        ("RL" * 5_000_000, "unparsed"),
        (" " * 10_000_000 + "RRDDLL", "correct"),
        ("R" + " " * 10_000_000 + "RDDLL", "unparsed"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_a_model_may_write(text: str, status: str) -> None:
    verdict = judge(GRID, text)
    assert verdict.status == status
    assert verdict.reward == float(status == "correct")


def test_a_maze_without_a_way_is_unscored_and_says_so() -> None:
    verdict = judge(["S*E"], "R", "progress")
    assert verdict.status == "unscored"
    assert "has a way from S to E, this one has none" in verdict.detail


def test_only_the_eight_letters_are_moves() -> None:
    letters = {chr(c) for c in range(0x3000) if judge(["S*E"], chr(c)).status != "unparsed"}
    assert letters == set("UDLRudlr")


def test_the_grid_has_no_way_around_its_edges() -> None:
    assert judge(["S*E"], "LLL").reward == 0.0
    assert judge(["*E", "S*"], "LR").reward == 0.0
    assert judge([".E", "S*"], "DU").reward == 0.0
    assert judge(["S*", "*E"], "UUDD").reward == 0.0
