"""Sudoku of size 4, 6 or 9, each with exactly one solution, proven by search.

Splits share no solution, not even with other names for the digits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from bestofk.tasks.definition import (
    Draw,
    Task,
    generated,
    identity,
    one_of,
    shuffle,
    sizes_of,
    wording,
)
from bestofk.types import Prompt

STYLES = ("chat", "text")
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}
BLANKS = {4: 8, 6: 18, 9: 40}
MOST_BLANKS = {4: 12, 6: 27, 9: 57}
"""What digging in random order reaches often enough: one grid in ten, at least."""
_TEXT = """Fill every '.' of this grid with a digit from 1 to {size} so that each row, each column \
and each box of {rows} rows by {columns} columns holds every digit once.

{grid}

Think first if you like, then give the full grid, one row a line, between <answer> and </answer>."""

Cells = list[int]  # row after row, 0 for a blank


def peers(size: int) -> list[list[int]]:
    """For each cell the others that share its row, column or box."""
    rows, columns = BOXES[size]

    def box(cell: int) -> tuple[int, int]:
        return cell // size // rows, cell % size // columns

    return [
        [
            other
            for other in range(size * size)
            if other != cell
            and (
                other // size == cell // size
                or other % size == cell % size
                or box(other) == box(cell)
            )
        ]
        for cell in range(size * size)
    ]


PEERS = {size: peers(size) for size in BOXES}


def complete(cells: Cells, size: int, rng: random.Random | None = None) -> Iterator[Cells]:
    """Every way to fill the blanks; the blank with the fewest choices first, in random order."""
    best: list[int] | None = None
    place = -1
    for cell, digit in enumerate(cells):
        if digit == 0:
            taken = {cells[other] for other in PEERS[size][cell]}
            choices = [d for d in range(1, size + 1) if d not in taken]
            if best is None or len(choices) < len(best):
                best, place = choices, cell
                if len(choices) < 2:
                    break
    if best is None:
        yield list(cells)
        return
    if rng is not None:
        shuffle(best, rng)
    for digit in best:
        cells[place] = digit
        yield from complete(cells, size, rng)
    cells[place] = 0


def is_unique(cells: Cells, size: int) -> bool:
    """Whether exactly one completion exists."""
    completions = complete(list(cells), size)
    return next(completions, None) is not None and next(completions, None) is None


def sudoku(
    *,
    size: int = 6,
    blanks: int | None = None,
    style: str = "chat",
    reward: str = "parts",
    seed: int = 0,
    train_size: int = 5000,
    validation_size: int = 200,
    test_size: int = 200,
    ood_size: int = 100,
) -> Task:
    """Fill a small sudoku.

    Args:
        size: 4, 6 or 9.
        blanks: how many cells are blank (8, 18, 40 by size); the split "ood" has a quarter more,
            up to 12, 27, 57.
        style: "chat" or "text".
        reward: "parts" (per blank, corrected for guessing) or "exact".
    """
    if size not in BOXES:
        raise ValueError(f"a sudoku has size 4, 6 or 9, got {size}")
    wanted = BLANKS[size] if blanks is None else blanks
    most = MOST_BLANKS[size]
    if not 1 <= wanted < most:
        raise ValueError(
            f"blanks of size {size} are 1 to {most - 1} (with more, puzzles with one solution are "
            f"too rare to be found, and the split ood has at least one more), got {wanted}"
        )
    one_of("style", style, STYLES)

    def drawing(split: str) -> tuple[Draw, tuple[Any, ...]]:
        count = min(wanted + max(1, wanted // 4), most) if split == "ood" else wanted

        def draw(rng: random.Random) -> tuple[str, Callable[[], Prompt | None]]:
            solved = next(complete([0] * (size * size), size, rng))
            key = f"sudoku {_rows(renamed(solved), size)}"
            return key, lambda: _prompt(solved, size, count, style, rng)

        return draw, (size, count)

    return generated(
        "sudoku",
        drawing,
        sizes_of(train_size, validation_size, test_size, ood_size),
        seed=seed,
        reward=reward,
        summary=f"{size} x {size} with {wanted} blanks, credit per blank",
        patience=2000,
    )


def renamed(cells: Cells) -> Cells:
    """The same grid with its digits named 1, 2, 3, ... in the order in which they first occur.

    >>> renamed([3, 1, 1, 2])
    [1, 2, 2, 3]
    """
    names: dict[int, int] = {}
    return [names.setdefault(cell, len(names) + 1) for cell in cells]


def _rows(cells: Cells, size: int) -> list[str]:
    signs = "".join(str(cell) if cell else "." for cell in cells)
    return [signs[i : i + size] for i in range(0, size * size, size)]


def _dig(solved: Cells, size: int, blanks: int, rng: random.Random) -> Cells | None:
    """Blank cells in random order while the solution stays unique; None if that is too few."""
    cells, order = list(solved), list(range(size * size))
    shuffle(order, rng)
    for cell in order:
        if cells.count(0) == blanks:
            break
        cells[cell] = 0
        if not is_unique(cells, size):
            cells[cell] = solved[cell]
    return cells if cells.count(0) == blanks else None


def _prompt(solved: Cells, size: int, blanks: int, style: str, rng: random.Random) -> Prompt | None:
    cells = _dig(solved, size, blanks, rng)
    if cells is None:
        return None
    puzzle, solution = _rows(cells, size), _rows(solved, size)
    rows, columns = BOXES[size]
    grid = "\n".join(puzzle)
    return Prompt(
        id=identity("sudoku", grid),
        text=wording(style, _TEXT.format(size=size, rows=rows, columns=columns, grid=grid), ""),
        task="sudoku",
        spec={"size": size, "puzzle": puzzle, "solution": solution},
        reference="<answer>\n" + "\n".join(solution) + "\n</answer>",
    )
