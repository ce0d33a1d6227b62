"""Maze: find a way from S to E (the task of Pass@k Training, arXiv:2508.10751).

A carved maze of odd size n has a wall around it and cells at the odd places; a depth-first walk
joins all cells, then some further walls are opened, which makes loops. An open one is a field of
any size with walls strewn over it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from bestofk.messages import one_of
from bestofk.tasks.definition import (
    STYLES,
    Draw,
    Task,
    answer,
    answer_kind,
    below,
    generated,
    identity,
    wording,
)
from bestofk.types import Prompt

_STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
_TEXT = """Find a way through this maze from S to E. '*' is a wall, '.' is free; each move goes \
one cell up (U), down (D), left (L) or right (R), and must neither enter a wall nor leave the grid.

{grid}

Think first if you like, then give the moves alone between <answer> and </answer>, for example \
<answer>RRDDLD</answer>."""
LAYOUTS = ("carved", "open")

Grid = list[list[str]]


def carve(size: int, loops: float, rng: random.Random) -> Grid:
    """A maze in which every cell can be reached; each inner wall is opened with chance `loops`."""
    grid = [["*"] * size for _ in range(size)]
    start = (1 + 2 * below(rng, size // 2), 1 + 2 * below(rng, size // 2))
    grid[start[0]][start[1]] = "."
    stack = [start]
    while stack:
        row, column = stack[-1]
        ahead = [
            (dr, dc)
            for dr, dc in _STEPS.values()
            if 0 < row + 2 * dr < size and 0 < column + 2 * dc < size
            if grid[row + 2 * dr][column + 2 * dc] == "*"
        ]
        if not ahead:
            stack.pop()
            continue
        dr, dc = ahead[below(rng, len(ahead))]
        grid[row + dr][column + dc] = grid[row + 2 * dr][column + 2 * dc] = "."
        stack.append((row + 2 * dr, column + 2 * dc))
    for row in range(1, size - 1):
        for column in range(1, size - 1):
            if (row + column) % 2 and grid[row][column] == "*" and rng.random() < loops:
                grid[row][column] = "."
    return grid


def strew(size: int, density: float, rng: random.Random) -> Grid:
    """A field in which each place is a wall with chance `density`."""
    return [["*" if rng.random() < density else "." for _ in range(size)] for _ in range(size)]


def shortest(grid: Sequence[Sequence[str]], start: tuple[int, int]) -> dict[tuple[int, int], str]:
    """A shortest walk from `start` to every cell that can be reached, as moves."""
    walks, queue = {start: ""}, deque([start])
    while queue:
        row, column = queue.popleft()
        for move, (dr, dc) in _STEPS.items():
            cell = row + dr, column + dc
            inside = 0 <= cell[0] < len(grid) and 0 <= cell[1] < len(grid[0])
            if inside and cell not in walks and grid[cell[0]][cell[1]] != "*":
                walks[cell] = walks[row, column] + move
                queue.append(cell)
    return walks


def maze(
    *,
    sizes: Sequence[int] = (9, 11, 13, 15),
    test_sizes: Sequence[int] = (7, 9, 11, 13, 15, 17, 19, 21),
    ood_sizes: Sequence[int] = (17, 19, 21),
    layout: str = "carved",
    loops: float = 0.1,
    density: float = 0.3,
    style: str = "chat",
    reward: str = "exact",
    seed: int = 0,
    train_size: int = 10_000,
    validation_size: int = 400,
    test_size: int = 800,
    ood_size: int = 300,
) -> Task:
    """Walk from S to E.

    Args:
        sizes, test_sizes, ood_sizes: of the grids, for train and validation, test, and "ood"; a
            size occurs as often as it is listed.
        layout: "carved" (odd sizes of at least 5, wall all around) or "open" (any size from 2).
        loops: chance that an inner wall of a carved maze is opened.
        density: share of walls in an open one.
        style: "chat", "text", or "compact" (rows joined by "/", answered by the moves alone).
        reward: "exact" (the paper's) or "progress".
    """
    one_of("style", style, STYLES)
    one_of("layout", layout, LAYOUTS)
    for listed in (sizes, test_sizes, ood_sizes):
        _check(listed, layout, loops, density)

    def drawing(split: str) -> tuple[Draw, tuple[Any, ...]]:
        choices = {"test": test_sizes, "ood": ood_sizes}.get(split, sizes)

        def draw(rng: random.Random) -> tuple[str, Callable[[], Prompt | None]]:
            size = choices[below(rng, len(choices))]
            carved = layout == "carved"
            grid = carve(size, loops, rng) if carved else strew(size, density, rng)
            walls = "\n".join(map("".join, grid))
            return f"maze {walls}", lambda: _prompt(grid, _place(grid, rng), style)

        return draw, (choices, layout, loops, density)

    shown, far = ("/".join(map(str, listed)) for listed in (sizes, ood_sizes))
    return generated(
        "maze",
        drawing,
        (train_size, validation_size, test_size, ood_size),
        seed=seed,
        reward=reward,
        summary=f"{layout} mazes of size {shown}, out of distribution {far}",
    )


def _check(sizes: Sequence[int], layout: str, loops: float, density: float) -> None:
    if not sizes:
        raise ValueError("sizes, test_sizes and ood_sizes list at least one size each, got none")
    for size in sizes:
        if layout == "carved" and (size < 5 or size % 2 == 0):
            raise ValueError(f"a carved maze has an odd size of at least 5, got {size}")
        if size < 2:
            raise ValueError(f"a maze has a size of at least 2, got {size}")
    if not 0.0 <= loops <= 1.0 or not 0.0 <= density < 1.0:
        raise ValueError(f"loops and density are chances, got {loops} and {density}")


def _place(grid: Grid, rng: random.Random) -> str | None:
    """Put S and E at least half a size apart; the shortest walk between them, or None."""
    free = [(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell == "."]
    if not free:
        return None
    start = free[below(rng, len(free))]
    walks = shortest(grid, start)
    far = [cell for cell in free if len(walks.get(cell, "")) >= max(1, len(grid) // 2)]
    if not far:
        return None
    end = far[below(rng, len(far))]
    grid[start[0]][start[1]], grid[end[0]][end[1]] = "S", "E"
    return walks[end]


def _prompt(grid: Grid, walk: str | None, style: str) -> Prompt | None:
    if walk is None:
        return None
    rows = ["".join(row) for row in grid]
    return Prompt(
        id=identity("maze", "\n".join(rows)),
        text=wording(style, _TEXT.format(grid="\n".join(rows)), "/".join(rows) + ":"),
        task="maze",
        spec={"grid": rows, "answer": answer_kind(style)},
        reference=answer(style, walk),
    )
