"""Construction problems: how each kind is drawn, what identifies a problem, and its exact optimum.

A problem is facts about items 0, 1, …, in the form its verifier takes. Solvers are exact; their
sizes are bounded so that a problem takes milliseconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from bestofk.tasks.definition import below, shuffle

Facts: TypeAlias = dict[str, Any]
Solution: TypeAlias = tuple[int, Sequence[int]]
"""The best value (for `cover` the lowest cost) and items that reach it."""


@dataclass(frozen=True)
class Kind:
    """One kind of construction problem."""

    sizes: tuple[int, int]
    """Smallest and largest usual number of items."""
    solvable: int
    """Items that the solver manages in milliseconds."""
    draw: Callable[[random.Random, int], Facts | None]
    """Facts about that many items, or None for a bad draw."""
    identity: Callable[[Facts, int], Any]
    """The same for problems that differ in the order of their items only."""
    solve: Callable[[Facts, int], Solution | None]
    """The optimum, or None where the problem is too easy or too hard to be one."""


def _graph(degree: float, rng: random.Random, size: int) -> Facts | None:
    chance = degree / (size - 1)
    edges = [[a, b] for a, b in combinations(range(size), 2) if rng.random() < chance]
    return {"edges": edges} if edges else None


def neighbours(edges: Sequence[Sequence[int]], size: int) -> list[int]:
    """The neighbours of each item as bits."""
    near = [0] * size
    for a, b in edges:
        near[a] |= 1 << b
        near[b] |= 1 << a
    return near


def bits(mask: int) -> list[int]:
    """
    >>> bits(0b1011)
    [0, 1, 3]
    """
    return [item for item in range(mask.bit_length()) if mask >> item & 1]


def refined(near: Sequence[Sequence[int]], colours: list[int]) -> list[Any]:
    """What graphs have in common that differ by the order of their nodes only: the multisets of
    colours after each of three rounds of colour refinement."""
    rounds = []
    for _ in range(3):
        signatures = [
            (colour, *sorted([colours[other] for other in nodes]))
            for colour, nodes in zip(colours, near)
        ]
        rounds.append(sorted(signatures))
        rank = {each: place for place, each in enumerate(rounds[-1])}
        colours = [rank[each] for each in signatures]
    return rounds


def _graph_identity(facts: Facts, size: int) -> Any:
    near = [bits(mask) for mask in neighbours(facts["edges"], size)]
    return refined(near, [0] * size)


def independent(facts: Facts, size: int) -> Solution:
    """Most items without an edge between two of them: branch on the item of highest degree."""
    near = neighbours(facts["edges"], size)

    def most(free: int) -> int:
        """A largest independent set within `free`, as bits."""
        degrees = {item: (near[item] & free).bit_count() for item in bits(free)}
        if not degrees or not (highest := max(degrees.values())):
            return free
        item = next(item for item, degree in degrees.items() if degree == highest)
        rest = free & ~(1 << item)
        if highest == 1:
            return most(rest)  # the other end of the edge is as good
        return max(most(rest), 1 << item | most(rest & ~near[item]), key=int.bit_count)

    best = bits(most((1 << size) - 1))
    return len(best), best


def cut(facts: Facts, size: int) -> Solution:
    """Most edges between a set and the rest: all sets with item 0."""
    sides = np.arange(1 << (size - 1), dtype=np.int32) * 2 + 1
    across = np.zeros(len(sides), dtype=np.int16)
    for a, b in facts["edges"]:
        across += (sides >> a ^ sides >> b).astype(np.int16) & 1
    best = int(across.argmax())
    return int(across[best]), bits(2 * best + 1)


def path(facts: Facts, size: int) -> Solution | None:
    """Most items on a walk along edges without a repetition; None where it misses four or more."""
    near = neighbours(facts["edges"], size)
    best: list[int] = []

    def extend(walk: list[int], unseen: int) -> None:
        nonlocal best
        if len(walk) > len(best):
            best = walk
        if len(best) < size:
            for item in bits(near[walk[-1]] & unseen):
                extend([*walk, item], unseen & ~(1 << item))

    for start in range(size):
        extend([start], ((1 << size) - 1) & ~(1 << start))
    return (len(best), best) if len(best) >= size - 3 else None


def _numbers(rng: random.Random, size: int) -> Facts:
    numbers = list(range(1, 121))
    shuffle(numbers, rng)
    return {"numbers": sorted(numbers[:size])}


def _numbers_identity(facts: Facts, size: int) -> Any:
    numbers = facts["numbers"]
    return min([x - numbers[0] for x in numbers], [numbers[-1] - x for x in reversed(numbers)])


def sidon(facts: Facts, size: int) -> Solution:
    """Most numbers with distinct differences."""
    numbers, highest = facts["numbers"], facts["numbers"][-1]
    best: list[int] = []

    def extend(chosen: list[int], mirror: int, used: int, candidates: list[int]) -> None:
        """`mirror` has the bits highest - x for chosen x: shifted right by highest - y, it is the
        differences y - x of a larger y."""
        nonlocal best
        if len(chosen) > len(best):
            best = chosen.copy()
        for place, y in enumerate(candidates):
            if len(chosen) + len(candidates) - place <= len(best):
                return
            shifted, differences = mirror | 1 << highest - y, used | mirror >> highest - y
            rest = [z for z in candidates[place + 1 :] if not shifted >> highest - z & differences]
            extend([*chosen, y], shifted, differences, rest)

    extend([], 0, 0, numbers)
    return len(best), [numbers.index(x) for x in best]


def _teams(rng: random.Random, size: int) -> Facts | None:
    jobs = 10 + below(rng, 5)
    teams = [[job for job in range(jobs) if rng.random() < 0.33] for _ in range(size)]
    complete = len({job for team in teams for job in team}) == jobs
    return {"jobs": jobs, "teams": teams} if complete and all(teams) else None


def _teams_identity(facts: Facts, size: int) -> Any:
    jobs = [[] for _ in range(facts["jobs"])]  # type: list[list[int]]
    for team, listed in enumerate(facts["teams"]):
        for job in listed:
            jobs[job].append(team)
    teams = [[size + job for job in listed] for listed in facts["teams"]]
    return refined(teams + jobs, [0] * size + [1] * len(jobs))


def cover(facts: Facts, size: int) -> Solution:
    """Fewest teams that do every job, by number of teams."""
    masks = [sum(1 << job for job in team) for team in facts["teams"]]
    every = (1 << facts["jobs"]) - 1

    def within(count: int, missing: int) -> list[int] | None:
        """Teams that do what is missing, at most so many; one must do the lowest missing job."""
        if not missing:
            return []
        for team, mask in enumerate(masks) if count else ():
            if mask & missing & -missing:
                teams = within(count - 1, missing & ~mask)
                if teams is not None:
                    return [team, *teams]
        return None

    chosen = next(teams for k in range(1, size + 1) if (teams := within(k, every)) is not None)
    return len(chosen), sorted(chosen)


def _goods(rng: random.Random, size: int) -> Facts:
    weights, values = ([5 + below(rng, 56) for _ in range(size)] for _ in range(2))
    share = 0.35 + 0.2 * rng.random()
    return {"weights": weights, "values": values, "limit": int(share * sum(weights))}


def _goods_identity(facts: Facts, size: int) -> Any:
    return sorted(zip(facts["weights"], facts["values"])), facts["limit"]


def knapsack(facts: Facts, size: int) -> Solution | None:
    """Most value within the limit: the best value of every load, item by item."""
    best = {0: (0, 0)}  # load: value, items as bits
    for item, (weight, value) in enumerate(zip(facts["weights"], facts["values"])):
        for load, (worth, items) in list(best.items()):
            heavier = load + weight
            if heavier <= facts["limit"] and worth + value > best.get(heavier, (-1,))[0]:
                best[heavier] = (worth + value, items | 1 << item)
    worth, items = max(best.values())
    return (worth, bits(items)) if worth else None


KINDS = {
    "independent": Kind((12, 16), 40, partial(_graph, 3.2), _graph_identity, independent),
    "sidon": Kind((14, 17), 18, _numbers, _numbers_identity, sidon),
    "cover": Kind((9, 12), 24, _teams, _teams_identity, cover),
    "path": Kind((9, 12), 14, partial(_graph, 3.0), _graph_identity, path),
    "knapsack": Kind((10, 14), 24, _goods, _goods_identity, knapsack),
    "cut": Kind((12, 16), 20, partial(_graph, 3.2), _graph_identity, cut),
}
