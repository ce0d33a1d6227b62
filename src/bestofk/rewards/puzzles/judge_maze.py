"""Maze: walk from S to E with U, D, L, R (the task of Pass@k Training, arXiv:2508.10751).

Paper form: 1 if the walk ends on E without leaving the grid or entering a wall, else 0.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from functools import partial as bind

from bestofk.messages import one_of
from bestofk.rewards.base import PairVerifier, right, wrong
from bestofk.rewards.text import answer_of, unset
from bestofk.types import Prompt, Verdict

MAX_MOVES = 10_000
REWARDS = ("exact", "progress")
_CLEANED = str.maketrans("udlr", "UDLR", " ,\t\r\n")
_MOVES = frozenset("UDLR")


def walk(grid: str, moves: str) -> tuple[int, int]:
    """Where a walk from S stops: (index of the last lawful cell, lawful moves made).

    `grid` is its rows, each followed by a newline, so that an index is row * (width + 1) + column
    and a newline is a wall like any other.

    >>> walk("S.\\n*E\\n", "RD"), walk("S.\\n*E\\n", "DR")
    ((4, 2), (0, 0))
    """
    width = grid.index("\n") + 1
    step = {"U": -width, "D": width, "L": -1, "R": 1}
    cell, end = grid.index("S"), len(grid)
    for steps, move in enumerate(moves):
        following = cell + step[move]
        if not 0 <= following < end or grid[following] in "*\n":
            return cell, steps
        cell = following
    return cell, len(moves)


@lru_cache(maxsize=4096)
def distances(grid: str) -> dict[int, int]:
    """Fewest moves from each reachable cell to E (groups share a grid, hence the cache)."""
    width, start = grid.index("\n") + 1, grid.index("E")
    distance, queue = {start: 0}, deque([start])
    while queue:
        cell = queue.popleft()
        for following in (cell - width, cell + width, cell - 1, cell + 1):
            if (
                0 <= following < len(grid)
                and grid[following] not in "*\n"
                and following not in distance
            ):
                distance[following] = distance[cell] + 1
                queue.append(following)
    return distance


def judge(prompt: Prompt, text: str, *, reward: str) -> Verdict:
    """1 for a lawful walk that ends on E.

    With reward="progress": a lawful walk to E earns 1/2 + 1/2 * (fewest moves / moves made), so 1
    for a shortest one; any other earns 1/2 * (1 - d(stop) / d(S)), at least 0, where d is the
    fewest moves to E and the walk stops before its first unlawful move.
    """
    answer = answer_of(prompt, text)
    if not answer:
        return wrong("no answer", "unparsed")
    if len(answer) > 4 * MAX_MOVES:
        return wrong(f"longer than {MAX_MOVES} moves", "unparsed")
    spoken = prompt.spec.get("answer", "tag") == "tag"
    moves = (unset(answer) if spoken else answer).translate(_CLEANED)
    if not moves or not _MOVES.issuperset(moves):
        return wrong("something else than the moves U, D, L, R", "unparsed")
    if len(moves) > MAX_MOVES:
        return wrong(f"longer than {MAX_MOVES} moves", "unparsed")
    grid = "\n".join(prompt.spec["grid"]) + "\n"
    cell, steps = walk(grid, moves)
    arrived = steps == len(moves) and grid[cell] == "E"
    if reward == "exact":
        if arrived:
            return right()
        return wrong("hits a wall or leaves the grid" if steps < len(moves) else "ends elsewhere")
    fewest = distances(grid)
    shortest = fewest.get(grid.index("S"))
    if shortest is None:
        raise ValueError("a maze has a way from S to E, this one has none; repair or remove it")
    if arrived:
        if steps == shortest:
            return right()
        return Verdict(
            0.5 + 0.5 * shortest / steps, "partial", detail=f"{steps} moves, not shortest"
        )
    progress = 0.5 * max(0.0, 1.0 - fewest[cell] / shortest)
    if progress == 0.0:
        return wrong("no progress")
    return Verdict(progress, "partial", detail=f"stops {fewest[cell]} moves before E")


def verifier(*, reward: str = "exact") -> PairVerifier:
    """Judge maze answers: reward "exact" (0 or 1, the paper's) or "progress" (real-valued)."""
    one_of("reward of maze", reward, REWARDS)
    return PairVerifier(bind(judge, reward=reward), name="maze", needed=("grid",))
